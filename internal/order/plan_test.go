package order

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The request of another line that is first at a point counts if and only if it is certain to go first.
func TestAPlanCountsARequestOfAnotherLineThatIsCertainToGoFirst(t *testing.T) {
	free := func() *fake { return &fake{kind: slots, most: 1} }
	for name, c := range map[string]struct {
		fair   bool
		other  *fake  // a point of the request that is first; nil: none
		robber []bool // other requests: whether they go at a point that can pay in half a second; they fall under the point of the first, too
		gate   bool   // in place of that point, it is a gate
		due    Instant
	}{
		"its other points can pay":           {other: free(), due: 2 * second},
		"where callers take turns":           {fair: true, other: free(), due: 2 * second},
		"it has no other":                    {due: 2 * second},
		"another point cannot pay":           {other: &fake{kind: slots, most: 1, held: 5 * second}, due: second},
		"another one may pay others":         {other: free(), robber: []bool{true}, due: second},
		"its gate can pay":                   {other: free(), gate: true, due: 2 * second},
		"its gate may pay others before":     {other: free(), gate: true, robber: []bool{true}, due: second},
		"its gate can pay it and the others": {other: &fake{kind: slots, most: 2}, gate: true, robber: []bool{true}, due: 2 * second},
	} {
		t.Run(name, func(t *testing.T) {
			x := newWorld(t)
			p := x.point(every(second, 9))
			p.Fair = c.fair
			join := func(w *Waiter) *Waiter {
				w.Weight, w.Last = 1, Never
				x.Join(w, 0)
				x.serve()
				return w
			}
			under := func(other *Point, at ...*Point) *Waiter {
				w := &Waiter{At: at, Costs: []int64{1}, Caller: "first"}
				switch {
				case c.gate:
					w.Gate = other
				case other != nil:
					w.At, w.Costs = append(w.At, other), append(w.Costs, 1)
				}
				return w
			}
			var other *Point
			if c.other != nil {
				other = x.point(c.other)
			}
			join(under(other, p))
			for range c.robber {
				join(under(other, x.point(every(second/2, 9))))
			}
			w := &Waiter{At: []*Point{p, x.point(free())}, Costs: []int64{1, 1}, Caller: "second"}
			require.Equal(t, c.due, first2(x.Plan(w, 0)), "before it has joined")
			join(w)
			require.Equal(t, c.due, first2(x.Plan(w, 0)))
			x.until(c.due - 1)
			require.True(t, w.IsWaiting())
			x.until(c.due)
			require.False(t, w.IsWaiting(), "it was granted when planned")
		})
	}
}

// What callers with earlier turns pay before a request counts, as far as it is certain.
func TestAPlanCountsEarlierTurns(t *testing.T) {
	open := func() *fake { return &fake{kind: slots, most: 999} }
	type request struct {
		caller string
		gate   int // 0: none
	}
	repeat := func(n int, r request) (all []request) {
		for range n {
			all = append(all, r)
		}
		return all
	}
	for name, c := range map[string]struct {
		gates  []*fake
		before []request
		turn   int64 // of the caller of the request
		gate   int
		due    Instant
		later  Instant // it is granted, because requests with the same turn have come before
	}{
		"all of one gate":                    {[]*fake{open()}, repeat(3, request{"a", 1}), 10, 1, 4 * second, 0},
		"through another gate that can pay":  {[]*fake{open()}, append(repeat(3, request{"a", 1}), request{"b", 0}), 10, 0, 5 * second, 0},
		"until its turn":                     {[]*fake{open()}, append(repeat(30, request{"a", 1}), request{"b", 0}), 10, 0, 13 * second, 0},
		"of several gates, all":              {[]*fake{open(), open()}, []request{{"a", 1}, {"a", 2}}, 5, 0, 3 * second, 0},
		"of several gates, until its turn":   {[]*fake{open(), open()}, append(repeat(30, request{"a", 1}), repeat(30, request{"a", 2})...), 5, 0, 6 * second, second},
		"the first at a gate that is closed": {[]*fake{every(10*second, 1)}, append(repeat(3, request{"a", 1}), repeat(90, request{"d", 0})...), 3, 1, 20 * second, second},
	} {
		t.Run(name, func(t *testing.T) {
			x := newWorld(t)
			p := x.point(every(second, 9))
			p.Fair = true
			free := x.point(&fake{kind: slots, most: 1 << 20})
			gates := []*Point{nil}
			for _, f := range c.gates {
				gates = append(gates, x.point(f))
			}
			for _, r := range c.before {
				x.Join(&Waiter{At: []*Point{free, p}, Costs: []int64{7, 1}, Gate: gates[r.gate], Caller: r.caller, Weight: 1, Last: Never}, 0)
				x.serve()
			}
			x.Correct(p, "late", 1, c.turn)
			w := &Waiter{At: []*Point{free, p}, Costs: []int64{7, 1}, Gate: gates[c.gate], Caller: "late", Weight: 1, Last: Never}
			require.Equal(t, c.due, first2(x.Plan(w, 0)))
			x.Join(w, 0)
			x.until(c.due + c.later - 1)
			require.True(t, w.IsWaiting())
			x.until(c.due + c.later)
			require.False(t, w.IsWaiting())
		})
	}
}

// A plan looks at no more gates of callers than at queues, however many they have.
func TestAPlanLooksAtSomeOfManyGatesOfCallers(t *testing.T) {
	for _, callers := range []int{1, 3} {
		x := newWorld(t)
		p := x.point(every(second, 9))
		p.Fair = true
		for range 2 * manyQueues {
			for i := range callers {
				gate := x.point(&fake{kind: slots, most: 9})
				x.Join(&Waiter{At: []*Point{p}, Costs: []int64{1}, Gate: gate, Caller: string(rune('a' + i)), Weight: 1, Last: Never}, 0)
				x.serve()
			}
		}
		x.Correct(p, "late", 1, 10*manyQueues)
		w := &Waiter{At: []*Point{p}, Costs: []int64{1}, Caller: "late", Weight: 1, Last: Never}
		require.Equal(t, (fewQueues+1)*second, first2(x.Plan(w, 0)))
		w.Last = Never - 1
		require.Equal(t, (manyQueues+1)*second, first2(x.Plan(w, 0)))
	}
}
