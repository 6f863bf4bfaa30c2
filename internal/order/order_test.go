package order

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

// every returns a payer of a token each step, of which it has none.
func every(step Instant, most int64) *fake { return &fake{step: step, most: most} }

// hasSlots returns a payer with n slots, all of which are taken.
func hasSlots(n int64) *fake { return &fake{kind: slots, most: n, used: n} }

func newWorld(t *testing.T) *world { return &world{TB: t} }

// come has a request wait, which costs these numbers at points.
func (x *world) come(priority int, points []*Point, costs ...int64) *Waiter {
	w := &Waiter{At: points, Costs: costs, Rank: RankOf(x.now, priority), Last: Never}
	x.serve()
	x.Join(w, x.now)
	x.serve()
	return w
}

func TestRequestsAreGrantedAtTheExactInstant(t *testing.T) {
	x := newWorld(t)
	p := x.point(every(3, 1))
	a, b, c := x.join(p), x.join(p), x.join(p)
	x.until(2)
	x.requireGranted()
	x.until(3)
	x.requireGranted(a, Instant(3))
	x.until(8)
	x.requireGranted(b, Instant(6))
	x.until(9)
	x.requireGranted(c, Instant(9))
	require.Equal(t, Never, x.Wake())
}

func TestPriorityIsWorthTenSecondsOfArrival(t *testing.T) {
	x := newWorld(t)
	all := []*Point{x.point(every(30*second, 1))}
	first := x.come(0, all, 1)
	x.until(10*second - 1)
	before := x.come(1, all, 1)
	x.until(10 * second)
	tie := x.come(1, all, 1)
	x.until(10*second + 1)
	after := x.come(1, all, 1)
	x.until(200 * second)
	x.requireGranted(before, 30*second, first, 60*second, tie, 90*second, after, 120*second)
}

func TestRankSaturates(t *testing.T) {
	require.Less(t, RankOf(0, math.MaxInt), Instant(-Never/8))
	require.Greater(t, RankOf(0, math.MinInt), Never/8)
	require.Equal(t, RankOf(0, math.MaxInt), RankOf(0, math.MaxInt/2))
}

func TestAllPointsPayOrNone(t *testing.T) {
	x := newWorld(t)
	a, b := x.point(every(second, 5)), x.point(every(3*second, 5))
	both := x.join(a, b)
	x.until(3*second - 1)
	require.Equal(t, Instant(0), a.Payer.(*fake).empty)
	x.until(3 * second)
	x.requireGranted(both, 3*second)
	require.Equal(t, []Instant{second, 3 * second}, []Instant{a.Payer.(*fake).empty, b.Payer.(*fake).empty})
}

func TestARequestThatIsStoppedElsewhereBarsNoOther(t *testing.T) {
	x := newWorld(t)
	a, b := x.point(every(second, 5)), x.point(hasSlots(1))
	x.join(a, b)
	alone := x.join(a)
	x.until(10 * second)
	x.requireGranted(alone, second)
}

func TestARequestBarsThePointThatStopsIt(t *testing.T) {
	x := newWorld(t)
	a, b := x.point(every(second, 5)), x.point(every(second/10, 5))
	costly := x.come(0, []*Point{a, b}, 3, 1)
	cheap := x.join(a)
	x.until(10 * second)
	x.requireGranted(costly, 3*second, cheap, 4*second)
}

// The test of both instants is that of a nanosecond before.
func TestARequestPassedOverForTenSecondsBarsAllItsPoints(t *testing.T) {
	x := newWorld(t)
	a, b := x.point(every(second, 2)), x.point(every(second, 2))
	b.Payer.(*fake).empty = second // b lags behind by a token
	both := x.come(0, []*Point{a, b}, 2, 2)
	for range 30 {
		x.come(0, []*Point{a}, 2)
		x.come(0, []*Point{b}, 2)
	}
	x.until(12*second - 1)
	require.True(t, both.IsWaiting())
	x.until(20 * second)
	require.False(t, both.IsWaiting())
	for _, g := range x.granted {
		if g.w == both {
			require.Equal(t, 13*second, g.due)
		}
	}
}

func TestAtOneInstantRequestsGoInTheOrderOfRank(t *testing.T) {
	for _, touched := range [][2]int{{0, 1}, {1, 0}} {
		x := newWorld(t)
		host, all := x.point(hasSlots(1)), x.point(hasSlots(2))
		earlier, later := x.join(all), x.come(0, []*Point{host, all}, 1, 1)
		last := x.join(host)
		x.serve()
		for _, i := range touched {
			p := []*Point{host, all}[i]
			p.Payer.(*fake).used--
			x.Touch(p)
		}
		x.serve()
		x.requireGranted(earlier, Instant(0), last, Instant(0))
		require.True(t, later.IsWaiting())
	}
}

// A change is not late, only a timer can be.
func TestChargesAreNotBackdatedForAChange(t *testing.T) {
	x := newWorld(t)
	slot, pace := x.point(hasSlots(1)), x.point(every(ms, 1))
	for range 100 {
		x.join(slot, pace)
	}
	x.until(second)
	x.requireGranted()
	slot.Payer.(*fake).most = 1000
	x.Touch(slot)
	x.serve()
	require.Len(t, x.granted, 1)
	require.Equal(t, second, x.granted[0].due)
}

func TestALateTimerLosesNothingWithinSlack(t *testing.T) {
	for _, late := range []Instant{0, ms, Slack, Slack + 1, 5 * second} {
		x := newWorld(t)
		p := x.point(every(ms, 1))
		for range 100 {
			x.join(p)
		}
		x.now = ms + late
		x.serve()
		require.Len(t, x.granted, int(1+min(late, Slack)/ms))
		require.Equal(t, max(ms, x.now-Slack), x.granted[0].due)
	}
}

func TestACancelledRequestBarsNoOther(t *testing.T) {
	x := newWorld(t)
	p := x.point(every(second, 5))
	costly := x.come(0, []*Point{p}, 5)
	cheap := x.join(p)
	x.until(2 * second)
	x.Leave(costly)
	x.serve()
	x.requireGranted(cheap, 2*second)
	require.False(t, costly.IsWaiting())
}

func TestGatesAreNoPartOfALine(t *testing.T) {
	x := newWorld(t)
	p := x.point(every(second, 5))
	closed, open := x.point(hasSlots(1)), x.point(&fake{kind: slots, most: 9})
	come := func(gate *Point) *Waiter {
		w := &Waiter{At: []*Point{p}, Costs: []int64{1}, Gate: gate, Rank: x.now, Last: Never}
		x.Join(w, x.now)
		x.serve()
		return w
	}
	first, second1, third := come(closed), come(open), come(closed)
	last := come(nil)
	require.Len(t, x.lines, 1)
	require.Equal(t, 4, x.Alike(last))
	due, _ := x.Plan(last, x.now)
	require.Equal(t, 2*second, due, "what waits at a closed gate may go later")
	x.until(second)
	x.requireGranted(second1, second)
	closed.Payer.(*fake).most = 9
	x.Touch(closed)
	x.serve()
	require.Equal(t, 4*second, first2(x.Plan(last, x.now)))
	x.until(4 * second)
	x.requireGranted(first, 2*second, third, 3*second, last, 4*second)
}

func first2(due Instant, _ int) Instant { return due }

func TestAGateServesItsLinesInTheOrderOfRank(t *testing.T) {
	x := newWorld(t)
	gate := x.point(hasSlots(1))
	var all []*Waiter
	for i := range 3 {
		w := &Waiter{At: []*Point{x.point(&fake{kind: slots, most: 9})}, Costs: []int64{1}, Gate: gate, Rank: Instant(-i), Last: Never}
		x.Join(w, x.now)
		x.serve()
		all = append(all, w)
	}
	for i := range 3 {
		gate.Payer.(*fake).used--
		x.Touch(gate)
		x.serve()
		x.requireGranted(all[2-i], Instant(0))
	}
}

func TestCallersTakeTurns(t *testing.T) {
	x := newWorld(t)
	p := x.point(every(second, 5))
	p.Fair = true
	come := func(caller string, weight int64) *Waiter {
		w := &Waiter{At: []*Point{p}, Costs: []int64{1}, Caller: caller, Weight: weight, Rank: x.now, Last: Never}
		x.Join(w, x.now)
		x.serve()
		return w
	}
	a1, a2, a3 := come("a", 1), come("a", 1), come("a", 1)
	b1, b2, b3 := come("b", 2), come("b", 2), come("b", 2)
	require.Equal(t, 2, p.Callers())
	x.Leave(a1) // leaves its turn to the next one
	x.until(10 * second)
	x.requireGranted(a2, second, b1, 2*second, b2, 3*second, a3, 4*second, b3, 5*second)
	require.Zero(t, p.Callers())
}

func TestARefundedTurnGoesFirst(t *testing.T) {
	x := newWorld(t)
	p := x.point(every(second, 5))
	p.Fair = true
	come := func(caller string) *Waiter {
		w := &Waiter{At: []*Point{p}, Costs: []int64{1}, Caller: caller, Weight: 1, Rank: x.now, Last: Never}
		x.Join(w, x.now)
		x.serve()
		return w
	}
	a1, a2, b := come("a"), come("a"), come("b")
	x.until(second)
	x.requireGranted(a1, second)
	x.Correct(p, "a", 1, -1)
	x.until(3 * second)
	x.requireGranted(a2, 2*second, b, 3*second)
}

func TestOverdueBindsAtTheInstant(t *testing.T) {
	for _, c := range []struct {
		last Instant
		late bool
	}{{4*second - 1, true}, {4 * second, false}} {
		x := newWorld(t)
		p := x.point(every(second, 5))
		x.join(p)
		w := &Waiter{At: []*Point{p}, Costs: []int64{1}, Last: c.last}
		x.Join(w, 0)
		x.serve()
		p.Payer.(*fake).step = 2 * second
		x.Check(p)
		work := 100
		late, due, binding := x.Overdue(0, &work)
		require.Equal(t, c.late, late == w)
		if c.late {
			require.Equal(t, 4*second, due)
			require.Zero(t, binding)
		}
	}
}

func TestClampReducesCosts(t *testing.T) {
	x := newWorld(t)
	p := x.point(every(second, 5))
	w := x.come(0, []*Point{p}, 5)
	p.Payer.(*fake).most = 2
	x.Clamp(p)
	x.until(10 * second)
	x.requireGranted(w, 2*second)
	require.Equal(t, []int64{2}, w.Costs)
}

func TestRecheckAsksThePayerAgain(t *testing.T) {
	x := newWorld(t)
	p := x.point(every(5*second, 5))
	p.Recheck = 2 * second
	w := x.join(p)
	require.Equal(t, 2*second, x.Wake())
	x.until(2 * second)
	require.Equal(t, 4*second, x.Wake())
	x.until(5 * second)
	x.requireGranted(w, 5*second)
}

func TestBlockedReturnsWhatIsToBePaid(t *testing.T) {
	x := newWorld(t)
	a, b := x.point(every(second, 5)), x.point(every(second, 5))
	w := x.come(0, []*Point{a, b}, 2, 1)
	x.come(0, []*Point{a, b}, 3, 1)
	other := x.join(a)
	var firsts []*Waiter
	var all [][]int64
	a.Blocked(func(first *Waiter, sums []int64) bool {
		firsts, all = append(firsts, first), append(all, append([]int64(nil), sums...))
		return true
	})
	require.True(t, firsts[0] == w && firsts[1] == other)
	require.Equal(t, [][]int64{{5, 2}, {1}}, all)
	require.Equal(t, 3, a.Waiting())
}

// A request that only another point stops falls under the point, too.
func TestLinesThatWaitElsewhereComeLast(t *testing.T) {
	x := newWorld(t)
	a, b := x.point(&fake{kind: slots, most: 9, used: 1}), x.point(hasSlots(1))
	elsewhere := x.come(0, []*Point{a, b}, 2, 1)
	here := x.come(0, []*Point{a}, 9)
	var firsts []*Waiter
	for first, sums := range a.Lines {
		firsts = append(firsts, first)
		require.Equal(t, first.Costs, sums)
	}
	require.True(t, len(firsts) == 2 && firsts[0] == here && firsts[1] == elsewhere)
	for first := range a.Blocked {
		require.Same(t, here, first)
	}
	for first := range a.Lines {
		require.Same(t, here, first)
		break
	}
}

func TestClampKeepsTheSums(t *testing.T) {
	x := newWorld(t)
	p, other := x.point(every(second, 9)), x.point(every(second, 9))
	gate := x.point(hasSlots(1))
	var all []*Waiter
	for i := range 40 {
		w := &Waiter{At: []*Point{p, other}, Costs: []int64{int64(i*7%9 + 1), 9}, Rank: Instant(i * 11 % 40), Last: Never}
		if i%3 == 0 {
			w.Gate = gate
		}
		x.Join(w, 0)
		x.serve()
		all = append(all, w)
	}
	p.Payer.(*fake).most = 4
	x.Clamp(p)
	x.serve()
	x.check(t)
	for i, w := range all {
		require.Equal(t, min(int64(i*7%9+1), 4), w.Costs[0])
		require.EqualValues(t, 9, w.Costs[1])
	}
}

// Of requests whose costs take longer than a year together, bounds do not rise, so that nothing overflows.
func TestBoundsOfHugeCosts(t *testing.T) {
	x := newWorld(t)
	p := x.point(&fake{step: 1 << 20, most: 1 << 60})
	var all []*Waiter
	for i := range 50 {
		w := &Waiter{At: []*Point{p}, Costs: []int64{1 << (10 + i%30)}, Rank: Instant(i * 13 % 50), Last: Never}
		if i%2 == 0 {
			w.Last = Instant(1+i) << 40
		}
		all = append(all, w)
	}
	x.comeAndLeave(all)
}

// A plan looks at some of many queues: at more of them if the request would be rejected otherwise.
func TestAPlanLooksAtSomeOfManyQueues(t *testing.T) {
	x := newWorld(t)
	p := x.point(every(second, 9))
	for range manyQueues + 10 {
		w := &Waiter{At: []*Point{p}, Costs: []int64{1}, Gate: x.point(&fake{kind: slots, most: 9}), Last: Never}
		x.Join(w, 0)
		x.serve()
	}
	w := &Waiter{At: []*Point{p}, Costs: []int64{1}, Last: Never}
	require.Equal(t, (fewQueues+1)*second, first2(x.Plan(w, 0)))
	w.Last = Never - 1
	require.Equal(t, (manyQueues+1)*second, first2(x.Plan(w, 0)))
}

// What an idle caller was charged too little counts, and what it was charged too much does not.
func TestCorrectionsOfAnIdleCaller(t *testing.T) {
	for _, c := range []struct {
		more  int64
		first string
	}{{-5, "a"}, {0, "a"}, {5, "c"}} {
		x := newWorld(t)
		p := x.point(every(second, 9))
		p.Fair = true
		come := func(caller string) *Waiter {
			w := &Waiter{At: []*Point{p}, Costs: []int64{1}, Caller: caller, Weight: 1, Rank: x.now, Last: Never}
			x.Join(w, x.now)
			x.serve()
			return w
		}
		come("b")
		x.Correct(p, "a", 1, c.more)
		x.serve()
		x.check(t)
		come("a")
		come("c")
		x.until(second)
		x.granted = nil
		x.until(2 * second)
		require.Equal(t, c.first, x.granted[0].w.Caller)
	}
}

func TestCheckTouchesThePoint(t *testing.T) {
	x := newWorld(t)
	p := x.point(hasSlots(1))
	w := x.join(p)
	p.Payer.(*fake).used = 0
	x.Check(p)
	x.serve()
	x.requireGranted(w, Instant(0))
}

// Two queues that are as large as each other: what the other one pays counts, and what the own one pays counts once.
func TestSubtreesOfSeveralQueuesAreSkipped(t *testing.T) {
	x := newWorld(t)
	p := x.point(every(ms, 9))
	gates := []*Point{x.point(&fake{kind: slots, most: 999}), x.point(&fake{kind: slots, most: 999})}
	for i := range 400 {
		w := &Waiter{At: []*Point{p}, Costs: []int64{1}, Gate: gates[i%2], Last: 410 * ms}
		x.Join(w, 0)
		x.serve()
	}
	p.Payer.(*fake).empty = 9 * ms
	x.Check(p)
	work := 1000
	w, _, _ := x.Overdue(0, &work)
	require.Nil(t, w)
	require.Equal(t, 1000-2, work, "two queues are looked at, and no request is visited")
	p.Payer.(*fake).empty = 12 * ms
	x.Check(p)
	require.Len(t, x.reject(10), 2)
}

// A request that comes when a message turns out to have been late is not granted from earlier on than the message can have been.
func TestNoRequestIsBackdatedByMoreThanSlack(t *testing.T) {
	for _, c := range []struct{ at, due Instant }{{0, second - 20*ms}, {second - 20*ms, second - 20*ms}, {second - ms, second - ms}, {second, second}} {
		x := newWorld(t)
		p := x.point(&fake{kind: slots, most: 1})
		x.until(second)
		x.Backdate(c.at)
		w := &Waiter{At: []*Point{p}, Costs: []int64{1}, Last: Never}
		x.Join(w, x.now)
		x.serve()
		x.requireGranted(w, c.due)
	}
}

// Neither does a request that comes at the instant at which an earlier one can go take what that one needs.
func TestARequestThatComesTakesNothingFromAnEarlierOneThatCanGo(t *testing.T) {
	x := newWorld(t)
	a, b := x.point(hasSlots(1)), x.point(&fake{kind: slots, most: 1})
	earlier := x.come(0, []*Point{a, b}, 1, 1)
	x.until(second)
	a.Payer.(*fake).used = 0
	x.Touch(a)
	later := x.join(b) // join serves what can go before
	x.requireGranted(earlier, second)
	x.Leave(later)

	a.Payer.(*fake).used, b.Payer.(*fake).used = 1, 0
	earlier = x.come(0, []*Point{a, b}, 1, 1)
	a.Payer.(*fake).used = 0
	x.Touch(a)
	later = &Waiter{At: []*Point{b}, Costs: []int64{1}, Rank: x.now, Last: Never}
	x.Join(later, x.now)
	x.serve()
	x.requireGranted(earlier, second)
	require.True(t, later.IsWaiting())
}

// A request that becomes the first of its line goes before one of a later rank, also where a late timer has both of them due at
// one instant.
func TestALateTimerKeepsTheOrderOfRanks(t *testing.T) {
	for _, late := range []Instant{0, Slack, second} {
		x := newWorld(t)
		a := x.point(&fake{kind: slots, most: 9, held: second})
		b := x.point(&fake{kind: slots, most: 9, held: second + 100*ms})
		shared := x.point(&fake{kind: slots, most: 2})
		first, next := x.join(a, shared), x.join(a, shared)
		x.now++
		last := x.join(b, shared)
		x.now = second + late
		due := max(second, x.now-Slack)
		x.serve()
		x.until(2 * second)
		x.requireGranted(first, due, next, due)
		require.True(t, last.IsWaiting())
	}
}

// Sums that have reached their bound are found again when a request leaves, and so is what is left.
func TestSumsAtTheirBound(t *testing.T) {
	x := newWorld(t)
	p := x.point(&fake{kind: slots, most: 2 * meter.MaxCount, used: 2 * meter.MaxCount})
	var all []*Waiter
	for i := range 20 {
		all = append(all, &Waiter{At: []*Point{p}, Costs: []int64{meter.MaxCount}, Rank: Instant(i * 7 % 20), Last: Never})
	}
	x.comeAndLeave(all)
}

// Bounds stay right however many first requests come and go in the course of centuries.
func TestBoundsOfManyFirstRequests(t *testing.T) {
	x := newWorld(t)
	p := x.point(&fake{step: 1 << 20, most: 1 << 60})
	come := func(rank Instant) *Waiter {
		w := &Waiter{At: []*Point{p}, Costs: []int64{1 << 33}, Rank: rank, Last: second}
		x.Join(w, 0)
		return w
	}
	last := come(0)
	for range 4096 { // one with a large weight stays at the root
		w := come(0)
		if w.weight > last.weight {
			w, last = last, w
		}
		x.Leave(w)
	}
	for range 1500 {
		w := come(-1)
		require.True(t, last.queue.root == w || last.tight()-last.slope<<34 >= last.bound, "it is paid after the other one")
		x.Leave(w)
	}
}

// An ending is a payer of which nothing is left from an instant on.
type ending struct {
	fake
	at Instant
}

func (e *ending) Ready(from, now Instant, cost int64) Instant {
	if now >= e.at {
		return Never
	}
	return e.fake.Ready(from, now, cost)
}

// A late timer grants a request as of when it was due, except with what has ended since.
func TestWhatHasEndedIsNotPaidAsOfEarlier(t *testing.T) {
	for _, late := range []Instant{1, ms, Slack - ms, second} {
		for _, ended := range []bool{false, true} {
			var o Order
			e := &ending{fake: fake{kind: slots, most: 1}, at: 10*ms + late}
			if !ended {
				e.at++
			}
			w := &Waiter{At: []*Point{{Payer: e}, {Payer: &fake{step: 10 * ms, most: 1}}}, Costs: []int64{1, 1}, Last: Never}
			o.Join(w, 0)
			in, _ := o.Next(0)
			require.Nil(t, in)
			require.Equal(t, 10*ms, o.Wake())
			in, due := o.Next(10*ms + late)
			if ended {
				require.Nil(t, in)
				continue
			}
			require.Same(t, w, in)
			require.Equal(t, max(10*ms, 10*ms+late-Slack), due)
		}
	}
}
