package order

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Of many requests, those that a change makes too late are found by a search.
func TestFewRequestsAreVisitedToFindAFew(t *testing.T) {
	const n = 4096
	slower := func(step Instant) func(*fake) { return func(f *fake) { f.step = step } }
	full := func(due, cost Instant) Instant { return due + cost*second/2 } // as if all had come with the same MaxWait
	for name, c := range map[string]struct {
		last   func(due, cost Instant) Instant // of a request that would be granted at due
		costs  int64
		change func(*fake)
		late   int
		most   int // requests visited
	}{
		"one in 64 has a bound": {func(due, _ Instant) Instant {
			if due/second%64 != 32 {
				return Never
			}
			return due * 3 / 2
		}, 1, slower(2 * second), n / 64, n / 64 * 12},
		"all could go 256 later":      {func(due, _ Instant) Instant { return due + 256*second }, 1, slower(1050 * ms), 0, 20},
		"a full queue":                {full, 1, slower(1010 * ms), n/101 + 1, n / 101 * 12},
		"a full queue, unequal costs": {full, 9, slower(1010 * ms), 203, 203 * 12},
		"a debt":                      {full, 1, func(f *fake) { f.empty += second }, 1, 20},
		"a debt, unequal costs":       {full, 9, func(f *fake) { f.empty += 2 * second }, 2, 40},
		"a hold":                      {full, 1, func(f *fake) { f.held = 2 * second }, 1, 20},
	} {
		t.Run(name, func(t *testing.T) {
			x := newWorld(t)
			f := every(second, 100)
			p, due := x.point(f), Instant(0)
			for i := range int64(n) {
				cost := 1 + i*7919%c.costs
				due += cost * second
				w := &Waiter{At: []*Point{p}, Costs: []int64{cost}, Last: c.last(due, cost)}
				x.serve()
				require.LessOrEqual(t, first2(x.Plan(w, 0)), w.Last)
				x.Join(w, 0)
			}
			x.serve()
			c.change(f)
			x.Check(p)
			late, visited := 0, 0
			for !x.IsChecked() {
				work := 1
				w, _, _ := x.Overdue(0, &work)
				if visited++; w != nil {
					late++
					x.Leave(w)
				}
			}
			require.Equal(t, c.late, late)
			require.LessOrEqual(t, visited, c.most)
			x.serve()
			for _, ln := range x.lines {
				ln.queues[0].check(t)
			}
		})
	}
}

// Where tokens come in all at once, or a line has several points, requests with time to spare are not visited either.
func TestNoRequestIsVisitedWithTimeToSpare(t *testing.T) {
	x := newWorld(t)
	a, b := x.point(&fake{kind: window, most: 5, used: 5}), x.point(every(ms, 1))
	for i := range Instant(1000) {
		w := &Waiter{At: []*Point{a, b}, Costs: []int64{1, 1}, Last: 300*second + i}
		x.serve()
		x.Join(w, 0)
	}
	x.serve()
	for _, p := range []*Point{a, b} {
		p.Payer.(*fake).held = 10 * second
		x.Check(p)
		work := 100
		w, _, _ := x.Overdue(0, &work)
		require.Nil(t, w)
		require.True(t, x.IsChecked())
		require.Equal(t, 100, work)
	}
	a.Payer.(*fake).held = 250 * second
	x.Check(a)
	require.NotEmpty(t, x.reject(100))
}

// A request of another queue that is rejected first delays no other.
func TestOverdueGoesInOrderOverQueues(t *testing.T) {
	x := newWorld(t)
	p := x.point(every(second, 9))
	gates := []*Point{x.point(&fake{kind: slots, most: 99}), x.point(&fake{kind: slots, most: 99})}
	var all []*Waiter
	for i := range 6 {
		w := &Waiter{At: []*Point{p}, Costs: []int64{1}, Gate: gates[i%2], Rank: Instant(i), Last: Instant(i+1)*second + second/2}
		x.Join(w, 0)
		x.serve()
		all = append(all, w)
	}
	p.Payer.(*fake).empty = second // the first is too late, and then no other
	x.Check(p)
	require.Equal(t, all[:1], x.reject(1))
	p.Payer.(*fake).empty = 2 * second
	x.Check(gates[1])
	require.Equal(t, all[1:2], x.reject(1))
}

func TestWorkIsCounted(t *testing.T) {
	x := newWorld(t)
	p := x.point(every(second, 9))
	for i := range Instant(10) {
		x.Join(&Waiter{At: []*Point{p}, Costs: []int64{1}, Last: (i + 1) * second}, 0)
		x.serve()
	}
	p.Payer.(*fake).step = 2 * second
	x.Check(p)
	work := 3
	w, due, _ := x.Overdue(0, &work)
	require.Equal(t, 2*second, due)
	require.Equal(t, 2, work)
	x.Leave(w)
	require.False(t, x.IsChecked())
	require.Len(t, x.reject(1), 4)
	work = 0
	x.Check(p)
	w, _, _ = x.Overdue(0, &work)
	require.Nil(t, w)
	require.False(t, x.IsChecked())
}

// Requests are granted, and bounds are found again: a check visits no request if none is too late, nor where the last one would
// be at its last instant, whichever point is the slowest.
func TestNoRequestIsVisitedAfterGrants(t *testing.T) {
	for _, c := range []struct {
		steps, costs []Instant
	}{
		{[]Instant{second, ms}, []int64{1, 1}},
		{[]Instant{ms, second}, []int64{1, 1}},
		{[]Instant{second, second / 2}, []int64{1, 900}},
		{[]Instant{second / 2, second}, []int64{900, 1}},
	} {
		x := newWorld(t)
		points := []*Point{x.point(every(c.steps[0], 999)), x.point(every(c.steps[1], 999))}
		each := max(c.steps[0]*c.costs[0], c.steps[1]*c.costs[1])
		for i := range Instant(500) {
			x.Join(&Waiter{At: points, Costs: c.costs, Last: (i + 1) * each}, 0)
			x.serve()
		}
		x.until(100 * each)
		require.Len(t, x.granted, 100)
		for _, p := range points {
			x.Check(p)
			work := 1000
			w, _, _ := x.Overdue(x.now, &work)
			require.Nil(t, w)
			require.True(t, x.IsChecked())
			require.Equal(t, 1000, work, "no request is visited")
		}
	}
}

// What passes other gates does not delay a request at its own: so none is visited where the gate can pay them all in time.
func TestRequestsOfOtherGatesDelayNoneAtAGate(t *testing.T) {
	x := newWorld(t)
	p := x.point(&fake{kind: slots, most: 9999})
	for range 4 {
		gate := x.point(every(second, 9))
		for range 50 {
			x.Join(&Waiter{At: []*Point{p}, Costs: []int64{1}, Gate: gate, Last: 51 * second}, 0)
			x.serve()
		}
	}
	x.Check(p)
	work := 1000
	w, _, _ := x.Overdue(0, &work)
	require.Nil(t, w)
	require.True(t, x.IsChecked())
	require.Equal(t, 1000-1-4, work, "four queues are looked at, and no request is visited")
}

// After the rate has changed, a check visits requests whose bounds do for the old rate alone. The next one visits none.
func TestBoundsAreFoundAgainAtAnotherRate(t *testing.T) {
	x := newWorld(t)
	f := every(100*ms, 9)
	p := x.point(f)
	for i := range Instant(1000) {
		x.Join(&Waiter{At: []*Point{p}, Costs: []int64{1}, Last: (i + 1) * 106 * ms}, 0)
		x.serve()
	}
	f.step = 105 * ms
	for i := range 2 {
		x.Check(p)
		work := 10_000
		w, _, _ := x.Overdue(0, &work)
		require.Nil(t, w)
		require.True(t, x.IsChecked())
		require.Equal(t, i == 0, work < 10_000)
	}
}

// Where callers take turns, each debt checks some of many callers, in the order of their turns. It takes no more work than that,
// and what is too late is found by the debts of one round.
func TestEachDebtChecksSomeOfManyCallers(t *testing.T) {
	const n = 1000 // a plan counts as many
	x := newWorld(t)
	p := x.point(every(second, 100))
	p.Fair = true
	late := make(map[*Waiter]bool)
	for i := range Instant(n) {
		w := &Waiter{At: []*Point{p}, Costs: []int64{1}, Caller: fmt.Sprint(i), Weight: 1, Last: (i+1)*second + 60*second}
		if i%100 == 99 {
			w.Last -= 60 * second
			late[w] = true
		}
		x.Join(w, 0)
	}
	x.serve()
	p.Payer.(*fake).empty += 20 * second
	debts, done := 0, 0
	for p.Callers() > n-len(late) {
		x.CheckDebt(p)
		debts++
		require.LessOrEqual(t, debts, 50, "more than a round")
		for !x.IsChecked() {
			work := 2000
			for w, due, _ := x.Overdue(0, &work); w != nil; w, due, _ = x.Overdue(0, &work) {
				require.Greater(t, due, w.Last)
				require.True(t, late[w], "it would be in time")
				x.Leave(w)
			}
			done += 2000 - work
		}
		require.LessOrEqual(t, done, debts*debtWork+1+manyQueues/8)
	}
	require.Greater(t, debts, 20)
}

// Requests that leave while others are entered and checked keep none from being checked.
func TestRequestsLeaveDuringACheck(t *testing.T) {
	forSeeds(t, 400, func(t *testing.T, r *rand.Rand) {
		x := newCrowd(t, r.Uint64(), r.IntN(2) == 0)
		p := x.points[0]
		f := p.Payer.(*fake)
		f.held += r.Int64N(int64(5 * second))
		x.Check(p)
		for !x.IsChecked() {
			work := 1 + r.IntN(3)
			if w, _, _ := x.Overdue(x.now, &work); w != nil {
				x.Leave(w)
			}
			if w := x.waiting[r.IntN(len(x.waiting))]; w.IsWaiting() && r.IntN(4) == 0 { // and all of its queue, the last one first
				all := []*Waiter{}
				for w := w.queue.first; w != nil; w = w.next() {
					all = append(all, w)
				}
				for _, w := range slices.Backward(all) {
					x.Leave(w)
				}
			}
		}
		for _, w := range x.waiting {
			if w.IsWaiting() {
				require.LessOrEqual(t, first2(x.Plan(w, x.now)), w.tight(), "it was not found")
			}
		}
	})
}
