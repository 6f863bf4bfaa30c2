package order

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/heap"
	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	ms     = Instant(1e6)
	second = 1000 * ms
)

// A fake is a payer in its plainest form. It can be copied.
type fake struct {
	kind  kind
	held  Instant
	step  int64   // bucket: the time between two tokens
	most  int64   // bucket: the burst; slots: how many; window: its tokens
	empty Instant // bucket: when it had no token
	used  int64   // slots, and of the window of that number
	nth   int64
}

type kind uint8

const (
	bucket kind = iota
	slots
	window // of a second
)

func (f *fake) Ready(from, _ Instant, cost int64) Instant { return f.ready(from, 0, cost, false) }

func (f *fake) Plan(from Instant, ahead, cost int64) Instant { return f.ready(from, ahead, cost, true) }

func (f *fake) ready(from Instant, ahead, cost int64, plan bool) Instant {
	from = max(from, f.held)
	switch {
	case cost > f.most:
		return Never
	case f.kind == slots:
		if plan || f.used+cost <= f.most {
			return from
		}
		return Never
	case f.kind == window:
		nth, left := max(f.nth, from/second), f.most
		if f.nth == nth {
			left = max(0, f.most-f.used)
		}
		if over := ahead + cost - left; over > 0 {
			nth += 1 + (over-1)/f.most
		}
		return max(from, nth*second)
	}
	return max(from, max(f.empty, from-f.most*f.step)+(ahead+cost)*f.step)
}

func (f *fake) Interval() int64 {
	if f.kind == bucket {
		return f.step
	}
	return 0
}

func (f *fake) Most() int64 { return f.most }

// pay takes what must be there.
func (f *fake) pay(due Instant, cost int64) {
	if r := f.Ready(due, due, cost); r > due {
		panic(fmt.Sprintf("paid at %d what is there at %d: %+v", due, r, f))
	}
	switch f.kind {
	case slots:
		f.used += cost
	case window:
		if due/second > f.nth {
			f.nth, f.used = due/second, 0
		}
		f.used += cost
	default:
		f.empty = max(f.empty, due-f.most*f.step) + cost*f.step
	}
}

// change does anything that can be done to a payer, and reports whether it may make requests too late.
func (f *fake) change(r *rand.Rand, now Instant) (late bool) {
	switch what := r.IntN(4); {
	case what == 0:
		f.held = max(f.held, now+r.Int64N(int64(second)))
		return true
	case what == 1 && f.kind == slots:
		f.most = 1 + r.Int64N(6)
		return true
	case f.kind == slots:
		f.used -= min(f.used, 1+r.Int64N(2))
		return false
	case what == 1 && f.kind == bucket:
		have := max(f.empty, now-f.most*f.step) - now // as a time before or after now
		f.step = 1 + r.Int64N(int64(200*ms))
		f.empty = now + have
		return true
	case what == 2 && f.kind == bucket:
		f.empty -= r.Int64N(3) * f.step
		return false
	case f.kind == bucket:
		f.empty = max(f.empty, now-f.most*f.step) + r.Int64N(5)*f.step
		return true
	case what == 1:
		f.most = 1 + r.Int64N(6)
		return true
	}
	f.used = max(0, f.used-r.Int64N(2))
	return false
}

// aFake returns a payer of any kind, which can pay 3 at least.
func aFake(r *rand.Rand) *fake {
	return &fake{kind: kind(r.IntN(3)), step: 1 + r.Int64N(int64(200*ms)), most: 3 + r.Int64N(4)}
}

// A world is an Order with a clock, whose timer is never late.
type world struct {
	testing.TB
	Order
	now     Instant
	granted []grant
	paid    func(w *Waiter, due Instant) // nil: it does nothing
}

// A grant is a request that was granted.
type grant struct {
	w   *Waiter
	due Instant
}

// serve grants what can go by now.
func (x *world) serve() {
	for {
		w, due := x.Next(x.now)
		if w == nil {
			return
		}
		require.False(x, w.IsWaiting())
		require.LessOrEqual(x, due, x.now)
		if x.paid != nil {
			x.paid(w, due)
		}
		for i, cost := range w.Costs {
			w.Point(i).Payer.(*fake).pay(due, cost)
		}
		x.granted = append(x.granted, grant{w, due})
	}
}

// until lets time pass.
func (x *world) until(t Instant) {
	for x.Wake() <= t {
		x.now = max(x.now, x.Wake())
		x.serve()
	}
	x.now = t
	x.serve()
}

// reject rejects what is too late at once, and returns it.
func (x *world) reject(atOnce int) (late []*Waiter) {
	for !x.IsChecked() {
		work := atOnce
		for w, due, _ := x.Overdue(x.now, &work); w != nil; w, due, _ = x.Overdue(x.now, &work) {
			require.Greater(x, due, w.tight())
			x.Leave(w)
			late = append(late, w)
		}
	}
	return late
}

func (x *world) point(f *fake) *Point { return &Point{Payer: f} }

// join has a request wait that costs 1 at each of these points.
func (x *world) join(points ...*Point) *Waiter {
	w := &Waiter{At: points, Costs: slices.Repeat([]int64{1}, len(points)), Rank: x.now, Last: Never}
	x.serve()
	x.Join(w, x.now)
	x.serve()
	return w
}

// comeAndLeave has requests join, and then leave in the order in which they came.
func (x *world) comeAndLeave(all []*Waiter) {
	for _, w := range all {
		x.Join(w, x.now)
		x.serve()
		x.check(x)
	}
	for _, w := range all {
		x.Leave(w)
		x.serve()
		x.check(x)
	}
}

// requireGranted checks when requests were granted, in this order.
func (x *world) requireGranted(want ...any) {
	x.Helper()
	var got []any
	for _, g := range x.granted {
		got = append(got, g.w, g.due)
	}
	require.Equal(x, len(want), len(got))
	for i := range want {
		require.True(x, want[i] == got[i], "grant %d: %v, want %v", i/2, got[i], want[i])
	}
	x.granted = nil
}

// check checks what always holds between two operations.
func (o *Order) check(t testing.TB) {
	t.Helper()
	waiting := 0
	points := make(map[*Point]int)
	for id, ln := range o.lines {
		require.Equal(t, id, ln.id)
		require.NotZero(t, ln.size, "a line is empty")
		size := 0
		for i, q := range ln.queues {
			require.Equal(t, i, q.nth)
			require.NotNil(t, q.root)
			size += q.check(t)
			require.Equal(t, q.Key(), key{q.tag(), q.first.Rank, q.first.key.seq})
			require.Same(t, q, q.lane.all[q.caller])
			for w := q.first; w != nil; w = w.next() {
				for i := range w.Costs {
					points[w.Point(i)]++
				}
			}
		}
		require.Equal(t, ln.size, size)
		waiting += size
		checkHeap(t, ln.open)
		for gate, l := range ln.lanes {
			require.Same(t, gate, l.gate.point)
			checkHeap(t, l.queues)
			require.NotEmpty(t, l.queues)
			require.True(t, l.IsIn() || l.gate.IsIn(), "a lane is neither open nor blocked")
			require.Equal(t, l.IsIn() && l.gate.IsIn(), ln.starved == l && gate != nil, "of a lane that is open and blocked")
			if l.IsIn() {
				require.Equal(t, l.Key(), l.queues.Top().Key())
			}
		}
		blocked := 0
		for i := range ln.stops {
			s := &ln.stops[i]
			require.Same(t, s, s.point.stops[s.nth])
			if s.IsIn() {
				blocked++
			}
		}
		require.Equal(t, ln.first != nil, len(ln.open) > 0)
		require.Equal(t, ln.first != nil, blocked > 0, "a line is blocked nowhere, or is and has no request that can go")
		require.True(t, ln.starved == nil || blocked == len(ln.stops), "a starved line does not bar all its points")
	}
	require.Equal(t, o.waiting, waiting)
	checkHeap(t, o.due)
	for p, n := range points {
		require.Equal(t, n, p.waiting)
		checkHeap(t, p.blocked)
		for _, s := range p.blocked {
			require.Equal(t, s.Key(), s.placeOf(s.head()))
			require.Same(t, p, s.point)
		}
		if p.turns != nil {
			p.turns.check(t)
		}
		o.checkPoint(t, p)
	}
}

// checkPoint checks that the first request that is blocked at a point cannot go, and that Wake knows when it can.
func (o *Order) checkPoint(t testing.TB, p *Point) {
	t.Helper()
	top := p.blocked.Top()
	if top == nil {
		require.False(t, p.IsIn(), "nothing is to be looked at")
		return
	}
	require.False(t, p.stale)
	ready := p.Ready(o.floor, o.floor, top.cost())
	if ready > o.floor {
		require.Equal(t, ready < Never, p.IsIn())
		require.True(t, !p.IsIn() || p.Key().major == ready, "a point is not looked at when it can pay")
		return
	}
	require.NotNil(t, top.line.starved, "the first request that is blocked can go")
	stuck := false
	for i := range top.line.stops {
		s := &top.line.stops[i]
		stuck = stuck || s.point.Ready(o.floor, o.floor, s.cost()) > o.floor || s.isBarred(s.placeOf(s.head()))
	}
	if g := &top.line.starved.gate; g.point != nil {
		stuck = stuck || g.point.Ready(o.floor, o.floor, 1) > o.floor || g.isBarred(g.placeOf(g.head()))
	}
	require.True(t, stuck, "a starved request can go")
}

func checkHeap[T interface {
	heap.Item[key]
	Key() key
}](t testing.TB, h heapOf[T]) {
	t.Helper()
	for i, x := range h {
		require.True(t, h.Has(x))
		require.False(t, i > 0 && x.Key().Before(h[(i-1)/2].Key()), "not a heap")
	}
}

func (c *turns) check(t testing.TB) {
	t.Helper()
	active, weights := 0, int64(0)
	for name, one := range c.callers {
		require.Equal(t, name, one.name)
		require.Equal(t, len(one.queues) == 0, one.IsIn())
		if len(one.queues) > 0 {
			active++
			weights += one.weight
		}
		for i, q := range one.queues {
			require.Equal(t, i, q.ofNth)
		}
	}
	require.Equal(t, active, c.active)
	require.Equal(t, weights, c.weights)
	require.Positive(t, active)
	require.GreaterOrEqual(t, c.later, c.now)
	checkHeap(t, c.idle)
}

// check walks a queue from the root of its tree, and returns how many requests it has.
func (q *queue) check(t testing.TB) int {
	t.Helper()
	var all []*Waiter
	var walk func(w, parent *Waiter)
	walk = func(w, parent *Waiter) {
		if w == nil {
			return
		}
		require.Same(t, parent, w.parent)
		require.Same(t, q, w.queue)
		require.True(t, parent == nil || parent.weight >= w.weight, "not a heap by weight")
		first := len(all)
		walk(w.left, w)
		all = append(all, w)
		walk(w.right, w)
		upTo := int64(0)
		for _, other := range all[first:] {
			upTo = meter.AddCount(upTo, other.paced())
			require.GreaterOrEqual(t, other.tight(), w.bound+w.slope*upTo, "a request is too late at the bound")
		}
		for i := range w.Costs {
			sum, most := int64(0), int64(0)
			for _, other := range all[first:] {
				sum, most = meter.AddCount(sum, other.Costs[i]), max(most, other.Costs[i])
			}
			require.Equal(t, sum, w.sums()[i])
			require.Equal(t, most, w.mosts()[i])
		}
	}
	walk(q.root, nil)
	for i, w := range all {
		if i == 0 {
			require.Same(t, w, q.first)
		} else {
			require.True(t, all[i-1].key.Before(w.key), "out of order")
			require.Same(t, w, all[i-1].next())
		}
	}
	return len(all)
}
