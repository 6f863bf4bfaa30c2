package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
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
	fmt.Println(limiter.Wait(ctx, "", 5))
	err = limiter.Wait(ctx, "", 1) // in twelve minutes, so it is refused at once
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
		wait, ok := limiter.Try("tenant-1", 1)
		fmt.Println(wait.Round(time.Minute), ok)
	}
	// Output:
	// 0s true
	// 1h0m0s false
}

func ExampleCalendarWindow() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(
		throttle.CalendarWindow(1000, throttle.Day, time.Local, throttle.Name("daily")),
		throttle.CalendarWindow(20_000, throttle.Month, time.Local, throttle.Name("monthly"))))
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, ok := limiter.Try("", 10); !ok {
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
