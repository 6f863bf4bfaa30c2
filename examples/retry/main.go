// Retry does the same work three times against an API that has a limit and fails now and then: with go-retryablehttp
// alone, with package retry around a Transport, and then also with an Idempotency-Key for each order. A table shows the
// effort, and what became of the orders.
//
//	go run ./examples/retry
//	go run ./examples/retry -n 100 -workers 30
//
// The API runs on a loopback socket. It allows 20 requests per second and reports in a 429 when to try again, is down for a
// while, drops every 15th request, and breaks the connection after it has processed some of the orders.
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/examples/internal/example"
	"github.com/httpthrottle/throttle/retry"
	"github.com/httpthrottle/throttle/throttletest"
	"golang.org/x/sync/errgroup"
)

// shows is what -h prints first.
const shows = `Retry does the same work three times against an API that has a limit and fails
now and then: with go-retryablehttp alone, with package retry around a
Transport, and then also with an Idempotency-Key for each order. A table shows
the effort, and what became of the orders.`

func main() { example.Main(run) }

func run(ctx context.Context, args []string, out io.Writer) error {
	c, err := parse(args, out)
	if err != nil {
		return example.Usage(err)
	}
	return compare(ctx, c, out)
}

// compare does the work in each way, and prints the table.
func compare(ctx context.Context, c config, out io.Writer) error {
	fmt.Fprintf(out, "%d requests, %d at a time, each sixth of them an order (POST), to an API that\n"+
		"allows %d per second, is down from 0.6s to 1.4s, and breaks connections:\n\n", c.n, c.workers, allowed)
	fmt.Fprintf(out, "%-15s%9s%9s%9s%9s%9s%9s%9s\n", "", "attempts", "refused", "broken", "done", "given up", "doubled", "time")
	ways := []way{
		{"retryablehttp", plainClient, false},
		{"with throttle", throttledClient, false},
		{"  and with keys", throttledClient, true},
	}
	results := make([]result, len(ways))
	var g errgroup.Group
	for i, way := range ways { // at the same time, because each has an API of its own
		g.Go(func() (err error) {
			results[i], err = work(ctx, way, c)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, r := range results {
		r.print(out, ways[i].name)
	}
	fmt.Fprint(out, "\nWithout keys, the requests that throttle gave up are orders: they may have been\n"+
		"processed, and sending them again would double some, as in the first line.\n")
	keyed := results[len(results)-1]
	example.Verdict(out, keyed.done == c.n && keyed.doubled == 0, "With keys, %d of %d were done, and %d doubled.", keyed.done, c.n, keyed.doubled)
	return nil
}

// A way is how the work is done.
type way struct {
	name   string
	client func(base http.RoundTripper) (*retryablehttp.Client, error)
	keys   bool // orders carry a key, by which the API recognizes a repetition
}

// plainClient is go-retryablehttp as it is. It retries a POST even if it was processed, and all its requests return at the
// same instant when the API has asked them to wait for a second.
func plainClient(base http.RoundTripper) (*retryablehttp.Client, error) {
	client := retryablehttp.NewClient()
	client.HTTPClient.Transport = base
	client.Logger = nil
	client.RetryWaitMin = 100 * time.Millisecond // the API is near, and the show short
	return client, nil
}

// throttledClient keeps the API's limit, for each attempt, and retries only what may be sent twice.
func throttledClient(base http.RoundTripper) (*retryablehttp.Client, error) {
	transport, err := throttle.New(base, throttle.WithLimit(throttle.Quota(allowed, time.Second)))
	if err != nil {
		return nil, err
	}
	client := retry.NewClient(transport).Client
	client.RetryWaitMin = 100 * time.Millisecond
	return client, nil
}

// allowed is how many requests the API allows in any second.
const allowed = 20

// An api is the server, and what was ordered there.
type api struct {
	*throttletest.Server
	mu     sync.Mutex
	orders map[string]int // how often each was processed
	tries  map[string]int // how often each got so far
}

func startAPI(opts []throttletest.Option) (*api, error) {
	a := &api{orders: map[string]int{}, tries: map[string]int{}}
	var err error
	a.Server, err = throttletest.New(append(opts,
		throttletest.WithLimits(throttletest.SlidingWindow(allowed, time.Second)),
		throttletest.WithRoundTrip(20*time.Millisecond, 5*time.Millisecond),
		throttletest.WithFaults(
			throttletest.Outage(http.StatusServiceUnavailable).Between(600*time.Millisecond, 1400*time.Millisecond),
			throttletest.Abort().Every(15),
		),
		throttletest.WithHandler(a),
	)...)
	return a, err
}

// ServeHTTP processes orders, and breaks the connection of some the first time before the client gets the response.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		a.mu.Lock()
		if a.orders[r.URL.Path] == 0 || r.Header.Get("Idempotency-Key") == "" {
			a.orders[r.URL.Path]++
		}
		a.tries[r.URL.Path]++
		times := a.tries[r.URL.Path]
		a.mu.Unlock()
		if times == 1 && strings.ContainsAny(r.URL.Path[len(r.URL.Path)-1:], "268") {
			panic(http.ErrAbortHandler)
		}
	}
	io.WriteString(w, "ok\n")
}

func (a *api) doubled() (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, times := range a.orders {
		if times > 1 {
			n++
		}
	}
	return n
}

// A result is what became of the work.
type result struct {
	seen                   throttletest.Counts
	done, givenUp, doubled int
	took                   time.Duration
}

// work sends all requests to an API of their own.
func work(ctx context.Context, by way, c config) (result, error) {
	a, err := startAPI(c.api)
	if err != nil {
		return result{}, err
	}
	defer a.Close()
	base := a.Transport()
	base.DisableKeepAlives = true // where a connection breaks that was used before, net/http would by itself send again
	client, err := by.client(base)
	if err != nil {
		return result{}, err
	}
	var (
		mu    sync.Mutex
		r     result
		start = time.Now()
		g     errgroup.Group
	)
	g.SetLimit(c.workers)
	for i := range c.n {
		g.Go(func() error {
			err := send(ctx, client, a.URL, i+1, by.keys)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				r.done++
			} else {
				r.givenUp++
			}
			return ctx.Err()
		})
	}
	if err := g.Wait(); err != nil {
		return result{}, err
	}
	r.took, r.seen, r.doubled = time.Since(start), a.Counts(), a.doubled()
	return r, nil
}

// send sends the i-th request: each sixth is an order.
func send(ctx context.Context, client *retryablehttp.Client, url string, i int, keys bool) error {
	method, url := http.MethodGet, fmt.Sprintf("%s/%d", url, i)
	if i%6 == 0 {
		method = http.MethodPost
	}
	req, err := retryablehttp.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return err
	}
	if keys {
		req.Header.Set("Idempotency-Key", fmt.Sprint("order ", i))
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s /%d: %s", method, i, resp.Status)
	}
	return nil
}

func (r result) print(out io.Writer, name string) {
	broken := r.seen.Received - r.seen.Accepted - r.seen.Refused
	fmt.Fprintf(out, "%-15s%9d%9d%9d%9d%9d%9d%8.2fs\n", name, r.seen.Received, r.seen.Refused, broken,
		r.done, r.givenUp, r.doubled, r.took.Seconds())
}

type config struct {
	n, workers int
	api        []throttletest.Option // in tests
}

func parse(args []string, out io.Writer) (config, error) {
	var c config
	flags := example.NewFlags(shows)
	flags.IntVar(&c.n, "n", 60, "send this many requests, in each way")
	flags.IntVar(&c.workers, "workers", 15, "the number of workers")
	if err := flags.Parse(args, out); err != nil {
		return c, err
	}
	if min(c.n, c.workers) < 1 {
		return c, fmt.Errorf("-n %d -workers %d: each must be at least 1", c.n, c.workers)
	}
	return c, nil
}
