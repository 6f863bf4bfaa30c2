package order

import (
	"encoding/binary"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A line holds the requests that fall under one set of points: its lanes those of them that pass one gate, and the queues of a
// lane those of one caller. So there is one lane where no gates are, and one queue in it where callers take no turns.
//
// The first request of a line is the first of its open lanes. It is blocked at a point that cannot pay it, or that must pay
// another request first. There it bars later requests. It does not bar its other points, because lines of different keys would
// delay each other. The exception is a starved request.
type line struct {
	entry     // in Order.fresh, by its first request
	id        string
	points    []*Point
	stops     []stop // by point
	open      heapOf[*lane]
	lanes     map[*Point]*lane // by gate
	queues    []*queue         // of all lanes
	size      int
	elsewhere bool    // see Point.Elsewhere
	fair      int     // the stop where callers take turns; -1: there is none
	first     *Waiter // as its stops know it; nil: all lanes are closed
	starved   *lane   // its first request has been passed over for too long, and bars all points of the line; nil: it has not

	check overdue
}

// A stop ties a line to one of its points, or a lane to its gate.
type stop struct {
	entry // in blocked of the point, by the first request
	point *Point
	line  *line
	lane  *lane // nil: it is of a line
	index int   // of the cost in a waiter
	nth   int   // in stops of the point
}

// head returns the first request of the line or, at a gate, of the lane.
func (s *stop) head() *Waiter {
	if s.lane != nil {
		return s.lane.queues.Top().first
	}
	return s.line.first
}

func (s *stop) cost() int64 { return s.head().Costs[s.index] }

// placeOf returns the place of w, the first request, at the point. Where that is not a matter of rank alone, requests that have been
// passed over for too long come first, by rank, so that no two of them bar each other.
func (s *stop) placeOf(w *Waiter) key {
	k := key{0, w.Rank, w.key.seq}
	if s.point.Fair {
		if k.major = w.queue.tag(); s.line.starved != nil {
			k.major = -1
		}
	}
	return k
}

// isBarred reports whether a request with that place is granted after another one that is blocked here.
func (s *stop) isBarred(k key) bool {
	top := s.point.blocked.Top()
	return top != nil && top.Key().Before(k)
}

// A lane holds the requests of a line that pass one gate. It is open as far as is known, or blocked at its gate.
type lane struct {
	entry  // in open of the line, by its first request; in no heap: it is closed
	line   *line
	gate   stop // its point is nil where there is none
	queues heapOf[*queue]
	all    map[*caller]*queue
}

// find returns the line of w; nil: there is none. Inlined, it would add its frame to those of its callers, on the stack of each
// waiter.
//
//go:noinline
func (o *Order) find(w *Waiter) *line {
	if w.queue != nil {
		return w.queue.lane.line
	}
	if len(o.lines) == 0 {
		return nil
	}
	o.id = lineID(o.id[:0], w.At)
	return o.lines[string(o.id)]
}

// lineID appends the identity of the line with these points.
func lineID(buf []byte, points []*Point) []byte {
	for _, p := range points {
		buf = binary.NativeEndian.AppendUint64(buf, p.serial)
	}
	return buf
}

// open returns a new line for w.
func (o *Order) open(w *Waiter) *line {
	n := len(w.At)
	ln := &line{points: make([]*Point, n), stops: make([]stop, n), lanes: make(map[*Point]*lane, 1), fair: -1}
	copy(ln.points, w.At)
	for i, p := range ln.points {
		if p.Fair {
			ln.fair = i
		}
		ln.elsewhere = ln.elsewhere || p.Elsewhere
		o.enter(p, &ln.stops[i])
		ln.stops[i].line, ln.stops[i].index = ln, i
	}
	if o.lines == nil {
		o.lines = make(map[string]*line)
	}
	ln.id = string(lineID(nil, ln.points))
	o.lines[ln.id] = ln
	return ln
}

// enter ties a stop to a point.
func (o *Order) enter(p *Point, s *stop) {
	if p.serial == 0 {
		o.serial++
		p.serial = o.serial
	}
	s.point, s.nth = p, len(p.stops)
	p.stops = append(p.stops, s)
}

// quit unties it.
func (o *Order) quit(s *stop) {
	p := s.point
	last := p.stops[len(p.stops)-1]
	p.stops[s.nth], last.nth = last, s.nth
	p.stops[len(p.stops)-1] = nil
	p.stops = p.stops[:len(p.stops)-1]
	p.blocked.Remove(s)
	o.Touch(p)
}

// queueOf returns the queue of a request that joins the line.
func (o *Order) queueOf(ln *line, w *Waiter) *queue {
	l := ln.lanes[w.Gate]
	if l == nil {
		l = &lane{line: ln, all: make(map[*caller]*queue, 1)}
		if w.Gate != nil {
			l.gate.line, l.gate.lane, l.gate.index = ln, l, len(ln.stops)
			o.enter(w.Gate, &l.gate)
		}
		ln.lanes[w.Gate] = l
	}
	var c *caller
	if ln.fair >= 0 {
		c = ln.points[ln.fair].callerOf(w, w.Costs[ln.fair])
		w.key.rank = 0 // the requests of one caller go in the order of arrival
	}
	q := l.all[c]
	if q == nil {
		q = &queue{lane: l, caller: c, nth: len(ln.queues)}
		q.choosePacer(w)
		ln.queues = append(ln.queues, q)
		l.all[c] = q
		if c != nil {
			if len(c.queues) == 0 {
				o.callers++
			}
			c.enter(q)
		}
	}
	return q
}

// count counts requests that join, or that are taken out if n is negative.
func (o *Order) count(w *Waiter, n int) {
	o.waiting += n
	w.queue.lane.line.size += n
	for i := range w.Costs {
		w.Point(i).waiting += n
	}
}

// remove takes w out of its queue, and closes what is empty then.
func (o *Order) remove(w *Waiter) {
	q := w.queue
	l := q.lane
	ln := l.line
	first := q.first == w
	q.remove(w)
	o.count(w, -1)
	w.queue = nil
	switch {
	case q.root != nil && first:
		o.requeue(q)
		return
	case q.root != nil:
		return
	}
	l.queues.Remove(q)
	delete(l.all, q.caller)
	last := ln.queues[len(ln.queues)-1]
	ln.queues[q.nth], last.nth = last, q.nth
	ln.queues[len(ln.queues)-1] = nil
	ln.queues = ln.queues[:len(ln.queues)-1]
	ln.check.quit(q, last, len(ln.queues))
	if c := q.caller; c != nil {
		if c.quit(q); len(c.queues) == 0 {
			o.callers--
		}
	}
	if len(l.queues) > 0 {
		o.relane(l)
		return
	}
	ln.open.Remove(l)
	delete(ln.lanes, l.gate.point)
	if l == ln.starved {
		ln.starved = nil
	}
	if l.gate.point != nil {
		o.quit(&l.gate)
	}
	if o.relined(ln); ln.size == 0 {
		for i := range ln.stops {
			o.quit(&ln.stops[i])
		}
		delete(o.lines, ln.id)
	}
}

// requeue puts a queue in its place after its first request, or the turn of its caller, has changed.
func (o *Order) requeue(q *queue) {
	k := key{q.tag(), q.first.Rank, q.first.key.seq}
	if q.Key() == k {
		return
	}
	q.lane.queues.Put(q, k)
	o.relane(q.lane)
}

// relane puts a lane in its place after its queues have changed.
func (o *Order) relane(l *lane) {
	first, closed := l.queues.Top(), false
	if g := &l.gate; g.IsIn() {
		g.point.blocked.Put(g, g.placeOf(first.first))
		o.Touch(g.point)
		closed = !l.IsIn()
	}
	if !closed {
		l.line.open.Put(l, first.Key())
		o.relined(l.line)
	}
}

// relined puts a line in its place after its lanes have changed. If its first request is another one, that is tried when it is
// its turn at a point.
func (o *Order) relined(ln *line) {
	first := (*Waiter)(nil)
	if l := ln.open.Top(); l != nil {
		first = l.queues.Top().first
	}
	if first != ln.first {
		o.feed(ln)
	}
	if ln.first = first; first == nil {
		o.fresh.Remove(ln)
	} else {
		o.fresh.Put(ln, key{0, first.Rank, first.key.seq})
	}
	blocked := false
	for i := range ln.stops {
		s := &ln.stops[i]
		switch {
		case !s.IsIn():
			continue
		case first == nil:
			s.point.blocked.Remove(s)
		case s.Key() == s.placeOf(first):
			blocked = true
			continue
		default:
			s.point.blocked.Put(s, s.placeOf(first))
			blocked = true
		}
		o.Touch(s.point)
	}
	if s := &ln.stops[0]; first != nil && !blocked {
		s.point.blocked.Put(s, s.placeOf(first))
	}
}

// feed notes that the first request of a line is not starved any more.
func (o *Order) feed(ln *line) {
	if l := ln.starved; l != nil {
		ln.starved = nil
		if l.gate.IsIn() && l.IsIn() {
			l.gate.point.blocked.Remove(&l.gate)
			o.Touch(l.gate.point)
		}
	}
}

// close takes a lane out of its line until its gate can pay.
func (o *Order) close(l *lane) {
	l.line.open.Remove(l)
	g := &l.gate
	g.point.blocked.Put(g, g.placeOf(l.queues.Top().first))
	o.Touch(g.point)
	o.relined(l.line)
}

// reopen puts it back.
func (o *Order) reopen(l *lane) {
	l.gate.point.blocked.Remove(&l.gate)
	o.Touch(l.gate.point)
	l.line.open.Put(l, l.queues.Top().Key())
	o.relined(l.line)
}

// try returns the first request of a line if it can go now as of that instant; nil: it is blocked, and where is noted.
func (o *Order) try(ln *line, at, now Instant) *Waiter {
	l, w := ln.open.Top(), ln.first
	ready, late, blocked, gated := Instant(0), -1, uint64(0), false
	look := func(s *stop) Instant {
		r := s.point.Ready(at, now, w.Costs[s.index])
		if r > at || s.isBarred(s.placeOf(w)) {
			if blocked |= bit(s.index); late < 0 || r > ready {
				late = s.index
			}
		}
		ready = max(ready, r)
		return r
	}
	o.when = o.when[:0]
	for i := range ln.stops {
		o.when = append(o.when, look(&ln.stops[i]))
	}
	if l.gate.point != nil {
		look(&l.gate)
		gated = blocked&bit(l.gate.index) != 0
	}
	if blocked == 0 {
		o.grant(w, at)
		return w
	}
	w.Binding = int32(late)
	o.starve(w, blocked, ready, at)
	if gated && ln.starved == nil {
		o.close(l)
		return nil
	}
	for i := range ln.stops {
		s := &ln.stops[i]
		o.block(s, blocked&bit(i) != 0 || ln.starved != nil, o.when[i], at)
	}
	if l.gate.point != nil {
		o.block(&l.gate, ln.starved != nil, ready, at)
	}
	return nil
}

func bit(i int) uint64 { return 1 << (i & 63) }

// starve finds out whether a request that is blocked bars all its points from now on, because it was passed over for long: each
// time that one point had saved up for it, other requests had emptied another one. It bars none for long by a hold of its own.
func (o *Order) starve(w *Waiter, blocked uint64, ready, at Instant) {
	ln, l := w.queue.lane.line, w.queue.lane
	freed, robbed := w.blocked&^blocked != 0, blocked&^w.blocked != 0
	w.blocked = blocked
	long := ln.starved != nil || freed && robbed && at >= meter.AddInstant(w.passed, passOver)
	if all := uint64(1)<<len(w.Costs) - 1; blocked != all {
		w.passed = min(w.passed, at)
	}
	if long && ready <= meter.AddInstant(at, passOver) {
		ln.starved = l
	} else {
		o.feed(ln)
	}
}

// block notes whether a request is blocked at a stop, where it can be paid when ready.
func (o *Order) block(s *stop, blocked bool, ready, at Instant) {
	p := s.point
	switch {
	case blocked && !s.IsIn():
		p.blocked.Put(s, s.placeOf(s.head()))
	case blocked && s.Key() != s.placeOf(s.head()): // it is starved, or no longer
		p.blocked.Put(s, s.placeOf(s.head()))
		o.Touch(p)
	case !blocked && s.IsIn():
		p.blocked.Remove(s)
		o.Touch(p)
	}
	if p.blocked.Top() == s {
		if ready <= at { // something else than time is missing
			ready = Never
		}
		p.stale = false
		o.lookAt(p, ready)
	}
}

// grant takes w out of its line, to be paid.
func (o *Order) grant(w *Waiter, at Instant) {
	if q := w.queue; q.caller != nil {
		o.pay(q.caller, w, at)
	}
	gate := w.Gate
	ln := w.queue.lane.line
	o.remove(w)
	for _, p := range ln.points {
		o.Touch(p)
	}
	if gate != nil {
		o.Touch(gate)
	}
}
