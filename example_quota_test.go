package throttle_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/httpthrottle/throttle"
)

// An unused Quota allows a burst. What waits after it is sent evenly.
func ExampleQuota() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.Quota(21, 20*time.Second)))
	if err != nil {
		fmt.Println(err)
		return
	}
	forecast := func() (due []time.Duration) {
		for range 24 {
			ticket, err := limiter.Enqueue(throttle.Ask{})
			if err != nil {
				fmt.Println(err)
				return nil
			}
			due = append(due, time.Until(ticket.Due()).Round(time.Second))
		}
		return due
	}
	due := forecast()
	fmt.Println("the first 21:", due[0], "to", due[20])
	fmt.Println("then:", due[21], due[22], due[23])
	// Output:
	// the first 21: 0s to 0s
	// then: 20s 21s 22s
}

// Cached tokens are free, and each token of the answer counts five times.
func ExampleSettleJSONFunc() {
	api := roundTripper(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Request: r, Header: http.Header{"Content-Type": {"application/json"}},
			Body: io.NopCloser(strings.NewReader(`{"usage": {"input_tokens": 30, "cached_tokens": 20, "output_tokens": 4}}`))}, nil
	})
	cost := func(resp *http.Response, n []int64) (int64, bool) {
		input, cached, output := n[0], max(n[1], 0), n[2]
		return input - cached + 5*output, input >= 0 && output >= 0
	}
	transport := throttle.Must(throttle.New(api, throttle.WithLimit(
		throttle.SlidingWindow(10_000, time.Minute, throttle.Name("tpm"),
			throttle.Cost(func(*http.Request) int64 { return 500 }), // what it may come to
			throttle.SettleJSONFunc(cost, "usage.input_tokens", "usage.cached_tokens", "usage.output_tokens")))))
	client := &http.Client{Transport: transport}
	resp, err := client.Get("https://api.example.com/complete")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		fmt.Println(err)
		return
	}
	bucket, _ := transport.Limiter().Bucket("tpm", "")
	fmt.Println(bucket.Tokens)
	// Output: 9970
}

// A request that must be sent within two seconds goes before one that may wait.
func ExampleWithDeadlineOrder() {
	limiter, err := throttle.NewLimiter(throttle.WithDeadlineOrder(10*time.Minute),
		throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Burst(1), throttle.Initial(0))))
	if err != nil {
		fmt.Println(err)
		return
	}
	bulk, err := limiter.Enqueue(throttle.Ask{})
	if err != nil {
		fmt.Println(err)
		return
	}
	soon := 2 * time.Second
	urgent, err := limiter.Enqueue(throttle.Ask{MaxWait: &soon})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("bulk:", time.Until(bulk.Due()).Round(time.Second))
	fmt.Println("urgent:", time.Until(urgent.Due()).Round(time.Second))
	// Output:
	// bulk: 2s
	// urgent: 1s
}
