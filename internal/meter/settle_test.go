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

// A debt takes each token that comes in until it is paid, so a window grants no more than its rate whatever requests cost in the end.
func TestASlidingWindowPaysADebtWithWhatComesIn(t *testing.T) {
	w := &SlidingWindow{n: 10, per: 60 * second}
	first := w.Take(0, 0, 4, false)
	w.Take(0, 30*second, 4, false)
	w.Settle(first, 40*second, 4, 15) // 2 are there; 4 come in at 60 s, 4 at 90 s, and 2 at 100 s, of which 1 is left
	require.Equal(t, -9.0, w.Tokens(40*second))
	require.Equal(t, -1.0, w.Tokens(90*second))
	require.True(t, needed(w, 100*second-1))
	for cost, at := range map[int64]Instant{1: 100, 2: 120, 5: 120, 6: 150, 9: 150, 10: 160} {
		require.Equal(t, at*second, w.Ready(40*second, 0, cost), cost)
		require.Equal(t, at*second, w.Ready(90*second, 0, cost), cost)
	}
	w.Settle(first, 50*second, 4, 1000)
	require.Equal(t, -40.0, w.Tokens(50*second), "no more than five times the size in all")

	w = &SlidingWindow{n: 10, per: 60 * second}
	w.Settle(w.Take(0, 0, 4, false), 60*second, 4, 9)
	require.Equal(t, 5.0, w.Tokens(60*second), "although the charge counts no more")
	require.Equal(t, 120*second, w.Ready(60*second, 0, 6))
}

func TestWhatComesBackToASlidingWindowPaysItsDebtAtOnce(t *testing.T) {
	w := &SlidingWindow{n: 10, per: 60 * second}
	first, then := w.Take(0, 0, 5, false), w.Take(10*second, 10*second, 5, false)
	w.Settle(first, 20*second, 5, 10)
	require.Equal(t, 70*second, w.Ready(20*second, 0, 1))
	w.GiveBack(then, 30*second, 4) // 1 of the debt is left
	require.Equal(t, -1.0, w.Tokens(30*second))
	require.Equal(t, 60*second, w.Ready(30*second, 0, 4))
	require.Equal(t, 70*second, w.Ready(30*second, 0, 5))
	require.Equal(t, 90*second, w.Ready(30*second, 0, 6), "4 of it were paid at 30 s")
}

// The next windows pay a debt first. A calendar's do not.
func TestAFixedWindowPaysADebtWithTheNextOnes(t *testing.T) {
	w := &FixedWindow{n: 10, grid: windows{per: 60 * second}, wall: new(Wall)}
	first := w.Take(0, 10*second, 4, false)
	w.Settle(first, 20*second, 4, 9)
	require.Equal(t, 1.0, w.Tokens(20*second))
	w.Settle(first, 20*second, 4, 18)
	require.Equal(t, -13.0, w.Tokens(20*second))
	require.Equal(t, -3.0, w.Tokens(60*second))
	require.Equal(t, 7.0, w.Tokens(120*second))
	require.True(t, needed(w, 120*second-1))
	require.Equal(t, 120*second, w.Ready(20*second, 0, 7))
	require.Equal(t, 180*second, w.Ready(20*second, 0, 8))
	require.Equal(t, 180*second, w.Ready(60*second, 7, 1))
	w.Settle(first, 130*second, 4, 6)
	require.Equal(t, 5.0, w.Tokens(130*second), "although the window of the charge has ended")
	w.Settle(first, 130*second, 4, 1000)
	require.Equal(t, -40.0, w.Tokens(130*second), "no more than five times the size in all")

	day := NewCalendarWindow(0, Rate{N: 10}, Day, time.UTC, new(Wall))
	day.Settle(day.Take(0, 0, 4, false), 20*second, 4, 1000)
	require.Equal(t, -40.0, day.Tokens(20*second))
	require.Equal(t, secondsPerDay*second, day.Ready(20*second, 0, 10))
	require.Equal(t, 10.0, day.Tokens(secondsPerDay*second))
}

// Estimates that are right on average cost a window what the requests do, however long these take.
func TestAnOverchargeThatCameBackTooLateReducesTheNextUndercharge(t *testing.T) {
	undercharge := func(w *SlidingWindow, now Instant) float64 {
		w.Settle(now, now, 0, 5)
		return w.Tokens(now)
	}
	for after, left := range map[Instant]float64{0: 10, 12: 9, 30: 7, 45: 6, 60: 5, 90: 5} { // it is forgotten within a period
		w := &SlidingWindow{n: 10, per: 60 * second}
		w.Settle(w.Take(0, 0, 10, false), 60*second, 10, 5)
		require.Equal(t, left, undercharge(w, (60+after)*second), "%d s later", after)
	}
	for at, left := range map[Instant]float64{0: 0, 12: 1, 30: 2, 59: 4} { // a request of 5 could not be sent for so long
		w := &SlidingWindow{n: 10, per: 60 * second}
		w.Settle(w.Take(0, 0, 10, false), at*second, 10, 5)
		require.Equal(t, left, undercharge(w, at*second), "after %d s", at)
	}
	for at, left := range map[Instant]float64{59: 0, 60: 10, 75: 8, 120: 5} {
		w := &FixedWindow{n: 10, grid: windows{per: 60 * second}, wall: new(Wall)}
		first := w.Take(0, 0, 10, false)
		w.Settle(first, min(at, 60)*second, 10, 5)
		w.Settle(first, at*second, 0, 5)
		require.Equal(t, left, w.Tokens(at*second), "after %d s", at)
	}
}

// A debt is bounded by what counts in the period of now: what counts no longer in a shorter one leaves room for it.
func TestADebtStaysOwedInAShorterPeriod(t *testing.T) {
	w := NewSlidingWindow(Rate{10, 10 * time.Second})
	w.Take(0, 0, 6, false)
	w.Settle(w.Take(9*second, 9*second, 4, false), 9*second, 4, 5)
	require.Equal(t, -1.0, w.Tokens(9*second))
	w.Retune(9*second, Rate{1, time.Second})
	require.Equal(t, -4.0, w.Tokens(9*second))
}
