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
	"syscall"
	"time"
)

// Main runs a program until it is done, interrupted or terminated; the second signal kills it. It exits with status 2 if the arguments
// are wrong, and with status 1 if the program fails.
func Main(run func(ctx context.Context, args []string, out io.Writer) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if status := Status(err); status != 0 {
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
		os.Exit(status)
	}
}

// Status returns the exit status of a program that ends with err.
func Status(err error) int {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if errors.As(err, new(usageError)) {
		return 2
	}
	return 1
}

type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Usage marks an error as one of the arguments.
func Usage(err error) error { return usageError{err} }

// WithoutFlags returns a program that takes no arguments except -h. The options of run are for its tests.
func WithoutFlags[O any](shows string, run func(context.Context, io.Writer, ...O) error) func(context.Context, []string, io.Writer) error {
	return func(ctx context.Context, args []string, out io.Writer) error {
		if err := NewFlags(shows).Parse(args, out); err != nil {
			return Usage(err)
		}
		return run(ctx, out)
	}
}

// Flags are the flags of a program, which its help shows in the order of their definition.
type Flags struct {
	*flag.FlagSet
	shows string
	order []string
}

// NewFlags returns no flags yet. The help begins with what the program shows.
func NewFlags(shows string) *Flags {
	return &Flags{FlagSet: flag.NewFlagSet("", flag.ContinueOnError), shows: shows}
}

// Parse parses arguments. It returns errors, also for what is left after the flags, and prints the help only if it is asked for.
func (f *Flags) Parse(args []string, out io.Writer) error {
	f.SetOutput(io.Discard)
	err := f.FlagSet.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		f.help(out)
	case err == nil && f.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return err
}

// help prints what the program shows, and the flags.
func (f *Flags) help(out io.Writer) {
	fmt.Fprintln(out, f.shows)
	if len(f.order) > 0 {
		fmt.Fprintln(out)
	}
	for _, name := range f.order { // PrintDefaults would sort them
		one := flag.NewFlagSet("", flag.ContinueOnError)
		one.SetOutput(out)
		def := f.Lookup(name)
		one.Var(def.Value, def.Name, def.Usage)
		one.Lookup(name).DefValue = def.DefValue
		one.PrintDefaults()
	}
}

func (f *Flags) defines(name string) *flag.FlagSet {
	f.order = append(f.order, name)
	return f.FlagSet
}

// StringVar, and the methods below, define a flag as those of [flag.FlagSet] do.
func (f *Flags) StringVar(p *string, name, value, usage string) {
	f.defines(name).StringVar(p, name, value, usage)
}

func (f *Flags) BoolVar(p *bool, name string, value bool, usage string) {
	f.defines(name).BoolVar(p, name, value, usage)
}

func (f *Flags) IntVar(p *int, name string, value int, usage string) {
	f.defines(name).IntVar(p, name, value, usage)
}

func (f *Flags) Int64Var(p *int64, name string, value int64, usage string) {
	f.defines(name).Int64Var(p, name, value, usage)
}

func (f *Flags) Uint64Var(p *uint64, name string, value uint64, usage string) {
	f.defines(name).Uint64Var(p, name, value, usage)
}

func (f *Flags) Float64Var(p *float64, name string, value float64, usage string) {
	f.defines(name).Float64Var(p, name, value, usage)
}

func (f *Flags) DurationVar(p *time.Duration, name string, value time.Duration, usage string) {
	f.defines(name).DurationVar(p, name, value, usage)
}

func (f *Flags) Func(name, usage string, set func(string) error) {
	f.defines(name).Func(name, usage, set)
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
