package tests

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// A base sends a request by the Transport that it is the base of.
func TestARequestThatWouldWaitForItselfIsAnError(t *testing.T) {
	for name, c := range map[string]struct {
		limit throttle.Limit
		send  func(ctx context.Context, tr http.RoundTripper, req *http.Request) error // in the base, for /outer
		fault string
	}{
		"the only slot":     {throttle.InFlight(1), fetch, `limit "in-flight": the base of a request that has all 1 slots`},
		"all slots":         {throttle.InFlight(3, throttle.Cost(func(*http.Request) int64 { return 3 })), fetch, "all 3 slots"},
		"another slot":      {throttle.InFlight(2), fetch, ""},
		"one slot of a key": {throttle.InFlight(1, throttle.Key(func(r *http.Request) string { return r.URL.Path })), fetch, ""},
		"one more by then": {throttle.InFlight(1), func(ctx context.Context, tr http.RoundTripper, req *http.Request) error {
			if err := tr.(*throttle.Transport).Limiter().SetInFlight("in-flight", 2); err != nil {
				return err
			}
			return fetch(ctx, tr, req)
		}, ""},
		"another one's context": {throttle.InFlight(1), func(_ context.Context, tr http.RoundTripper, req *http.Request) error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			return fetch(ctx, tr, req)
		}, "context deadline exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var tr *throttle.Transport
				tr = transportTo(t, roundTripper(func(req *http.Request) (*http.Response, error) {
					if req.URL.Path == "/outer" {
						if err := c.send(req.Context(), tr, get(t, req.Context(), "http://h/inner")); err != nil {
							return nil, err
						}
					}
					return &http.Response{StatusCode: 200, Body: http.NoBody, Request: req}, nil
				}), throttle.WithLimit(c.limit))
				outer := get(t, t.Context(), "http://h/outer")
				resp, err := tr.RoundTrip(outer)
				if c.fault == "" {
					require.NoError(t, err)
					require.Same(t, outer, resp.Request)
				} else {
					require.ErrorContains(t, err, c.fault)
					require.NotErrorIs(t, err, throttle.ErrThrottled)
				}
				require.Zero(t, tr.Stats().Waiting)
				for b := range tr.Limiter().Buckets() {
					require.Zero(t, b.InFlight)
				}
			})
		})
	}
}

// Once the base has returned, a request with that context is like any other: it waits until the body is closed.
func TestARequestAfterTheBaseHasReturnedWaitsForItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ctx context.Context
		tr := transportTo(t, roundTripper(func(req *http.Request) (*http.Response, error) {
			ctx = req.Context()
			return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader("x")), Request: req}, nil
		}), throttle.WithLimit(throttle.InFlight(1)))
		resp, err := tr.RoundTrip(get(t, t.Context(), "http://h/"))
		require.NoError(t, err)
		time.AfterFunc(time.Second, func() { _ = resp.Body.Close() })
		began := time.Now()
		require.NoError(t, fetch(ctx, tr, get(t, ctx, "http://h/")))
		require.Equal(t, time.Second, time.Since(began))
	})
}

// fetch sends a request and closes the body.
func fetch(ctx context.Context, tr http.RoundTripper, req *http.Request) error {
	resp, err := tr.RoundTrip(req.WithContext(ctx))
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
