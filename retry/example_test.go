package retry_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/pool"
	"github.com/httpthrottle/throttle/retry"
)

// moody is a server that is down at first.
func moody(failures int64) *httptest.Server {
	var n atomic.Int64
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1) <= failures {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		io.WriteString(w, "hello")
	}))
}

func ExampleNewClient() {
	server := moody(2)
	defer server.Close()

	transport, err := throttle.New(nil,
		throttle.WithLimit(throttle.TokenBucket(10, time.Second)),
		throttle.WithoutServerHints(), // so that the 503 does not hold the example up
	)
	if err != nil {
		log.Fatal(err)
	}
	client := retry.NewClient(transport)
	client.RetryWaitMin = 10 * time.Millisecond

	resp, err := client.Get(server.URL)
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(resp.StatusCode, string(body))
	fmt.Println("attempts that paid:", transport.Stats().Granted)
	// Output:
	// 200 hello
	// attempts that paid: 3
}

// The response is there to look at when nothing helps, also through the http.Client that an SDK is given.
func ExampleNewClient_standardClient() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "3600")
		http.Error(w, "come back in an hour", http.StatusTooManyRequests)
	}))
	defer server.Close()

	client := retry.NewClient(throttle.Must(throttle.New(nil))).StandardClient()
	start := time.Now()
	resp, err := client.Get(server.URL)
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d %s", resp.StatusCode, body)
	fmt.Println("at once:", time.Since(start) < time.Second)
	// Output:
	// 429 come back in an hour
	// at once: true
}

func ExampleNew() {
	server := moody(1)
	defer server.Close()

	client := retryablehttp.NewClient() // with whatever else is set on it
	client.Logger = nil
	client.RetryWaitMin = 10 * time.Millisecond

	policy, err := retry.New(client, retry.WithMaxWait(10*time.Second), retry.WithBudget(20, 0.1))
	if err != nil {
		log.Fatal(err)
	}
	client.HTTPClient.Transport = retry.RoundTripper(throttle.Must(throttle.New(nil, throttle.WithoutServerHints())))
	client.CheckRetry, client.Backoff = policy.CheckRetry, policy.Backoff
	client.PrepareRetry, client.ErrorHandler = policy.PrepareRetry, policy.ErrorHandler

	resp, err := client.Get(server.URL)
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status)
	// Output: 200 OK
}

// A retryablehttp client of your own sends by a pool, whose members are tried one after the other.
func ExamplePolicy_RoundTripper() {
	server := moody(1)
	defer server.Close()

	var members []pool.Member
	for _, name := range []string{"east", "west"} { // each with a base that sets its host or its credential
		members = append(members, pool.Member{Name: name, Transport: throttle.Must(throttle.New(nil))})
	}
	both, err := pool.New(members)
	if err != nil {
		log.Fatal(err)
	}
	client := retryablehttp.NewClient()
	client.Logger = nil
	policy, err := retry.New(client)
	if err != nil {
		log.Fatal(err)
	}
	client.HTTPClient.Transport = policy.RoundTripper(both)
	client.CheckRetry, client.Backoff = policy.CheckRetry, policy.Backoff
	client.PrepareRetry, client.ErrorHandler = policy.PrepareRetry, policy.ErrorHandler

	resp, err := client.Get(server.URL)
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status)
	for _, m := range members {
		fmt.Println(m.Name, "sent", m.Transport.Stats().Granted)
	}
	// Output:
	// 200 OK
	// east sent 1
	// west sent 1
}
