package tests

import (
	"encoding/json"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// An estimator charges requests of a limit without HTTP.
type estimator struct {
	t *testing.T
	l *throttle.Limiter
}

func newEstimator(t *testing.T, opts ...throttle.LimitOption) estimator {
	opts = append(opts, throttle.Name("tpm"), throttle.LearnCost())
	l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(1e9, time.Minute, opts...)))
	require.NoError(t, err)
	return estimator{t, l}
}

// charge returns what a request with that estimate is charged, and settles it if cost is not negative.
func (e estimator) charge(key string, estimate, cost int64) (charged int64) {
	e.t.Helper()
	ctx, receipt := throttle.ContextWithReceipt(e.t.Context())
	_, err := e.l.Acquire(ctx, throttle.Ask{Key: key, Cost: estimate})
	require.NoError(e.t, err)
	charged, ok := receipt.Cost("tpm")
	require.True(e.t, ok)
	if cost >= 0 {
		require.NoError(e.t, receipt.Settle("tpm", cost))
	}
	return charged
}

func TestARequestIsChargedWhatWasEnoughFor95OfTheLast100(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		charge := newEstimator(t).charge
		for range 19 {
			require.Equal(t, int64(1000), charge("a", 1000, 100))
		}
		require.Equal(t, int64(1000), charge("a", 1000, 0), "what costs nothing shows nothing")
		require.Equal(t, int64(1000), charge("a", 1000, 100))
		require.Equal(t, int64(100), charge("a", 1000, -1))
		require.Equal(t, int64(1000), charge("b", 1000, -1), "another key")
		require.Equal(t, int64(1), charge("a", 3, -1), "a token at least")
		for range 75 {
			charge("a", 500, 50)
		}
		for range 5 {
			require.Equal(t, int64(200), charge("a", 2000, 1000), "one of 20 may cost more")
		}
		require.Equal(t, int64(200), charge("a", 2000, -1))
		charge("a", 2000, 1000)
		require.Equal(t, int64(1000), charge("a", 2000, -1))
		for range 6 {
			charge("a", 2000, 9000)
		}
		require.Equal(t, int64(2000), charge("a", 2000, -1), "the estimate is the bound")
	})
}

func TestWhatWasLearnedOfCostsIsKeptForAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEstimator(t)
		for range 20 {
			e.charge("a", 1000, 100)
		}
		time.Sleep(time.Hour - 1)
		require.Equal(t, int64(100), e.charge("a", 1000, -1))
		for range 1000 { // which makes the Limiter look for what can be forgotten
			e.charge(strconv.Itoa(rand.Int()), 1, -1)
		}
		require.Equal(t, int64(100), e.charge("a", 1000, -1))
	})
}

func TestASnapshotHasWhatWasLearnedOfCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := newEstimator(t)
		for range 30 {
			before.charge("a", 1000, 250)
		}
		text, err := json.Marshal(before.l.Snapshot())
		require.NoError(t, err)
		var s throttle.Snapshot
		require.NoError(t, json.Unmarshal(text, &s))
		after := newEstimator(t)
		require.NoError(t, after.l.Restore(s))
		require.Equal(t, int64(250), after.charge("a", 1000, 900))
		require.Equal(t, int64(250), after.charge("a", 1000, 900), "one of 20")
		require.Equal(t, int64(900), after.charge("a", 1000, -1))

		require.NoError(t, json.Unmarshal([]byte(strings.Replace(string(text), `"share":0.25`, `"share":1.25`, 1)), &s))
		require.ErrorContains(t, newEstimator(t).l.Restore(s), "a share of 1.25")
	})
}

func TestAWaitingRequestIsChargedWhatWasLearned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(100, time.Second, throttle.Name("tpm"), throttle.LearnCost())))
		require.NoError(t, err)
		e := estimator{t, l}
		for range 20 {
			e.charge("", 100, 50)
		}
		e.charge("", 100, -1)
		began := time.Now()
		e.charge("", 100, -1) // waits for 50 tokens
		require.Equal(t, 500*time.Millisecond, time.Since(began))
		for range 94 { // settled by what was estimated, not by what was charged: the share stays
			e.charge("", 100, 50)
		}
		require.Equal(t, int64(50), e.charge("", 100, -1))
	})
}

func TestLearnCostFitsLimitsThatSpend(t *testing.T) {
	_, err := throttle.New(nil, throttle.WithLimit(throttle.InFlight(1, throttle.LearnCost())))
	require.ErrorContains(t, err, "LearnCost() does not fit a limit of kind in-flight")
}
