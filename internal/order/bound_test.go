package order

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// If nothing changes, no request is granted before the instant that was planned for it, whatever points, gates and callers there
// are: a later instant would have it rejected although it would have been in time.
func TestNoRequestIsGrantedBeforeItsPlan(t *testing.T) {
	forSeeds(t, 400, runPlans)
}

func runPlans(t *testing.T, r *rand.Rand) {
	x := newSeveral(t, r)
	for range 1 + r.IntN(1<<r.IntN(8)) {
		x.crowd()
		if r.IntN(4) == 0 {
			x.until(x.now + r.Int64N(1<<r.IntN(30)))
			x.change(r.Uint64())
			for _, p := range append(slices.Clone(x.points), x.gates...) {
				x.Touch(p)
			}
		}
		x.serve()
	}
	x.granted = nil
	planned := make(map[*Waiter]Instant)
	for range 3 {
		for _, w := range x.waiting {
			planned[w] = max(planned[w], first(x.Plan(w, x.now)))
		}
		x.until(x.now + r.Int64N(1<<r.IntN(33)))
	}
	for x.now < 1000*second && x.Len() > 0 && x.Wake() < 1000*second {
		x.until(x.now + 10*second)
	}
	for _, g := range x.granted {
		require.GreaterOrEqual(t, g.due, planned[g.w], "granted before the instant that was planned")
	}
}

// crowd has a request come that may wait for as long as it takes.
func (x *several) crowd() {
	w := x.request()
	w.Last = Never
	x.Join(w, x.now)
	x.waiting = append(x.waiting, w)
}

// As long as requests come in order, and only the last leaves, the bounds of a queue are as late as they can be: so no search
// visits a request that has time to spare.
func TestBoundsAreTight(t *testing.T) {
	forSeeds(t, 400, func(t *testing.T, r *rand.Rand) {
		x := &world{TB: t}
		p := x.point(&fake{kind: kind(r.IntN(3)), step: 1 + r.Int64N(int64(200*ms)), most: 9, held: 1000 * second})
		var all []*Waiter
		for range 60 {
			if n := len(all) - 1; n > 0 && r.IntN(3) == 0 {
				x.Leave(all[n])
				all = all[:n]
			} else {
				all = append(all, &Waiter{At: []*Point{p}, Costs: []int64{1 + r.Int64N(9)}, Last: r.Int64N(1 << (30 + r.IntN(6)))})
				x.Join(all[len(all)-1], x.now)
			}
			x.serve()
			requireTight(t, all[0].queue.root)
		}
	})
}

func requireTight(t *testing.T, w *Waiter) {
	if w == nil {
		return
	}
	requireTight(t, w.left)
	requireTight(t, w.right)
	bound, slope := w.bound, w.slope
	w.findBound()
	require.Equal(t, w.bound, bound, "the bound of a subtree")
	require.Equal(t, w.slope, slope)
}

// A request that is stopped at several points is delayed by the one that can pay it last, the first of them if there are several.
func TestTheLastPointToPayDelaysARequest(t *testing.T) {
	for name, c := range map[string]struct {
		ready   []Instant // of each point, the last of which is a gate
		barred  int       // another request waits there first; -1: at none
		binding int
	}{
		"the first":              {[]Instant{3 * second, second, 2 * second}, -1, 0},
		"the second":             {[]Instant{second, 3 * second, 2 * second}, -1, 1},
		"the gate":               {[]Instant{second, 2 * second, 3 * second}, -1, 2},
		"the first of two":       {[]Instant{0, 2 * second, 2 * second}, -1, 1},
		"one is free":            {[]Instant{0, 2 * second, 0}, -1, 1},
		"where another waits":    {[]Instant{0, 0, 0}, 1, 1},
		"later than where it is": {[]Instant{0, second, 3 * second}, 1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			x := newWorld(t)
			var all []*Point
			for _, at := range c.ready {
				all = append(all, x.point(&fake{kind: slots, most: 9, held: at}))
			}
			if c.barred >= 0 {
				w := &Waiter{At: []*Point{all[c.barred]}, Costs: []int64{9}, Rank: -1, Last: Never}
				all[c.barred].Payer.(*fake).used = 3
				x.Join(w, 0)
				x.serve()
			}
			w := &Waiter{At: all[:2], Costs: []int64{1, 1}, Gate: all[2], Last: Never}
			x.Join(w, 0)
			x.serve()
			require.True(t, w.IsWaiting())
			require.EqualValues(t, c.binding, w.Binding)
			due, binding := x.Plan(w, 0)
			require.Equal(t, slices.Max(c.ready), due)
			if c.barred < 0 {
				require.Equal(t, c.binding, binding)
			}
			x.until(due - 1)
			if due > 0 {
				require.True(t, w.IsWaiting())
			}
		})
	}
}

// A request that was passed over for long bars its points only while all of them can pay it soon: a point that is held for longer
// than ten seconds keeps no other requests waiting elsewhere. After the hold it goes as soon as its points have saved up for it.
func TestAStarvedRequestBarsNothingDuringALongHold(t *testing.T) {
	for _, c := range []struct {
		hold Instant
		bars bool
	}{{10 * second, true}, {10*second + 1, false}, {60 * second, false}} {
		x := newWorld(t)
		a, b := x.point(every(second, 2)), x.point(every(second, 2))
		b.Payer.(*fake).empty = second // it lags behind by a token
		both := x.come(0, []*Point{a, b}, 2, 2)
		for range 60 {
			x.come(0, []*Point{a}, 2)
			x.come(0, []*Point{b}, 2)
		}
		for both.queue.lane.line.starved == nil {
			x.until(x.now + second/2)
			require.Less(t, x.now, 14*second)
			require.True(t, both.IsWaiting())
		}
		for _, p := range []*Point{a, b} {
			require.Equal(t, both, firstAt(p))
		}
		end := x.now + c.hold
		b.Payer.(*fake).held = end
		x.Check(b)
		require.Empty(t, x.reject(100))
		x.serve()
		x.granted = nil
		x.until(end - 1)
		require.Equal(t, c.bars, len(x.granted) == 0, "held for %d", c.hold)
		require.True(t, both.IsWaiting())
		x.until(end + 14*second)
		require.False(t, both.IsWaiting())
		x.check(t)
	}
}
