package throttle_test

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// Neither a Limiter nor a request that waits starts a goroutine.
func TestNoGoroutineIsInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := runtime.NumGoroutine()
		l := limiterWith(t, throttle.WithLimit(throttle.Quota(1, time.Minute), throttle.InFlight(1), throttle.Adaptive(throttle.AIMD{}),
			throttle.FixedWindow(3, time.Hour)), throttle.WithMaxWait(time.Hour))
		for range 3 {
			_, err := l.Enqueue(throttle.Ask{})
			require.NoError(t, err)
		}
		require.Equal(t, 2, l.Stats().Waiting)
		require.LessOrEqual(t, runtime.NumGoroutine(), before) // those of earlier tests may end meanwhile
		time.Sleep(time.Hour)                                  // the second waiter was never granted, because no slot was given back: its MaxWait has ended
		synctest.Wait()
		require.Zero(t, l.Stats().Waiting)
		require.LessOrEqual(t, runtime.NumGoroutine(), before) // those of earlier tests may end meanwhile
	})
}
