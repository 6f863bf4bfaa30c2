package limiter_test

import (
	"context"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// A hold of a key in one limit may free a request of the key in another limit, which is held, too.
func TestHoldGrantsNoRequestOfItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.NewLimiter(throttle.WithLimit(
			throttle.TokenBucket(1, time.Second, throttle.Name("first")), throttle.TokenBucket(1, time.Second, throttle.Name("second"), throttle.Burst(2))))
		require.NoError(t, err)
		_, err = l.Acquire(t.Context(), throttle.Ask{Key: "k", Costs: map[string]int64{"first": 1, "second": 1}})
		require.NoError(t, err)
		var rejected, granted atomic.Int32
		acquire := func(costs map[string]int64, maxWait *time.Duration) {
			go func() {
				if _, err := l.Acquire(t.Context(), throttle.Ask{Key: "k", Costs: costs, MaxWait: maxWait}); err != nil {
					rejected.Add(1)
				} else {
					granted.Add(1)
				}
			}()
			synctest.Wait()
		}
		acquire(map[string]int64{"first": 1, "second": 2}, new(2*time.Second)) // it bars the second limit
		acquire(map[string]int64{"first": 0, "second": 1}, nil)                // which could pay this one
		l.Hold("k", time.Minute)
		synctest.Wait()
		assert.EqualValues(t, 1, rejected.Load())
		assert.EqualValues(t, 0, granted.Load())
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.EqualValues(t, 1, granted.Load())
	})
}

// MaxWait counts from the arrival of a request, not from the return of its OnWait.
func TestMaxWaitStartsOnArrival(t *testing.T) {
	for name, hook := range map[string]time.Duration{"while OnWait runs": 6 * time.Second, "after OnWait": 3 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, err := throttle.NewLimiter(throttle.WithLimit(throttle.InFlight(1)), throttle.WithMaxWait(5*time.Second),
					throttle.WithHooks(throttle.Hooks{OnWait: func(throttle.WaitEvent) { time.Sleep(hook) }}))
				require.NoError(t, err)
				_, err = l.Acquire(t.Context(), throttle.Ask{})
				require.NoError(t, err)
				start := time.Now()
				_, err = l.Acquire(t.Context(), throttle.Ask{})
				var r *throttle.Rejection
				require.ErrorAs(t, err, &r)
				require.Equal(t, throttle.ReasonMaxWait, r.Reason)
				require.Equal(t, max(hook, 5*time.Second), time.Since(start))
			})
		})
	}
}

// An endless hold is restored as a hold, and not as a cost that can never be paid.
func TestRestoredEndlessHoldIsAHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := func() *throttle.Limiter {
			l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Name("bucket"))))
			require.NoError(t, err)
			return l
		}
		old, l := limiter(), limiter()
		old.Hold("k", math.MaxInt64)
		old.HoldAll(math.MaxInt64)
		s := old.Snapshot()
		require.NoError(t, l.Restore(s))
		state := stateOf(t, s)
		for i := range state.Buckets {
			state.Buckets[i].Held = math.MaxInt64
		}
		require.NoError(t, l.Restore(snapshot(t, state)))
		for _, key := range []string{"k", "other"} {
			_, err := l.Acquire(context.Background(), throttle.Ask{Key: key, MaxWait: new(time.Duration(0))})
			var r *throttle.Rejection
			require.ErrorAs(t, err, &r)
			assert.Equal(t, throttle.ReasonHeld, r.Reason)
			assert.Less(t, r.Wait, time.Duration(math.MaxInt64))
		}
	})
}
