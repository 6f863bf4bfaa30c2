package limiter_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/store"
)

// farther is a Store that is so far away, one way.
type farther struct {
	store.Store
	away time.Duration
}

func (s farther) Lease(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	time.Sleep(s.away)
	leases, err := s.Store.Lease(ctx, asks)
	time.Sleep(s.away)
	return leases, err
}

// The tokens of one shared limit are kept until those of another one have come from a store that is far away. When they were given back
// after 100 ms, 14 processes used an eighth of the rate, because each gave back the tokens of either limit in turn.
func TestTwoSharedLimitsOfAFarStoreAreUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
		defer cancel()
		st := farther{store.NewMemory(), 80 * time.Millisecond}
		var granted atomic.Int64
		var all sync.WaitGroup
		for range 14 {
			l := drive(t, tokenBucket(4, time.Second, withBurst(1), named("slow"), shared(st)), tokenBucket(52, time.Second, withBurst(1), named("quick"), shared(st)))
			for range 7 {
				all.Go(func() {
					for l.wait(ctx, ask{}) == nil {
						granted.Add(1)
					}
				})
			}
		}
		time.Sleep(5 * time.Second)
		before := granted.Load()
		all.Wait()
		time.Sleep(time.Minute) // open calls end
		require.GreaterOrEqual(t, granted.Load()-before, int64(76), "of 80")
	})
}

// A process had tokens of one sliding window left over and asked for those of the other. When these came, the ones that were left over were
// void, so that it asked for them again, and so on: it sent a twentieth of what it could.
func TestTwoSharedSlidingWindowsOfAFarStoreAreUsed(t *testing.T) { // slow: fleets for minutes
	for name, c := range map[string]struct {
		processes int
		away      time.Duration
		want      int64 // of 4,400: 200 in each of the first 5 s of 7 s
	}{
		"one process":              {1, 15 * ms, 4400},
		"one process, further":     {1, 50 * ms, 4400},
		"three processes":          {3, 15 * ms, 4200},
		"three processes, further": {3, 50 * ms, 4200},
	} {
		within(t, name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			st := farther{store.NewMemory(), c.away}
			var granted atomic.Int64
			var all sync.WaitGroup
			for range c.processes {
				l := drive(t, slidingWindow(200, time.Second, named("second"), shared(st)), slidingWindow(1000, 7*time.Second, named("seven"), shared(st)))
				for range 240 / c.processes {
					all.Go(func() {
						for l.wait(ctx, ask{}) == nil {
							granted.Add(1)
							time.Sleep(time.Microsecond) // another request comes when the store was asked already
						}
					})
				}
			}
			all.Wait()
			time.Sleep(time.Minute) // open calls end
			t.Logf("%d sent", granted.Load())
			require.GreaterOrEqual(t, granted.Load(), c.want)
		})
	}
}

// Tokens of a window cannot be saved up: those of a sliding window are void before the rest has come from a store that is far away, and
// processes that each keep their share of a fixed window, if it is smaller than a request costs, would wait for each other for good.
func TestRequestsThatCostMuchOfASharedWindowAreSent(t *testing.T) {
	for name, c := range map[string]struct {
		processes int
		away      time.Duration
		limit     func(ruleOption) rule
		costs     []int64 // of the first requests; the others cost as much as the last of these
		want      int64   // in 10 s
	}{
		"one process, far": {1, 20 * time.Millisecond, func(o ruleOption) rule {
			return slidingWindow(17, time.Second, named("w"), o)
		}, []int64{1, 4, 5}, 27},
		"cost above the share": {3, time.Millisecond, func(o ruleOption) rule {
			return fixedWindow(6, 2*time.Second, named("w"), o)
		}, []int64{1, 3}, 10},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second-time.Nanosecond)
				defer cancel()
				st := farther{store.NewMemory(), c.away}
				var granted atomic.Int64
				var all sync.WaitGroup
				for range c.processes {
					l := drive(t, c.limit(shared(st)))
					all.Go(func() {
						for n := 0; l.wait(ctx, ask{Cost: c.costs[min(n, len(c.costs)-1)]}) == nil; n++ {
							granted.Add(1)
							time.Sleep(10 * time.Microsecond) // another one comes when the store was asked already
						}
					})
				}
				all.Wait()
				time.Sleep(time.Minute) // open calls end
				require.GreaterOrEqual(t, granted.Load(), c.want)
			})
		})
	}
}
