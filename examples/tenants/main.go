// Tenants is a gateway whose tenants share the quota of one upstream API. One of them is greedy: it sends all of its
// requests at the start. The program runs the same load twice, in order of arrival and with turns, and shows which
// requests wait.
//
//	go run ./examples/tenants
//	go run ./examples/tenants -greedy 100
package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/examples/internal/example"
	"github.com/httpthrottle/throttle/throttletest"
)

// shows is what -h prints first.
const shows = `Tenants is a gateway whose tenants share the quota of one upstream API. One of
them is greedy: it sends all of its requests at the start. The program runs the
same load twice, in order of arrival and with turns, and shows which requests
wait.`

func main() { example.Main(run) }

func run(ctx context.Context, args []string, out io.Writer) error {
	greedy, err := parse(args, out)
	if err != nil {
		return example.Usage(err)
	}
	upstream, err := throttletest.New(throttletest.WithLimits(throttletest.TokenBucket(50, time.Second)))
	if err != nil {
		return err
	}
	defer upstream.Close()

	fmt.Fprintf(out, "Three tenants share %d requests a second. acme sends %d at once;\nblue and coral send one every 200 ms.\n", rate, greedy)
	for _, fair := range []bool{false, true} {
		gateway, err := newGateway(http.DefaultTransport, upstream.URL, fair)
		if err != nil {
			return err
		}
		server := httptest.NewServer(gateway)
		waits, err := load(ctx, greedy, func(ctx context.Context, tenant string) error { return call(ctx, server.URL, tenant) })
		server.Close()
		if err != nil {
			return err
		}
		chart(out, fair, waits)
	}
	fmt.Fprintln(out)
	seen := upstream.Counts()
	example.Verdict(out, seen.Refused == 0, "The upstream refused %d of %d requests.", seen.Refused, seen.Received)
	return nil
}

func parse(args []string, out io.Writer) (greedy int, err error) {
	flags := example.NewFlags(shows)
	flags.IntVar(&greedy, "greedy", 60, "requests that the greedy tenant sends at once")
	if err := flags.Parse(args, out); err != nil {
		return 0, err
	}
	if greedy < 1 || greedy > 1000 {
		return 0, fmt.Errorf("-greedy %d: must be from 1 to 1000", greedy)
	}
	return greedy, nil
}

const rate = 40 // a second: less than what the upstream allows, because requests may arrive closer together than they are sent

// newGateway returns a reverse proxy that keeps the upstream quota, for all tenants together.
func newGateway(base http.RoundTripper, upstream string, fair bool) (http.Handler, error) {
	target, err := url.Parse(upstream)
	if err != nil {
		return nil, err
	}
	opts := []throttle.LimitOption{throttle.Burst(1)}
	if fair {
		opts = append(opts, throttle.FairBy(func(r *http.Request) string { return r.Header.Get("X-Tenant") }))
	}
	transport, err := throttle.New(base, throttle.WithLimit(throttle.TokenBucket(rate, time.Second, opts...)))
	if err != nil {
		return nil, err
	}
	return &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, Transport: transport}, nil
}

// call sends a request of a tenant to the gateway.
func call(ctx context.Context, gateway, tenant string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, gateway, nil)
	if err != nil {
		return err
	}
	req.Header.Set("X-Tenant", tenant)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the gateway answered %s to %s", resp.Status, tenant)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// load sends what the tenants have, and returns how long each of their requests took.
func load(ctx context.Context, greedy int, call func(ctx context.Context, tenant string) error) (map[string][]time.Duration, error) {
	var (
		all   sync.WaitGroup
		mu    sync.Mutex
		fault error
	)
	took := make(map[string][]time.Duration)
	send := func(tenant string) {
		start := time.Now()
		all.Go(func() {
			err := call(ctx, tenant)
			mu.Lock()
			defer mu.Unlock()
			took[tenant] = append(took[tenant], time.Since(start))
			fault = cmp.Or(fault, err)
		})
	}
	for range greedy {
		send("acme")
	}
	for range 6 {
		time.Sleep(200 * time.Millisecond)
		send("blue")
		send("coral")
	}
	all.Wait()
	return took, fault
}

// chart shows how long the requests of each tenant took.
func chart(out io.Writer, fair bool, took map[string][]time.Duration) {
	title := "In order of arrival"
	if fair {
		title = "With FairBy"
	}
	fmt.Fprintf(out, "\n%-20s requests   median     worst\n", title)
	for _, tenant := range []string{"acme", "blue", "coral"} {
		waits := slices.Sorted(slices.Values(took[tenant]))
		median, worst := waits[len(waits)/2], waits[len(waits)-1]
		fmt.Fprintf(out, "  %-18s %8d %7.2fs  %7.2fs  %s\n", tenant, len(waits), median.Seconds(), worst.Seconds(), bar(median))
	}
}

// bar is a block for each 64 ms.
func bar(d time.Duration) string { return strings.Repeat("█", int(d/(64*time.Millisecond))+1) }
