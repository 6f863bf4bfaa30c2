// Batch fetches many items from an API that has a limit, with a few workers and before a deadline. A request that
// cannot be sent in time is rejected immediately, so no worker waits for it.
//
//	go run ./examples/batch
//	go run ./examples/batch -deadline 1s
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/examples/internal/example"
	"github.com/httpthrottle/throttle/throttletest"
	"golang.org/x/sync/errgroup"
)

// shows is what -h prints first.
const shows = `Batch fetches many items from an API that has a limit, with a few workers and
before a deadline. A request that cannot be sent in time is rejected
immediately, so no worker waits for it.`

func main() { example.Main(run) }

func run(ctx context.Context, args []string, out io.Writer) error {
	c, err := parse(args, out)
	if err != nil {
		return example.Usage(err)
	}
	api, err := startAPI()
	if err != nil {
		return err
	}
	defer api.Close()

	client, err := newClient(http.DefaultTransport)
	if err != nil {
		return err
	}

	fmt.Fprintf(out, "%d items, %d workers, 20 requests per second, %v to go.\n", c.n, c.workers, c.deadline)
	ctx, cancel := context.WithTimeout(ctx, c.deadline)
	defer cancel()
	s, err := fetchAll(ctx, client, api.URL, c, &display{out: out, bar: example.IsTerminal(out), progress: progress{total: c.n, limiter: limiterOf(client)}})
	s.report(out, c.n)
	seen := api.Counts()
	example.Verdict(out, seen.Refused == 0, "The API saw %d requests and refused %d.", seen.Received, seen.Refused)
	return err
}

// newClient returns a client that keeps the limit. The API's bucket refills with 20 tokens per second and holds 20. Ours
// has the same rate and holds 10: so requests that are delayed on the way, and arrive together, find up to 10 tokens
// more there than we count on.
func newClient(base http.RoundTripper) (*http.Client, error) {
	transport, err := throttle.New(base, throttle.WithLimit(
		throttle.TokenBucket(20, time.Second, throttle.Burst(10)),
	))
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: transport}, nil
}

func limiterOf(client *http.Client) *throttle.Limiter {
	return client.Transport.(*throttle.Transport).Limiter()
}

// A summary counts what became of the items.
type summary struct {
	fetched int
	cutOff  int           // under way when the deadline came
	refused int           // rejected, because they could not be sent in time
	first   error         // the first rejection
	after   time.Duration // when that was
	took    time.Duration
}

// fetchAll fetches the items. A rejection for the deadline is counted and not returned, because errgroup would cancel the other
// requests, although those ahead in the queue will be in time. Any other error ends the work.
func fetchAll(ctx context.Context, client *http.Client, url string, c config, d *display) (summary, error) {
	var (
		mu    sync.Mutex
		s     summary
		start = time.Now()
	)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(c.workers)
	for item := range c.n {
		g.Go(func() error {
			err := fetch(ctx, client, fmt.Sprintf("%s/items/%d", url, item+1))

			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				s.fetched++
				d.add()
				d.show(s.fetched)
			case errors.Is(err, throttle.ErrThrottled) && errors.Is(err, context.DeadlineExceeded):
				if s.refused++; s.first == nil {
					s.first, s.after = err, time.Since(start)
				}
			case errors.Is(err, context.DeadlineExceeded):
				s.cutOff++
			default:
				return err
			}
			return nil
		})
	}
	err := g.Wait()
	s.took = time.Since(start)
	if err == nil && s.fetched < c.n {
		err = fmt.Errorf("%d of %d items not fetched: %w", c.n-s.fetched, c.n, s.reason())
	}
	return s, err
}

// reason returns why items are missing where nothing but the deadline was in the way.
func (s *summary) reason() error {
	if s.first != nil {
		return s.first
	}
	return context.DeadlineExceeded
}

func (s *summary) report(out io.Writer, of int) {
	fmt.Fprintf(out, "\n%-28s%5d of %d\n", "fetched", s.fetched, of)
	fmt.Fprintf(out, "%-28s%5d\n", "cut off by the deadline", s.cutOff)
	fmt.Fprintf(out, "%-28s%5d\n", "rejected, never sent", s.refused)
	var r *throttle.Rejection
	if errors.As(s.first, &r) {
		fmt.Fprintf(out, "  the first after %.2fs: its turn would have come in %.1f ms, its deadline in %.1f ms\n",
			s.after.Seconds(), 1000*r.Wait.Seconds(), 1000*r.MaxWait.Seconds())
	}
	fmt.Fprintf(out, "%-28s%8.2fs\n\n", "took", s.took.Seconds())
}

func fetch(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return fmt.Errorf("%s: %w", url, err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	return nil
}

// A display shows how far the work is: by a bar that is drawn over itself, or by a line for every fifth of it. show is not safe
// for concurrent use.
type display struct {
	progress
	out  io.Writer
	last int
	bar  bool
}

func (p *display) show(done int) {
	const width = 40
	full := done * width / p.total
	switch fifth := done * 5 / p.total; {
	case p.bar:
		fmt.Fprintf(p.out, "\r[%s%s] %-40v", strings.Repeat("█", full), strings.Repeat("·", width-full), &p.progress)
	case fifth > p.last:
		p.last = fifth
		fmt.Fprintf(p.out, "  %v\n", &p.progress)
	}
}

func startAPI() (*throttletest.Server, error) {
	return throttletest.New(
		throttletest.WithLimits(throttletest.TokenBucket(20, time.Second)),
		throttletest.WithRoundTrip(40*time.Millisecond, 10*time.Millisecond),
	)
}

type config struct {
	n, workers int
	deadline   time.Duration
}

func parse(args []string, out io.Writer) (config, error) {
	var c config
	flags := example.NewFlags(shows)
	flags.IntVar(&c.n, "n", 50, "the number of items")
	flags.IntVar(&c.workers, "workers", 8, "the number of workers")
	flags.DurationVar(&c.deadline, "deadline", 10*time.Second, "the time for the whole batch")
	if err := flags.Parse(args, out); err != nil {
		return c, err
	}
	switch {
	case min(c.n, c.workers) < 1:
		return c, fmt.Errorf("-n %d -workers %d: each must be at least 1", c.n, c.workers)
	case c.deadline <= 0:
		return c, fmt.Errorf("-deadline %v: must be positive", c.deadline)
	}
	return c, nil
}
