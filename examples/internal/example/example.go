// Package example is what the example programs have in common.
package example

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
)

// Main runs a program until it is done or interrupted, and exits with status 1 if it fails.
func Main(run func(ctx context.Context, args []string, out io.Writer) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
		os.Exit(1)
	}
}

// Parse parses flags. It returns errors, also for what is left after the flags, and prints the usage only if it is asked for.
func Parse(flags *flag.FlagSet, args []string, out io.Writer) error {
	flags.SetOutput(io.Discard)
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(out)
		flags.PrintDefaults()
	case err == nil && flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return err
}

// Verdict prints the last line of a program: in green if it is good and in red if it is not, on a terminal, unless the
// environment has NO_COLOR.
func Verdict(out io.Writer, good bool, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if hasColor(out) {
		color := 31
		if good {
			color = 32
		}
		text = fmt.Sprintf("\x1b[1;%dm%s\x1b[0m", color, text)
	}
	fmt.Fprintln(out, text)
}

// IsTerminal reports whether out is a terminal.
func IsTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func hasColor(out io.Writer) bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && IsTerminal(out)
}
