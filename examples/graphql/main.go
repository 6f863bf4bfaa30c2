// Graphql sends queries of very different costs to an API that charges points for them, like those of shops and code
// hosts. First it sends them as any client would, then with throttle, which estimates the cost of a query from the
// number of objects that it requests, and corrects the estimate by the cost in the response. A table shows each query.
//
//	go run ./examples/graphql
//	go run ./examples/graphql -queries 60 -workers 8
//
// The API is local and speaks Shopify's dialect, with points that return five times as fast.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/httpthrottle/throttle/examples/internal/example"
	"github.com/httpthrottle/throttle/throttletest"
	"golang.org/x/sync/errgroup"
)

// shows is what -h prints first.
const shows = `Graphql sends queries of very different costs to an API that charges points for
them, like those of shops and code hosts. First it sends them as any client
would, then with throttle, which estimates the cost of a query from the number
of objects that it requests, and corrects the estimate by the cost in the
response. A table shows each query.`

func main() { example.Main(run) }

func run(ctx context.Context, args []string, out io.Writer) error {
	c, err := parseArgs(args, out)
	if err != nil {
		return example.Usage(err)
	}
	return compare(ctx, c, out)
}

// compare does the same work twice.
func compare(ctx context.Context, c config, out io.Writer) error {
	fmt.Fprintf(out, "The API holds %d points, and %d come back each second.\n%d queries, %d at a time, are sent twice: first without throttle,\nthen with it, which waits.\n\n",
		maximumAvailable, restoreRate, c.queries, c.workers)
	plain := func(base http.RoundTripper) (http.RoundTripper, error) { return base, nil }
	before, err := do(ctx, plain, c)
	if err != nil {
		return err
	}
	after, err := do(ctx, func(base http.RoundTripper) (http.RoundTripper, error) { return throttled(base, c.margin) }, c)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%8s%13s%10s%7s  %s\n", "answered", "longest wait", "estimated", "actual", "query, with throttle")
	for i := range after.longest {
		after.longest[i].print(out)
	}
	fmt.Fprintf(out, "\n%-18s%9s%11s%12s%11s%9s\n", "", "answered", "throttled", "too costly", "not sent", "time")
	before.print(out, "without throttle")
	after.print(out, "with throttle")
	fmt.Fprintln(out)
	example.Verdict(out, after.throttled == 0, "Estimates were %d points, costs %d: uncorrected, it takes at least %.1fs.",
		after.estimated, after.actual, float64(max(0, after.estimated-held(c.margin)))/restoreRate)
	return nil
}

func (l *longest) print(out io.Writer) {
	switch {
	case l.query == "":
	case l.refused != nil:
		fmt.Fprintf(out, "%8d%13s%10d%7s  %v\n", l.answered, "never sent", l.estimated, "-", parse(l.query))
	default:
		fmt.Fprintf(out, "%8d%12.2fs%10d%7d  %v\n", l.answered, l.waited.Seconds(), l.estimated, l.actual, parse(l.query))
	}
}

// A result is what became of the work.
type result struct {
	answered, throttled, costly, unsent int
	estimated, actual                   int64 // of what was answered
	took                                time.Duration
	longest                             [len(queries)]longest
}

// A longest is the answer to a query that waited the longest, and how many were answered.
type longest struct {
	answer
	answered int
}

// do sends all queries to an API of its own.
func do(ctx context.Context, wrap func(http.RoundTripper) (http.RoundTripper, error), c config) (result, error) {
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
			return r.add(a, i%len(queries))
		})
	}
	return r, g.Wait()
}

func (r *result) add(a answer, nth int) error {
	l := &r.longest[nth]
	if l.query == "" || a.waited > l.waited {
		l.answer = a
	}
	switch {
	case a.refused != nil:
		r.unsent++
	case a.code == "":
		r.answered++
		l.answered++
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
	flags := example.NewFlags(shows)
	flags.IntVar(&c.queries, "queries", 24, "send this many queries, twice")
	flags.IntVar(&c.workers, "workers", 4, "the number of workers")
	flags.DurationVar(&c.margin, "margin", 100*time.Millisecond, "the network delays no request for longer than this")
	if err := flags.Parse(args, out); err != nil {
		return c, err
	}
	switch {
	case min(c.queries, c.workers) < 1:
		return c, fmt.Errorf("-queries %d -workers %d: each must be at least 1", c.queries, c.workers)
	case c.margin < 0 || held(c.margin) < 1:
		return c, fmt.Errorf("-margin %v: must be from 0 to less than 2s", c.margin)
	}
	return c, nil
}
