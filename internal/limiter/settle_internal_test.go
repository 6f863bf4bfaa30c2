package limiter_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/aimd"
)

// However many refusals one congestion event brings, the rate is cut once; settlement does not change that.
func TestOneCutPerCongestionEventAfterSettlements(t *testing.T) {
	rateAfter := func(settled int64) (rate float64) {
		synctest.Test(t, func(t *testing.T) {
			l := drive(t, adaptive(aimd.Config{Initial: 10}, named("x")))
			for range 40 {
				g, err := l.acquire(t.Context(), ask{Cost: 1})
				require.NoError(t, err)
				g.report(aimd.ClientError)
				require.NoError(t, g.settle("x", settled))
				time.Sleep(2 * time.Second)
			}
			var grants []*grant
			for range 8 {
				g, err := l.acquire(t.Context(), ask{Cost: 1})
				require.NoError(t, err)
				grants = append(grants, g)
			}
			for _, g := range grants { // all of them at one instant
				g.report(aimd.Throttled)
			}
			rate = l.Limits[0].Single.Meter.(*aimd.Meter).PerSecond(0)
		})
		return rate
	}
	assert.InDelta(t, rateAfter(1), rateAfter(2), 0.1, "the rate after one event of 8 refusals: settled to 1, and to 2")
}

// As a user sees it: 20 in flight whose estimates were too high, and one that waits for what they give back.
func TestWaiterGoesWhenTwentyInFlightAreRefunded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(2000, time.Minute))
		var grants []*grant
		for range 20 {
			g, err := l.acquire(t.Context(), ask{Cost: 100})
			require.NoError(t, err)
			grants = append(grants, g)
		}
		start := time.Now()
		time.AfterFunc(time.Second, func() {
			for _, g := range grants {
				assert.NoError(t, g.settle("bucket", 20))
			}
		})
		_, err := l.acquire(t.Context(), ask{Cost: 1500}) // of 1600 that come back, and 33 that came in
		require.NoError(t, err)
		assert.Equal(t, time.Second, time.Since(start))
	})
}

// A debt is owed by the key, not by a bucket that had to make room meanwhile: that one had tokens left, and a new one is full.
func TestADebtIsOwedThoughTheBucketWasEvictedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(100, time.Hour), maxKeys(1))
		g, err := l.acquire(t.Context(), ask{Key: "a", Cost: 1})
		require.NoError(t, err)
		_, err = l.acquire(t.Context(), ask{Key: "b", Cost: 1})
		require.NoError(t, err)
		require.NoError(t, g.settle("bucket", 160))
		_, err = l.acquire(t.Context(), ask{Key: "a", Cost: 100, MaxWait: new(time.Duration(0))})
		assert.ErrorIs(t, err, errRejected)
	})
}
