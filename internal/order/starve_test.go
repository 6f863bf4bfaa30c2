package order

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A passed is a request under two points that other requests empty in turn.
type passed struct {
	*world
	points []*Point // the second lags behind the first by a token
	both   *Waiter
}

// passOverAt has a request wait under two points, and others that pass it over: at free points as well, if there are any.
func passOverAt(t *testing.T, more ...*Point) *passed {
	x := &passed{world: newWorld(t)}
	x.points = []*Point{x.point(every(second, 2)), x.point(every(second, 2))}
	x.points[1].Payer.(*fake).empty = second
	x.both = &Waiter{At: append(more, x.points...), Rank: x.now, Caller: "both", Weight: 1, Last: Never}
	for range more {
		x.both.Costs = append(x.both.Costs, 1)
	}
	x.both.Costs = append(x.both.Costs, 2, 2)
	x.Join(x.both, 0)
	x.serve()
	x.until(1) // others come later
	for range 30 {
		x.come(0, x.points[:1], 2)
		x.come(0, x.points[1:], 2)
	}
	return x
}

// starve lets time pass until the request bars all its points. It returns the point that could pay it, and the one that could
// not.
func (x *passed) starve() (free, empty *Point) {
	for x.both.queue.lane.line.starved == nil {
		x.until(x.now + second/2)
		require.Less(x, x.now, 14*second)
		require.True(x, x.both.IsWaiting())
	}
	free, empty = x.points[0], x.points[1]
	if free.Ready(x.now, x.now, 2) > x.now {
		free, empty = empty, free
	}
	require.LessOrEqual(x, free.Ready(x.now, x.now, 2), x.now)
	require.Greater(x, empty.Ready(x.now, x.now, 2), x.now)
	x.granted = nil
	return free, empty
}

// No request has passed over one that waits because its points save up for it: so it bars none that can pay.
func TestARequestThatSavesUpForLongBarsNothing(t *testing.T) {
	x := newWorld(t)
	slow, fast, free := x.point(every(10*second, 2)), x.point(every(6*second, 2)), x.point(&fake{kind: slots, most: 99})
	w := x.come(0, []*Point{slow, fast, free}, 2, 2, 1)
	x.until(13 * second)
	require.True(t, w.IsWaiting())
	other := x.join(free)
	x.requireGranted(other, 13*second)
	x.until(20 * second)
	x.requireGranted(w, 20*second)
}

// The next request of its line was not passed over, and bars only the point that stops it.
func TestTheRequestAfterAStarvedOneIsNotStarved(t *testing.T) {
	x := passOverAt(t)
	next := &Waiter{At: x.points, Costs: []int64{2, 2}, Last: Never} // by rank, it came before the others
	x.Join(next, x.now)
	x.serve()
	free, empty := x.starve()
	x.Leave(x.both)
	x.serve()
	require.Len(t, x.granted, 1, "the point that could pay")
	require.Same(t, free, x.granted[0].w.At[0])
	require.Equal(t, x.now, x.granted[0].due)
	require.Same(t, next, firstAt(empty))
	x.check(t)
}

// If the point that it waits for is held, the other one serves those that it barred from the same instant on.
func TestAHoldEndsStarvationAtOnce(t *testing.T) {
	x := passOverAt(t)
	free, empty := x.starve()
	empty.Payer.(*fake).held = x.now + 60*second
	x.Check(empty)
	require.Empty(t, x.reject(100))
	x.serve()
	require.Len(t, x.granted, 1)
	require.Same(t, free, x.granted[0].w.At[0])
	require.Equal(t, x.now, x.granted[0].due)
	require.True(t, x.both.IsWaiting())
}

// Where callers take turns, it goes before those whose turn is earlier.
func TestAStarvedRequestIsNextWhereCallersTakeTurns(t *testing.T) {
	fair := &Point{Payer: every(second, 1), Fair: true}
	x := passOverAt(t, fair)
	for range 100 {
		x.Join(&Waiter{At: []*Point{fair}, Costs: []int64{1}, Caller: "other", Weight: 1, Rank: x.now, Last: Never}, x.now)
		x.serve()
	}
	x.Correct(fair, "both", 1, 1000)
	x.serve()
	require.NotSame(t, x.both, firstAt(fair))
	x.starve()
	require.Same(t, x.both, firstAt(fair))
	x.check(t)
	since := x.now
	x.until(since + 2*second)
	require.False(t, x.both.IsWaiting())
}
