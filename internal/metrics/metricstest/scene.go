// Package metricstest has a scene after which each metric of package metrics has a value.
package metricstest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/retry"
	"github.com/httpthrottle/throttle/store"
)

// A Scene is a Transport, whose Limiter has a shared limit and has been asked for the key Host of the limit "requests", and a Policy
// that has retried.
type Scene struct {
	Transport *throttle.Transport
	Policy    *retry.Policy
}

// Host is the key of most requests.
const Host = "api.example.com"

// Play plays a scene in which most counters move. It must run in a bubble of testing/synctest.
func Play(t *testing.T) Scene {
	t.Helper()
	policy := retried(t)
	shared := &unreliable{Store: store.NewMemory()}
	tr, err := throttle.New(server(), throttle.WithRejectionError(),
		throttle.WithExempt(func(r *http.Request) bool { return r.URL.Path == "/health" }),
		throttle.WithLimit(
			throttle.TokenBucket(2, time.Second, throttle.Name("requests"), throttle.Key(throttle.ByHost),
				throttle.Settle(func(*http.Request, *http.Response) (int64, bool) { return 1, true })),
			// Without a key: whether one of the scene is still remembered at its end is undecided. Full keys are looked at once a second, and
			// requests are granted every half second, so both happen at the same instants.
			throttle.InFlight(5, throttle.Name("slots")),
			throttle.Adaptive(throttle.AIMD{Initial: 50, Max: 100}, throttle.Name("learned"), throttle.Key(throttle.ByHost)),
			throttle.TokenBucket(100, time.Second, throttle.Name("account"),
				throttle.Shared(shared, throttle.WithoutStore(throttle.OutagePass), throttle.StoreGrace(0)))))
	check(t, err)
	send := func(ctx context.Context, path string) {
		if resp, err := tr.RoundTrip(get(t, ctx, "http://"+Host+path)); err == nil {
			check(t, resp.Body.Close())
		}
	}
	for range 6 {
		send(t.Context(), "/")
	}
	send(t.Context(), "/health")
	send(throttle.ContextWithMaxWait(t.Context(), 0), "/")
	send(throttle.ContextWithCost(t.Context(), 9, "requests"), "/")
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	send(ctx, "/")
	synctest.Wait() // for calls of the store
	shared.cut = true
	send(throttle.ContextWithCost(t.Context(), 80, "account"), "/")
	tr.Limiter().HoldAll(10 * time.Minute)
	synctest.Wait()
	return Scene{tr, policy}
}

// server answers as a server with a quota, and refuses every fourth request.
func server() roundTripper {
	n := 0
	return func(r *http.Request) (*http.Response, error) {
		n++
		resp := &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r, Header: http.Header{
			"X-Ratelimit-Limit": {"100"}, "X-Ratelimit-Remaining": {fmt.Sprint(90 - n)}, "X-Ratelimit-Reset": {"3600"}}}
		if n%4 == 0 {
			resp.StatusCode, resp.Header = http.StatusTooManyRequests, nil
		}
		return resp, nil
	}
}

// retried returns the Policy of a client that has retried a request once.
func retried(t *testing.T) *retry.Policy {
	t.Helper()
	status := http.StatusBadGateway
	client := retry.NewClient(throttle.Must(throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
		resp := &http.Response{StatusCode: status, Body: http.NoBody, Request: r}
		status = http.StatusOK
		return resp, nil
	}))))
	client.RetryWaitMin, client.RetryWaitMax = 0, 0 // no jitter
	resp, err := client.StandardClient().Do(get(t, t.Context(), "http://"+Host+"/"))
	check(t, err)
	check(t, resp.Body.Close())
	return client.Policy
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// An unreliable store can be cut off.
type unreliable struct {
	store.Store
	cut bool
}

func (s *unreliable) Lease(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	if s.cut {
		return nil, errors.New("cut off")
	}
	return s.Store.Lease(ctx, asks)
}

func get(t *testing.T, ctx context.Context, url string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	check(t, err)
	return req
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
