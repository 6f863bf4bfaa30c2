package tests

import (
	"bytes"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// Neither a Limiter nor a request that waits starts a goroutine.
func TestNoGoroutineIsInTheBackground(t *testing.T) {
	inBubble := func() int { // others may begin and end meanwhile
		stacks := make([]byte, 1<<20)
		return bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte("synctest bubble"))
	}
	synctest.Test(t, func(t *testing.T) {
		before := inBubble()
		require.Positive(t, before)
		l := limiterWith(t, throttle.WithLimit(throttle.Quota(1, time.Minute), throttle.InFlight(1), throttle.Adaptive(throttle.AIMD{}),
			throttle.FixedWindow(3, time.Hour)), throttle.WithMaxWait(time.Hour))
		for range 3 {
			_, err := l.Enqueue(throttle.Ask{})
			require.NoError(t, err)
		}
		require.Equal(t, 2, l.Stats().Waiting)
		require.Equal(t, before, inBubble())
		time.Sleep(time.Hour) // the second waiter was never granted, because no slot was given back: its MaxWait has ended
		synctest.Wait()
		require.Zero(t, l.Stats().Waiting)
		require.Equal(t, before, inBubble())
	})
}
