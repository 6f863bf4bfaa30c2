package limiter_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
)

// However many refusals one congestion event brings, the rate is cut once; settlement does not change that.
func TestOneCutPerCongestionEventAfterSettlements(t *testing.T) {
	rateAfter := func(settled int64) (rate float64) {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, throttle.WithLimit(throttle.Adaptive(throttle.AIMD{Initial: 10}, throttle.Name("x"))))
			for range 40 {
				g, err := l.Acquire(t.Context(), throttle.Ask{Cost: 1})
				require.NoError(t, err)
				g.Report(throttle.OutcomeClientError)
				require.NoError(t, g.Settle("x", settled))
				time.Sleep(2 * time.Second)
			}
			var grants []*throttle.Grant
			for range 8 {
				g, err := l.Acquire(t.Context(), throttle.Ask{Cost: 1})
				require.NoError(t, err)
				grants = append(grants, g)
			}
			for _, g := range grants { // all of them at one instant
				g.Report(throttle.OutcomeThrottled)
			}
			rate = coreOf(l).Limits[0].Single.Meter.(*aimd.Meter).PerSecond(0)
		})
		return rate
	}
	assert.InDelta(t, rateAfter(1), rateAfter(2), 0.1, "the rate after one event of 8 refusals: settled to 1, and to 2")
}

// As a user sees it: 20 in flight whose estimates were too high, and one that waits for what they give back.
func TestWaiterGoesWhenTwentyInFlightAreRefunded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(2000, time.Minute)))
		var grants []*throttle.Grant
		for range 20 {
			g, err := l.Acquire(t.Context(), throttle.Ask{Cost: 100})
			require.NoError(t, err)
			grants = append(grants, g)
		}
		start := time.Now()
		time.AfterFunc(time.Second, func() {
			for _, g := range grants {
				assert.NoError(t, g.Settle("bucket", 20))
			}
		})
		_, err := l.Acquire(t.Context(), throttle.Ask{Cost: 1500}) // of 1600 that come back, and 33 that came in
		require.NoError(t, err)
		assert.Equal(t, time.Second, time.Since(start))
	})
}

// A debt is owed by the key, not by a bucket that had to make room meanwhile: that one had tokens left, and a new one is full.
func TestADebtIsOwedThoughTheBucketWasEvictedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(100, time.Hour)), throttle.WithMaxKeys(1))
		g, err := l.Acquire(t.Context(), throttle.Ask{Key: "a", Cost: 1})
		require.NoError(t, err)
		_, err = l.Acquire(t.Context(), throttle.Ask{Key: "b", Cost: 1})
		require.NoError(t, err)
		require.NoError(t, g.Settle("bucket", 160))
		_, err = l.Acquire(t.Context(), throttle.Ask{Key: "a", Cost: 100, MaxWait: new(time.Duration(0))})
		assert.ErrorIs(t, err, throttle.ErrThrottled)
	})
}

// A hook that panics must not leak the slots of a response that no caller is handed.
func TestAHookThatPanicsAfterTheAnswerLeaksNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := roundTripper(func(req *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 429, Request: req, Header: http.Header{"Retry-After": {"5"}}, Body: io.NopCloser(strings.NewReader("x"))}, nil
		})
		tr := throttle.Must(throttle.New(base, throttle.WithLimit(throttle.InFlight(1), throttle.Adaptive(throttle.AIMD{})), throttle.WithHooks(throttle.Hooks{OnRetune: func(throttle.RetuneEvent) { panic("mine") }})))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://example.com/", nil)
		require.NoError(t, err)
		assert.Panics(t, func() { _, _ = tr.RoundTrip(req) })
		assert.Zero(t, coreOf(tr.Limiter()).Limits[0].Single.Meter.(*meter.Slots).InFlight())
	})
}
