package order

import (
	"math"

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

// An overdue is what has been checked of a line.
type overdue struct {
	isQueued bool // in Order.checks
	fresh    bool // to be checked from the beginning
	next     heapOf[*cursor]
	all      []int64 // at most, what all requests of the line cost, by stop
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
		if s.line.starved != nil { // it may bar others no more
			for _, other := range s.line.points {
				o.Touch(other)
			}
		}
	}
	o.Touch(p)
}

// IsChecked reports whether no request is left to be checked.
func (o *Order) IsChecked() bool { return len(o.checks) == 0 }

// Overdue returns the next request that is planned for after its Last, when it will be granted, and the point because of which.
// The caller has it Leave, or lets it wait after all. The result is nil if there is none, or no work is left: each request that
// is looked at counts. IsChecked reports which.
func (o *Order) Overdue(now Instant, work *int) (w *Waiter, due Instant, binding int) {
	for len(o.checks) > 0 && *work > 0 {
		ln := o.checks[0]
		c := &ln.check
		if c.fresh {
			ln.recheck()
			*work -= len(ln.queues) / 16
		}
		cur := c.next.Top()
		if cur == nil || ln.size == 0 {
			c.isQueued = false
			o.checks[0], o.checks = nil, o.checks[1:]
			continue
		}
		s := search{planner: &o.planner, work: work, cursor: cur}
		s.now, s.line = now, ln
		if s.find() {
			k := key{s.turn(s.late), s.late.Rank, s.late.key.seq}
			if c.next.Put(cur, k); c.next.Top() == cur { // else a request before it may be too late
				cur.from.seq++
				return s.late, s.due, s.binding
			}
		} else if s.isOver {
			c.next.Remove(cur)
		}
	}
	if len(o.checks) == 0 {
		o.checks = nil
	}
	return nil, 0, 0
}

// recheck begins again.
func (ln *line) recheck() {
	c := &ln.check
	c.next.Clear()
	c.fresh = false
	c.all = append(c.all[:0], make([]int64, len(ln.stops)+1)...)
	for _, q := range ln.queues {
		q.cursor.queue, q.cursor.from = q, key{rank: math.MinInt64}
		c.next.Put(&q.cursor, q.Key())
		addCounts(c.all[:len(ln.stops)], q.root.sums())
	}
	c.all[len(ln.stops)] = int64(ln.size)
}

// others returns at most what other queues of the line pay at a stop.
func (s *search) others(i int) int64 {
	q, all := s.queue, s.line.check.all[i]
	switch {
	case len(s.line.queues) == 1 || i == len(s.line.stops) && len(q.lane.queues) == 1:
		return 0
	case all < 2*meter.MaxCount:
		return max(0, all-q.root.sums()[i])
	}
	return all
}

// A search looks for the first request of a queue, from its cursor on, that is too late.
type search struct {
	*planner
	work *int
	*cursor

	isOver  bool // it has come to the end
	late    *Waiter
	due     Instant
	binding int
}

// find reports whether it has found one. The cursor is there then, or where no work was left.
func (s *search) find() bool {
	q := s.queue
	s.begin(q.root)
	if s.from.rank == math.MinInt64 {
		s.isOver = s.skips(q.root)
		if !s.isOver {
			q.pace()
			s.isOver = s.skips(q.root)
		}
		if s.isOver {
			return false
		}
	}
	q.addAhead(s.ahead, 0, func(w *Waiter, _ int64) bool { return w.key.Before(s.from) })
	for w := q.from(s.from); w != nil; w = s.after(w) {
		s.from = w.key
		if *s.work <= 0 {
			return false
		}
		*s.work -= 1 + min(len(s.line.queues), manyQueues)/8
		if s.due, s.binding = s.plan(w, q); s.due > w.tight() {
			s.late = w
			return true
		}
		w.Binding = s.binding
		addCounts(s.ahead, w.Costs)
	}
	s.isOver = true
	return false
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
		if !s.meets(n, i, meter.AddCount(s.ahead[i], sum)) {
			return false
		}
	}
	addCounts(s.ahead, n.sums())
	return true
}

// meets reports whether all requests of the subtree of n can certainly be granted in time at a stop, given what is to be paid
// there in their queue until then.
func (s *search) meets(n *Waiter, i int, all int64) bool {
	p := n.Point(i)
	others := s.others(i)
	if top := p.blocked.Top(); top != nil && top.line != s.line {
		others = meter.AddCount(others, top.cost())
	}
	plan := func(ahead, cost int64) Instant {
		return max(s.now, p.Plan(s.now, meter.AddCount(ahead, others), cost))
	}
	switch most := n.mosts()[i]; {
	case i != n.queue.pacer || n.slope == 0:
		return plan(all, most) <= n.bound
	case most > p.Most(): // it is never paid
		return false
	default: // plans are convex: if they meet the bound at both ends, they do so between them
		return plan(all-n.all(), 1) <= n.bound+n.slope && plan(all-1, 1) <= n.bound+n.slope*n.all()
	}
}
