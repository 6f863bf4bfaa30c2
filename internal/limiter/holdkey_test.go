package limiter_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
)

// A hold of a key in one limit may free a request of the key in another limit, which is held, too.
func TestHoldGrantsNoRequestOfItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(1, time.Second, named("first")), tokenBucket(1, time.Second, named("second"), withBurst(2)))
		_, err := l.acquire(t.Context(), ask{Key: "k", Costs: map[string]int64{"first": 1, "second": 1}})
		require.NoError(t, err)
		var rejected, granted atomic.Int32
		acquire := func(costs map[string]int64, maxWait *time.Duration) {
			go func() {
				if _, err := l.acquire(t.Context(), ask{Key: "k", Costs: costs, MaxWait: maxWait}); err != nil {
					rejected.Add(1)
				} else {
					granted.Add(1)
				}
			}()
			synctest.Wait()
		}
		acquire(map[string]int64{"first": 1, "second": 2}, new(2*time.Second)) // it bars the second limit
		acquire(map[string]int64{"first": 0, "second": 1}, nil)                // which could pay this one
		l.hold("k", time.Minute)
		synctest.Wait()
		assert.EqualValues(t, 1, rejected.Load())
		assert.EqualValues(t, 0, granted.Load())
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.EqualValues(t, 1, granted.Load())
	})
}

// MaxWait counts from the arrival of a request, not from when the observer returns.
func TestMaxWaitStartsOnArrival(t *testing.T) {
	for name, takes := range map[string]time.Duration{"while the observer runs": 6 * time.Second, "afterwards": 3 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := drive(t, inFlight(1))
				l.onWait = func(limiter.Place, int64, time.Duration) { time.Sleep(takes) }
				_, err := l.acquire(t.Context(), ask{})
				require.NoError(t, err)
				start := time.Now()
				_, err = l.acquire(t.Context(), ask{MaxWait: new(5 * time.Second)})
				require.Equal(t, bucket.ReasonMaxWait, requireRejection(t, err).Reason)
				require.Equal(t, max(takes, 5*time.Second), time.Since(start))
			})
		})
	}
}
