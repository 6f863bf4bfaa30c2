package order

import (
	"math"
	"slices"

	"github.com/httpthrottle/throttle/internal/meter"
)

// This file finds the requests that a change has made too late. They are found in order, and each is rejected before the next is
// looked for, so that a rejected request delays no other.
//
// A search skips a subtree if the plans of the requests there meet their bound. The bound rises with what is to be paid, as the
// plans do, so to find k of n requests visits O(k log n) of them, also in a queue that is full because all requests have the same
// MaxWait. It rises at the rate of the time at which it was found: if the rate has changed by a fraction f since, subtrees of
// more than 1/f requests without time to spare are visited, and their bounds found again. It does not rise at windows, where
// tokens come in all at once, nor at points other than the slowest of a line: there the requests of a subtree are visited if one
// of them cannot wait until all are paid.
//
// Where callers take turns, requests are looked at in the order of their turns. So all that goes before one has been passed by
// then, and mostly shows without a plan that it is in time.

// An overdue is what has been checked of a line.
type overdue struct {
	isQueued bool // in Order.checks
	fresh    bool // to be checked from the beginning
	entered  int  // the number of queues of the line that are in next, or have been
	isFull   bool // all of them: those that come later are not checked
	next     heapOf[*cursor]
	all      []int64 // at most, what all requests of the line cost, by stop
	passed   []int64 // what those cost that have been passed
	late     *Waiter // the last one that was too late; it is passed if it waits after all
}

// A cursor is how far a queue has been checked.
type cursor struct {
	entry // in overdue.next, by the turn from which on it is to be checked
	queue *queue
	from  key // the place of that request
}

// Check has all requests be checked that fall under a point.
func (o *Order) Check(p *Point) {
	for _, s := range p.stops {
		c := &s.line.check
		if c.fresh = true; !c.isQueued {
			c.isQueued = true
			o.checks = append(o.checks, s.line)
		}
		o.unbar(s.line)
	}
	o.Touch(p)
}

// unbar has the points of a line be looked at if it is starved: it may bar others no more.
func (o *Order) unbar(ln *line) {
	if ln.starved != nil {
		for _, p := range ln.points {
			o.Touch(p)
		}
	}
}

// A round is how far the requests under a point have been checked for debts.
type round struct {
	again bool  // another one is to begin
	nth   int   // of the next line in stops of the point
	line  *line // nil: the next one is to begin
	work  int   // that debts have paid for; negative: it has been done before
}

// debtWork is the work that each debt pays for where callers take turns: about 30 µs, in which some 40 of them are checked. Servers
// decide how often costs are corrected, so a debt must not take longer the more callers wait.
const debtWork = 100

// CheckDebt is Check where a debt may have made requests too late. Where callers take turns, some requests are checked, and the
// next debt continues: all of them if they are few.
func (o *Order) CheckDebt(p *Point) {
	if p.turns == nil {
		o.Check(p)
		return
	}
	r := &p.turns.debts
	r.again = true
	r.work += debtWork
	if !slices.Contains(o.owing, p) {
		o.owing = append(o.owing, p)
	}
	if first := p.blocked.Top(); first != nil { // a starved line comes before others
		o.unbar(first.line)
	}
	o.Touch(p)
}

// toCheck returns the line whose check debts have paid for; nil: there is none.
func (p *Point) toCheck() *line {
	if p.turns == nil {
		return nil
	}
	r := &p.turns.debts
	for r.line == nil {
		if r.nth >= len(p.stops) {
			if !r.again {
				r.work = min(r.work, 0)
				return nil
			}
			r.again, r.nth = false, 0
		}
		r.line = p.stops[r.nth].line
		r.line.check.fresh = true
		r.nth++
	}
	if r.work <= 0 {
		return nil
	}
	return r.line
}

// IsChecked reports whether no request is left to be checked.
func (o *Order) IsChecked() bool { return len(o.checks)+len(o.owing) == 0 }

// Overdue returns the next request that is planned for after its Last, when it will be granted, and the point because of which.
// The caller has it Leave, or lets it wait after all. The result is nil if there is none, or no work is left: each request that
// is looked at counts. IsChecked reports which.
func (o *Order) Overdue(now Instant, work *int) (w *Waiter, due Instant, binding int) {
	isOver := false
	for len(o.checks) > 0 && *work > 0 {
		ln := o.checks[0]
		if w, due, binding, isOver = o.overdue(ln, now, work); w != nil {
			return w, due, binding
		}
		if isOver {
			ln.check.isQueued = false
			o.checks[0], o.checks = nil, o.checks[1:]
		}
	}
	if len(o.checks) == 0 {
		o.checks = nil
	}
	for len(o.checks) == 0 && len(o.owing) > 0 && *work > 0 {
		p := o.owing[0]
		ln := p.toCheck()
		if ln == nil {
			o.owing = slices.Delete(o.owing, 0, 1)
			continue
		}
		r := &p.turns.debts
		paid := r.work
		w, due, binding, isOver = o.overdue(ln, now, &r.work)
		*work -= paid - r.work
		if w != nil {
			return w, due, binding
		}
		if isOver {
			r.line = nil
		}
	}
	return nil, 0, 0
}

// overdue is Overdue for one line. isOver reports that all of it has been checked.
func (o *Order) overdue(ln *line, now Instant, work *int) (w *Waiter, due Instant, binding int, isOver bool) {
	c := &ln.check
	if c.fresh {
		ln.recheck()
	}
	if w := c.late; w != nil && w.IsWaiting() && !ln.elsewhere {
		c.pass(w.Costs)
	}
	c.late = nil
	ln.enterAll(work)
	for *work > 0 && c.isFull {
		cur := c.next.Top()
		if cur == nil {
			return nil, 0, 0, true
		}
		s := search{planner: &o.planner, work: *work, cursor: cur}
		s.now, s.line = now, ln
		found := s.find()
		if *work = s.work; found {
			if c.next.Put(cur, s.place(s.late)); c.next.Top() == cur { // else a request before it may be too late
				c.late = s.late
				cur.from.seq++
				c.next.Put(cur, key{cur.Key().major, math.MinInt64, 0}) // the next request of its caller may take its turn
				return s.late, s.due, s.binding, false
			}
		} else if s.isOver {
			c.next.Remove(cur)
		}
	}
	return nil, 0, 0, false
}

// recheck begins again.
func (ln *line) recheck() {
	c := &ln.check
	c.next.Clear()
	c.fresh, c.isFull, c.entered, c.late = false, false, 0, nil
	c.all = append(c.all[:0], make([]int64, len(ln.stops)+1)...)
	c.passed = append(c.passed[:0], c.all...)
}

// enterAll enters all queues, or as many as can be with that work.
func (ln *line) enterAll(work *int) {
	c := &ln.check
	if c.isFull {
		return
	}
	const each = 4 // queues for one unit of work
	n := min(len(ln.queues)-c.entered, each*max(0, *work))
	for _, q := range ln.queues[c.entered : c.entered+n] {
		c.enter(q)
	}
	c.entered += n
	if c.isFull = c.entered == len(ln.queues); c.isFull {
		c.all[len(ln.stops)] = int64(ln.size)
	}
	*work -= n / each
}

// enter has a queue be checked.
func (c *overdue) enter(q *queue) {
	q.cursor.queue, q.cursor.from = q, key{rank: math.MinInt64}
	c.next.Put(&q.cursor, q.Key())
	addCounts(c.all[:len(c.all)-1], q.root.sums())
}

// quit notes that a queue has left the line, and that the last one of the line has taken its place.
func (c *overdue) quit(q, last *queue, n int) {
	c.next.Remove(&q.cursor)
	if q.nth < c.entered && n >= c.entered && !c.isFull {
		c.enter(last)
	}
	c.entered = min(c.entered, n)
}

// pass notes what requests cost that have been passed.
func (c *overdue) pass(costs []int64) { addCounts(c.passed[:len(costs)], costs) }

// others returns at most what other queues of the line pay at a stop.
func (s *search) others(i int) int64 {
	q, all := s.queue, s.line.check.all[i]
	switch {
	case s.line.elsewhere || len(s.line.queues) == 1 || i == len(s.line.stops) && len(q.lane.queues) == 1:
		return 0
	case all < 2*meter.MaxCount:
		return max(0, all-q.root.sums()[i])
	}
	return all
}

// A search looks for the first request of a queue, from its cursor on, that is too late.
type search struct {
	*planner
	work int // that is left; no pointer, which would have it allocated
	*cursor

	isOver  bool // it has come to the end
	late    *Waiter
	due     Instant
	binding int
}

// find reports whether it has found one. The cursor is there then, or where no work was left, or where requests of other queues
// come first.
func (s *search) find() bool {
	q := s.queue
	s.begin(q.root)
	if s.from.rank == math.MinInt64 {
		if len(s.line.queues) > 1 {
			s.work--
		}
		s.isOver = s.skips(q.root)
		if !s.isOver {
			q.pace()
			s.isOver = s.skips(q.root)
		}
		if s.isOver {
			return false
		}
	}
	if !s.line.elsewhere {
		q.addAhead(s.ahead, 0, func(w *Waiter, _ int64) bool { return w.key.Before(s.from) })
	}
	for w := q.from(s.from); w != nil; w = s.after(w) {
		s.from = w.key
		if s.work <= 0 || q.caller != nil && !s.isNext(w) {
			return false
		}
		s.work--
		if q.caller == nil || !s.isInTime(w) {
			s.work -= min(len(s.line.queues), manyQueues) / 8
			if s.due, s.binding = s.plan(w, q); s.due > w.tight() {
				s.late = w
				return true
			}
			w.Binding = int32(s.binding)
		}
		s.pass(w.Costs)
	}
	s.isOver = true
	return false
}

// pass passes requests that cost so much.
func (s *search) pass(costs []int64) {
	if s.line.elsewhere {
		return
	}
	addCounts(s.ahead, costs)
	s.line.check.pass(costs)
}

// place returns the place of w among the requests of all queues.
func (s *search) place(w *Waiter) key {
	turn := int64(0)
	if c := s.queue.caller; c != nil {
		turn = c.start(s.ahead[s.line.fair])
	}
	return key{turn, w.Rank, w.key.seq}
}

// isNext puts the cursor at w, and reports whether that comes before the cursors of other queues.
func (s *search) isNext(w *Waiter) bool {
	next := &s.line.check.next
	next.Put(s.cursor, s.place(w))
	return next.Top() == s.cursor
}

// isInTime reports whether w, which is next, can certainly be granted in time.
func (s *search) isInTime(w *Waiter) bool {
	for i, passed := range s.line.check.passed[:len(w.Costs)] {
		p := w.Point(i)
		if s.planAt(p, meter.AddCount(passed, s.barring(p)), w.Costs[i]) > w.tight() {
			return false
		}
	}
	return true
}

// barring returns what a request of another line costs that may be paid first at a point.
func (s *search) barring(p *Point) int64 {
	if top := p.blocked.Top(); top != nil && top.line != s.line {
		return top.cost()
	}
	return 0
}

// planAt returns when a cost is paid at a point once others have been.
func (s *search) planAt(p *Point, ahead, cost int64) Instant {
	return max(s.now, p.Plan(s.now, ahead, cost))
}

// after returns the next request to look at after w. Bounds that did not do are found again.
func (s *search) after(w *Waiter) *Waiter {
	if w.right != nil && !s.skips(w.right) {
		for w = w.right; w.left != nil && !s.skips(w.left); {
			w = w.left
		}
		return w
	}
	for ; w.isRight(); w = w.parent {
		w.findBound()
	}
	w.findBound()
	return w.parent
}

// skips passes n and those below it, if all of them meet their bounds. What they cost is ahead then.
func (s *search) skips(n *Waiter) bool {
	for i, sum := range n.sums() {
		if s.line.elsewhere {
			sum = 0
		}
		if !s.meets(n, i, meter.AddCount(s.ahead[i], sum)) {
			return false
		}
	}
	s.pass(n.sums())
	return true
}

// meets reports whether all requests of the subtree of n can certainly be granted in time at a stop, given what is to be paid
// there in their queue until then.
func (s *search) meets(n *Waiter, i int, all int64) bool {
	p := n.Point(i)
	others := meter.AddCount(s.others(i), s.barring(p))
	plan := func(ahead, cost int64) Instant { return s.planAt(p, meter.AddCount(ahead, others), cost) }
	switch most := n.mosts()[i]; {
	case i != n.queue.pacer || n.slope == 0:
		return plan(all, most) <= n.bound
	case most > p.Most(): // it is never paid
		return false
	default: // plans are convex: if they meet the bound at both ends, they do so between them
		return plan(all-n.all(), 1) <= n.bound+n.slope && plan(all-1, 1) <= n.bound+n.slope*n.all()
	}
}
