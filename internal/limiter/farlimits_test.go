package limiter_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
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
			l, err := throttle.NewLimiter(throttle.WithLimit(
				throttle.TokenBucket(4, time.Second, throttle.Burst(1), throttle.Name("slow"), throttle.Shared(st)),
				throttle.TokenBucket(52, time.Second, throttle.Burst(1), throttle.Name("quick"), throttle.Shared(st)),
			))
			require.NoError(t, err)
			for range 7 {
				all.Go(func() {
					for l.Wait(ctx, throttle.Ask{}) == nil {
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

// Tokens of a window cannot be saved up: those of a sliding window are void before the rest has come from a store that is far away, and
// processes that each keep their share of a fixed window, if it is smaller than a request costs, would wait for each other for good.
func TestRequestsThatCostMuchOfASharedWindowAreSent(t *testing.T) {
	for name, c := range map[string]struct {
		processes int
		away      time.Duration
		limit     func(throttle.LimitOption) throttle.Limit
		costs     []int64 // of the first requests; the others cost as much as the last of these
		want      int64   // in 10 s
	}{
		"one process, far": {1, 20 * time.Millisecond, func(o throttle.LimitOption) throttle.Limit {
			return throttle.SlidingWindow(17, time.Second, throttle.Name("w"), o)
		}, []int64{1, 4, 5}, 27},
		"cost above the share": {3, time.Millisecond, func(o throttle.LimitOption) throttle.Limit {
			return throttle.FixedWindow(6, 2*time.Second, throttle.Name("w"), o)
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
					l, err := throttle.NewLimiter(throttle.WithLimit(c.limit(throttle.Shared(st))))
					require.NoError(t, err)
					all.Go(func() {
						for n := 0; l.Wait(ctx, throttle.Ask{Cost: c.costs[min(n, len(c.costs)-1)]}) == nil; n++ {
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
