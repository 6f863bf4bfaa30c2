// Llm sends a batch of prompts to an API that limits requests and tokens per minute, like those of language models.
// First it sends them as any client would, then with throttle, which charges an estimate for each prompt and corrects
// it by the usage in the response. Tables show how long some prompts waited, what they cost, and how much of the limits
// was used.
//
//	go run ./examples/llm
//	go run ./examples/llm -prompts 60 -workers 20
//
// The API is local, speaks OpenAI's JSON, streams half of its answers, and has minutes of 2 s.
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/examples/internal/example"
	"github.com/httpthrottle/throttle/throttletest"
	"golang.org/x/sync/errgroup"
)

// shows is what -h prints first.
const shows = `Llm sends a batch of prompts to an API that limits requests and tokens per
minute, like those of language models. First it sends them as any client would,
then with throttle, which charges an estimate for each prompt and corrects it by
the usage in the response. Tables show how long some prompts waited, what they
cost, and how much of the limits was used.`

func main() { example.Main(run) }

func run(ctx context.Context, args []string, out io.Writer) error {
	c, err := parse(args, out)
	if err != nil {
		return example.Usage(err)
	}
	return compare(ctx, c, out)
}

// compare does the same work twice.
func compare(ctx context.Context, c config, out io.Writer) error {
	fmt.Fprintf(out, "%d requests and %d tokens per minute, a quarter at once. A minute takes %v.\n",
		requestsPerMinute, tokensPerMinute, minute)
	fmt.Fprintf(out, "%d prompts, %d at a time. Some of them, with throttle:\n\n", c.prompts, c.workers)

	plain := func(base http.RoundTripper) (http.RoundTripper, error) { return base, nil }
	before, err := do(ctx, plain, c, func(int, prompt, time.Duration, answer) {})
	if err != nil {
		return err
	}
	var first charged
	wrap := func(base http.RoundTripper) (http.RoundTripper, error) {
		return throttled(base, c.margin, throttle.Hooks{OnSettle: first.add})
	}
	fmt.Fprintf(out, "%7s  %-14s%8s%12s%8s\n", "time", "prompt", "waited", "charged", "cost")
	after, err := do(ctx, wrap, c, func(i int, p prompt, at time.Duration, a answer) {
		if i%(1+c.prompts/10) == 0 || p.kind == book.name {
			fmt.Fprintf(out, "%6.2fs  %-14s%7.2fs%12d%8d\n", at.Seconds(), fmt.Sprint(p.kind, " ", i+1), a.waited.Seconds(),
				a.charged, a.cost)
		}
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%-18s%7s%7s%9s%9s   %s\n", "", "2xx", "429", "time", "tokens", "used of requests, tokens")
	before.print(out, "without throttle")
	after.print(out, "with throttle")
	tokens := first.tokens.Load()
	fmt.Fprintln(out, "\nThe estimate of the book was more than the limit can hold, and was cut to that.")
	example.Verdict(out, after.refused == 0, "The estimates came to %d tokens: uncorrected, they would take at least %.1fs.", tokens,
		float64(max(0, tokens-tokensPerMinute/parts))*minute.Seconds()/tokensPerMinute)
	return nil
}

// What was charged before the cost was known.
type charged struct{ tokens atomic.Int64 }

func (c *charged) add(e throttle.SettleEvent) { c.tokens.Add(e.Charged) }

// A result is what became of the work.
type result struct {
	answered, refused int
	took              time.Duration
	requests, tokens  use
}

// do sends all prompts to an API of its own, and has each answer seen, one after the other.
func do(ctx context.Context, wrap func(http.RoundTripper) (http.RoundTripper, error), c config,
	see func(i int, p prompt, at time.Duration, a answer)) (result, error) {
	m := newModel()
	api, err := throttletest.New(append(c.api, throttletest.WithHandler(m))...)
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
	for i, p := range prompts(c.prompts, c.seed) {
		g.Go(func() error {
			a, err := ask(ctx, client, api.URL, p)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			r.took = time.Since(start)
			see(i, p, r.took, a)
			return r.add(a.status)
		})
	}
	if err := g.Wait(); err != nil {
		return result{}, err
	}
	r.requests, r.tokens = m.used()
	return r, nil
}

func (r *result) add(status int) error {
	switch status {
	case http.StatusOK:
		r.answered++
	case http.StatusTooManyRequests:
		r.refused++
	default:
		return fmt.Errorf("%d %s", status, http.StatusText(status))
	}
	return nil
}

func (r *result) print(out io.Writer, name string) {
	fmt.Fprintf(out, "%-18s%7d%7d%8.2fs%9d%15.1f%%%9.1f%%\n", name, r.answered, r.refused, r.took.Seconds(),
		r.tokens.charged, r.requests.percent(), r.tokens.percent())
}

type config struct {
	prompts, workers int
	margin           time.Duration
	seed             uint64
	api              []throttletest.Option // for tests
}

func parse(args []string, out io.Writer) (config, error) {
	var c config
	flags := example.NewFlags(shows)
	flags.IntVar(&c.prompts, "prompts", 170, "send this many prompts, twice")
	flags.IntVar(&c.workers, "workers", 8, "the number of workers")
	flags.DurationVar(&c.margin, "margin", 100*time.Millisecond, "the network delays no request for longer than this")
	flags.Uint64Var(&c.seed, "seed", 1, "seed of the prompts")
	if err := flags.Parse(args, out); err != nil {
		return c, err
	}
	switch {
	case min(c.prompts, c.workers) < 1:
		return c, fmt.Errorf("-prompts %d -workers %d: each must be at least 1", c.prompts, c.workers)
	case c.margin < 0 || c.margin >= minute/parts:
		return c, fmt.Errorf("-margin %v: must be from 0 to less than %v", c.margin, minute/parts)
	}
	return c, nil
}
