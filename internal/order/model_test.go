package order

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// A model is the order of requests under one point, by brute force.
type model struct {
	payer   *fake
	floor   Instant
	line    []*modelWaiter // in order
	granted []modelGrant
	turns   *modelTurns // nil: callers take none
}

type modelWaiter struct {
	id     int
	w      *Waiter
	caller string
}

type modelGrant struct {
	id  int
	due Instant
}

// first returns the request that goes next.
func (m *model) first() *modelWaiter {
	if len(m.line) == 0 {
		return nil
	}
	if m.turns != nil {
		return m.turns.first(m.line)
	}
	return slices.MinFunc(m.line, func(a, b *modelWaiter) int { return cmp.Or(cmp.Compare(a.w.Rank, b.w.Rank), a.id-b.id) })
}

// until grants what can go by t, each at its instant.
func (m *model) until(t Instant) {
	for {
		first := m.first()
		if first == nil {
			break
		}
		due := m.payer.Ready(m.floor, m.floor, first.w.Costs[0])
		if due > t {
			break
		}
		m.payer.pay(due, first.w.Costs[0])
		if m.turns != nil {
			m.turns.grant(m.line, first, due)
		}
		m.take(first)
		m.floor = due
		m.granted = append(m.granted, modelGrant{first.id, due})
	}
	m.floor = t
}

func (m *model) take(w *modelWaiter) {
	m.line = slices.DeleteFunc(m.line, func(other *modelWaiter) bool { return other == w })
	if m.turns != nil && len(m.line) == 0 {
		m.turns = newModelTurns()
	}
}

// plan returns when a request would be granted.
func (m *model) plan(w *Waiter, before func(other *modelWaiter) bool) Instant {
	ahead := int64(0)
	for _, other := range m.line {
		if other.w != w && before(other) {
			ahead += other.w.Costs[0]
		}
	}
	return m.payer.Plan(m.floor, ahead, w.Costs[0])
}

// rejectLate rejects all requests that are too late, one after the other, and returns their numbers.
func (m *model) rejectLate() (late []int) {
	for {
		slices.SortFunc(m.line, func(a, b *modelWaiter) int { return cmp.Or(cmp.Compare(a.w.Rank, b.w.Rank), a.id-b.id) })
		i := slices.IndexFunc(m.line, func(w *modelWaiter) bool {
			return m.plan(w.w, func(other *modelWaiter) bool {
				return other.w.Rank < w.w.Rank || other.w.Rank == w.w.Rank && other.id < w.id
			}) > min(w.w.Last, Never-2)
		})
		if i < 0 {
			return late
		}
		late = append(late, m.line[i].id)
		m.take(m.line[i])
	}
}

// A modelRun is an Order beside its model.
type modelRun struct {
	*world
	r     *rand.Rand
	m     *model
	p     *Point
	ids   map[*Waiter]int
	names int // of callers; 0: they take no turns
}

func newModelRun(t testing.TB, r *rand.Rand, fair bool) *modelRun {
	x := &modelRun{world: &world{TB: t}, r: r, ids: make(map[*Waiter]int)}
	f := aFake(r)
	x.p = x.point(f)
	own := *f
	x.m = &model{payer: &own}
	if fair {
		x.p.Fair, x.names, x.m.turns = true, 1+r.IntN(5), newModelTurns()
	}
	return x
}

// arrive has a request come, which is rejected if it is planned for too late.
func (x *modelRun) arrive() {
	w := &Waiter{At: []*Point{x.p}, Costs: []int64{1 + x.r.Int64N(3)}, Rank: RankOf(x.now, 0), Last: Never, Weight: 1}
	if x.r.IntN(4) == 0 {
		w.Rank = RankOf(x.now, x.r.IntN(5)-2)
	}
	if x.r.IntN(2) == 0 {
		w.Last = x.now + x.r.Int64N(1<<x.r.IntN(33))
	}
	mw := &modelWaiter{id: len(x.ids), w: w}
	x.ids[w] = mw.id
	due, binding := x.Plan(w, x.now)
	require.Zero(x, binding)
	if x.names > 0 {
		mw.caller = string(rune('a' + x.r.IntN(x.names)))
		w.Caller, w.Weight = mw.caller, weightBy(mw.caller)
		due, _ = x.Plan(w, x.now)
		require.Equal(x, x.m.plan(w, x.m.turns.before(x.m.line, mw)), due, "plan of a request that comes")
	} else {
		require.Equal(x, x.m.plan(w, func(other *modelWaiter) bool { return other.w.Rank <= w.Rank }), due, "plan of a request that comes")
	}
	if due > w.Last {
		return
	}
	x.Join(w, x.now)
	if x.m.turns != nil {
		x.m.turns.join(x.m.line, mw)
	}
	x.m.line = append(x.m.line, mw)
	again, _ := x.Plan(w, x.now)
	require.Equal(x, due, again, "plan of a request that has joined")
}

func (x *modelRun) step() {
	switch what := x.r.IntN(10); {
	case what < 3:
		x.until(x.now + x.r.Int64N(1<<x.r.IntN(32)))
		x.m.until(x.now)
		return
	case what == 3 && len(x.m.line) > 0:
		w := x.m.line[x.r.IntN(len(x.m.line))]
		x.Leave(w.w)
		x.m.take(w)
	case what == 4:
		seed := x.r.Uint64()
		if x.p.Payer.(*fake).change(rand.New(rand.NewPCG(seed, 0)), x.now) && x.names == 0 {
			x.Check(x.p)
		}
		x.m.payer.change(rand.New(rand.NewPCG(seed, 0)), x.now)
		x.Touch(x.p)
		if x.names == 0 && !x.IsChecked() {
			var late []int
			for _, w := range x.reject(1 + x.r.IntN(40)) {
				late = append(late, x.ids[w])
			}
			require.Equal(x, x.m.rejectLate(), late)
		}
	case what == 5 && x.names > 0:
		caller, more := string(rune('a'+x.r.IntN(x.names))), x.r.Int64N(7)-3
		x.Correct(x.p, caller, weightBy(caller), more)
		x.m.turns.correct(x.m.line, caller, more)
	default:
		x.arrive()
	}
	x.serve()
	x.m.until(x.now)
}

func (x *modelRun) compare() {
	x.check(x)
	require.Equal(x, len(x.m.granted), len(x.granted))
	for i, g := range x.granted {
		require.Equal(x, x.m.granted[i], modelGrant{x.ids[g.w], g.due})
	}
	x.granted, x.m.granted = nil, nil
	require.Equal(x, len(x.m.line), x.Len())
	wake := Never
	if first := x.m.first(); first != nil {
		wake = x.m.payer.Ready(x.m.floor, x.m.floor, first.w.Costs[0])
	}
	require.Equal(x, wake, x.Wake())
}

func runModel(t testing.TB, r *rand.Rand, fair bool, steps int) {
	x := newModelRun(t, r, fair)
	for range steps {
		x.step()
		x.compare()
	}
	for len(x.m.line) > 0 {
		x.Leave(x.m.line[0].w)
		x.m.take(x.m.line[0])
	}
	x.serve()
	x.check(t)
	require.Empty(t, x.lines)
	require.Equal(t, Never, x.Wake())
	require.Zero(t, x.p.Waiting())
	require.Nil(t, x.p.turns)
}

// forSeeds runs a test with n seeds, fewer of them in short runs.
func forSeeds(t *testing.T, n int, run func(t *testing.T, r *rand.Rand)) {
	if testing.Short() {
		n /= 4
	}
	for seed := range n {
		t.Run("", func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("seed %d", seed)
				}
			}()
			run(t, rand.New(rand.NewPCG(uint64(seed), 1)))
		})
		if t.Failed() {
			return
		}
	}
}

func TestAnOrderUnderOnePointAgreesWithItsModel(t *testing.T) { // slow: 400 seeds
	forSeeds(t, 400, func(t *testing.T, r *rand.Rand) { runModel(t, r, false, 100) })
}

func TestTurnsAgreeWithTheirModel(t *testing.T) { // slow: 400 seeds
	forSeeds(t, 400, func(t *testing.T, r *rand.Rand) { runModel(t, r, true, 100) })
}

// This seed has a caller that comes again with the tag that it had, by chance, and must not keep what its old tag was rounded
// down by.
func TestACallerThatComesAgainStartsWithoutRest(t *testing.T) {
	runModel(t, rand.New(rand.NewPCG(6646, 1)), true, 100)
}

func FuzzOrder(f *testing.F) {
	f.Add(uint64(0), false)
	f.Add(uint64(0), true)
	f.Fuzz(func(t *testing.T, seed uint64, fair bool) { runModel(t, rand.New(rand.NewPCG(seed, 2)), fair, 100) })
}
