package meter

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestADebtCountsFromWhenItIsKnown(t *testing.T) {
	b := NewTokenBucket(0, Rate{1, time.Second}, 10, 10)
	charged := b.Take(0, 0, 4, false)
	b.Settle(charged, 100*second, 4, 9)
	require.Equal(t, 5.0, b.Tokens(100*second), "full again by then")
	b.Settle(charged, 200*second, 4, 1000)
	require.Equal(t, -10.0, b.Tokens(200*second))
	b.Settle(charged, 201*second, 4, 5)
	require.Equal(t, -10.0, b.Tokens(201*second), "no deeper than a burst")
}

func TestADebtIsRememberedByWhatIsGivenBackLater(t *testing.T) {
	b := NewTokenBucket(0, Rate{1, time.Second}, 10, 10)
	first := b.Take(0, 0, 1, false)
	second_ := b.Take(0, 0, 5, false)
	at := 5*second + second/2
	b.Settle(second_, at, 5, 9)
	require.Equal(t, 5.5, b.Tokens(at))
	b.GiveBack(first, at, 1)
	require.Equal(t, 6.0, b.Tokens(at), "half of it would have been lost when the bucket was full")
}

func TestAPaceOwesAMinuteAtMost(t *testing.T) {
	for _, c := range []struct {
		rate Rate
		owed float64
	}{{Rate{10, time.Second}, 600}, {Rate{1, time.Second}, 60}, {Rate{7, 24 * time.Hour}, 7}, {Rate{7, 20 * time.Second}, 21},
		{Rate{MaxCount, 1}, float64(MaxCount)}, {Rate{MaxCount, 3750 * time.Millisecond}, float64(MaxCount)}} {
		b := NewPace(0, c.rate)
		b.Settle(b.Take(0, 0, 2, false), 0, 2, MaxCount)
		require.Equal(t, -c.owed, b.Tokens(0))
	}
}

func TestASlidingWindowOwesWhereItWasCharged(t *testing.T) {
	w := &SlidingWindow{n: 10, per: 60 * second}
	first := w.Take(0, 0, 4, false)
	w.Take(0, 30*second, 4, false)
	w.Settle(first, 40*second, 4, 100)
	require.Equal(t, -10.0, w.Tokens(40*second), "no more than twice the size in all")
	require.True(t, needed(w, 40*second))
	require.Equal(t, 60*second, w.Ready(40*second, 0, 6))
	require.Equal(t, 90*second, w.Ready(40*second, 0, 7))
	w.Settle(first, 60*second, 100, 0)
	w.Settle(first, 60*second, 4, 100)
	require.Equal(t, 6.0, w.Tokens(60*second), "it counts no more")
}

func TestAFixedWindowOwesUntilItEnds(t *testing.T) {
	w := &FixedWindow{n: 10, grid: windows{per: 60 * second}, wall: new(Wall)}
	first := w.Take(0, 10*second, 4, false)
	w.Settle(first, 20*second, 4, 9)
	require.Equal(t, 1.0, w.Tokens(20*second))
	w.Settle(first, 20*second, 4, 100)
	require.Equal(t, -10.0, w.Tokens(20*second), "no more than twice the size in all")
	require.Equal(t, 60*second, w.Ready(20*second, 0, 1))
	w.Settle(first, 60*second, 4, 9)
	require.Equal(t, 10.0, w.Tokens(60*second), "nothing of a window that is over")
	w.Take(60*second, 60*second, 2, false)
	w.Settle(first, 61*second, 4, 9)
	w.Settle(first, 61*second, 4, 0)
	require.Equal(t, 8.0, w.Tokens(61*second))
}
