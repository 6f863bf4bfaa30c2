// Quickstart does the same work twice against an API that allows 20 requests per second: first as any client would,
// then with throttle as the client's Transport. A table and a chart show how the API responded.
//
//	go run ./examples/quickstart
//	go run ./examples/quickstart -url https://api.example.com/ping -rate 100 -per 1m -n 300
//
// Without -url it starts an API of its own, on a loopback socket, with the delays of a network.
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/examples/internal/example"
	"github.com/httpthrottle/throttle/throttletest"
	"golang.org/x/sync/errgroup"
)

// shows is what -h prints first.
const shows = `Quickstart does the same work twice against an API that allows 20 requests per
second: first as any client would, then with throttle as the client's Transport.
A table and a chart show how the API responded.`

func main() { example.Main(run) }

func run(ctx context.Context, args []string, out io.Writer) error {
	c, err := parse(args, out)
	if err != nil {
		return example.Usage(err)
	}
	if c.url == "" {
		api, err := startAPI(c)
		if err != nil {
			return err
		}
		defer api.Close()
		c.url = api.URL
	}
	fmt.Fprintf(out, "%s allows %d requests per %v.\n%d requests, %d at a time:\n\n",
		c.url, c.rate, c.per, c.n, c.workers)

	// No timeout of a client, because that would include the time in the queue.
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.ResponseHeaderTimeout = 10 * time.Second
	plain := &http.Client{Transport: base}
	throttled, err := throttledClient(base, c)
	if err != nil {
		return err
	}

	before, err := work(ctx, plain, c)
	if err != nil {
		return err
	}
	if err := sleep(ctx, c.per+c.per/4); err != nil { // until the API has forgotten the first run
		return err
	}
	after, err := work(ctx, throttled, c)
	if err != nil {
		return err
	}
	report(out, before, after)
	return nil
}

// throttledClient is the whole setup. It keeps any number of goroutines together within the limit.
//
// The API counts a request when it arrives, some time after it was sent, so the limit counts it until a period after its response.
//
// Mind that http.Client.Timeout includes the time in the queue: for the API's part of it alone, set the timeouts of base.
func throttledClient(base http.RoundTripper, c config) (*http.Client, error) {
	transport, err := throttle.New(base, throttle.WithLimit(throttle.Quota(c.rate, c.per)))
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: transport}, nil
}

// startAPI starts a server that enforces the limit in any stretch of that length.
func startAPI(c config) (*throttletest.Server, error) {
	return throttletest.New(
		throttletest.WithLimits(throttletest.SlidingWindow(c.rate, c.per)),
		throttletest.WithRoundTrip(40*time.Millisecond, 10*time.Millisecond),
	)
}

// An answer is the outcome of a request.
type answer struct {
	at     time.Duration // since the work began
	status int           // 0: there was none, but err
	err    error
}

// work sends all requests and returns their answers. A request that fails is an answer too, once another has succeeded: it ends
// the work if the API cannot be reached.
func work(ctx context.Context, client *http.Client, c config) ([]answer, error) {
	answers := make([]answer, c.n)
	var answered atomic.Bool
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(c.workers)
	start := time.Now()
	for i := range answers {
		g.Go(func() error {
			status, err := get(ctx, client, c.url)
			answers[i] = answer{time.Since(start), status, err}
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case err == nil:
				answered.Store(true)
			case !answered.Load():
				return fmt.Errorf("no request got an answer: %w", err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return answers, nil
}

func get(ctx context.Context, client *http.Client, target string) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body) // to its end, so that the connection can be used again
	return resp.StatusCode, err
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func report(out io.Writer, before, after []answer) {
	fmt.Fprintf(out, "%-18s%9s%7s%7s%7s%9s\n", "", "requests", "2xx", "429", "other", "time")
	row(out, "without throttle", before)
	row(out, "with throttle", after)

	tick := tickFor(max(lasted(before), lasted(after)))
	most := max(busiest(before, tick), busiest(after, tick))
	scale := (most + widest - 1) / widest
	fmt.Fprintf(out, "\nAnswers per %v:   █ 2xx   x 429   ? other", tick)
	if scale > 1 {
		fmt.Fprintf(out, "   (one mark for up to %d)", scale)
	}
	fmt.Fprintln(out)
	chart(out, "without throttle", before, tick, scale)
	chart(out, "with throttle", after, tick, scale)
	var without, with tally
	for _, a := range before {
		without.add(a)
	}
	for _, a := range after {
		with.add(a)
	}
	fmt.Fprintln(out)
	example.Verdict(out, with[1] == 0, "The API refused %d requests without throttle, and %d with it.", without[1], with[1])
}

// A tally counts answers: 2xx, 429, others.
type tally [3]int

func (t *tally) add(a answer) {
	switch {
	case a.err == nil && a.status/100 == 2:
		t[0]++
	case a.err == nil && a.status == http.StatusTooManyRequests:
		t[1]++
	default:
		t[2]++
	}
}

func row(out io.Writer, name string, answers []answer) {
	var t tally
	var other answer
	for _, a := range answers {
		before := t[2]
		if t.add(a); t[2] > before {
			other = a
		}
	}
	fmt.Fprintf(out, "%-18s%9d%7d%7d%7d%8.2fs\n", name, len(answers), t[0], t[1], t[2], lasted(answers).Seconds())
	switch {
	case other.err != nil:
		fmt.Fprintf(out, "  other, e.g.: %v\n", other.err)
	case t[2] > 0:
		fmt.Fprintf(out, "  other, e.g.: %d %s\n", other.status, http.StatusText(other.status))
	}
}

// widest is the length of the chart's longest possible bar.
const widest = 66

func chart(out io.Writer, name string, answers []answer, tick time.Duration, scale int) {
	fmt.Fprintf(out, "\n%s\n", name)
	for i, t := range ticks(answers, tick) {
		marks := func(mark string, n int) string { return strings.Repeat(mark, (n+scale-1)/scale) }
		bar := marks("█", t[0]) + marks("x", t[1]) + marks("?", t[2])
		line := fmt.Sprintf("%8.2fs  %s", (time.Duration(i) * tick).Seconds(), bar)
		fmt.Fprintln(out, strings.TrimRight(line, " "))
	}
}

func ticks(answers []answer, tick time.Duration) []tally {
	t := make([]tally, lasted(answers)/tick+1)
	for _, a := range answers {
		t[a.at/tick].add(a)
	}
	return t
}

func busiest(answers []answer, tick time.Duration) int {
	most := 0
	for _, t := range ticks(answers, tick) {
		most = max(most, t[0]+t[1]+t[2])
	}
	return most
}

func lasted(answers []answer) time.Duration {
	var last time.Duration
	for _, a := range answers {
		last = max(last, a.at)
	}
	return last
}

// tickFor returns a round length of time, such that at most 8 of them make up a chart.
func tickFor(whole time.Duration) time.Duration {
	for unit := 10 * time.Millisecond; ; unit *= 10 {
		for _, t := range []time.Duration{unit, unit * 5 / 2, unit * 5} {
			if whole/t < 8 {
				return t
			}
		}
	}
}

type config struct {
	url        string
	n, workers int
	rate       int64
	per        time.Duration
}

func parse(args []string, out io.Writer) (config, error) {
	var c config
	flags := example.NewFlags(shows)
	flags.StringVar(&c.url, "url", "", "send to this `URL` (default: a local API that is started for it)")
	flags.IntVar(&c.n, "n", 60, "send this many requests, twice")
	flags.IntVar(&c.workers, "workers", 10, "the number of workers")
	flags.Int64Var(&c.rate, "rate", 20, "the API allows this many requests …")
	flags.DurationVar(&c.per, "per", time.Second, "… in any stretch of this length")
	if err := flags.Parse(args, out); err != nil {
		return c, err
	}
	u, err := url.Parse(c.url)
	switch {
	case err != nil:
		return c, fmt.Errorf("-url: %w", err)
	case c.url != "" && (u.Scheme != "http" && u.Scheme != "https" || u.Host == ""):
		return c, fmt.Errorf("-url %q: want http://HOST/… or https://HOST/…", c.url)
	case min(int64(c.n), int64(c.workers), c.rate) < 1:
		return c, fmt.Errorf("-n %d -workers %d -rate %d: each must be at least 1", c.n, c.workers, c.rate)
	case c.per <= 0:
		return c, fmt.Errorf("-per %v: must be positive", c.per)
	}
	return c, nil
}
