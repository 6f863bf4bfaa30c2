// Github fetches repositories and searches from an API that reports its limits as GitHub does: first with a plain client,
// then with a Transport that knows no limit and reads the responses. A table shows the responses of the API.
//
//	go run ./examples/github
//	go run ./examples/github -workers 15
//
// The API is local. It has two resources, each with a limit of its own in windows of 3 s, and a secondary limit for
// clients that send too many concurrent requests, or go on after a response said that nothing is left.
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/examples/internal/example"
	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/throttletest"
	"golang.org/x/sync/errgroup"
)

// shows is what -h prints first.
const shows = `Github fetches repositories and searches from an API that reports its limits as
GitHub does: first with a plain client, then with a Transport that knows no
limit and reads the responses. A table shows the responses of the API.`

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
	fmt.Fprintf(out, "core: 60 requests per 3s, search: 10, and no more than %d at a time.\n", mostAtOnce)
	fmt.Fprintf(out, "%d repositories and %d searches, %d of each at a time:\n\n", c.repos, c.searches, c.workers)
	fmt.Fprintf(out, "%-18s%-9s%9s%10s%9s%11s%9s\n", "", "resource", "requests", "accepted", "refused", "secondary", "time")

	plain := func(base http.RoundTripper) (http.RoundTripper, error) { return base, nil }
	if _, err := do(ctx, "without throttle", plain, c, out); err != nil {
		return err
	}
	fmt.Fprintln(out)
	overlap, err := do(ctx, "with throttle", throttled, c, out)
	if err != nil {
		return err
	}
	fmt.Fprintln(out)
	example.Verdict(out, overlap > 0, "While search was used up, %d requests for core were sent.", overlap)
	return nil
}

// throttled is the whole setup: no limit is configured. The Transport learns from the responses what is left of each
// resource, and makes requests wait for the reset when nothing is left. Resources are distinguished by the first segment of the path:
// here /repos/… and /search/….
//
// The preset knows what GitHub says in the body of a 403: without it, a secondary limit would be any other 403.
func throttled(base http.RoundTripper) (http.RoundTripper, error) {
	return throttle.New(base, throttle.WithServerHints(headers.GitHub))
}

// A wrapper makes the Transport of a client.
type wrapper func(base http.RoundTripper) (http.RoundTripper, error)

// do sends all requests to an API of its own, prints a row for each resource, and returns how many requests for core
// went through while nothing was left of search.
func do(ctx context.Context, name string, wrap wrapper, c config, out io.Writer) (overlap int, err error) {
	hub := newGitHub()
	api, err := throttletest.New(append(c.api, throttletest.WithHandler(hub))...)
	if err != nil {
		return 0, err
	}
	defer api.Close()
	transport, err := wrap(api.Transport())
	if err != nil {
		return 0, err
	}
	client := &http.Client{Transport: transport}

	core, search := tally{name: "core", start: time.Now()}, tally{name: "search", start: time.Now()}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return core.fetch(ctx, client, api.URL+"/repos/golang/repo-%d", c.repos, c.workers) })
	g.Go(func() error { return search.fetch(ctx, client, api.URL+"/search/issues?q=%d", c.searches, c.workers) })
	if err := g.Wait(); err != nil {
		return 0, err
	}
	for _, t := range []*tally{&core, &search} {
		fmt.Fprintf(out, "%-18s%-9s%9d%10d%9d%11d%8.2fs\n", name, t.name, t.accepted+t.refused+t.secondary, t.accepted, t.refused,
			t.secondary, t.took.Seconds())
		name = ""
	}
	return hub.overlap, nil // no request is under way
}

// A tally counts what the API said to the requests for one resource.
type tally struct {
	name  string
	start time.Time

	mu                           sync.Mutex
	accepted, refused, secondary int
	took                         time.Duration // until the last answer
}

// fetch sends n requests, a few at a time. A refusal is counted, and the request is not repeated.
func (t *tally) fetch(ctx context.Context, client *http.Client, url string, n, workers int) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	for i := range n {
		g.Go(func() error {
			status, body, err := get(ctx, client, fmt.Sprintf(url, i+1))
			if err != nil {
				return err
			}
			return t.add(status, body)
		})
	}
	return g.Wait()
}

func (t *tally) add(status int, body string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.took = time.Since(t.start)
	switch {
	case status == http.StatusOK:
		t.accepted++
	case status == http.StatusForbidden && strings.Contains(body, "secondary rate limit"):
		t.secondary++
	case status == http.StatusForbidden:
		t.refused++
	default:
		return fmt.Errorf("%s: %d %s", t.name, status, http.StatusText(status))
	}
	return nil
}

func get(ctx context.Context, client *http.Client, url string) (status int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(all), err
}

type config struct {
	repos, searches, workers int
	api                      []throttletest.Option // for tests
}

func parse(args []string, out io.Writer) (config, error) {
	var c config
	flags := example.NewFlags(shows)
	flags.IntVar(&c.repos, "repos", 90, "fetch this many repositories, twice")
	flags.IntVar(&c.searches, "searches", 15, "send this many searches, twice")
	flags.IntVar(&c.workers, "workers", 4, "the number of workers of each kind")
	if err := flags.Parse(args, out); err != nil {
		return c, err
	}
	if min(c.repos, c.searches, c.workers) < 1 {
		return c, fmt.Errorf("-repos %d -searches %d -workers %d: each must be at least 1", c.repos, c.searches, c.workers)
	}
	return c, nil
}
