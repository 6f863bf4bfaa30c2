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
