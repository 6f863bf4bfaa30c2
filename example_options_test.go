package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"strconv"
	"time"

	"github.com/httpthrottle/throttle"
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
	_, err = limiter.Acquire(context.Background(), throttle.Ask{Cost: 1, MaxWait: new(time.Duration(0))})
	fmt.Println(errors.Is(err, throttle.ErrThrottled))
	first.Done()
	second, err := limiter.Acquire(context.Background(), throttle.Ask{Cost: 1, MaxWait: new(time.Duration(0))})
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
	if rejection, ok := errors.AsType[*throttle.Rejection](err); ok {
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

func ExampleLimiter_SetRate() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.SlidingWindow(1, time.Hour, throttle.Name("hourly"))))
	if err != nil {
		log.Fatal(err)
	}
	limiter.Try(throttle.Ask{})
	_, before := limiter.Try(throttle.Ask{})
	if err := limiter.SetRate("hourly", 2, time.Hour); err != nil {
		log.Fatal(err)
	}
	_, after := limiter.Try(throttle.Ask{})
	fmt.Println(before, after)
	// Output: false true
}

func ExampleLimiter_Hold() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(10, time.Second)))
	if err != nil {
		log.Fatal(err)
	}
	limiter.Hold("api.example.com", time.Minute)
	wait, ok := limiter.Try(throttle.Ask{Key: "api.example.com"})
	fmt.Println(ok, wait.Round(time.Second))
	_, ok = limiter.Try(throttle.Ask{Key: "other.example.com"})
	fmt.Println(ok)
	// Output:
	// false 1m0s
	// true
}

func ExampleLimiter_Buckets() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.SlidingWindow(10, time.Hour)))
	if err != nil {
		log.Fatal(err)
	}
	limiter.Try(throttle.Ask{Key: "tenant", Cost: 4})
	for b := range limiter.Buckets() {
		fmt.Printf("%s %q: %.0f left\n", b.Limit, b.Key, b.Tokens)
	}
	// Output:
	// sliding-window "tenant": 6 left
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
