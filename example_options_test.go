package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/store"
)

// status sends a request through t and returns the status of the response.
func status(t *throttle.Transport, ctx context.Context, method, address string) string {
	req, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		return err.Error()
	}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return err.Error()
	}
	resp.Body.Close()
	return resp.Status
}

func ExampleTokenBucket() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Burst(3))))
	if err != nil {
		log.Fatal(err)
	}
	for range 4 {
		_, ok := limiter.Try(throttle.Ask{})
		fmt.Println(ok)
	}
	// Output:
	// true
	// true
	// true
	// false
}

func ExampleFixedWindow() {
	newYork := time.FixedZone("UTC-5", -5*60*60)
	limiter, err := throttle.NewLimiter(throttle.WithLimit(
		throttle.FixedWindow(1_000, 24*time.Hour, throttle.Start(time.Date(2026, 1, 1, 0, 0, 0, 0, newYork)))))
	if err != nil {
		log.Fatal(err)
	}
	_, ok := limiter.Try(throttle.Ask{Cost: 1_000})
	wait, more := limiter.Try(throttle.Ask{})
	fmt.Println(ok, more, wait <= 24*time.Hour)
	// Output: true false true
}

func ExampleInFlight() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.InFlight(1)))
	if err != nil {
		log.Fatal(err)
	}
	first, err := limiter.Acquire(context.Background(), throttle.Ask{Cost: 1})
	if err != nil {
		log.Fatal(err)
	}
	_, err = limiter.Acquire(context.Background(), throttle.Ask{Cost: 1, MaxWait: ptr(time.Duration(0))})
	fmt.Println(errors.Is(err, throttle.ErrThrottled))
	first.Done()
	second, err := limiter.Acquire(context.Background(), throttle.Ask{Cost: 1, MaxWait: ptr(time.Duration(0))})
	if err != nil {
		log.Fatal(err)
	}
	defer second.Done()
	fmt.Println("the slot is free again")
	// Output:
	// true
	// the slot is free again
}

func ExampleWithLimit() {
	transport, err := throttle.New(offline{}, throttle.WithFailFast(), throttle.WithLimit(
		throttle.SlidingWindow(2, time.Minute, throttle.Name("requests")),
		throttle.SlidingWindow(5, time.Minute, throttle.Name("tokens"), throttle.Cost(func(r *http.Request) int64 {
			n, _ := strconv.ParseInt(r.URL.Query().Get("n"), 10, 64)
			return n
		})),
	))
	if err != nil {
		log.Fatal(err)
	}
	for _, n := range []int{4, 4, 1, 1} { // the second one is charged in neither limit
		fmt.Println(n, status(transport, context.Background(), "GET", fmt.Sprintf("https://api.example.com/?n=%d", n)))
	}
	// Output:
	// 4 200 OK
	// 4 429 Too Many Requests
	// 1 200 OK
	// 1 429 Too Many Requests
}

func ExampleWithKey() {
	transport, err := throttle.New(offline{}, throttle.WithFailFast(), throttle.WithKey(throttle.ByHost),
		throttle.WithLimit(throttle.SlidingWindow(1, time.Minute)))
	if err != nil {
		log.Fatal(err)
	}
	for _, host := range []string{"a.example.com", "a.example.com", "b.example.com"} {
		fmt.Println(host, status(transport, context.Background(), "GET", "https://"+host))
	}
	// Output:
	// a.example.com 200 OK
	// a.example.com 429 Too Many Requests
	// b.example.com 200 OK
}

func ExampleByRoute() {
	byRoute := throttle.ByRoute("GET /users/{id}", "/search/")
	for _, path := range []string{"/users/42", "/search/code", "/about"} {
		req, err := http.NewRequest("GET", "https://api.example.com"+path, nil)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%q\n", byRoute(req))
	}
	// Output:
	// "GET /users/{id}"
	// "/search/"
	// ""
}

func ExampleRateFor() {
	tiers := map[string]int64{"gold": 3}
	limiter, err := throttle.NewLimiter(throttle.WithLimit(
		throttle.SlidingWindow(1, time.Minute, throttle.RateFor(func(tenant string) (int64, time.Duration) {
			if n := tiers[tenant]; n > 0 {
				return n, time.Minute
			}
			return 0, 0 // the limit's own rate
		}))))
	if err != nil {
		log.Fatal(err)
	}
	for _, tenant := range []string{"gold", "silver"} {
		_, ok := limiter.Try(throttle.Ask{Key: tenant, Cost: 2})
		fmt.Println(tenant, ok)
	}
	// Output:
	// gold true
	// silver false
}

func ExampleWithRejectionResponse() {
	transport, err := throttle.New(offline{}, throttle.WithFailFast(), throttle.WithLimit(throttle.SlidingWindow(1, time.Minute)),
		throttle.WithRejectionResponse(func(r *throttle.Rejection, _ *http.Request) *http.Response {
			return &http.Response{StatusCode: http.StatusServiceUnavailable, Header: http.Header{"X-Limit": {r.Limit}}}
		}))
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		fmt.Println(status(transport, context.Background(), "GET", "https://s3.example.com/bucket"))
	}
	// Output:
	// 200 OK
	// 503 Service Unavailable
}

func ExampleWithRejectionError() {
	transport, err := throttle.New(offline{}, throttle.WithFailFast(), throttle.WithRejectionError(),
		throttle.WithLimit(throttle.SlidingWindow(5, time.Minute, throttle.Name("requests"))), throttle.WithCost(func(*http.Request) int64 { return 6 }))
	if err != nil {
		log.Fatal(err)
	}
	_, err = (&http.Client{Transport: transport}).Get("https://api.example.com/")
	var rejection *throttle.Rejection
	if errors.As(err, &rejection) {
		fmt.Println(rejection.Reason, rejection.Limit, rejection.Cost)
	}
	// Output: cost requests 6
}

func ExampleWithExempt() {
	transport, err := throttle.New(offline{}, throttle.WithFailFast(), throttle.WithLimit(throttle.SlidingWindow(1, time.Minute)),
		throttle.WithExempt(func(r *http.Request) bool { return r.URL.Path == "/health" }))
	if err != nil {
		log.Fatal(err)
	}
	for _, path := range []string{"/items", "/health", "/items"} {
		fmt.Println(path, status(transport, context.Background(), "GET", "https://api.example.com"+path))
	}
	// Output:
	// /items 200 OK
	// /health 200 OK
	// /items 429 Too Many Requests
}

func ExampleWithDryRun() {
	transport, err := throttle.New(offline{}, throttle.WithDryRun(), throttle.WithFailFast(),
		throttle.WithLimit(throttle.SlidingWindow(1, time.Minute)))
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		fmt.Println(status(transport, context.Background(), "GET", "https://api.example.com/"))
	}
	fmt.Println(transport.Stats().Rejected.Total(), "would have been rejected")
	// Output:
	// 200 OK
	// 200 OK
	// 200 OK
	// 2 would have been rejected
}

func ExampleWithLimiter() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.SlidingWindow(1, time.Minute)))
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range []string{"interactive", "bulk"} { // two Transports with different options and one budget
		transport, err := throttle.New(offline{}, throttle.WithLimiter(limiter), throttle.WithMaxWait(0))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(name, status(transport, context.Background(), "GET", "https://api.example.com/"))
	}
	// Output:
	// interactive 200 OK
	// bulk 429 Too Many Requests
}

func ExampleWithHooks() {
	transport, err := throttle.New(offline{}, throttle.WithLimit(throttle.SlidingWindow(1, time.Minute)), throttle.WithFailFast(),
		throttle.WithHooks(throttle.Hooks{
			OnGrant:  func(e throttle.GrantEvent) { fmt.Println("granted after", e.Waited) },
			OnReject: func(e throttle.RejectEvent) { fmt.Println("rejected:", e.Rejection.Reason) },
		}))
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		status(transport, context.Background(), "GET", "https://api.example.com/")
	}
	// Output:
	// granted after 0s
	// rejected: no tokens
}

func ExampleContextWithCost() {
	transport, err := throttle.New(offline{}, throttle.WithFailFast(), throttle.WithLimit(
		throttle.SlidingWindow(10, time.Minute, throttle.Name("points"))))
	if err != nil {
		log.Fatal(err)
	}
	ctx := throttle.ContextWithCost(context.Background(), 6, "points") // for an SDK that takes only a context
	for range 2 {
		fmt.Println(status(transport, ctx, "GET", "https://api.example.com/"))
	}
	// Output:
	// 200 OK
	// 429 Too Many Requests
}

func ExampleContextWithMaxWait() {
	transport, err := throttle.New(offline{}, throttle.WithLimit(throttle.SlidingWindow(1, time.Hour)))
	if err != nil {
		log.Fatal(err)
	}
	ctx := throttle.ContextWithMaxWait(context.Background(), 3*time.Second)
	for range 2 { // the second one would wait for an hour, and is rejected immediately
		fmt.Println(status(transport, ctx, "GET", "https://api.example.com/"))
	}
	// Output:
	// 200 OK
	// 429 Too Many Requests
}

// Two Limiters share a budget, as processes do with a store in Redis or in a file.
func ExampleShared() {
	shared := store.NewMemory()
	var limiters []*throttle.Limiter
	for range 2 {
		limiter, err := throttle.NewLimiter(throttle.WithMaxWait(0), throttle.WithLimit(
			throttle.FixedWindow(3, 365*24*time.Hour, throttle.Name("quota"), throttle.Shared(shared, throttle.LeaseAhead(0)))))
		if err != nil {
			log.Fatal(err)
		}
		limiters = append(limiters, limiter)
	}
	ctx := context.Background()
	fmt.Println(limiters[0].Wait(ctx, throttle.Ask{Cost: 2}))
	fmt.Println(errors.Is(limiters[1].Wait(ctx, throttle.Ask{Cost: 2}), throttle.ErrThrottled))
	// Output:
	// <nil>
	// true
}

// This server reports overload by a header of its own. The rate for its host falls, and that for other hosts does not.
func ExampleAdaptive() {
	api := roundTripper(func(r *http.Request) (*http.Response, error) {
		busy := strconv.FormatBool(r.URL.Host == "busy.example.com")
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"X-Overloaded": {busy}}, Body: http.NoBody, Request: r}, nil
	})
	transport, err := throttle.New(api, throttle.WithKey(throttle.ByHost), throttle.WithLimit(
		throttle.Adaptive(throttle.AIMD{Initial: 50, Min: 1, Max: 500}, throttle.Name("learned"),
			throttle.Classify(func(resp *http.Response, err error) throttle.Outcome {
				if err == nil && resp.Header.Get("X-Overloaded") == "true" {
					return throttle.OutcomeThrottled
				}
				return 0 // the usual rule
			}))))
	if err != nil {
		log.Fatal(err)
	}
	for _, host := range []string{"busy.example.com", "idle.example.com"} {
		status(transport, context.Background(), "GET", "https://"+host)
		bucket, _ := transport.Limiter().Bucket("learned", host)
		fmt.Println(host, "below 50 per second:", bucket.Rate < 50)
	}
	// Output:
	// busy.example.com below 50 per second: true
	// idle.example.com below 50 per second: false
}

// The limits of these servers are not known. For each host, the rate starts at 10 per second and the number of requests in flight
// at 4, and both follow what the server can do.
func ExampleWithAdaptive() {
	transport, err := throttle.New(offline{}, throttle.WithKey(throttle.ByHost),
		throttle.WithAdaptive(), throttle.WithAdaptiveInFlight(throttle.Concurrency{Max: 100}))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(status(transport, context.Background(), "GET", "https://api.example.com/"))
	for _, limit := range transport.Limiter().Limits()[:2] {
		fmt.Println(limit.Name, limit.Granted)
	}
	// Output:
	// 200 OK
	// adaptive 1
	// adaptive-in-flight 1
}

// Each limit has its own keys: a host has a limit for all requests, a smaller one for each project, and one for each job, which the
// context names.
func ExampleKey() {
	transport, err := throttle.New(offline{}, throttle.WithFailFast(), throttle.WithKey(throttle.ByHost), throttle.WithLimit(
		throttle.SlidingWindow(3, time.Minute, throttle.Name("host")),
		throttle.SlidingWindow(1, time.Minute, throttle.Name("project"), throttle.Key(throttle.ByHeader("X-Project"))),
		throttle.SlidingWindow(2, time.Minute, throttle.Name("job"), throttle.Key(throttle.ByContext))))
	if err != nil {
		log.Fatal(err)
	}
	ctx := throttle.ContextWithKey(context.Background(), "nightly")
	for _, project := range []string{"a", "a", "b", "c"} {
		req, err := http.NewRequestWithContext(ctx, "GET", "https://api.example.com/", nil)
		if err != nil {
			log.Fatal(err)
		}
		req.Header.Set("X-Project", project)
		resp, err := transport.RoundTrip(req)
		if err != nil {
			log.Fatal(err)
		}
		resp.Body.Close()
		if rejection, ok := throttle.RejectionOf(resp); ok {
			fmt.Println(project, "rejected by the limit of the", rejection.Limit)
		} else {
			fmt.Println(project, "sent")
		}
	}
	// Output:
	// a sent
	// a rejected by the limit of the project
	// b sent
	// c rejected by the limit of the job
}

// The API allows 1,000 requests an hour, and this program uses a quarter of them. Its bucket starts almost empty,
// because the previous run may have used the burst.
func ExampleFraction() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(
		throttle.SlidingWindow(1_000, time.Hour, throttle.Name("hourly"), throttle.Fraction(0.25), throttle.FromGrant()),
		throttle.TokenBucket(20, time.Hour, throttle.Name("rate"), throttle.Initial(5))))
	if err != nil {
		log.Fatal(err)
	}
	for b := range limiter.Buckets() {
		fmt.Printf("%s: %.0f of %.0f\n", b.Limit, b.Tokens, b.Capacity)
	}
	// Output:
	// hourly: 250 of 250
	// rate: 5 of 20
}

// A crawler pauses for two seconds between the end of a page and the next request.
func ExamplePause() {
	transport, err := throttle.New(offline{}, throttle.WithFailFast(), throttle.WithKey(throttle.ByHost), throttle.WithLimit(
		throttle.InFlight(1, throttle.Pause(2*time.Second))))
	if err != nil {
		log.Fatal(err)
	}
	for _, address := range []string{"https://a.example.com/1", "https://a.example.com/2", "https://b.example.com/1"} {
		fmt.Println(address, status(transport, context.Background(), "GET", address))
	}
	// Output:
	// https://a.example.com/1 200 OK
	// https://a.example.com/2 429 Too Many Requests
	// https://b.example.com/1 200 OK
}

// The next request is sent although the body of the stream is still being read.
func ExampleUntilHeaders() {
	api := roundTripper(func(r *http.Request) (*http.Response, error) {
		body := io.NopCloser(strings.NewReader("data: 1\n\n"))
		return &http.Response{Status: "200 OK", StatusCode: http.StatusOK, Body: body, Request: r}, nil
	})
	transport, err := throttle.New(api, throttle.WithFailFast(), throttle.WithLimit(throttle.InFlight(1, throttle.UntilHeaders())))
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}
	for range 2 {
		stream, err := client.Get("https://api.example.com/events")
		if err != nil {
			log.Fatal(err)
		}
		defer stream.Body.Close()
		fmt.Println(stream.Status)
	}
	// Output:
	// 200 OK
	// 200 OK
}

// Both wait for the only slot. The user's request overtakes that of a job, which came first.
func ExampleContextWithPriority() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.InFlight(1)))
	if err != nil {
		log.Fatal(err)
	}
	slot, err := limiter.Acquire(context.Background(), throttle.Ask{})
	if err != nil {
		log.Fatal(err)
	}
	job := context.Background()
	user := throttle.ContextWithPriority(context.Background(), 1)
	var requests sync.WaitGroup
	for i, ctx := range []context.Context{job, user} {
		requests.Go(func() {
			slot, err := limiter.Acquire(ctx, throttle.Ask{})
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println([]string{"job", "user"}[i])
			slot.Done()
		})
		for limiter.Stats().Waiting <= i {
			time.Sleep(time.Millisecond)
		}
	}
	slot.Done()
	requests.Wait()
	// Output:
	// user
	// job
}

// The second request is sent without limits, and takes no token.
func ExampleContextWithExempt() {
	transport, err := throttle.New(offline{}, throttle.WithFailFast(), throttle.WithLimit(throttle.SlidingWindow(1, time.Minute)))
	if err != nil {
		log.Fatal(err)
	}
	normal := context.Background()
	for _, ctx := range []context.Context{normal, throttle.ContextWithExempt(normal), normal} {
		fmt.Println(status(transport, ctx, "GET", "https://api.example.com/"))
	}
	// Output:
	// 200 OK
	// 200 OK
	// 429 Too Many Requests
}

// A service bounds the memory for keys and queues, and logs what it rejects.
func ExampleWithLogger() {
	untimed := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "wait" {
			return slog.Attr{}
		}
		return a
	}
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: untimed}))
	transport, err := throttle.New(offline{}, throttle.WithLogger(logger), throttle.WithKey(throttle.ByHost),
		throttle.WithMaxWait(time.Second), throttle.WithMaxKeys(10_000), throttle.WithMaxQueue(1_000),
		throttle.WithLimit(throttle.SlidingWindow(1, time.Minute, throttle.Name("host"))))
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		status(transport, context.Background(), "GET", "https://api.example.com/")
	}
	// Output:
	// level=WARN msg="throttle: request rejected" reason="max wait" limit=host key=api.example.com cost=1 dry_run=false
}

// The server reports that nothing is left for a minute, so the second request is rejected, until an operator, who knows that the
// quota was raised, calls ForgetServer. Without hints nothing is rejected.
func ExampleWithServerHints() {
	api := roundTripper(func(r *http.Request) (*http.Response, error) {
		return &http.Response{Status: "200 OK", StatusCode: http.StatusOK, Body: http.NoBody, Request: r, Header: http.Header{
			"X-Ratelimit-Limit": {"5000"}, "X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Resource": {"core"},
			"X-Ratelimit-Reset": {strconv.FormatInt(time.Now().Add(time.Minute).Unix(), 10)}}}, nil
	})
	hinted, err := throttle.New(api, throttle.WithFailFast(), throttle.WithServerHints(headers.GitHub))
	if err != nil {
		log.Fatal(err)
	}
	blind, err := throttle.New(api, throttle.WithFailFast(), throttle.WithoutServerHints())
	if err != nil {
		log.Fatal(err)
	}
	get := func(t *throttle.Transport) string {
		return status(t, context.Background(), "GET", "https://api.github.com/user")
	}
	fmt.Println(get(hinted), get(hinted))
	for _, server := range hinted.Limiter().Servers() {
		for _, quota := range server.Quotas {
			fmt.Println(server.Host, quota.Name, quota.Left, "of", quota.Limit)
		}
	}
	hinted.Limiter().ForgetServer("api.github.com")
	fmt.Println(hinted.Limiter().Server("api.github.com")[0].Quotas[0].Left, "left: not known")
	fmt.Println(get(hinted))
	fmt.Println(get(blind), get(blind))
	// Output:
	// 200 OK 429 Too Many Requests
	// api.github.com core 0 of 5000
	// -1 left: not known
	// 200 OK
	// 200 OK 200 OK
}

// A histogram of the waits, for a system other than Prometheus and OpenTelemetry.
func ExampleWaitBounds() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.Pace(50, time.Second)))
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		if err := limiter.Wait(context.Background(), throttle.Ask{}); err != nil {
			log.Fatal(err)
		}
	}
	limit, waited := limiter.Limits()[0], uint64(0)
	for i, bound := range throttle.WaitBounds() {
		if waited += limit.Waits.Counts[i]; bound == time.Minute {
			fmt.Println("no wait was longer than 1m0s:", waited == limit.Delayed)
		}
	}
	// Output: no wait was longer than 1m0s: true
}

// unreachable is a store that cannot be reached.
type unreachable struct{ _ int }

func (*unreachable) Lease(context.Context, []store.Ask) ([]store.Lease, error) {
	return nil, errors.New("connection refused")
}

// While the store is unreachable, each of four processes uses a quarter of the rate.
func ExampleWithoutStore() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(400, time.Second, throttle.Name("rate"),
		throttle.Shared(&unreachable{}, throttle.StoreTimeout(100*time.Millisecond), throttle.StoreGrace(time.Millisecond),
			throttle.WithoutStore(throttle.OutageLocalShare), throttle.ExpectProcesses(4)))))
	if err != nil {
		log.Fatal(err)
	}
	if err := limiter.Wait(context.Background(), throttle.Ask{}); err != nil {
		log.Fatal(err)
	}
	for _, s := range limiter.Stores() {
		fmt.Printf("%v: reachable: %v (%v), %d sent without it\n", s.Limits, s.Up, s.Err, s.Alone)
	}
	// Output: [rate]: reachable: false (connection refused), 1 sent without it
}

// The estimate is a bound, which answers seldom need. After 20 responses, a request is charged what was enough for nearly all of them.
func ExampleLearnCost() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(
		throttle.TokenBucket(200_000, time.Minute, throttle.Name("tokens"), throttle.LearnCost())))
	if err != nil {
		log.Fatal(err)
	}
	for range 20 {
		grant, err := limiter.Acquire(context.Background(), throttle.Ask{Cost: 8192})
		if err != nil {
			log.Fatal(err)
		}
		if err := grant.Settle("tokens", 400); err != nil {
			log.Fatal(err)
		}
	}
	ctx, receipt := throttle.ContextWithReceipt(context.Background())
	if err := limiter.Wait(ctx, throttle.Ask{Cost: 8192}); err != nil {
		log.Fatal(err)
	}
	cost, _ := receipt.Cost("tokens")
	fmt.Println(cost)
	// Output: 400
}

// A client of language models says what its requests cost, and where a response says what they did cost. The server's own headers say
// how much may be spent.
func ExampleServerQuota() {
	bytes := func(r *http.Request) int64 { return r.ContentLength / 4 } // about four bytes a token
	transport, err := throttle.New(nil, throttle.WithServerHints(headers.Auto), throttle.WithLimit(
		throttle.ServerQuota("tokens", throttle.Cost(bytes), throttle.SettleJSON("usage.total_tokens"))))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(transport.Limiter().Limits()[0].Name)
	// Output: tokens
}

func ExampleSettle() {
	limit := throttle.TokenBucket(100, time.Minute, throttle.Name("points"), throttle.ClampCost(),
		throttle.Cost(func(*http.Request) int64 { return 10 }), // an estimate
		throttle.Settle(func(_ *http.Request, resp *http.Response) (int64, bool) {
			cost, err := strconv.ParseInt(resp.Header.Get("X-Query-Cost"), 10, 64)
			return cost, err == nil // without the header the estimate stays
		}))
	transport, err := throttle.New(nil, throttle.WithLimit(limit))
	fmt.Println(transport != nil, err)
	// Output: true <nil>
}

func ExampleLimiter_Snapshot() {
	newLimiter := func() *throttle.Limiter {
		limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.SlidingWindow(10, time.Hour)))
		if err != nil {
			log.Fatal(err)
		}
		return limiter
	}
	before, after := newLimiter(), newLimiter() // two runs of a program
	before.Try(throttle.Ask{Key: "tenant", Cost: 8})
	if err := after.Restore(before.Snapshot()); err != nil {
		log.Fatal(err)
	}
	_, ok := after.Try(throttle.Ask{Key: "tenant", Cost: 3})
	fmt.Println(ok)
	// Output: false
}

// A program keeps what was spent and learned over a restart. Save at intervals, too, if it may be killed.
func ExampleLimiter_SaveFile() {
	dir, err := os.MkdirTemp("", "limits")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "limits.json")
	for range 2 { // two runs of the program
		limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.SlidingWindow(10, time.Hour)))
		if err != nil {
			log.Fatal(err)
		}
		if err := limiter.LoadFile(name); err != nil {
			log.Fatal(err)
		}
		_, ok := limiter.Try(throttle.Ask{Cost: 8})
		fmt.Println(ok)
		if err := limiter.SaveFile(name); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// true
	// false
}

// ptr returns a pointer to a copy of v. (Go 1.26 has new for it.)
func ptr[T any](v T) *T { return &v }
