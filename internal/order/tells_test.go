package order

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// A request that is stopped at several points from the beginning bars all of these.
func TestARequestBarsEveryPointThatStopsIt(t *testing.T) {
	x := newWorld(t)
	a, b := x.point(every(second, 5)), x.point(every(second, 5))
	both := x.come(0, []*Point{a, b}, 3, 2)
	cheap := x.join(b)
	require.Equal(t, both, firstAt(a))
	require.Equal(t, both, firstAt(b))
	x.until(10 * second)
	x.requireGranted(cheap, 2*second, both, 3*second) // it is stopped elsewhere only from 2 s on
}

// firstAt returns the first request that is blocked at a point.
func firstAt(p *Point) *Waiter { return p.blocked.Top().head() }

func TestBackdateIsBounded(t *testing.T) {
	for _, c := range []struct{ at, due Instant }{{second, second}, {second - ms, second - ms}, {second - Slack, second - Slack}, {0, second - Slack}, {2 * second, second}} {
		x := newWorld(t)
		p := x.point(hasSlots(1))
		w := x.join(p)
		x.until(second)
		p.Payer.(*fake).used = 0
		x.Backdate(c.at)
		x.Touch(p)
		x.serve()
		x.requireGranted(w, c.due)
	}
}

func TestWhatAPointTells(t *testing.T) {
	x := newWorld(t)
	p, other := x.point(every(second, 9)), x.point(every(second, 9))
	p.Fair = true
	gate := x.point(&fake{kind: slots, most: 9})
	require.Zero(t, p.Callers()+p.Known()+p.Waiting())
	var all []*Waiter
	for i := range 6 {
		w := &Waiter{At: []*Point{p}, Costs: []int64{int64(i + 1)}, Caller: fmt.Sprint(i % 2), Weight: 1, Last: Never}
		if i > 3 {
			w.At, w.Costs = append(w.At, other), append(w.Costs, 1)
		}
		if i == 1 {
			w.Gate = gate
		}
		x.Join(w, 0)
		x.serve()
		all = append(all, w)
	}
	require.Equal(t, []int{6, 2, 2}, []int{p.Waiting(), p.Callers(), p.Known()})
	require.Equal(t, []int{6, 2, 2}, []int{x.Len(), x.Lines(), x.Callers()})
	require.Equal(t, []int{4, 2}, []int{x.Alike(all[0]), x.Alike(all[5])})
	require.Zero(t, x.Alike(&Waiter{At: []*Point{other}}))
	require.Equal(t, all[0], firstAt(p))
	var seen []*Waiter
	for w := range p.Waiters {
		seen = append(seen, w)
	}
	require.ElementsMatch(t, all, seen)
	for w := range gate.Waiters {
		require.Equal(t, all[1], w)
	}
	for range p.Waiters {
		break
	}
	require.Equal(t, p, all[1].Point(0))
	require.Equal(t, gate, all[1].Point(1))
	x.until(7 * second)
	require.Equal(t, 2, p.Known(), "a caller is known for a turn")
	for _, w := range all {
		if w.IsWaiting() {
			x.Leave(w)
			x.serve()
		}
	}
	require.Zero(t, p.Callers()+p.Known()+p.Waiting()+x.Callers()+x.Lines())
}

// A starved request keeps its gate closed to others, and bars no point for long.
func TestAStarvedRequestBarsItsGate(t *testing.T) {
	x := newWorld(t)
	p, gate := x.point(every(second, 2)), x.point(every(second, 2))
	p.Payer.(*fake).empty = second // each lags behind the other
	come := func(at []*Point, cost int64, gate *Point) *Waiter {
		w := &Waiter{At: at, Costs: []int64{cost}, Gate: gate, Rank: x.now, Last: Never}
		x.Join(w, x.now)
		x.serve()
		return w
	}
	both := come([]*Point{p}, 2, gate)
	for range 40 {
		come([]*Point{p}, 2, nil)
		free := x.point(&fake{kind: slots, most: 99})
		come([]*Point{free}, 1, gate)
	}
	for both.IsWaiting() && x.now < 40*second {
		x.until(x.now + second/2)
		x.check(t)
	}
	require.False(t, both.IsWaiting(), "it is passed over forever")
	require.LessOrEqual(t, x.now, 16*second)
}

// What is blocked at a point is what all requests of the line cost there, whatever gates they pass.
func TestWhatIsBlockedIsThatOfAllGates(t *testing.T) {
	x := newWorld(t)
	p := x.point(every(second, 9))
	for i, cost := range []int64{2, 3, 4} {
		gate := x.point(&fake{kind: slots, most: 9})
		x.Join(&Waiter{At: []*Point{p}, Costs: []int64{cost}, Gate: gate, Rank: Instant(i), Last: Never}, 0)
		x.serve()
	}
	for _, sums := range p.Blocked {
		require.Equal(t, []int64{2 + 3 + 4, 1}, sums)
	}
}
