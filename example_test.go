package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle"
)

// offline answers every request, so that the examples need no network.
type offline struct{}

func (offline) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{Status: "200 OK", StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
}

func Example() {
	transport, err := throttle.New(offline{}, throttle.WithLimit(throttle.Pace(10, time.Second)))
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: transport}
	for range 3 {
		resp, err := client.Get("https://api.example.com/items")
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Println(resp.Status)
	}
	fmt.Println(transport.Stats().Delayed, "of them waited")
	// Output:
	// 200 OK
	// 200 OK
	// 200 OK
	// 2 of them waited
}

func ExampleRejectionOf() {
	transport := throttle.Must(throttle.New(offline{},
		throttle.WithLimit(throttle.SlidingWindow(1, time.Hour, throttle.Name("hourly"))),
		throttle.WithFailFast()))
	client := &http.Client{Transport: transport}
	for range 2 {
		resp, err := client.Get("https://api.example.com/report")
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		rejection, local := throttle.RejectionOf(resp)
		fmt.Println(resp.Status, local)
		if local {
			fmt.Println(rejection.Reason, rejection.Limit, rejection.Wait.Round(time.Minute), resp.Header.Get("Retry-After"))
		}
	}
	// Output:
	// 200 OK false
	// 429 Too Many Requests true
	// no tokens hourly 1h0m0s 3600
}

func ExampleWithWeights() {
	transport := throttle.Must(throttle.New(offline{},
		throttle.WithLimit(throttle.TokenBucket(20, time.Hour)),
		throttle.WithWeights(map[string]int64{"POST /upload": 15, "GET /health": 0}),
		throttle.WithFailFast()))
	client := &http.Client{Transport: transport}
	for _, path := range []string{"/upload", "/upload", "/health"} {
		resp, err := client.Post("https://api.example.com"+path, "text/plain", nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Println(path, resp.StatusCode)
	}
	// Output:
	// /upload 200
	// /upload 429
	// /health 200
}

func ExampleLimiter_Wait() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(5, time.Hour)))
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	fmt.Println(limiter.Wait(ctx, throttle.Ask{Cost: 5}))
	err = limiter.Wait(ctx, throttle.Ask{}) // in twelve minutes, so it is refused at once
	fmt.Println(errors.Is(err, throttle.ErrThrottled), errors.Is(err, context.DeadlineExceeded))
	// Output:
	// <nil>
	// true true
}

func ExampleLimiter_Try() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.SlidingWindow(1, time.Hour)))
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		wait, ok := limiter.Try(throttle.Ask{Key: "tenant-1"})
		fmt.Println(wait.Round(time.Minute), ok)
	}
	// Output:
	// 0s true
	// 1h0m0s false
}

func ExampleCalendarWindow() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(
		throttle.CalendarWindow(1000, throttle.CalendarDay, time.Local, throttle.Name("daily")),
		throttle.CalendarWindow(20_000, throttle.CalendarMonth, time.Local, throttle.Name("monthly"))))
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, ok := limiter.Try(throttle.Ask{Cost: 10}); !ok {
		fmt.Println("used up")
	}
	for bucket := range limiter.Buckets() {
		fmt.Printf("%s: %.0f left\n", bucket.Limit, bucket.Tokens)
	}
	// Output:
	// daily: 990 left
	// monthly: 19990 left
}

func ExampleLimiter_Acquire() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(
		throttle.FixedWindow(10, 24*time.Hour, throttle.Name("calls")),
		throttle.TokenBucket(1000, time.Hour, throttle.Name("rows"))))
	if err != nil {
		fmt.Println(err)
		return
	}
	grant, err := limiter.Acquire(context.Background(), throttle.Ask{Cost: 1, Costs: map[string]int64{"rows": 800}})
	if err != nil {
		fmt.Println(err)
		return
	}
	grant.Cancel() // never used: all of it is there again
	for bucket := range limiter.Buckets() {
		fmt.Printf("%s %.0f\n", bucket.Limit, bucket.Tokens)
	}
	// Output:
	// calls 10
	// rows 1000
}

func ExampleSettleJSON() {
	api := roundTripper(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Request: r, Header: http.Header{"Content-Type": {"application/json"}},
			Body: io.NopCloser(strings.NewReader(`{"answer": "42", "usage": {"total_tokens": 37}}`))}, nil
	})
	transport := throttle.Must(throttle.New(api, throttle.WithLimit(
		throttle.SlidingWindow(10_000, time.Minute, throttle.Name("tpm"),
			throttle.Cost(func(*http.Request) int64 { return 500 }), // what it may come to
			throttle.SettleJSON("usage.total_tokens")))))
	client := &http.Client{Transport: transport}
	resp, err := client.Get("https://api.example.com/complete")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	left := func() {
		for bucket := range transport.Limiter().Buckets() {
			fmt.Println(bucket.Tokens, "left")
		}
	}
	left()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		fmt.Println(err)
		return
	}
	left()
	// Output:
	// 9500 left
	// 9963 left
}

func ExampleContextWithReceipt() {
	transport := throttle.Must(throttle.New(offline{}, throttle.WithLimit(
		throttle.SlidingWindow(10_000, time.Minute, throttle.Name("tpm"),
			throttle.Cost(func(*http.Request) int64 { return 500 })))))
	complete := func(ctx context.Context) (tokens int64) { // by an SDK that hands out no response
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://api.example.com/complete", nil)
		if err != nil {
			return 0
		}
		if resp, err := (&http.Client{Transport: transport}).Do(req); err == nil {
			resp.Body.Close()
		}
		return 37
	}
	ctx, receipt := throttle.ContextWithReceipt(context.Background())
	used := complete(ctx)
	if err := receipt.Settle("tpm", used); err != nil {
		fmt.Println(err)
		return
	}
	cost, _ := receipt.Cost("tpm")
	fmt.Println("cost", cost, "waited", receipt.Waited())
	// Output:
	// cost 37 waited 0s
}

// lineUp has requests wait for the only slot, one after the other, and then prints in which order they got it.
func lineUp(limiter *throttle.Limiter, asks ...throttle.Ask) {
	slot, err := limiter.Acquire(context.Background(), throttle.Ask{Caller: "first"})
	if err != nil {
		log.Fatal(err)
	}
	var requests sync.WaitGroup
	var granted []string
	for i, ask := range asks {
		requests.Go(func() {
			slot, err := limiter.Acquire(context.Background(), ask)
			if err != nil {
				log.Fatal(err)
			}
			granted = append(granted, ask.Caller)
			slot.Done()
		})
		for limiter.Stats().Waiting <= i {
			time.Sleep(time.Millisecond)
		}
	}
	slot.Done()
	requests.Wait()
	fmt.Println(granted)
}

// Two tenants share a limit. The first has three requests in the queue when the second comes with one.
func ExampleFairBy() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.InFlight(1,
		throttle.FairBy(throttle.ByHeader("X-Tenant")))))
	if err != nil {
		log.Fatal(err)
	}
	greedy := throttle.Ask{Caller: "greedy"}
	lineUp(limiter, greedy, greedy, greedy, throttle.Ask{Caller: "modest"})
	// Output: [greedy modest greedy greedy]
}

// A tenant that pays for twice as much gets two requests for each request of another.
func ExampleFairWeights() {
	weight := func(caller string) int {
		if caller == "gold" {
			return 2
		}
		return 1
	}
	limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.InFlight(1,
		throttle.FairBy(throttle.ByHeader("X-Tenant")), throttle.FairWeights(weight))))
	if err != nil {
		log.Fatal(err)
	}
	gold, basic := throttle.Ask{Caller: "gold"}, throttle.Ask{Caller: "basic"}
	lineUp(limiter, basic, basic, basic, gold, gold, gold, gold)
	// Output: [basic gold gold basic gold gold basic]
}

// A limit of its own for bulk work keeps three of ten tokens for urgent requests, which cost nothing in it.
func ExampleWithLimit_reserve() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(
		throttle.FixedWindow(10, time.Hour, throttle.Name("all")),
		throttle.FixedWindow(7, time.Hour, throttle.Name("bulk"))))
	if err != nil {
		log.Fatal(err)
	}
	for _, ask := range []throttle.Ask{
		{MaxWait: ptr(time.Duration(0))},
		{MaxWait: ptr(time.Duration(0)), Costs: map[string]int64{"bulk": 0}}, // urgent
	} {
		sent := 0
		for {
			if _, err := limiter.Acquire(context.Background(), ask); err != nil {
				break
			}
			sent++
		}
		fmt.Println(sent)
	}
	// Output:
	// 7
	// 3
}

// Most SDKs take only a context, so the context names the caller.
func ExampleContextWithCaller() {
	transport, err := throttle.New(offline{}, throttle.WithLimit(throttle.TokenBucket(10, time.Second,
		throttle.FairBy(throttle.ByHeader("X-Tenant"))))) // if the context names no caller
	if err != nil {
		log.Fatal(err)
	}
	ctx := throttle.ContextWithCaller(context.Background(), "nightly-export")
	fmt.Println(status(transport, ctx, http.MethodGet, "https://api.example.com/"))
	// Output: 200 OK
}

// An API's own SDK may know another form of a 429.
func ExampleRejection_Response() {
	transport := throttle.Must(throttle.New(offline{},
		throttle.WithLimit(throttle.SlidingWindow(1, time.Hour)), throttle.WithFailFast(),
		throttle.WithRejectionResponse(func(r *throttle.Rejection, req *http.Request) *http.Response {
			resp := r.Response(req)
			resp.StatusCode = http.StatusServiceUnavailable
			resp.Header.Set("X-Error-Code", "SlowDown")
			return resp
		})))
	client := &http.Client{Transport: transport}
	for range 2 {
		resp, err := client.Get("https://api.example.com/")
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Printf("%s %q\n", resp.Status, resp.Header.Get("X-Error-Code"))
	}
	// Output:
	// 200 OK ""
	// 503 Service Unavailable "SlowDown"
}

// A proxy passes its rejections on to its clients, instead of the 502 that ReverseProxy answers errors with.
func ExampleRejection_WriteResponse() {
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "https", Host: "api.example.com"})
	proxy.Transport = throttle.Must(throttle.New(offline{},
		throttle.WithLimit(throttle.SlidingWindow(1, time.Hour)), throttle.WithMaxWait(3*time.Second), throttle.WithRejectionError()))
	proxy.ErrorHandler = func(w http.ResponseWriter, r *http.Request, err error) {
		var rejection *throttle.Rejection
		if errors.As(err, &rejection) {
			rejection.WriteResponse(w)
			return
		}
		w.WriteHeader(http.StatusBadGateway)
	}
	for range 2 {
		w := httptest.NewRecorder()
		proxy.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		fmt.Printf("%d %q\n", w.Code, w.Header().Get("Content-Type"))
	}
	// Output:
	// 200 ""
	// 429 "application/problem+json"
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

// A Ticket is a place in the queue. The program does other work meanwhile.
func ExampleLimiter_Enqueue() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.Pace(1, time.Hour)))
	if err != nil {
		log.Fatal(err)
	}
	first, err := limiter.Enqueue(throttle.Ask{})
	if err != nil {
		log.Fatal(err)
	}
	second, err := limiter.Enqueue(throttle.Ask{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("second after", second.Due().Sub(first.Due()))
	second.Cancel()
	if _, err := first.Wait(context.Background()); err != nil {
		log.Fatal(err)
	}
	fmt.Println("first done")
	// Output:
	// second after 1h0m0s
	// first done
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

// Work other than HTTP requests reports its outcome itself.
func ExampleGrant_Report() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(
		throttle.AdaptiveInFlight(throttle.Concurrency{Initial: 8, Max: 64}, throttle.Name("queries"))))
	if err != nil {
		log.Fatal(err)
	}
	query := func() error { return context.DeadlineExceeded } // of a database, say
	inFlight := func() int {
		bucket, _ := limiter.Bucket("queries", "")
		return bucket.InFlight
	}
	grant, err := limiter.Acquire(context.Background(), throttle.Ask{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(inFlight())
	if err := query(); err != nil {
		grant.Report(throttle.OutcomeUnavailable)
	} else {
		grant.Report(throttle.OutcomeOK)
	}
	grant.Done()
	fmt.Println(inFlight())
	// Output:
	// 1
	// 0
}

// An estimate is charged before the work, and the true cost after it.
func ExampleGrant_Settle() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.FixedWindow(1_000, 24*time.Hour, throttle.Name("rows"))))
	if err != nil {
		log.Fatal(err)
	}
	grant, err := limiter.Acquire(context.Background(), throttle.Ask{Key: "tenant", Cost: 500})
	if err != nil {
		log.Fatal(err)
	}
	if err := grant.Settle("rows", 120); err != nil {
		log.Fatal(err)
	}
	bucket, _ := limiter.Bucket("rows", "tenant")
	fmt.Println(bucket.Tokens, "left")
	// Output: 880 left
}

// A tenant buys another tier. The new rate applies immediately, also to requests that already wait.
func ExampleLimiter_Refresh() {
	var gold atomic.Bool
	limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.SlidingWindow(1, time.Minute, throttle.Name("tenant"),
		throttle.RateFor(func(string) (int64, time.Duration) {
			if gold.Load() {
				return 10, time.Minute
			}
			return 0, 0
		}))))
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		limiter.Try(throttle.Ask{Key: "tenant"})
		bucket, _ := limiter.Bucket("tenant", "tenant")
		fmt.Println(bucket.Tokens, "of", bucket.Capacity)
		gold.Store(true)
		if err := limiter.Refresh("tenant", "tenant"); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// 0 of 1
	// 8 of 10
}

func ExampleLimiter_SetBurst() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(
		throttle.TokenBucket(10, time.Second, throttle.Name("rate")), throttle.InFlight(4, throttle.Name("slots"))))
	if err != nil {
		log.Fatal(err)
	}
	if err := errors.Join(limiter.SetBurst("rate", 25), limiter.SetInFlight("slots", 8)); err != nil {
		log.Fatal(err)
	}
	for _, limit := range limiter.Limits()[:2] { // the last one is what servers report
		fmt.Println(limit.Name, limit.Capacity)
	}
	// Output:
	// rate 25
	// slots 8
}

// An operator stops everything, lets one tenant go on, and then all of them.
func ExampleLimiter_HoldAll() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(10, time.Hour, throttle.Key(throttle.ByHeader("X-Tenant")))))
	if err != nil {
		log.Fatal(err)
	}
	try := func() {
		_, a := limiter.Try(throttle.Ask{Key: "a"})
		_, b := limiter.Try(throttle.Ask{Key: "b"})
		fmt.Println(a, b)
	}
	limiter.HoldAll(time.Hour)
	try()
	limiter.ReleaseAll()
	limiter.Hold("a", time.Hour)
	limiter.Hold("b", time.Hour)
	limiter.Release("b")
	try()
	// Output:
	// false false
	// false true
}

// A worker does other work until its turn.
func ExampleTicket_Decided() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.Pace(20, time.Second)))
	if err != nil {
		log.Fatal(err)
	}
	limiter.Try(throttle.Ask{})
	ticket, err := limiter.Enqueue(throttle.Ask{})
	if err != nil {
		log.Fatal(err)
	}
	for waiting := true; waiting; {
		select {
		case <-ticket.Decided():
			waiting = false
		case <-time.After(time.Millisecond): // other work
		}
	}
	if _, err := ticket.Wait(context.Background()); err != nil { // returns immediately
		log.Fatal(err)
	}
	fmt.Println("sent")
	// Output: sent
}

func ExampleTransport_Shutdown() {
	transport := throttle.Must(throttle.New(offline{}, throttle.WithLimit(throttle.TokenBucket(10, time.Second))))
	client := &http.Client{Transport: transport}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	fmt.Println(transport.Shutdown(ctx)) // waits for the requests that wait and that are in flight
	_, err := client.Get("https://api.example.com/")
	var r *throttle.Rejection
	fmt.Println(errors.As(err, &r) && r.Reason == throttle.ReasonShutdown)
	// Output:
	// <nil>
	// true
}

func ExampleLimiter_Shutdown() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(1, time.Hour)))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(limiter.Wait(context.Background(), throttle.Ask{}))
	late := make(chan error)
	go func() { late <- limiter.Wait(context.Background(), throttle.Ask{}) }()
	for limiter.Stats().Waiting == 0 {
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	fmt.Println(limiter.Shutdown(ctx))
	fmt.Println(<-late)
	// Output:
	// <nil>
	// context deadline exceeded
	// throttle: limit "bucket": shut down, so no request is sent any more
}

func ExampleLimiter_Forecast() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(
		throttle.TokenBucket(10, time.Second, throttle.Name("rate")),
		throttle.FixedWindow(500, 24*time.Hour, throttle.Name("daily"))))
	if err != nil {
		fmt.Println(err)
		return
	}
	f, err := limiter.Forecast(throttle.Ask{}, 310) // for a batch of 310 requests
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("half of them after", f.Tenths[4])
	fmt.Println("all of them after", f.Done())
	fmt.Println("because of", f.Limit)
	// Output:
	// half of them after 14.5s
	// all of them after 30s
	// because of rate
}

func ExampleTransport_Forecast() {
	transport, err := throttle.New(nil, throttle.WithLimit(throttle.FixedWindow(100, time.Hour)), throttle.WithWeights(map[string]int64{"POST /": 25}))
	if err != nil {
		fmt.Println(err)
		return
	}
	req, err := http.NewRequest(http.MethodPost, "http://api.example.com/reports", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	f, err := transport.Forecast(req, 4) // which cost 100
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(f.Done())
	// Output: 0s
}

func ExampleReceipt_Delay() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Initial(0), throttle.Name("rate"))))
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, receipt := throttle.ContextWithReceipt(context.Background())
	if err := limiter.Wait(ctx, throttle.Ask{}); err != nil {
		fmt.Println(err)
		return
	}
	if delay, ok := receipt.Delay(); ok {
		fmt.Println(delay.Limit, delay.Ahead, delay.Priority) // delay itself prints as a line
	}
	// Output: rate 0 0
}

func ExampleTicket_Waiting() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.Name("hourly"))))
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		ticket, err := limiter.Enqueue(throttle.Ask{})
		if err != nil {
			fmt.Println(err)
			return
		}
		if w, ok := ticket.Waiting(); ok {
			fmt.Println("waits for", w.Limit, "until", w.Due.Sub(w.Since).Round(time.Minute), "after its arrival")
		} else {
			fmt.Println("does not wait")
		}
	}
	// Output:
	// does not wait
	// waits for hourly until 1h0m0s after its arrival
}

func ExampleReceipt_Waiting() {
	transport := throttle.Must(throttle.New(offline{}, throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.Initial(0)))))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ctx, receipt := throttle.ContextWithReceipt(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://api.example.com/", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := transport.RoundTrip(req)
		fmt.Println(err)
	}()
	for {
		if w, ok := receipt.Waiting(); ok {
			fmt.Println("waits for", w.Limit)
			break
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	<-done
	// Output:
	// waits for bucket
	// context canceled
}

// A roundTripper is an API that the examples call.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
