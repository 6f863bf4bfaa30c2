// Multilimit calls an API with two limits, like those of language models: requests per second and tokens per second. A
// request is sent when both limits can pay for it at the same instant. The program shows which limit each request
// waited for.
//
//	go run ./examples/multilimit
//	go run ./examples/multilimit -requests 3 -tokens 2000
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/examples/internal/example"
	"github.com/httpthrottle/throttle/throttletest"
)

// shows is what -h prints first.
const shows = `Multilimit calls an API with two limits, like those of language models: requests
per second and tokens per second. A request is sent when both limits can pay for
it at the same instant. The program shows which limit each request waited for.`

func main() { example.Main(run) }

func run(ctx context.Context, args []string, out io.Writer) error {
	c, err := parse(args, out)
	if err != nil {
		return example.Usage(err)
	}
	return show(ctx, c, out)
}

// show sends all jobs to an API of its own.
func show(ctx context.Context, c config, out io.Writer) error {
	api, err := startAPI(c)
	if err != nil {
		return err
	}
	defer api.Close()
	client, err := newClient(api.Transport(), c)
	if err != nil {
		return err
	}

	bound := map[string]int{} // how often each limit was the one to wait for
	start := time.Now()
	fmt.Fprintf(out, "%6s  %-12s%7s\n", "time", "request", "tokens")
	for _, j := range jobs() {
		waited, err := do(ctx, client, api.URL, j)
		fmt.Fprintf(out, "%5.2fs  %-12s%7d  ", time.Since(start).Seconds(), j.name, j.tokens)
		switch refused, ok := errors.AsType[*throttle.Rejection](err); {
		case ok && refused.Reason == throttle.ReasonCost:
			fmt.Fprintf(out, "never: more than %q can ever pay\n", refused.Limit)
		case err != nil:
			fmt.Fprintln(out, "failed")
			return err
		case waited != nil:
			bound[waited.Limit]++
			fmt.Fprintf(out, "after %.2fs in the queue for %q\n", waited.Wait.Seconds(), waited.Limit)
		default:
			fmt.Fprintln(out, "immediately")
		}
	}
	return report(out, api, c, bound)
}

// newClient returns a client that keeps both limits. Its windows are a little longer than the API's, because requests
// that are sent a second apart may arrive closer together: see the quickstart.
func newClient(base http.RoundTripper, c config) (*http.Client, error) {
	const window = time.Second + 250*time.Millisecond
	transport, err := throttle.New(base, throttle.WithLimit(
		throttle.SlidingWindow(c.requests, window, throttle.Name("requests")), // a request costs 1 there, as is the default
		throttle.SlidingWindow(c.tokens, window, throttle.Name("tokens")),     // and here what its context says
	))
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: transport}, nil
}

// do sends a job as soon as both limits can pay for it. If it had to wait, waited has the limit and the time.
func do(ctx context.Context, client *http.Client, url string, j job) (waited *throttle.Rejection, err error) {
	// The context has the cost of a request where only the caller knows it; it passes through any SDK. A cost that can be
	// read from the request is for a function: throttle.Cost(func(*http.Request) int64) beside the limit's Name.
	ctx = throttle.ContextWithCost(ctx, j.tokens, "tokens")

	// First without waiting, to learn which limit binds. A refused request is charged nowhere.
	resp, err := post(throttle.ContextWithMaxWait(ctx, 0), client, url, j)
	waited, ok := throttle.RejectionOf(resp)
	if ok {
		resp.Body.Close()
		resp, err = post(ctx, client, url, j)
	}
	if err != nil {
		return waited, err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return waited, err
	}
	if resp.StatusCode != http.StatusOK {
		return waited, fmt.Errorf("%s: %s", j.name, resp.Status)
	}
	return waited, nil
}

func post(ctx context.Context, client *http.Client, url string, j job) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("%s/complete?tokens=%d", url, j.tokens), nil)
	if err != nil {
		return nil, err
	}
	return client.Do(req)
}

// A job is a prompt, and how many tokens it takes.
type job struct {
	name   string
	tokens int64
}

// jobs returns many small ones, a few large ones, and one that is too large.
func jobs() []job {
	var all []job
	for i := range 7 {
		all = append(all, job{fmt.Sprintf("question %d", i+1), 20})
	}
	for i := range 5 {
		all = append(all, job{fmt.Sprintf("document %d", i+1), 400})
	}
	return append(all, job{"book", 5000})
}

// report shows what the API has counted, which is what matters.
func report(out io.Writer, api *throttletest.Server, c config, bound map[string]int) error {
	fmt.Fprintf(out, "\n%-10s%16s%24s%12s\n", "limit", "allowed per 1s", "most seen in any 1s", "waited for")
	for _, l := range []struct {
		name    string
		allowed int64
	}{{"requests", c.requests}, {"tokens", c.tokens}} {
		most, err := api.MaxAccepted(l.name, time.Second)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%-10s%16d%24d%11dx\n", l.name, l.allowed, most, bound[l.name])
	}
	seen := api.Counts()
	fmt.Fprintln(out)
	example.Verdict(out, seen.Refused == 0, "The API saw %d requests and refused %d.", seen.Received, seen.Refused)
	return nil
}

func startAPI(c config) (*throttletest.Server, error) {
	tokens := func(r *http.Request) int64 {
		n, _ := strconv.ParseInt(r.URL.Query().Get("tokens"), 10, 64)
		return n
	}
	return throttletest.New(append(c.api, throttletest.WithLimits(
		throttletest.SlidingWindow(c.requests, time.Second, throttletest.Name("requests")),
		throttletest.SlidingWindow(c.tokens, time.Second, throttletest.Name("tokens"), throttletest.Cost(tokens)),
	))...)
}

type config struct {
	requests, tokens int64
	api              []throttletest.Option // in tests
}

func parse(args []string, out io.Writer) (config, error) {
	var c config
	flags := example.NewFlags(shows)
	flags.Int64Var(&c.requests, "requests", 5, "the API allows this many requests in any second")
	flags.Int64Var(&c.tokens, "tokens", 1000, "and this many tokens")
	if err := flags.Parse(args, out); err != nil {
		return c, err
	}
	if min(c.requests, c.tokens) < 1 {
		return c, fmt.Errorf("-requests %d -tokens %d: each must be at least 1", c.requests, c.tokens)
	}
	return c, nil
}
