// Package order decides which waiting request is granted next, and when.
//
// Requests wait at points: a point is where something must be paid. A request is granted when all of its points can pay at one
// instant and no request before it waits at one of them. The package knows nothing else of limits: a [Payer] says what can be
// paid when. It has no lock, clock or timer. The time is a parameter, and what has changed is a result.
//
// An operation at an instant is made of these calls:
//
//	for w, due := o.Next(now); w != nil; w, due = o.Next(now) { … } // what was due before: the caller pays at each point as of due
//	…                                                              // something changes
//	o.Touch(p)                                                     // at each point where it may change when requests go
//	o.Check(p), o.CheckDebt(p)                                     // and where it may make them too late; see Overdue
//	for w, due := o.Next(now); w != nil; w, due = o.Next(now) { … } // what can go from now on
//	o.Wake()                                                       // when to call Next again
package order

import (
	"iter"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// An Instant is a moment on a monotonic clock, in nanoseconds.
type Instant = meter.Instant

// Never is later than every instant.
const Never = meter.Never

const (
	// Slack is how late Next may be called without an effect on the schedule.
	Slack = int64(20 * time.Millisecond)
	// ageStep is what one step of priority is worth.
	ageStep = int64(10 * time.Second)
	// passOver is how long a request may be passed over before it bars all its points.
	passOver = int64(10 * time.Second)
)

// A Payer says when costs can be paid at a point.
type Payer interface {
	// Ready returns the earliest instant, not before from, at which cost can be paid. It returns Never if that takes something
	// else than time: then Touch says when to ask again. From may lie before now: then a cost that could have been paid at from,
	// but cannot be paid at now any more, cannot be paid at from.
	Ready(from, now Instant, cost int64) Instant
	// Plan returns a lower bound of when cost can be paid once ahead has been paid, whatever happens meanwhile; Never if it
	// cannot be paid at all. More ahead is not earlier.
	Plan(from Instant, ahead, cost int64) Instant
	// Interval returns the time between two tokens if they come in evenly, in ns, rounded: then the instants that Plan returns are
	// convex in ahead, before they are rounded up. It returns 0 if they do not.
	Interval() int64
	// Most returns the largest cost that can ever be paid.
	Most() int64
}

// A Point is where waiting requests pay: there is one for each bucket, as long as requests wait there. The zero Point with a
// Payer is ready for use.
type Point struct {
	Payer
	Fair      bool  // callers take turns; a request has one such point at most
	Elsewhere bool  // requests that wait here wait in other Orders, too, so none is certain to be granted here; see Ahead
	Recheck   int64 // the longest time after which the Payer is asked again, although no cost can be paid before; 0: none

	entry          // in Order.due, by when it is to be looked at
	serial  uint64 // identifies the point; 0: no request has waited here
	stale   bool   // when it is to be looked at has to be found out
	blocked heapOf[*stop]
	stops   []*stop // of all lines that fall under it or, if it is a gate, of all lanes
	waiting int
	turns   *turns // nil: no callers wait here, or they take no turns
}

// Waiting returns how many requests wait that fall under the point. If there are none, the point may be forgotten.
func (p *Point) Waiting() int { return p.waiting }

// Callers returns how many callers have requests there, if they take turns.
func (p *Point) Callers() int {
	if p.turns == nil {
		return 0
	}
	return p.turns.active
}

// Known returns how many callers are known there, with requests waiting or without.
func (p *Point) Known() int {
	if p.turns == nil {
		return 0
	}
	return len(p.turns.callers)
}

// Blocked yields the first request of each line that waits for something to be paid here, or for a request before it, and what
// all requests in its line cost, by point. The very first comes first, the others come in any order. Sums are valid until the
// next one.
func (p *Point) Blocked(yield func(first *Waiter, sums []int64) bool) { p.blockedLines(yield) }

// Lines yields the same of all lines that fall under the point: those of Blocked, and then those that wait elsewhere only.
func (p *Point) Lines(yield func(first *Waiter, sums []int64) bool) {
	if !p.blockedLines(yield) {
		return
	}
	var sums []int64
	for _, s := range p.stops {
		if w := s.head(); w != nil && !s.IsIn() {
			if sums = s.sums(w, sums); !yield(w, sums) {
				return
			}
		}
	}
}

// blockedLines reports whether Blocked has yielded all.
func (p *Point) blockedLines(yield func(first *Waiter, sums []int64) bool) bool {
	var sums []int64
	for _, s := range p.blocked {
		w := s.head()
		if sums = s.sums(w, sums); !yield(w, sums) {
			return false
		}
	}
	return true
}

// sums returns what all requests cost in the line whose first request is w, by point, in the room of another result.
func (s *stop) sums(w *Waiter, room []int64) []int64 {
	sums := append(room[:0], w.queue.root.sums()...)
	others := s.line.queues
	for _, q := range others[:min(len(others), fewQueues)] {
		if q != w.queue {
			addCounts(sums[:len(s.line.stops)], q.root.sums())
		}
	}
	return sums
}

// A Waiter is a request that waits, or may have to.
type Waiter struct {
	At     []*Point // one at least, each of them once
	Costs  []int64  // by point
	Gate   *Point   // a point that it passes in addition, at a cost of 1; nil: none. Requests that differ in it alone wait in one line
	Rank   Instant  // see RankOf
	Last   Instant  // Overdue returns the request if it cannot be granted by then; Never: it may wait for as long as it takes
	Caller string   // where callers take turns
	Weight int64    // of the caller there; 1 at least
	Owner  any      // what the caller of this package likes

	// Binding is the point that delays it, as an index of At, or len(At) for its gate. Plan returns another one if things change.
	Binding int32
	weight  uint32 // in its tree

	key         key     // its place in its queue
	queue       *queue  // nil: it does not wait
	blocked     uint64  // the points that stopped it when it was tried last: bit i for point i
	passed      Instant // when it could first have been passed over; Never: not yet
	parent      *Waiter
	left, right *Waiter
	bound       Instant  // of it and all below it in the tree; see findBound
	slope       int64    // of its queue when the bound was found
	room        [9]int64 // for costs, sums and mosts where there are no more than two points and a gate
}

// RankOf returns the rank of a request that came now with that priority: each step of priority counts as if it had come ten
// seconds earlier.
func RankOf(now Instant, priority int) Instant {
	const most = int(Never / ageStep / 4)
	return now - int64(max(-most, min(priority, most)))*ageStep
}

// A Standing is how a request stands that waits.
type Standing struct {
	Nth     uint64 // grows with the arrival of requests
	blocked uint64
	passed  Instant
	starved bool
}

// Standing returns how w stands, which waits.
func (w *Waiter) Standing() Standing {
	l := w.queue.lane
	return Standing{w.key.seq, w.blocked, w.passed, l == l.line.starved && l.line.first == w}
}

// IsWaiting reports whether w has joined, and has neither left nor been granted.
func (w *Waiter) IsWaiting() bool { return w.queue != nil }

// stops returns at how many points w pays.
func (w *Waiter) stops() int {
	if w.Gate == nil {
		return len(w.At)
	}
	return len(w.At) + 1
}

// Point returns the i-th of its points, of which the gate is the last.
func (w *Waiter) Point(i int) *Point {
	if i == len(w.At) {
		return w.Gate
	}
	return w.At[i]
}

// An Order is all requests that wait. The zero Order is ready for use.
type Order struct {
	floor   Instant // no request can be due before: everything that was has been granted
	seq     uint64  // of the last request that joined
	serial  uint64  // of the last point
	lines   map[string]*line
	due     heapOf[*Point] // at which lines are blocked
	fresh   heapOf[*line]  // of which the first request is to be tried
	checks  []*line        // whose requests are to be checked
	owing   []*Point       // for whose debts requests are to be checked
	waiting int
	callers int

	// Room for one call at a time, as its caller's lock makes sure. It is here and not on the stack because each waiter keeps the
	// stack on which it joined, which is 2 kB unless a call needs more: then it is 4 kB from then on.
	planner planner
	id      []byte    // of a line
	when    []Instant // the points of a line can pay
}

// Len returns how many requests wait.
func (o *Order) Len() int { return o.waiting }

// Lines returns how many lines of requests there are: one for each set of points.
func (o *Order) Lines() int { return len(o.lines) }

// Callers returns how many callers have requests waiting, where callers take turns.
func (o *Order) Callers() int { return o.callers }

// Waiters yields the requests that fall under the point: those of one queue in their order.
func (p *Point) Waiters(yield func(*Waiter) bool) {
	for _, s := range p.stops {
		for _, q := range s.line.queues {
			for w := q.first; w != nil && (s.lane == nil || s.lane == q.lane); w = w.next() {
				if !yield(w) {
					return
				}
			}
		}
	}
}

// All yields all requests that wait: those of one queue in their order.
func (o *Order) All(yield func(*Waiter) bool) {
	for _, ln := range o.lines {
		for _, q := range ln.queues {
			for w := q.first; w != nil; w = w.next() {
				if !yield(w) {
					return
				}
			}
		}
	}
}

// Sample yields about as many of the requests that wait, and how many others wait behind each and are taken to be like it: the first ones
// of each line.
func (o *Order) Sample(n int) iter.Seq2[*Waiter, int] {
	return func(yield func(w *Waiter, like int) bool) {
		for _, ln := range o.lines {
			some := ln.some(max(1, n*ln.size/o.waiting))
			for i, w := range some {
				like := (ln.size - len(some)) / len(some)
				if i < (ln.size-len(some))%len(some) {
					like++
				}
				if !yield(w, like) {
					return
				}
			}
		}
	}
}

// some returns up to n requests of a line, the first ones of its queues.
func (ln *line) some(n int) (some []*Waiter) {
	for i, q := range ln.queues {
		rest := len(ln.queues) - i
		for w, most := q.first, len(some)+(n-len(some)+rest-1)/rest; w != nil && len(some) < most; w = w.next() {
			some = append(some, w)
		}
	}
	return some
}

// Alike returns how many requests wait under the points of w, whatever gates they pass.
func (o *Order) Alike(w *Waiter) int {
	if ln := o.find(w); ln != nil {
		return ln.size
	}
	return 0
}

// Wake returns when Next has something to do, if nothing changes; Never: no such instant is known.
func (o *Order) Wake() Instant {
	if p := o.due.Top(); p != nil {
		return p.Key().major
	}
	return Never
}

// Join has w wait. Next may return it immediately.
func (o *Order) Join(w *Waiter, now Instant) {
	o.seq++
	o.join(w, o.seq)
}

// join has w wait, as the one of that number.
func (o *Order) join(w *Waiter, seq uint64) {
	ln := o.find(w)
	if ln == nil {
		ln = o.open(w)
	}
	w.take()
	w.key = key{rank: w.Rank, seq: seq}
	w.passed, w.blocked = Never, 0
	q := o.queueOf(ln, w)
	q.insert(w)
	w.At = ln.points
	o.count(w, 1)
	if q.first == w {
		o.requeue(q)
	}
}

// Resume has w, which has joined, stand as a request did in another Order. It matters for the first one of a line: where it was not
// blocked when it was tried, others go before it even if it could not be paid any more, until they have passed it over for long.
func (o *Order) Resume(w *Waiter, as Standing) {
	ln := w.queue.lane.line
	if ln.first != w || as.blocked == 0 {
		return
	}
	w.blocked, w.passed = as.blocked, as.passed
	if as.starved {
		ln.starved = w.queue.lane
	}
	o.fresh.Remove(ln)
	for i := range ln.stops {
		s := &ln.stops[i]
		if as.starved || as.blocked&bit(i) != 0 {
			s.point.blocked.Put(s, s.placeOf(w))
		} else {
			s.point.blocked.Remove(s)
		}
		o.Touch(s.point)
	}
}

// Leave removes w. Requests that it barred may be granted from now on.
func (o *Order) Leave(w *Waiter) {
	o.remove(w)
}

// Move has w, which waits, wait at another point instead of one of its points, at the same cost. There it stands as if it had waited
// there from the beginning. Next may return it immediately.
func (o *Order) Move(w *Waiter, from, to *Point) {
	seq, passed, c := w.key.seq, w.passed, w.queue.caller
	tag, rest := int64(0), int64(0)
	if c != nil {
		tag, rest = c.tag, c.rest
	}
	o.remove(w)
	if w.Gate == from {
		w.Gate = to
	} else {
		w.At = slices.Clone(w.At) // it is that of the line
		w.At[slices.Index(w.At, from)] = to
	}
	o.join(w, seq)
	w.passed = passed
	if now := w.queue.caller; c != nil && now.turns == c.turns && now.tag != tag { // its turn is that of before
		o.retag(now, tag, rest, nil)
	}
}

// Rests reports whether no request waits at that instant, and so nothing is left to do by then.
func (o *Order) Rests(now Instant) bool {
	if o.waiting > 0 || !o.IsChecked() {
		return false
	}
	o.floor = max(o.floor, now)
	return true
}

// Touch notes that it may have changed what can be paid at a point, or when.
func (o *Order) Touch(p *Point) {
	if len(p.blocked) > 0 {
		p.stale = true
		o.lookAt(p, o.floor)
	} else {
		o.due.Remove(p)
	}
}

// lookAt has a point looked at then.
func (o *Order) lookAt(p *Point, at Instant) {
	if p.Recheck > 0 {
		at = min(at, meter.AddInstant(o.floor, p.Recheck))
	}
	first := p.blocked.Top()
	k := key{at, first.Key().rank, first.Key().seq}
	if at == Never {
		o.due.Remove(p)
	} else {
		o.due.Put(p, k)
	}
}

// Backdate has requests be due from an instant on, or from [Slack] before now, although Next has returned nil since: what changes
// now was so already then, and the message of it was late.
func (o *Order) Backdate(at Instant) { o.floor = max(o.floor-Slack, min(o.floor, at)) }

// turnOf returns the key of a point that is due. Where Next is called late, all that was due before the floor is due at the
// floor.
func (o *Order) turnOf(p *Point) key {
	k := p.Key()
	k.major = max(k.major, o.floor)
	return k
}

// Next returns the next request that can go by now, and the instant at which it was due, which is up to [Slack] before now if
// Next is called late. It waits no more, and the caller pays its costs as of that instant before it calls Order again. If there
// is none, no request can have been due before now from then on. Requests that are due at one instant are returned in the order
// of rank.
func (o *Order) Next(now Instant) (w *Waiter, due Instant) {
	for {
		p := o.due.Top()
		if ln := o.fresh.Top(); ln != nil && (p == nil || key{o.floor, ln.Key().rank, ln.Key().seq}.Before(o.turnOf(p))) {
			o.fresh.Remove(ln)
			if w = o.try(ln, o.floor, now); w != nil {
				return w, o.floor
			}
			continue
		}
		if p == nil || p.Key().major > now {
			o.floor = max(o.floor, now)
			return nil, 0
		}
		o.floor = max(o.floor, p.Key().major, now-Slack)
		switch s := p.blocked.Top(); {
		case p.stale:
			p.stale = false
			o.lookAt(p, p.Ready(o.floor, now, s.cost()))
		case s.lane != nil && !s.lane.IsIn():
			o.reopen(s.lane)
		default:
			if w = o.try(s.line, o.floor, now); w != nil {
				return w, o.floor
			}
		}
	}
}
