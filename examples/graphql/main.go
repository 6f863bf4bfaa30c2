// Graphql sends queries of very different costs to an API that gives points for them, as those of shops and code hosts
// do: first as any client would, then with throttle, which estimates what a query costs by how much it asks for, and
// corrects that by what the answer says. A table shows each query.
//
//	go run ./examples/graphql
//	go run ./examples/graphql -queries 60 -workers 8
//
// The API is local and speaks Shopify's dialect, with points that come back five times as fast.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/httpthrottle/throttle/examples/internal/example"
	"github.com/httpthrottle/throttle/throttletest"
	"golang.org/x/sync/errgroup"
)

func main() { example.Main(run) }

func run(ctx context.Context, args []string, out io.Writer) error {
	c, err := parseArgs(args, out)
	if err != nil {
		return err
	}
	return compare(ctx, c, out)
}

// compare does the same work twice.
func compare(ctx context.Context, c config, out io.Writer) error {
	fmt.Fprintf(out, "The API holds %d points, and %d come back each second. %d queries, %d at a time.\n\nWith throttle:\n\n",
		maximumAvailable, restoreRate, c.queries, c.workers)
	plain := func(base http.RoundTripper) (http.RoundTripper, error) { return base, nil }
	before, err := do(ctx, plain, c, func(answer) {})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%7s%8s%11s%8s%6s  %s\n", "time", "waited", "estimated", "actual", "left", "query")
	after, err := do(ctx, func(base http.RoundTripper) (http.RoundTripper, error) { return throttled(base, c.margin) }, c,
		func(a answer) { a.print(out) })
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%-18s%9s%11s%12s%11s%9s\n", "", "answered", "throttled", "too costly", "not sent", "time")
	before.print(out, "without throttle")
	after.print(out, "with throttle")
	fmt.Fprintln(out)
	example.Verdict(out, after.throttled == 0, "The estimates came to %d points, the costs to %d: uncorrected, at least %.1fs.",
		after.estimated, after.actual, float64(max(0, after.estimated-held(c.margin)))/restoreRate)
	return nil
}

func (a *answer) print(out io.Writer) {
	fmt.Fprintf(out, "%6.2fs", a.at.Seconds())
	if a.refused != nil {
		fmt.Fprintf(out, "%8s%11d%8s%6s", "never", a.estimated, "-", "-")
	} else {
		fmt.Fprintf(out, "%7.2fs%11d%8d%6d", a.waited.Seconds(), a.estimated, a.actual, a.left)
	}
	fmt.Fprintf(out, "  %v\n", parse(a.query))
}

// A result is what became of the work.
type result struct {
	answered, throttled, costly, unsent int
	estimated, actual                   int64 // of what was answered
	took                                time.Duration
}

// do sends all queries to an API of its own, and has each answer seen, one after the other.
func do(ctx context.Context, wrap func(http.RoundTripper) (http.RoundTripper, error), c config, see func(answer)) (result, error) {
	api, err := throttletest.New(append(c.api, throttletest.WithHandler(newShop()))...)
	if err != nil {
		return result{}, err
	}
	defer api.Close()
	transport, err := wrap(api.Transport())
	if err != nil {
		return result{}, err
	}
	client := &http.Client{Transport: transport}
	var (
		mu sync.Mutex
		r  result
	)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(c.workers)
	start := time.Now()
	for i := range c.queries {
		g.Go(func() error {
			a, err := ask(ctx, client, api.URL, queries[i%len(queries)])
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			r.took = time.Since(start)
			a.at = r.took
			see(a)
			return r.add(a)
		})
	}
	return r, g.Wait()
}

func (r *result) add(a answer) error {
	switch {
	case a.refused != nil:
		r.unsent++
	case a.code == "":
		r.answered++
		r.estimated += a.estimated
		r.actual += a.actual
	case a.code == "THROTTLED":
		r.throttled++
	case a.code == "MAX_COST_EXCEEDED":
		r.costly++
	default:
		return errors.New(a.code)
	}
	return nil
}

func (r *result) print(out io.Writer, name string) {
	fmt.Fprintf(out, "%-18s%9d%11d%12d%11d%8.2fs\n", name, r.answered, r.throttled, r.costly, r.unsent, r.took.Seconds())
}

type config struct {
	queries, workers int
	margin           time.Duration
	api              []throttletest.Option // for tests
}

func parseArgs(args []string, out io.Writer) (config, error) {
	var c config
	flags := flag.NewFlagSet("graphql", flag.ContinueOnError)
	flags.IntVar(&c.queries, "queries", 24, "send this many queries, twice")
	flags.IntVar(&c.workers, "workers", 4, "send so many at a time")
	flags.DurationVar(&c.margin, "margin", 100*time.Millisecond, "no request is held up on the way for longer than this")
	flags.SetOutput(io.Discard) // errors are returned; usage is printed only on request
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			flags.SetOutput(out)
			flags.PrintDefaults()
		}
		return c, err
	}
	switch {
	case flags.NArg() > 0:
		return c, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case min(c.queries, c.workers) < 1:
		return c, fmt.Errorf("-queries %d -workers %d: each must be at least 1", c.queries, c.workers)
	case c.margin < 0 || held(c.margin) < 1:
		return c, fmt.Errorf("-margin %v: must be from 0 to less than 2s", c.margin)
	}
	return c, nil
}
