package limiter_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
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
		g, err := l.acquire(t.Context(), ask{Costs: map[string]int64{name: most}, MaxWait: ptr(time.Duration(0))})
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

// A slower rate rejects a waiter, which counts for its User, the Core, and the limit.
func TestARejectionInTheQueueIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, empty(1))
		other := &limiter.User{Observer: l}
		done := make(chan error)
		go func() { done <- l.wait(t.Context(), ask{MaxWait: ptr(time.Second)}) }()
		synctest.Wait()
		l.setRate("bucket", 1, time.Hour)
		require.Equal(t, bucket.ReasonMaxWait, requireRejection(t, <-done).Reason)
		c, _, _ := l.Counters(l.user)
		require.EqualValues(t, 1, c.Rejected[bucket.ReasonMaxWait])
		c, _, _ = l.Counters(other)
		require.Zero(t, c.Rejected[bucket.ReasonMaxWait])
		require.EqualValues(t, 1, l.counts().Rejected[bucket.ReasonMaxWait])
		require.EqualValues(t, 1, l.Limits[0].Counts.Rejected[bucket.ReasonMaxWait])
	})
}

func TestEvictedCountsTheBucketsThatMadeRoom(t *testing.T) {
	l := drive(t, maxKeys(1), tokenBucket(10, time.Hour))
	for i := range 4 {
		_, ok := l.try(ask{Key: strconv.Itoa(i)})
		require.True(t, ok)
		require.EqualValues(t, i, l.Limits[0].Counts.Evicted)
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
			require.EqualValues(t, 1, l.Limits[i].Counts.Canceled)
		}
	})
}

// A ledger adds up what an observer gets, by limit.
type ledger struct {
	mu                sync.Mutex
	delayed, canceled map[string]uint64
	rejected          map[string]map[bucket.Reason]uint64
	waited            map[string]time.Duration
	all               uint64
}

func newLedger() *ledger {
	return &ledger{
		delayed: make(map[string]uint64), canceled: make(map[string]uint64),
		rejected: make(map[string]map[bucket.Reason]uint64), waited: make(map[string]time.Duration),
	}
}

// observe has the ledger add up what a Core reports.
func (x *ledger) observe(l *driven) {
	l.onGrant = func(at limiter.Place, waited time.Duration) {
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.all++; at.Limit != "" {
			x.delayed[at.Limit]++
			x.waited[at.Limit] += waited
		}
	}
	l.onReject = func(r *rejection) {
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.rejected[r.Limit.Name] == nil {
			x.rejected[r.Limit.Name] = make(map[bucket.Reason]uint64)
		}
		x.rejected[r.Limit.Name][r.Reason]++
	}
	l.onCancel = func(at limiter.Place) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.canceled[at.Limit]++
	}
}

// Counters of limits are the sum of the events of each request, whatever happens.
func TestCountersOfLimitsAreTheSumOfEvents(t *testing.T) {
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			x := newLedger()
			l := drive(t, maxQueue(20), tokenBucket(20, time.Second, withBurst(5), named("rate")), slidingWindow(60, 10*time.Second, named("window")), inFlight(6, named("slots")))
			x.observe(l)
			var all sync.WaitGroup
			for range 400 {
				time.Sleep(time.Duration(r.IntN(40)) * time.Millisecond)
				asked := ask{Key: fmt.Sprint(r.IntN(3)), Cost: 1 + r.Int64N(7), Priority: r.IntN(3) - 1}
				if r.IntN(3) == 0 {
					asked.MaxWait = ptr(time.Duration(r.IntN(2000)) * time.Millisecond)
				}
				ctx, cancel := context.WithCancel(t.Context())
				switch r.IntN(4) {
				case 0:
					time.AfterFunc(time.Duration(r.IntN(1000))*time.Millisecond, cancel)
				case 1:
					ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(3000))*time.Millisecond)
				}
				if r.IntN(50) == 0 {
					l.hold(asked.Key, time.Duration(r.IntN(1000))*time.Millisecond)
				}
				busy, settles := time.Duration(r.IntN(500))*time.Millisecond, r.Int64N(10)
				all.Go(func() {
					defer cancel()
					if g, err := l.acquire(ctx, asked); err == nil {
						time.Sleep(busy)
						_ = g.settle("rate", settles)
						g.done()
					}
				})
			}
			all.Wait()
			l.check()
			total := l.counts()
			require.EqualValues(t, total.Granted-total.Undone, x.all)
			for _, li := range l.Limits {
				name, s := li.Name, &li.Counts
				require.Equal(t, x.canceled[name], s.Canceled, name)
				for reason, n := range s.Rejected {
					require.Equal(t, x.rejected[name][bucket.Reason(reason)], n, "%s: %v", name, reason)
				}
				require.LessOrEqual(t, x.delayed[name], s.Delayed, name)
				require.LessOrEqual(t, s.Delayed-x.delayed[name], s.Undone, "granted as its context ended")
				if s.Undone == 0 {
					require.Equal(t, x.waited[name], s.Waits.Sum, name)
				}
				require.Zero(t, s.Waiting, name)
				require.Zero(t, li.InFlight(), name)
				total.Delayed -= s.Delayed
				total.Canceled -= s.Canceled
				total.Waited -= s.Waits.Sum
			}
			require.Zero(t, total.Delayed)
			require.Zero(t, total.Canceled)
			require.Zero(t, total.Waited)
		})
	}
}
