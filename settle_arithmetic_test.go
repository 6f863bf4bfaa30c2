package throttle

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestADebtCountsFromWhenItIsKnown(t *testing.T) {
	b := newTokenBucket(0, rate{1, time.Second}, 10, 10)
	charged := b.take(0, 0, 4, false)
	b.settle(charged, 100*second, 4, 9)
	require.Equal(t, 5.0, b.tokens(100*second), "full again by then")
	b.settle(charged, 200*second, 4, 1000)
	require.Equal(t, -10.0, b.tokens(200*second))
	b.settle(charged, 201*second, 4, 5)
	require.Equal(t, -10.0, b.tokens(201*second), "no deeper than a burst")
}

func TestADebtIsRememberedByWhatIsGivenBackLater(t *testing.T) {
	b := newTokenBucket(0, rate{1, time.Second}, 10, 10)
	first := b.take(0, 0, 1, false)
	second_ := b.take(0, 0, 5, false)
	at := 5*second + second/2
	b.settle(second_, at, 5, 9)
	require.Equal(t, 5.5, b.tokens(at))
	b.giveBack(first, at, 1)
	require.Equal(t, 6.0, b.tokens(at), "half of it would have been lost when the bucket was full")
}

func TestAPaceOwesAMinuteAtMost(t *testing.T) {
	for _, c := range []struct {
		rate rate
		owed float64
	}{{rate{10, time.Second}, 600}, {rate{1, time.Second}, 60}, {rate{7, 24 * time.Hour}, 7}, {rate{7, 20 * time.Second}, 21},
		{rate{maxCount, 1}, float64(maxCount)}} {
		b := newPace(0, c.rate)
		b.settle(b.take(0, 0, 2, false), 0, 2, maxCount)
		require.Equal(t, -c.owed, b.tokens(0))
	}
}

func TestASlidingWindowOwesWhereItWasCharged(t *testing.T) {
	w := &slidingWindow{n: 10, per: 60 * second}
	first := w.take(0, 0, 4, false)
	w.take(0, 30*second, 4, false)
	w.settle(first, 40*second, 4, 100)
	require.Equal(t, -10.0, w.tokens(40*second), "no more than twice the size in all")
	require.True(t, w.indebted(40*second))
	require.Equal(t, 60*second, w.ready(40*second, 0, 6))
	require.Equal(t, 90*second, w.ready(40*second, 0, 7))
	w.settle(first, 60*second, 100, 0)
	w.settle(first, 60*second, 4, 100)
	require.Equal(t, 6.0, w.tokens(60*second), "it counts no more")
}

func TestAFixedWindowOwesUntilItEnds(t *testing.T) {
	w := &fixedWindow{n: 10, per: 60 * second, unix: new(int64)}
	first := w.take(0, 10*second, 4, false)
	w.settle(first, 20*second, 4, 9)
	require.Equal(t, 1.0, w.tokens(20*second))
	w.settle(first, 20*second, 4, 100)
	require.Equal(t, -10.0, w.tokens(20*second), "no more than twice the size in all")
	require.Equal(t, 60*second, w.ready(20*second, 0, 1))
	w.settle(first, 60*second, 4, 9)
	require.Equal(t, 10.0, w.tokens(60*second), "nothing of a window that is over")
	w.take(60*second, 60*second, 2, false)
	w.settle(first, 61*second, 4, 9)
	w.settle(first, 61*second, 4, 0)
	require.Equal(t, 8.0, w.tokens(61*second))
}

func TestAnAdaptiveLimitOwesAMinuteAtMost(t *testing.T) {
	b := newAdaptiveBucket(0, AIMD{Initial: 10}, 1)
	charged := b.take(0, 0, 3, false)
	before := b.tokens(0)
	b.settle(charged, 0, 3, 5)
	require.InDelta(t, before-2, b.tokens(0), 1e-6)
	b.settle(charged, 0, 3, maxCount)
	require.InDelta(t, -600, b.tokens(0), 1e-6)
	b.settle(charged, 10*second, 3, 0)
	require.GreaterOrEqual(t, b.control.used.value, 0.0)
}
