package retry_test

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/retry"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// many sends n requests, some at a time, and returns when all have ended.
func many(t *testing.T, n, workers int, do func() (*http.Response, error)) {
	t.Helper()
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if resp, err := do(); err == nil {
					assert.NoError(t, resp.Body.Close())
				}
			}
		})
	}
	wg.Wait()
}

// While a server is down, a thousand requests make no more retries than the reserve, whatever else happens.
func TestServerDown(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]step{
		"503": answer(503), "503 with Retry-After": answer(503, "Retry-After: 1"),
		"broken": fail(errBroken), "refused": fail(refused),
		"429 without Retry-After": answer(429), "429 with an empty one": answer(429, "Retry-After: 0"),
	} {
		bubble(t, name, func(t *testing.T) {
			script := scripted(first)
			c := newClient(t, script)
			many(t, 1000, 50, func() (*http.Response, error) { return c.Get(site) })
			retries := len(script.at) - 1000
			assert.Equal(t, 100, retries)
			script.checkBodies(t)
			t.Logf("1000 requests, %d retries, within %v", retries, time.Since(script.begun))
		})
	}
	bubble(t, "without a budget", func(t *testing.T) {
		script := scripted(answer(503))
		c := newClient(t, script, retry.WithoutBudget())
		many(t, 1000, 50, func() (*http.Response, error) { return c.Get(site) })
		assert.Len(t, script.at, 5000)
	})
	bubble(t, "none", func(t *testing.T) {
		script := scripted(answer(503))
		c := newClient(t, script, retry.WithBudget(0, 1))
		many(t, 1000, 50, func() (*http.Response, error) { return c.Get(site) })
		assert.Len(t, script.at, 1000)
	})
}

// Whatever share of the answers fail, there are never more retries than reserve + share · successes.
func TestBudgetHoldsAtAllTimes(t *testing.T) {
	t.Parallel()
	for failing := range 11 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				attempts, successes, begun := 0, 0, 0
				check := func(req *http.Request) (*http.Response, error) {
					mu.Lock()
					defer mu.Unlock()
					attempts++
					assert.LessOrEqual(t, float64(attempts-begun), 20+0.25*float64(successes)+1e-9)
					if attempts*7919%10 < failing {
						return answer(500)(req)
					}
					successes++
					return answer(200)(req)
				}
				c := newClient(t, scripted(check), retry.WithBudget(20, 0.25))
				many(t, 500, 1+failing*3, func() (*http.Response, error) {
					mu.Lock()
					begun++
					mu.Unlock()
					return c.Get(site)
				})
				if failing <= 1 {
					assert.Equal(t, 500, successes) // the budget is no hindrance in good times
				}
			})
		})
	}
}

// After an outage successes fill the budget again, and no further than the reserve.
func TestBudgetFillsAgain(t *testing.T) {
	t.Parallel()
	bubble(t, "", func(t *testing.T) {
		var down atomic.Bool
		script := scripted(func(req *http.Request) (*http.Response, error) {
			if down.Load() {
				return answer(503)(req)
			}
			return answer(200)(req)
		})
		c := newClient(t, script, retry.WithBudget(10, 0.5))
		run := func(n int, isDown bool) int {
			down.Store(isDown)
			before := len(script.at)
			many(t, n, 5, func() (*http.Response, error) { return c.Get(site) })
			return len(script.at) - before - n
		}
		assert.Equal(t, 0, run(100, false))
		assert.Equal(t, 10, run(100, true))
		assert.Equal(t, 0, run(8, false))
		assert.Equal(t, 4, run(100, true))
		assert.Equal(t, 0, run(100, false))
		assert.Equal(t, 10, run(100, true))
	})
}

// What puts no load on a server that it did not ask for is not counted: refusals of our own, appointments.
func TestBudgetDoesNotCountInvitations(t *testing.T) {
	t.Parallel()
	bubble(t, "refusals", func(t *testing.T) {
		script := scripted(answer(200))
		c := retry.NewClient(newTransport(t, script, throttle.WithFailFast(),
			throttle.WithLimit(throttle.TokenBucket(1, 10*s))), retry.WithBudget(0, 0))
		for range 3 {
			resp, err := c.Get(site)
			whole(t, resp, err, 200)
		}
		between(t, script, 10*s, 10*s, 10*s, 10*s)
	})
	for name, first := range map[string]step{
		"429 with Retry-After":     answer(429, "Retry-After: 7"),
		"429 of an empty quota":    answer(429, `RateLimit: "default";r=0;t=7`),
		"403 with Retry-After":     answer(403, "Retry-After: 7"),
		"503 with Retry-After not": answer(503, "Retry-After: 7"),
	} {
		bubble(t, name, func(t *testing.T) {
			script := scripted(first, answer(200))
			resp, err := newClient(t, script, retry.WithBudget(0, 0)).Get(site)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			assert.Equal(t, name != "503 with Retry-After not", resp.StatusCode == 200)
		})
	}
}

// An attempt that will not be is not paid for.
func TestLastAttemptIsNotPaid(t *testing.T) {
	t.Parallel()
	bubble(t, "", func(t *testing.T) {
		script := scripted(answer(503))
		c := newClient(t, script, retry.WithBudget(8, 0))
		for range 3 {
			resp, err := c.Get(site)
			whole(t, resp, err, 503)
		}
		assert.Len(t, script.at, 5+5+1)
	})
}

// Without a reserve, retries are a share of the successes before them: after ten at 0.1 there is one.
func TestABudgetWithoutReserveIsEarned(t *testing.T) {
	t.Parallel()
	bubble(t, "", func(t *testing.T) {
		script := scripted(answer(200))
		c := newClient(t, script, retry.WithBudget(0, 0.1))
		get := func() {
			resp, err := c.Get(site)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
		}
		for range 30 { // saves up one, and no more
			get()
		}
		script.steps = []step{answer(503)}
		begun := len(script.at)
		for range 10 {
			get()
		}
		assert.Len(t, script.at, begun+11)
	})
}

// A retry that was never sent, since its context ended in the wait before it, costs nothing.
func TestACancelledWaitCostsNoRetry(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]step{"a response": answer(503), "an error": fail(errBroken)} {
		bubble(t, name, func(t *testing.T) {
			script := scripted(first)
			c := newClient(t, script, retry.WithBudget(1, 0))
			for range 5 {
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(time.Millisecond, cancel)
				req, err := retryablehttp.NewRequestWithContext(ctx, "GET", site, nil)
				require.NoError(t, err)
				_, err = c.Do(req)
				require.ErrorIs(t, err, context.Canceled)
			}
			require.Len(t, script.at, 5)
			resp, err := c.Get(site)
			if err == nil {
				require.NoError(t, resp.Body.Close())
			}
			assert.Len(t, script.at, 7, "the one retry that there is")
			resp, err = c.Get(site)
			if err == nil {
				require.NoError(t, resp.Body.Close())
			}
			assert.Len(t, script.at, 8)
		})
	}
}
