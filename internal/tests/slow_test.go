package tests

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle"
)

// This file is servers that accept less than one request a second, and what a client learns of such a rate from refusals.

// A refusalCount is what a server has accepted and refused after the first two minutes.
type refusalCount struct{ accepted, refused int }

// pressSlow has eight callers send requests for ten minutes to a server that accepts what decide says. A request that is refused asks for a
// wait, which refuse makes a response of.
func pressSlow(t *testing.T, decide func(now time.Time) (wait time.Duration), refuse func(now time.Time, wait time.Duration) (*http.Response, error), opts ...throttle.Option) refusalCount {
	var (
		mu    sync.Mutex
		n     refusalCount
		start = time.Now()
	)
	tr := throttle.Must(throttle.New(serverFunc(func(*http.Request) *http.Response {
		time.Sleep(100 * time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		wait := decide(now)
		switch warm := now.Sub(start) >= 2*time.Minute; {
		case warm && wait > 0:
			n.refused++
		case warm:
			n.accepted++
		}
		if wait > 0 {
			resp, _ := refuse(now, wait)
			return resp
		}
		resp, _ := reply(200)
		return resp
	}), opts...))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	pressAll(ctx, tr, 8, to(t, http.MethodGet, "https://api.example/x"))
	return n
}

// bucketOf returns a token bucket's decisions: how long until it has a token, 0 for a request that takes one.
func bucketOf(burst float64, every time.Duration) func(now time.Time) time.Duration {
	level, last := burst, time.Now()
	return func(now time.Time) time.Duration {
		level, last = min(burst, level+float64(now.Sub(last))/float64(every)), now
		if level < 1 {
			return time.Duration((1 - level) * float64(every))
		}
		level--
		return 0
	}
}

// About one request in eight is refused: the waits are in whole seconds, and what a client has found must be tested.
func TestARateBelowOneASecondIsFound(t *testing.T) {
	for _, every := range []time.Duration{3 * time.Second, 600 * time.Millisecond} {
		for name, opts := range map[string][]throttle.Option{"default": nil, "a limit of its own": {throttle.WithLimit(throttle.TokenBucket(10, time.Second))}} {
			t.Run(fmt.Sprint(every, " ", name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := pressSlow(t, bucketOf(20, every), func(_ time.Time, wait time.Duration) (*http.Response, error) {
						return reply(http.StatusTooManyRequests, "Retry-After", strconv.Itoa(int((wait+time.Second-1)/time.Second)))
					}, opts...)
					assert.GreaterOrEqual(t, n.accepted, int(8*time.Minute/every)*97/100)
					assert.LessOrEqual(t, n.refused*5, n.accepted)
				})
			})
		}
	}
}

// MusicBrainz refuses requests that come within a second of another one, refused ones included, with a 503 and an empty quota, whose end is
// in whole seconds and so up to a second too early.
func TestRefusedRequestsThatCount(t *testing.T) {
	for name, opts := range map[string][]throttle.Option{"default": nil, "adaptive": {throttle.WithAdaptive()}, "in flight": {throttle.WithAdaptiveInFlight()}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var last time.Time
				n := pressSlow(t, func(now time.Time) time.Duration {
					early := now.Sub(last) < time.Second
					if last = now; early {
						return time.Second
					}
					return 0
				}, func(now time.Time, wait time.Duration) (*http.Response, error) {
					return reply(http.StatusServiceUnavailable, "X-RateLimit-Limit", "1", "X-RateLimit-Remaining", "0",
						"X-RateLimit-Reset", strconv.FormatInt(now.Add(wait).Unix(), 10))
				}, opts...)
				assert.LessOrEqual(t, n.refused*2, n.accepted)
			})
		})
	}
}
