package throttle

import (
	"container/heap"
	"encoding/binary"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// joinLocked inserts a waiter into its line, at its place.
func (l *core) joinLocked(ln *line, w *waiter, charges []charge, now instant) {
	if ln == nil {
		ln = l.openLocked(charges, w.below, now)
	}
	w.take(charges)
	w.seq = l.seq
	l.seq++
	if w.seat != nil {
		l.sitLocked(w, charges)
	}
	l.counts.waiting++
	w.by.waiting++
	ln.waitLocked(1)
	ln.queue.enter(w)
	ln.insert(w)
	if ln.first == w {
		l.headLocked(ln)
		l.tryLocked(ln, now)
		l.serveLocked(now)
	}
}

func (l *core) markAllLocked(charges []charge) {
	for i := range charges {
		l.markLocked(charges[i].bucket)
	}
}

// lineID appends the identity of the line of these charges to buf. The first queue bytes of it identify the queue.
func lineID(buf []byte, charges []charge, below bool) (id []byte, queue int) {
	for i := range charges {
		buf = binary.NativeEndian.AppendUint64(buf, charges[i].bucket.number())
		if !charges[i].limit.gates && !charges[i].limit.open {
			queue = len(buf)
		}
	}
	if queue == 0 { // without limits, only requests of one gate share a queue
		queue = len(buf)
	}
	if below {
		buf = append(buf, 1)
	}
	return buf, queue
}

// lineOf returns the queue and the line of these charges, nil if they have no waiters. It is not inlined, to keep the stack small
// on which its callers wait.
//
//go:noinline
func (l *core) lineOf(charges []charge, below bool) (*queue, *line) {
	if len(l.lines) == 0 {
		return nil, nil
	}
	id, queue := lineID(make([]byte, 0, 48), charges, below)
	return l.queues[string(id[:queue])], l.lines[string(id)]
}

// openLocked opens a line for these charges.
func (l *core) openLocked(charges []charge, below bool, now instant) *line {
	for i := range charges {
		if e := charges[i].bucket.needs(); e.serial == 0 {
			l.serial++
			e.serial = l.serial
		}
	}
	id, of := lineID(nil, charges, below)
	ln := &line{id: string(id), below: below, stops: make([]stop, len(charges))}
	if ln.queue = l.queues[ln.id[:of]]; ln.queue == nil {
		ln.queue = &queue{id: ln.id[:of]}
		l.queues[ln.queue.id] = ln.queue
	}
	ln.nth = len(ln.queue.lines)
	ln.queue.lines = append(ln.queue.lines, ln)
	for i := range charges {
		b := charges[i].bucket
		if len(b.lines) == 0 {
			b.since = now
		}
		s := &ln.stops[i]
		*s = stop{line: ln, bucket: b, index: i, lined: len(b.lines), pos: -1}
		b.lines = append(b.lines, s)
		if g, ok := b.meter.(*gateBucket); ok {
			g.list(linedGates, b, true)
			if g.party.heed(); g.party.vocal {
				ln.vocal = true
				ln.queue.vocal++
			}
		}
	}
	l.lines[ln.id] = ln
	return ln
}

// quitLocked takes a waiter that is not granted out of its line. Requests that it barred can go from now on.
func (l *core) quitLocked(w *waiter, now instant) {
	wasFirst := w.line.first == w
	if wasFirst {
		for i := range w.line.stops {
			if s := &w.line.stops[i]; s.pos == 0 {
				s.bucket.since = now
			}
		}
	}
	w.at = now
	w.line.remove(w)
	l.leftLocked(w, wasFirst)
	l.standUpLocked(w, false, now)
}

// leftLocked updates the line that w was taken out of.
func (l *core) leftLocked(w *waiter, wasFirst bool) {
	l.counts.waiting--
	w.by.waiting--
	w.line.waitLocked(-1)
	w.line.queue.leave(w)
	switch {
	case w.line.size == 0:
		l.closeLocked(w.line, w.at)
	case wasFirst:
		l.headLocked(w.line)
	}
}

// headLocked updates a line that has another first request.
func (l *core) headLocked(ln *line) {
	ln.starved = false
	for i := range ln.stops {
		s := &ln.stops[i]
		if s.pos >= 0 {
			heap.Fix(&s.bucket.stopped, s.pos)
		}
		l.markLocked(s.bucket)
	}
}

// closeLocked closes an empty line.
func (l *core) closeLocked(ln *line, now instant) {
	for i := range ln.stops {
		s := &ln.stops[i]
		b := s.bucket
		s.set(false)
		last := b.lines[len(b.lines)-1]
		b.lines[s.lined], last.lined = last, s.lined
		b.lines[len(b.lines)-1] = nil
		b.lines = b.lines[:len(b.lines)-1]
		if g, ok := b.meter.(*gateBucket); ok && len(b.lines) == 0 {
			g.list(linedGates, b, false)
		}
		l.markLocked(b)
		l.freeLocked(b, now)
	}
	delete(l.lines, ln.id)
	q := ln.queue
	if ln.vocal {
		q.vocal--
	}
	last := q.lines[len(q.lines)-1]
	q.lines[ln.nth], last.nth = last, ln.nth
	q.lines[len(q.lines)-1] = nil
	if q.lines = q.lines[:len(q.lines)-1]; len(q.lines) == 0 {
		delete(l.queues, q.id)
	}
}

// markLocked queues a bucket to be served before mu is freed.
func (l *core) markLocked(b *bucket) {
	if b.extra != nil && !b.dirty && (len(b.stopped) > 0 || b.armed != never || b.loan != nil) {
		b.dirty = true
		l.dirty = append(l.dirty, b)
	}
}

// serveLocked ends every change: it grants the requests that can go now, in order, and sets timers for the others.
func (l *core) serveLocked(now instant) {
	for len(l.dirty) > 0 {
		b := l.dirty[len(l.dirty)-1]
		l.dirty = l.dirty[:len(l.dirty)-1]
		for len(b.stopped) > 0 && l.tryLocked(b.stopped[0].line, now) {
		}
		b.dirty = false
		l.armLocked(b, now)
	}
}

// tryLocked grants the first request of a line if it can go now, or stores where it is stopped. It reports whether that changed
// anything.
//
// A request is stopped at a bucket that cannot pay it, or that must pay another request first. There it bars later requests. It
// does not bar its other buckets, because lines of different keys would delay each other. The exception is a request that was
// passed over for long: each time that one bucket had saved up for it, other requests had emptied the next.
func (l *core) tryLocked(ln *line, now instant) bool {
	w := ln.first
	due, stopped, freed, robbed := instant(0), 0, false, false
	for i := range ln.stops {
		s := &ln.stops[i]
		if s.bucket.loan != nil {
			s.bucket.loan.Advance(now)
		}
		s.ready = s.readyAt()
		due = max(due, s.ready)
		if s.short = s.ready > now || s.barred(); s.short {
			stopped++
			robbed = robbed || s.pos < 0
		} else {
			freed = freed || s.pos >= 0
		}
	}
	if stopped == 0 {
		l.grantLocked(w, due, now)
		return true
	}
	wasStarved := ln.starved
	passedOver := wasStarved || freed && robbed && now >= meter.AddInstant(w.passed, passOver)
	ln.starved = passedOver && due <= meter.AddInstant(now, passOver) // it bars no request by a hold of its own
	if stopped < len(ln.stops) {
		w.passed = min(w.passed, now)
	}
	moved := false
	for i := range ln.stops {
		s := &ln.stops[i]
		if bar := s.short || ln.starved; bar != (s.pos >= 0) {
			moved = true
			switch {
			case bar || s.pos != 0:
			case wasStarved: // it barred the bucket until now
				s.bucket.since = now
			default: // others may go from when this request came and could be paid
				s.bucket.since = max(s.ready, now-slack, w.arrived)
			}
			s.set(bar)
			l.markLocked(s.bucket)
		} else if bar && ln.starved != wasStarved && s.bucket.limit.ordered() {
			moved = true
			heap.Fix(&s.bucket.stopped, s.pos)
			l.markLocked(s.bucket)
		}
		if s.pos == 0 && s.ready > now && s.bucket.armed > s.ready {
			l.markLocked(s.bucket) // it could be paid when it was tried last, and cannot be paid any more: a gate
		}
	}
	if moved && l.supplies != nil {
		l.markLoansLocked(ln)
	}
	return moved
}

// grantLocked grants w, which was due then. Timers are late sometimes. Requests that became due in the meantime are charged as
// of when they were due, so that lateness costs no throughput, but lateness beyond slack is forfeited.
func (l *core) grantLocked(w *waiter, due, now instant) {
	due = max(due, now-slack)
	ln := w.line
	w.verdict, w.at = granted, now
	for i := range ln.stops {
		if ln.stops[i].ready > w.stop().ready {
			w.binding = uint16(i)
		}
	}
	l.counts.grantedAfter(now - w.arrived)
	w.by.grantedAfter(now - w.arrived)
	w.stop().bucket.limit.counts.waited(now - w.arrived)
	ln.remove(w)
	for i := range ln.stops {
		b := ln.stops[i].bucket
		w.paid()[i] = b.meter.Take(due, now, w.costs[i], true)
		b.limit.counts.took(w.costs[i])
		b.since = max(b.since, due) // for the requests that it barred
		l.markLocked(b)
	}
	l.leftLocked(w, true)
	l.standUpLocked(w, true, now)
	close(w.decided)
}

// armLocked sets a bucket's timer for the instant at which the first request that is stopped there can be paid.
func (l *core) armLocked(b *bucket, now instant) {
	at := never
	if len(b.stopped) > 0 {
		if ready := b.stopped[0].readyAt(); ready > now {
			at = ready
		}
		if b.limit.wall {
			at = min(at, now+wallCheck)
		}
	}
	if b.loan != nil {
		at = min(at, l.lendLocked(b, now))
	}
	switch {
	case at == b.armed:
		return
	case at == never:
		b.timer.Stop()
	case b.timer == nil:
		b.timer = time.AfterFunc(time.Duration(at-now), func() { l.wake(b) })
	default:
		b.timer.Reset(time.Duration(at - now))
	}
	b.armed = at
}

// wake is what the timer of a bucket calls.
func (l *core) wake(b *bucket) {
	l.mu.Lock()
	defer l.unlockJudged()
	b.armed = never
	now := l.nowLocked()
	l.markLocked(b)
	if b.loan != nil && b.loan.out() != nil { // the grace of an outage may be over
		b.loan.look(now)
		l.replanLocked(now, b)
	}
	l.serveLocked(now)
}

// lookLocked grants the requests of a line that are due now, before something changes.
func (l *core) lookLocked(ln *line, now instant) {
	for i := range ln.stops {
		l.markLocked(ln.stops[i].bucket)
	}
	l.serveLocked(now)
}

// giveBackLocked gives back a charge. Waiters can use it from now on.
func (l *core) giveBackLocked(b *bucket, charged int64, now instant, cost int64) {
	b.meter.GiveBack(charged, now, cost)
	b.limit.counts.gave(cost)
	b.limit.counts.ended++
	l.freeLocked(b, now)
	b.freed(now)
	l.markLocked(b)
	if g, ok := b.meter.(*gateBucket); ok {
		l.markPartyLocked(g.party) // gates of a party share what is given back
	}
}
