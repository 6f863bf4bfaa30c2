package throttle_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttletest"
)

// pressed lets n callers, each of whom always has a next request, work for d through a Transport.
func pressed(t *testing.T, tr *throttle.Transport, n int, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for ctx.Err() == nil {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example.com/items", nil)
				if !assert.NoError(t, err) {
					return
				}
				if resp, err := tr.RoundTrip(req); err == nil {
					assert.NoError(t, resp.Body.Close())
				}
			}
		})
	}
	wg.Wait()
	time.Sleep(time.Minute) // what the server still works on
}

func TestAdaptiveFindsTheLimitOfAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, err := throttletest.NewHandler(
			throttletest.WithLimits(throttletest.TokenBucket(100, time.Second, throttletest.Burst(20))),
			throttletest.WithRoundTrip(40*time.Millisecond, time.Millisecond/2), throttletest.WithRetryAfter(throttletest.NoRetryAfter),
			throttletest.WithServiceTime(throttletest.LogNormal(10*time.Millisecond, 0.3)))
		require.NoError(t, err)
		tr, err := throttle.New(h.Direct(), throttle.WithAdaptive())
		require.NoError(t, err)
		pressed(t, tr, 50, 300*time.Second)
		c := h.Counts()
		assert.Greater(t, c.Accepted, int64(0.96*100*300))
		assert.Less(t, c.Refused, c.Received/200)
	})
}
