package limiter_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/concurrency"
	"github.com/httpthrottle/throttle/internal/limiter"
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
		_, err = l.acquire(t.Context(), ask{Key: "a", Cost: 100, MaxWait: ptr(time.Duration(0))})
		assert.ErrorIs(t, err, errRejected)
	})
}

// An adaptive limit gives the token of a request back if it never reached the server, and only then; slots come back once, either
// way.
func TestOnlyARequestThatWasNotSentIsRefundedByAnAdaptiveLimit(t *testing.T) {
	for name, c := range map[string]struct {
		limit           rule
		unsent, settled bool
		returned        uint64
	}{
		"a rate, sent":               {limit: adaptive(aimd.Config{})},
		"a rate, sent and settled":   {limit: adaptive(aimd.Config{}), settled: true},
		"a rate, unsent":             {limit: adaptive(aimd.Config{}), unsent: true, returned: 1},
		"a rate, settled and unsent": {limit: adaptive(aimd.Config{}), unsent: true, settled: true},
		"slots, sent":                {limit: adaptiveInFlight(concurrency.Config{}), returned: 1},
		"slots, unsent":              {limit: adaptiveInFlight(concurrency.Config{}), unsent: true, returned: 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := drive(t, c.limit)
			tokens := func() float64 { return l.Limits[0].Single.Meter.Tokens(0) }
			before := tokens()
			g, err := l.acquire(t.Context(), ask{Cost: 1})
			require.NoError(t, err)
			charge := &g.Request.Charges()[0]
			if charge.Kept = false; c.settled {
				require.NoError(t, g.settle(charge.Limit().Name, 1))
			}
			g.answer(&limiter.Answer{Outcome: aimd.OK, Unsent: c.unsent})
			require.Equal(t, c.returned, charge.Limit().Counts.Returned, name)
			if !charge.Limit().Frees {
				require.InDelta(t, before-1+float64(c.returned), tokens(), 1e-9, name)
			}
		})
	}
}

// A slot rests after its request, unless the request never reached the server.
func TestTheSlotOfARequestThatWasNotSentDoesNotRest(t *testing.T) {
	for _, unsent := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := drive(t, inFlight(1, withPause(2*time.Second)))
			g, err := l.acquire(t.Context(), ask{Cost: 1})
			require.NoError(t, err)
			g.Request.Charges()[0].Kept = false
			g.answer(&limiter.Answer{Outcome: aimd.OK, Unsent: unsent})
			start := time.Now()
			_, err = l.acquire(t.Context(), ask{Cost: 1})
			require.NoError(t, err)
			want := 2 * time.Second
			if unsent {
				want = 0
			}
			require.Equal(t, want, time.Since(start))
		})
	}
}

func TestReturnedIsWhatASettlementGaveBack(t *testing.T) {
	l := drive(t, tokenBucket(10, time.Hour))
	g, err := l.acquire(t.Context(), ask{Cost: 10})
	require.NoError(t, err)
	require.NoError(t, g.settle("bucket", 4))
	require.EqualValues(t, 10, l.Limits[0].Counts.Charged)
	require.EqualValues(t, 6, l.Limits[0].Counts.Returned)
}

func TestABucketThatIsKeptAgainHasTheBurstOfToday(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(10, time.Second))
		g := l.send(ask{Key: "k", Cost: 1}).grant
		sleep(3 * time.Second)
		require.Zero(t, l.counts().Buckets)
		l.setBurst("bucket", 3)
		require.NoError(t, g.settle("bucket", 2))
		require.Equal(t, 2, l.drain("k"))
	})
}
