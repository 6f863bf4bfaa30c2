package order

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// A fairness is an Order whose callers take turns, and what each of them got. It knows the bounds of docs/lab/guarantees.md, and
// nothing of tags.
type fairness struct {
	*world
	r       *rand.Rand
	p       *Point
	most    int64 // the largest cost
	callers map[string]*served
	names   int // of callers that come again; others come once
	waiting []*Waiter
	moves   bool // costs are corrected
}

// A served is what a caller asked for and got.
type served struct {
	weight  int64
	waiting int
	got     float64 // by weight, with corrections
	largest int64   // cost, of those that were cancelled as well
	moved   int64   // by corrections, up and down
	last    int64   // the cost of its last grant, and how much more it was corrected to since
	ahead   map[string]*stretch
	first   *newcomer // nil: the request that came when it had none waiting has been granted
}

// A stretch is how far a caller was ahead of another since both have had requests waiting.
type stretch struct{ from, least, most float64 }

// A newcomer is the request of a caller that had none waiting.
type newcomer struct {
	w      *Waiter
	last   int64 // what its caller had last
	before map[string][]int64
	back   map[string]int64 // what costs were corrected down by meanwhile
}

func newFairness(t testing.TB, r *rand.Rand) *fairness {
	x := &fairness{world: &world{TB: t}, r: r, callers: make(map[string]*served), names: 2 + r.IntN(9), moves: r.IntN(2) == 0}
	x.most = 1 + r.Int64N(1<<r.IntN(11))
	x.p = x.point(every(ms, x.most))
	x.p.Fair = true
	x.paid = x.grant
	return x
}

// stretchOf returns the stretch in which both callers have had requests waiting.
func (x *fairness) stretchOf(a, b string) *stretch {
	c, other := x.callers[a], x.callers[b]
	s := c.ahead[b]
	if s == nil {
		s = &stretch{from: c.got - other.got}
		c.ahead[b] = s
	}
	return s
}

// compare checks how far a caller is ahead of another, over any stretch of time in which both have had requests waiting.
func (x *fairness) compare(name string) {
	c := x.callers[name]
	bound := func(c *served) float64 { return float64(c.largest+c.moved) / float64(c.weight) }
	for otherName, other := range x.callers {
		if other == c || other.waiting == 0 || c.waiting == 0 {
			continue
		}
		s := x.stretchOf(min(name, otherName), max(name, otherName))
		ahead := x.callers[min(name, otherName)].got - x.callers[max(name, otherName)].got - s.from
		s.least, s.most = min(s.least, ahead), max(s.most, ahead)
		require.LessOrEqual(x, s.most-s.least, bound(c)+bound(other)+3./tagScale, "%s and %s got different shares", name, otherName)
	}
}

// end forgets the stretches of a caller that has no request waiting any more.
func (x *fairness) end(name string) {
	x.callers[name].ahead = make(map[string]*stretch)
	for _, other := range x.callers {
		delete(other.ahead, name)
	}
}

func (x *fairness) grant(w *Waiter, _ Instant) {
	c, cost := x.callers[w.Caller], w.Costs[0]
	x.waiting = slices.DeleteFunc(x.waiting, func(other *Waiter) bool { return other == w })
	c.got += float64(cost) / float64(c.weight)
	c.last = cost
	x.compare(w.Caller)
	for name, other := range x.callers {
		if n := other.first; n != nil && name != w.Caller {
			n.before[w.Caller] = append(n.before[w.Caller], cost)
		}
	}
	if n := c.first; n != nil && n.w == w {
		x.requireSoon(n)
		c.first = nil
	}
	x.gone(w)
}

// requireSoon checks what went before a newcomer.
func (x *fairness) requireSoon(n *newcomer) {
	own := float64(x.callers[n.w.Caller].weight)
	for name, costs := range n.before {
		sum := -n.back[name]
		for _, cost := range costs[:len(costs)-1] {
			sum += cost
		}
		got := float64(sum) / float64(x.callers[name].weight)
		require.True(x, got <= 0 || got < float64(n.w.Costs[0])/own || got <= float64(n.last)/own+2./tagScale,
			"a request of %d, whose caller of weight %v had %d before, waits for %v of %s of weight %d", n.w.Costs[0], own, n.last, costs, name, x.callers[name].weight)
	}
}

// gone counts a request that waits no more.
func (x *fairness) gone(w *Waiter) {
	c := x.callers[w.Caller]
	if c.waiting--; c.waiting == 0 {
		x.end(w.Caller)
	}
}

func (x *fairness) arrive() {
	name := string(rune('a' + x.r.IntN(x.names)))
	if x.r.IntN(3) == 0 {
		name = fmt.Sprint("new ", len(x.callers))
	}
	c := x.callers[name]
	if c == nil {
		c = &served{weight: 1 + x.r.Int64N(1<<x.r.IntN(10)), ahead: make(map[string]*stretch)}
		x.callers[name] = c
	}
	for range 1 + x.r.IntN(1<<x.r.IntN(4)) {
		w := &Waiter{At: []*Point{x.p}, Costs: []int64{1 + x.r.Int64N(x.most)}, Rank: RankOf(x.now, x.r.IntN(2)), Caller: name, Weight: c.weight, Last: Never}
		c.largest = max(c.largest, w.Costs[0])
		if c.waiting++; c.waiting == 1 {
			c.first = &newcomer{w, c.last, make(map[string][]int64), make(map[string]int64)}
		}
		x.waiting = append(x.waiting, w)
		x.Join(w, x.now)
		x.serve()
		x.compare(name)
	}
}

// correct has a cost of a caller be another one than it was charged.
func (x *fairness) correct() {
	name, more := string(rune('a'+x.r.IntN(x.names))), x.r.Int64N(2*x.most+1)-x.most
	c := x.callers[name]
	if c == nil {
		return
	}
	x.Correct(x.p, name, c.weight, more)
	c.got += float64(more) / float64(c.weight)
	c.moved += max(more, -more)
	c.last += max(0, more)
	if more > 0 {
		c.first = nil // its turn has been moved
	}
	for _, other := range x.callers {
		if other.first != nil {
			other.first.back[name] += max(0, -more)
		}
	}
	x.compare(name)
}

func (x *fairness) step() {
	switch what := x.r.IntN(16); {
	case what < 6:
		x.until(x.now + x.r.Int64N(3*x.most)*ms)
	case what == 6 && len(x.waiting) > 0:
		i := x.r.IntN(len(x.waiting))
		w := x.waiting[i]
		x.waiting = slices.Delete(x.waiting, i, i+1)
		x.Leave(w)
		c := x.callers[w.Caller]
		if c.first != nil && c.first.w == w {
			c.first = nil
		}
		x.gone(w)
	case what == 7 && x.moves:
		x.correct()
	default:
		x.arrive()
	}
	x.serve()
}

// A request of a caller that had none waiting waits for at most one request of each other caller and, where those are smaller,
// for as many more as cost less than itself or than what its caller had last, by weight. What two callers get while both have
// requests waiting differs by at most the largest cost of each, by weight, and what was corrected.
func TestCallersGetWhatTheyArePromised(t *testing.T) { // slow: 1,200 seeds of 150 steps
	forSeeds(t, 1_200, func(t *testing.T, r *rand.Rand) {
		x := newFairness(t, r)
		for range 150 {
			x.step()
		}
	})
}

// However many callers come that never came before, another one gets at least a quarter of what it would get if all that wait were
// served at the same time.
func TestNewCallersStarveNoOther(t *testing.T) {
	const tokens = 20_000
	for name, c := range map[string]struct {
		cost   int64 // of the requests of a caller that always has another one
		others int64 // of those that come once
		gap    Instant
	}{
		"as many as are served":           {1, 1, ms},
		"large requests beside small":     {1, 100, 100 * ms},
		"small requests beside large":     {100, 1, ms},
		"a tenth more than are served":    {10, 10, 9 * ms},
		"three times what is served":      {1, 1, ms / 3},
		"large, three times the capacity": {100, 100, 100 * ms / 3},
	} {
		t.Run(name, func(t *testing.T) {
			x := newWorld(t)
			p := x.point(every(ms, 100))
			p.Fair = true
			join := func(caller string, cost int64) {
				x.Join(&Waiter{At: []*Point{p}, Costs: []int64{cost}, Rank: x.now, Caller: caller, Weight: 1, Last: Never}, x.now)
				x.serve()
			}
			for range tokens / c.cost {
				join("old", c.cost)
			}
			for i := 0; x.now < tokens*ms; i++ {
				join(fmt.Sprint("new ", i), c.others)
				x.until(x.now + c.gap)
			}
			got := int64(0)
			for _, g := range x.granted {
				if g.w.Caller == "old" {
					got += g.w.Costs[0]
				}
			}
			fluid, others := 0., 0. // what the caller would get, and how many others wait
			for range tokens {
				each := 1 / (1 + others)
				fluid += each
				others = max(0, others+float64(ms)/float64(c.gap)-(1-each)/float64(c.others))
			}
			require.GreaterOrEqual(t, 4*float64(got), fluid, "it got %d", got)
		})
	}
}
