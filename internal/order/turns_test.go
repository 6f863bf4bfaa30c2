package order

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// aCaller returns a caller at any turn.
func aCaller(r *rand.Rand) *caller {
	any := func(bits int) int64 { return r.Int64N(1 << r.IntN(bits)) }
	c := &caller{turns: &turns{now: any(62)}, weight: 1 + r.Int64N(MaxWeight), tag: any(62)}
	c.rest = r.Int64N(c.weight)
	return c
}

// The cost until a turn is the least one whose start tag is not before it.
func TestUntilIsTheLeastCost(t *testing.T) {
	forSeeds(t, 40, func(t *testing.T, r *rand.Rand) {
		for range 1000 {
			c := aCaller(r)
			turn := max(c.tag, c.turns.now) + r.Int64N(1<<r.IntN(50)) - r.Int64N(1<<r.IntN(63))
			least := c.until(turn)
			require.GreaterOrEqual(t, c.start(least), turn, "the turn is not reached")
			require.True(t, least == 0 || c.start(least-1) < turn, "%d: it was reached before", least)
		}
	})
}

// Of any costs, tags stay in their range.
func TestTagsSaturate(t *testing.T) {
	forSeeds(t, 40, func(t *testing.T, r *rand.Rand) {
		c := aCaller(r)
		for range 100 {
			before := c.tag
			c.tag, c.rest = c.after(c.tag, r.Int64N(1<<r.IntN(62)))
			require.GreaterOrEqual(t, c.tag, before)
			require.LessOrEqual(t, c.tag, maxTag)
		}
	})
}

// A caller whose turn has passed starts, and is corrected, as one that is not known: whether it is forgotten yet makes no
// difference.
func TestACallerWhoseTurnHasPassedIsLikeOneThatIsNotKnown(t *testing.T) {
	forSeeds(t, 400, func(t *testing.T, r *rand.Rand) {
		now, tag := r.Int64N(50), r.Int64N(50)
		tag = min(tag, now) // often the same
		x := &turns{now: now, later: now + r.Int64N(3*tagScale), since: second, callers: make(map[string]*caller)}
		w := &Waiter{Rank: []Instant{0, second - 1, second, 2 * second}[r.IntN(4)], Weight: 1 + r.Int64N(3)}
		cost := 1 + r.Int64N(3)
		known := x.caller(nil, "known")
		known.tag = tag
		x.idle.Put(known, key{major: tag})
		require.Equal(t, x.startOf(nil, w, cost), x.startOf(known, w, cost))

		p, more := &Point{turns: x}, r.Int64N(9)-4
		weight := 1 + r.Int64N(3)
		known.weight = weight
		new(Order).Correct(p, "known", weight, more)
		new(Order).Correct(p, "unknown", weight, more)
		require.Equal(t, x.startOf(x.callers["unknown"], w, cost), x.startOf(x.callers["known"], w, cost))
	})
}

// A correction of nothing changes nothing, not even by how much a tag was rounded down.
func TestACorrectionOfNothingChangesNothing(t *testing.T) {
	x := newWorld(t)
	p := x.point(every(second, 5))
	p.Fair = true
	for range 3 {
		x.Join(&Waiter{At: []*Point{p}, Costs: []int64{1}, Caller: "a", Weight: 3, Last: Never}, 0)
		x.serve()
	}
	x.until(second)
	c := p.turns.callers["a"]
	tag, rest := c.tag, c.rest
	require.Positive(t, rest)
	x.Correct(p, "a", 3, 0)
	require.Equal(t, []int64{tag, rest}, []int64{c.tag, c.rest})
}

// The weight of a caller is that of its last request.
func TestACallerChangesItsWeight(t *testing.T) {
	x := newWorld(t)
	p := x.point(every(second, 5))
	p.Fair = true
	for _, weight := range []int64{1, 5, 2, 7} {
		for _, name := range []string{"a", "b"} {
			x.Join(&Waiter{At: []*Point{p}, Costs: []int64{1}, Caller: name, Weight: weight, Last: Never}, 0)
			x.serve()
			x.check(t)
		}
		require.Equal(t, 2*weight, p.turns.weights)
	}
}

// Callers take turns where requests fall under other points as well, whatever these are.
func TestCallersOfSeveralLinesTakeTurns(t *testing.T) {
	x := newWorld(t)
	p := x.point(every(second, 5))
	p.Fair = true
	come := func(caller string) *Waiter {
		own := x.point(&fake{kind: slots, most: 99})
		w := &Waiter{At: []*Point{p, own}, Costs: []int64{1, 1}, Caller: caller, Weight: 1, Last: Never}
		x.Join(w, 0)
		x.serve()
		return w
	}
	a1, a2, a3, b1, b2 := come("a"), come("a"), come("a"), come("b"), come("b")
	x.until(5 * second)
	x.requireGranted(a1, second, b1, 2*second, a2, 3*second, b2, 4*second, a3, 5*second)
}

// The weights of treaps are those of SplitMix64, whose first numbers are published, except for their lowest bit.
func TestMixIsSplitMix64(t *testing.T) {
	for i, want := range []uint32{0xe220a839, 0x6e789e6a, 0x06c45d18, 0xf88bb8a8} {
		require.Equal(t, want>>1, mix(uint64(i+1))>>1)
	}
}
