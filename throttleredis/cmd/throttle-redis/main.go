// Throttle-redis lists the shared budgets that are kept in Redis, and resets one of them.
//
//	throttle-redis [-url redis://localhost:6379] [-prefix throttle] [-cluster] list [text]
//	throttle-redis … show name
//	throttle-redis … reset name
//
// List prints a line for each budget whose name contains the text. Show also prints the processes that have slots, by host, pid and a
// random number. Reset deletes the state of a budget, which then starts again as a new one.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle/throttleredis"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	switch err := run(ctx, os.Args[1:], os.Stdout); {
	case errors.Is(err, errUsage):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "throttle-redis:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("bad usage")

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("throttle-redis", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "throttle-redis lists the shared budgets that are kept in Redis, and resets one of them.\n\nusage: throttle-redis [flags] list [text] | show name | reset name")
		flags.PrintDefaults()
	}
	url := flags.String("url", "redis://localhost:6379", "the URL of Redis, with user, password and database; rediss: for TLS")
	prefix := flags.String("prefix", "throttle", "the prefix of the store")
	cluster := flags.Bool("cluster", false, "the server belongs to a Cluster")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return errUsage
	}
	what, name := flags.Arg(0), flags.Arg(1)
	if flags.NArg() > 2 || what != "list" && (what != "show" && what != "reset" || name == "") {
		flags.Usage()
		return errUsage
	}
	client, err := newClient(*url, *cluster)
	if err != nil {
		return err
	}
	defer client.Close()
	store, err := throttleredis.New(client, throttleredis.Prefix(*prefix))
	if err != nil {
		return err
	}
	if what == "reset" {
		if err := store.Reset(ctx, name); err != nil {
			return err
		}
		fmt.Fprintln(out, "reset", name)
		return nil
	}
	budgets, err := store.Budgets(ctx, name)
	if err != nil {
		return err
	}
	return write(out, budgets, what == "show")
}

func newClient(url string, cluster bool) (redis.UniversalClient, error) {
	if cluster {
		o, err := redis.ParseClusterURL(url)
		if err != nil {
			return nil, err
		}
		return redis.NewClusterClient(o), nil
	}
	o, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	return redis.NewClient(o), nil
}

func write(out io.Writer, budgets []throttleredis.BudgetState, holders bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tKIND\tPER SECOND\tMOST\tLEFT\tHELD\tPROCESSES\tEXPIRES")
	for _, b := range budgets {
		if b.Err != nil {
			fmt.Fprintf(w, "%q\t%s\tunreadable: %v\n", b.Name, b.Kind, b.Err)
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%.4g\t%.0f\t%.1f\t%v\t%d\t%v\n", printable(b.Name), b.Kind, b.PerSecond, b.Most, b.Left, b.Held.Round(time.Millisecond), b.Processes, b.Expires.Round(time.Second))
		for _, h := range b.Holders {
			if holders {
				fmt.Fprintf(w, "  %s\t\t\t%s\twaits for %d\t\t\t%v\n", printable(h.Name), slots(h.Slots), h.Wants, h.Expires.Round(time.Second))
			}
		}
	}
	return w.Flush()
}

func slots(n int64) string {
	if n == 1 {
		return "1 slot"
	}
	return fmt.Sprintf("%d slots", n)
}

// printable returns a name without characters that a terminal would obey.
func printable(name string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, name)
}
