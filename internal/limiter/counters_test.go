package limiter_test

import (
	"context"
	"math"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
)

func TestNoCounterFallsWhenContextsEndAsAHoldDoes(t *testing.T) {
	// On one processor the waiters that a hold lets go run only after their context is cancelled.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	undone := uint64(0)
	for i := range 20 {
		synctest.Test(t, func(t *testing.T) {
			const n = 50
			l := drive(t, tokenBucket(2*n, time.Hour))
			l.hold("", time.Second)
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			for range n {
				all.Go(func() { _ = l.wait(ctx, ask{}) })
			}
			var w watch
			time.Sleep(time.Second)
			w.look(l)
			for range i % 3 { // some of them run
				runtime.Gosched()
				w.look(l)
			}
			cancel()
			all.Wait()
			w.look(l)
			s := l.counts()
			undone += s.Undone
			for _, b := range l.views() {
				require.InDelta(t, 2*n-float64(s.Granted-s.Undone), b.Tokens, 1e-9)
			}
		})
	}
	require.Positive(t, undone)
}

func TestTheLargestCostFitsTheLargestLimit(t *testing.T) {
	const most = math.MaxInt64
	for name, limit := range map[string]rule{
		"bucket": tokenBucket(most, time.Second), "pace": pace(most, time.Second), "in-flight": inFlight(most),
		"sliding-window": slidingWindow(most, time.Second), "fixed-window": fixedWindow(most, time.Second),
	} {
		l := drive(t, limit)
		g, err := l.acquire(t.Context(), ask{Costs: map[string]int64{name: most}, MaxWait: new(time.Duration(0))})
		require.NoError(t, err, name)
		g.done()
	}
}

// For the race detector: the observer gets a cost that a smaller burst is just clamping.
func TestTheObserverGetsCostsThatABurstClamps(t *testing.T) {
	l := drive(t, empty(1_000_000, withBurst(10), clamped()))
	l.onWait = func(_ limiter.Place, cost int64, _ time.Duration) { require.Contains(t, []int64{5, 10}, cost) }
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 500 {
				require.NoError(t, l.wait(t.Context(), ask{Cost: 10}))
			}
		})
	}
	all.Go(func() {
		for i := range 2000 {
			l.setBurst("bucket", int64(5+i%2*5))
		}
	})
	all.Wait()
}

// TestARejectionInTheQueueIsCounted has a slower rate reject what waits, which counts for its User, the Core, and the limit.
func TestARejectionInTheQueueIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, empty(1))
		other := &limiter.User{Observer: l}
		done := make(chan error)
		go func() { done <- l.wait(t.Context(), ask{MaxWait: new(time.Second)}) }()
		synctest.Wait()
		l.setRate("bucket", 1, time.Hour)
		require.Equal(t, bucket.ReasonMaxWait, requireRejection(t, <-done).Reason)
		c, _, _ := l.Read(l.user)
		require.EqualValues(t, 1, c.Refused[bucket.ReasonMaxWait])
		c, _, _ = l.Read(other)
		require.Zero(t, c.Refused[bucket.ReasonMaxWait])
		require.EqualValues(t, 1, l.counts().Refused[bucket.ReasonMaxWait])
		require.EqualValues(t, 1, l.countsOf(l.Limits[0]).Refused[bucket.ReasonMaxWait])
	})
}

func TestReturnedIsWhatASettlementGaveBack(t *testing.T) {
	l := drive(t, tokenBucket(10, time.Hour))
	g, err := l.acquire(t.Context(), ask{Cost: 10})
	require.NoError(t, err)
	require.NoError(t, g.settle("bucket", 4))
	require.EqualValues(t, 10, l.countsOf(l.Limits[0]).Charged)
	require.EqualValues(t, 6, l.countsOf(l.Limits[0]).Returned)
}

func TestEvictedCountsTheBucketsThatMadeRoom(t *testing.T) {
	l := drive(t, maxKeys(1), tokenBucket(10, time.Hour))
	for i := range 4 {
		_, ok := l.try(ask{Key: strconv.Itoa(i)})
		require.True(t, ok)
		require.EqualValues(t, i, l.countsOf(l.Limits[0]).Evicted)
	}
}

func TestACancelledRequestCountsAtTheLimitThatDelayedItLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(1, time.Second, withBurst(100), withInitial(0), named("a")), tokenBucket(1, 10*time.Second, withInitial(0), named("b")))
		first := l.send(ask{Costs: map[string]int64{"a": 100, "b": 1}})
		second := l.send(ask{Costs: map[string]int64{"a": 1, "b": 1}})
		for i, r := range []*request{first, second} { // without the first, b delays the second
			r.cancel(nil)
			synctest.Wait()
			require.EqualValues(t, 1, l.countsOf(l.Limits[i]).Canceled)
		}
	})
}
