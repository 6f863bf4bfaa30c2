package order

import (
	"math"

	"github.com/httpthrottle/throttle/internal/meter"
)

// This file is about when a request will be granted, if nothing changes. That is exact for a request under one point where no
// callers take turns, if its payer is. In other cases it is a lower bound.

const (
	fewQueues  = 64    // queues of a line that are looked at for what is paid before a request
	manyQueues = 1_024 // the same where the request has to be rejected if it would be late
)

// Plan returns when w, which waits or may join, will be granted, and the point that is the last to pay, as an index like
// [Waiter].Binding. Next has returned nil for now.
func (o *Order) Plan(w *Waiter, now Instant) (due Instant, binding int) {
	x := &o.planner
	x.now, x.line = now, o.find(w)
	return x.plan(w, x.findOwn(w, false))
}

// An Expecter is a Payer that can say more than a lower bound.
type Expecter interface {
	// Expect returns when cost will probably be paid once ahead has been; Never: that is not known.
	Expect(from Instant, ahead, cost int64) Instant
}

// Expect returns when w, which waits or may join, will probably be granted, and the point that is the last to pay; Never: that is not
// known.
func (o *Order) Expect(w *Waiter, now Instant) (due Instant, binding int) {
	x := &o.planner
	x.expects = true
	due, binding = o.Plan(w, now)
	x.expects = false
	return due, binding
}

// Ahead returns what requests cost, by stop, that are granted before w, which waits or may join, if they wait nowhere else. Where they do
// (see [Point].Elsewhere), Plan counts none of them, because none is certain to be granted here. mosts are what no request of the line costs
// more than, and alike reports that each of them costs the same as w. The results are valid until the next call.
func (o *Order) Ahead(w *Waiter, now Instant) (ahead, mosts []int64, alike bool) {
	x := &o.planner
	x.now, x.line = now, o.find(w)
	q := x.findOwn(w, true)
	x.total = append(x.total[:0], x.ahead...)
	if x.line == nil {
		return x.total, w.Costs, true
	}
	if q == nil || len(x.line.queues) > 1 {
		x.addOthers(w, q, x.turn(w))
	}
	x.mosts = x.line.mosts(append(x.mosts[:0], w.Costs...))
	return x.total, x.mosts, x.line.isAlike(w)
}

// mosts raises costs to the largest ones of a line, by point, or to what its points can ever pay if there are many queues.
func (ln *line) mosts(costs []int64) []int64 {
	for i := range ln.stops {
		if len(ln.queues) > manyQueues {
			costs[i] = ln.points[i].Most()
			continue
		}
		for _, q := range ln.queues {
			costs[i] = max(costs[i], q.root.mosts()[i])
		}
	}
	return costs
}

// isAlike reports whether each request of a line costs as much as w at each point.
func (ln *line) isAlike(w *Waiter) bool {
	for _, q := range ln.queues {
		n := int64(1)
		if len(ln.queues) == 1 {
			n = int64(ln.size)
		} else if q.root.left != nil || q.root.right != nil {
			return false // it takes a count to know
		}
		for i := range ln.stops {
			if q.root.mosts()[i] != w.Costs[i] || q.root.sums()[i] != w.Costs[i]*n {
				return false
			}
		}
	}
	return true
}

// findOwn finds what is paid before w in its own queue, and returns the queue; nil: it is yet to be made. In a line whose requests wait
// elsewhere, too, that is nothing, unless even what is not certain counts.
func (x *planner) findOwn(w *Waiter, uncertain bool) *queue {
	x.begin(w)
	q, k := w.queue, w.key
	if q == nil {
		k = key{rank: w.Rank, seq: math.MaxUint64}
	}
	if x.line != nil && q == nil {
		q, k = x.line.joins(w, k)
	}
	if q != nil && (uncertain || !x.line.elsewhere) {
		q.addAhead(x.ahead, 0, func(other *Waiter, _ int64) bool { return other.key.Before(k) })
	}
	return q
}

// begin has nothing ahead of w.
func (x *planner) begin(w *Waiter) {
	x.ahead = append(x.ahead[:0], make([]int64, w.stops())...)
}

// joins returns the queue that w would join, nil if it is yet to be made, and its place there.
func (ln *line) joins(w *Waiter, k key) (*queue, key) {
	var c *caller
	if ln.fair >= 0 {
		k.rank = 0
		if t := ln.points[ln.fair].turns; t != nil {
			c = t.callers[w.Caller]
		}
		if c == nil {
			return nil, k
		}
	}
	if l := ln.lanes[w.Gate]; l != nil {
		return l.all[c], k
	}
	return nil, k
}

// A planner plans requests of one line.
type planner struct {
	now   Instant
	line  *line   // nil: it is yet to be opened
	ahead []int64 // what is paid before the request in its own queue, by stop
	total []int64 // and in all queues
	mosts []int64 // see Ahead

	expects bool // it is not for a lower bound
}

// plan plans w, which is or would be in q.
func (x *planner) plan(w *Waiter, q *queue) (due Instant, binding int) {
	x.total = append(x.total[:0], x.ahead...)
	turn := x.turn(w)
	if x.line != nil && !x.line.elsewhere && (q == nil || len(x.line.queues) > 1) {
		x.addOthers(w, q, turn)
	}
	due = -1
	for i, ahead := range x.total {
		p, k := w.Point(i), key{0, w.Rank, x.seq(w)}
		if p.Fair {
			k.major = turn
		}
		if top := p.blocked.Top(); top != nil && top.line != x.line && top.Key().Before(k) && top.isStuck(x.now) {
			ahead = meter.AddCount(ahead, top.cost())
		}
		cost := int64(1)
		if i < len(w.Costs) {
			cost = w.Costs[i]
		}
		d := Never
		if x.expects {
			d = x.expected(p, ahead, cost)
		} else {
			d = p.Plan(x.now, ahead, cost)
		}
		if d = max(x.now, d); d > due {
			due, binding = d, i
		}
	}
	return due, binding
}

// expected returns when a point will probably pay cost once ahead has been paid. It is not inlined, because the frame of plan is on the
// stack of each waiter.
//
//go:noinline
func (x *planner) expected(p *Point, ahead, cost int64) Instant {
	if e, ok := p.Payer.(Expecter); ok {
		return e.Expect(x.now, ahead, cost)
	}
	return p.Plan(x.now, ahead, cost)
}

func (x *planner) seq(w *Waiter) uint64 {
	if w.queue == nil {
		return math.MaxUint64
	}
	return w.key.seq
}

// turn returns the start tag of w, given what is paid before it in its own queue.
func (x *planner) turn(w *Waiter) int64 {
	for i, p := range w.At {
		if !p.Fair || p.turns == nil {
			continue
		}
		c := p.turns.callers[w.Caller]
		if c == nil || len(c.queues) == 0 {
			return p.turns.startOf(c, w, w.Costs[i])
		}
		return c.start(x.ahead[i])
	}
	return 0
}

// isOpen reports whether the gate of a lane can pay all its requests now: if not, others may go before them.
func (l *lane) isOpen(now Instant) bool {
	p := l.gate.point
	return p == nil || l.IsIn() && p.Ready(now, now, int64(p.waiting)) <= now
}

// isStuck reports whether the first request that is blocked here is certain to go before others that come after it here: no
// request of another line can make it wait elsewhere, or move the turn of its caller on.
func (s *stop) isStuck(now Instant) bool {
	if s.line.elsewhere || s.lane != nil || !s.line.open.Top().isOpen(now) {
		return false
	}
	for i := range s.line.stops {
		other := &s.line.stops[i]
		if p := other.point; other != s && (len(p.stops) > 1 || p.Ready(now, now, other.cost()) > now) {
			return false
		}
	}
	c := s.head().queue.caller
	return c == nil || len(c.queues) == 1
}

// isInTurn reports whether the requests of a queue go when it is their turn, not before those of other callers with later turns,
// as long as their line does not wait elsewhere.
func (x *planner) isInTurn(q *queue) bool {
	ln := x.line
	return len(ln.points[ln.fair].stops) == 1 && (len(ln.lanes) == 1 || q.lane.isOpen(x.now))
}

// addOthers adds what requests in other queues of the line cost that go before w. A caller is certain of no more than its first
// request if callers with later turns may go before the others: then their turns move on as well. And one with several queues is
// certain to go until its turn comes after that of w, but not with which requests.
func (x *planner) addOthers(w *Waiter, own *queue, turn int64) {
	ln, ahead, most := x.line, x.total, fewQueues
	if w.Last < Never {
		most = manyQueues
	}
	seq, stop, left := x.seq(w), max(0, ln.fair), most
	for _, q := range ln.queues[:min(most, len(ln.queues))] {
		sums := ahead
		if q.lane.gate.point != w.Gate {
			sums = ahead[:len(ln.stops)]
		}
		switch c := q.caller; {
		case q == own || q.lane.gate.point != w.Gate && !q.lane.isOpen(x.now):
		case c == nil:
			q.addAhead(sums, stop, func(other *Waiter, _ int64) bool { return other.key.Before(key{0, w.Rank, seq}) })
		case c.name == w.Caller:
		case len(c.queues) > 1:
			if q == c.queues[0] {
				some := c.queues[:min(left, len(c.queues))] // over all callers, no more than of the line
				left -= len(some)
				ahead[stop] = meter.AddCount(ahead[stop], min(x.inTurn(some), c.until(turn)))
			}
		default:
			inTurn := x.isInTurn(q)
			q.addAhead(sums, stop, func(other *Waiter, before int64) bool {
				return (inTurn || before == 0) && key{c.start(before), other.Rank, other.key.seq}.Before(key{turn, w.Rank, seq})
			})
		}
	}
}

// inTurn returns what those of a caller's requests cost together that go when it is their turn.
func (x *planner) inTurn(queues []*queue) (sum int64) {
	for _, q := range queues {
		if x.isInTurn(q) {
			sum = meter.AddCount(sum, q.root.sums()[x.line.fair])
		}
	}
	return sum
}
