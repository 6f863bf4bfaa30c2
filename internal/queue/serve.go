package queue

import (
	"container/heap"
	"encoding/binary"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// joinLocked inserts a waiter into its line, at its place.
func (l *Core) joinLocked(ln *Line, w *Waiter, charges []Charge, now Instant) {
	if ln == nil {
		ln = l.openLocked(charges, now)
	}
	w.take(charges)
	w.seq = l.seq
	l.seq++
	if w.Seat != nil {
		l.sitLocked(w, charges)
	}
	l.Counts.Waiting++
	w.by.Waiting++
	ln.waitLocked(1)
	ln.Queue.enter(w)
	ln.insert(w)
	if ln.First == w {
		l.headLocked(ln)
		l.TryLocked(ln, now)
		l.ServeLocked(now)
	}
}

func (l *Core) markAllLocked(charges []Charge) {
	for i := range charges {
		l.MarkLocked(charges[i].bucket)
	}
}

// lineID appends the identity of the line of these charges to buf. The first queue bytes of it identify the queue. It is not
// inlined, for the same reason as lineOf.
//
//go:noinline
func lineID(buf []byte, charges []Charge) (id []byte, queue int) {
	for i := range charges {
		buf = binary.NativeEndian.AppendUint64(buf, charges[i].bucket.number())
		if !charges[i].Limit.Gates && !charges[i].Limit.Open {
			queue = len(buf)
		}
	}
	if queue == 0 { // without limits, only requests of one gate share a queue
		queue = len(buf)
	}
	return buf, queue
}

// lineOf returns the queue and the line of these charges, nil if they have no waiters. It is not inlined, to keep the stack small
// on which its callers wait.
//
//go:noinline
func (l *Core) lineOf(charges []Charge) (*Queue, *Line) {
	if len(l.Lines) == 0 {
		return nil, nil
	}
	id, queue := lineID(make([]byte, 0, 48), charges)
	if ln := l.Lines[string(id)]; ln != nil {
		return ln.Queue, ln
	}
	return l.queues[string(id[:queue])], nil
}

// openLocked opens a line for these charges.
func (l *Core) openLocked(charges []Charge, now Instant) *Line {
	for i := range charges {
		if e := charges[i].bucket.needs(); e.serial == 0 {
			l.serial++
			e.serial = l.serial
		}
	}
	id, of := lineID(nil, charges)
	ln := newLine(len(charges), l.queues[string(id[:of])])
	if ln.id = string(id); ln.Queue.id == "" {
		ln.Queue.id = ln.id[:of]
		l.queues[ln.Queue.id] = ln.Queue
	}
	ln.nth = len(ln.Queue.lines)
	ln.Queue.lines = append(ln.Queue.lines, ln)
	for i := range charges {
		b := charges[i].bucket
		if len(b.Lines) == 0 {
			b.since = now
		}
		s := &ln.Stops[i]
		*s = Stop{Line: ln, Bucket: b, index: i, lined: len(b.Lines), pos: -1}
		b.Lines = append(b.Lines, s)
		if g, ok := b.Meter.(*GateBucket); ok {
			ln.gate = g
			g.list(LinedGates, b, true)
			if g.Party.heed(); g.Party.Vocal {
				ln.Vocal = true
				ln.Queue.Vocal++
			}
		}
	}
	ln.choosePacer(charges)
	l.Lines[ln.id] = ln
	return ln
}

// quitLocked takes a waiter that is not granted out of its line. Requests that it barred can go from now on.
func (l *Core) quitLocked(w *Waiter, now Instant) {
	wasFirst := w.line.First == w
	if wasFirst {
		for i := range w.line.Stops {
			if s := &w.line.Stops[i]; s.pos == 0 {
				s.Bucket.since = now
			}
		}
	}
	w.At = now
	w.line.remove(w)
	l.leftLocked(w, wasFirst)
	l.standUpLocked(w, false, now)
}

// leftLocked updates the line that w was taken out of.
func (l *Core) leftLocked(w *Waiter, wasFirst bool) {
	l.Counts.Waiting--
	w.by.Waiting--
	w.line.waitLocked(-1)
	w.line.Queue.leave(w)
	switch {
	case w.line.size == 0:
		l.closeLocked(w.line, w.At)
	case wasFirst:
		l.headLocked(w.line)
	}
}

// headLocked updates a line that has another first request.
func (l *Core) headLocked(ln *Line) {
	ln.Starved = false
	for i := range ln.Stops {
		s := &ln.Stops[i]
		if s.pos >= 0 {
			heap.Fix(&s.Bucket.Stopped, s.pos)
		}
		l.MarkLocked(s.Bucket)
	}
}

// closeLocked closes an empty line.
func (l *Core) closeLocked(ln *Line, now Instant) {
	for i := range ln.Stops {
		s := &ln.Stops[i]
		b := s.Bucket
		s.set(false)
		last := b.Lines[len(b.Lines)-1]
		b.Lines[s.lined], last.lined = last, s.lined
		b.Lines[len(b.Lines)-1] = nil
		b.Lines = b.Lines[:len(b.Lines)-1]
		if g, ok := b.Meter.(*GateBucket); ok && len(b.Lines) == 0 {
			g.list(LinedGates, b, false)
		}
		l.MarkLocked(b)
		l.freeLocked(b, now)
	}
	delete(l.Lines, ln.id)
	q := ln.Queue
	if ln.Vocal {
		q.Vocal--
	}
	last := q.lines[len(q.lines)-1]
	q.lines[ln.nth], last.nth = last, ln.nth
	q.lines[len(q.lines)-1] = nil
	if q.lines = q.lines[:len(q.lines)-1]; len(q.lines) == 0 {
		delete(l.queues, q.id)
	}
}

// MarkLocked queues a bucket to be served before Mu is freed, or notes that another request is the first that is stopped there.
func (l *Core) MarkLocked(b *Bucket) {
	switch {
	case b.Extra == nil:
	case b.dirty > 0:
		heap.Fix(&l.dirty, int(b.dirty)-1)
	case len(b.Stopped) > 0 || b.Armed != Never || b.loan != nil:
		heap.Push(&l.dirty, b)
	}
}

// dirtyHeap orders buckets by the rank of the first request that is stopped there.
type dirtyHeap []*Bucket

func (h dirtyHeap) Len() int { return len(h) }
func (h dirtyHeap) Less(i, j int) bool {
	p, other := h[i].topPlace(), h[j].topPlace()
	return p != nil && (other == nil || p.earlier(other))
}
func (h dirtyHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].dirty, h[j].dirty = int32(i)+1, int32(j)+1
}
func (h *dirtyHeap) Push(x any) { b := x.(*Bucket); *h = append(*h, b); b.dirty = int32(len(*h)) }
func (h *dirtyHeap) Pop() any {
	last := len(*h) - 1
	b := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	b.dirty = 0
	return b
}

// topPlace returns the place of the first request that is stopped here; nil: there is none.
func (b *Bucket) topPlace() *Place {
	if len(b.Stopped) == 0 || b.Stopped[0].Line.First == nil {
		return nil
	}
	return &b.Stopped[0].Line.First.Place
}

// DueLocked begins a change: it grants the requests that were due before, as they were planned. Those that are granted after it, until
// Mu is freed, are due to the change, and therefore not as of before now: only a timer can be late.
func (l *Core) DueLocked(now Instant) {
	l.floor = 0
	l.ServeLocked(now)
	l.floor = now
}

// ServeLocked ends every change: it grants the requests that can go now, in order of rank, and sets timers for the others.
func (l *Core) ServeLocked(now Instant) {
	for len(l.dirty) > 0 {
		b := l.dirty[0]
		if len(b.Stopped) > 0 && l.TryLocked(b.Stopped[0].Line, now) {
			continue
		}
		heap.Remove(&l.dirty, int(b.dirty)-1)
		l.armLocked(b, now)
	}
}

// TryLocked grants the first request of a line if it can go now, or stores where it is stopped. It reports whether that changed
// anything.
//
// A request is stopped at a bucket that cannot pay it, or that must pay another request first. There it bars later requests. It
// does not bar its other buckets, because lines of different keys would delay each other. The exception is a request that was
// passed over for long: each time that one bucket had saved up for it, other requests had emptied the next.
func (l *Core) TryLocked(ln *Line, now Instant) bool {
	w := ln.First
	due, stopped, freed, robbed := Instant(0), 0, false, false
	for i := range ln.Stops {
		s := &ln.Stops[i]
		if s.Bucket.loan != nil {
			s.Bucket.loan.Advance(now)
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
	wasStarved := ln.Starved
	passedOver := wasStarved || freed && robbed && now >= meter.AddInstant(w.Passed, passOver)
	ln.Starved = passedOver && due <= meter.AddInstant(now, passOver) // it bars no request by a hold of its own
	if stopped < len(ln.Stops) {
		w.Passed = min(w.Passed, now)
	}
	moved := false
	for i := range ln.Stops {
		s := &ln.Stops[i]
		if bar := s.short || ln.Starved; bar != (s.pos >= 0) {
			moved = true
			switch {
			case bar || s.pos != 0:
			case wasStarved: // it barred the bucket until now
				s.Bucket.since = now
			default: // others may go from when this request came and could be paid
				s.Bucket.since = max(s.ready, now-Slack, l.floor, w.Arrived)
			}
			s.set(bar)
			l.MarkLocked(s.Bucket)
		} else if bar && ln.Starved != wasStarved && s.Bucket.Limit.Fair {
			moved = true
			heap.Fix(&s.Bucket.Stopped, s.pos)
			l.MarkLocked(s.Bucket)
		}
		if s.pos == 0 && s.ready > now && s.Bucket.Armed > s.ready {
			l.MarkLocked(s.Bucket) // it could be paid when it was tried last, and cannot be paid any more: a gate
		}
	}
	if moved && l.Supplies != nil {
		l.markLoansLocked(ln)
	}
	return moved
}

// grantLocked grants w, which was due then. Timers are late sometimes. Requests that became due in the meantime are charged as
// of when they were due, so that lateness costs no throughput, but lateness beyond slack is forfeited.
func (l *Core) grantLocked(w *Waiter, due, now Instant) {
	due = max(due, now-Slack, l.floor)
	ln := w.line
	w.Verdict, w.At = Granted, now
	for i := range ln.Stops {
		if ln.Stops[i].ready > w.Stop().ready {
			w.binding = uint16(i)
		}
	}
	l.Counts.grantedAfter(now - w.Arrived)
	w.by.grantedAfter(now - w.Arrived)
	w.Stop().Bucket.Limit.Counts.waited(now - w.Arrived)
	ln.remove(w)
	for i := range ln.Stops {
		b := ln.Stops[i].Bucket
		w.paid()[i] = b.Meter.Take(due, now, w.costs[i], true)
		b.Limit.Counts.took(w.costs[i])
		b.since = max(b.since, due) // for the requests that it barred
		l.MarkLocked(b)
	}
	l.leftLocked(w, true)
	l.standUpLocked(w, true, now)
	close(w.decided)
}

// armLocked sets a bucket's timer for the instant at which the first request that is stopped there can be paid.
func (l *Core) armLocked(b *Bucket, now Instant) {
	at := Never
	if len(b.Stopped) > 0 {
		if ready := b.Stopped[0].readyAt(); ready > now {
			at = ready
		}
		if b.Limit.Wall {
			at = min(at, now+wallCheck)
		}
	}
	if b.loan != nil {
		at = min(at, l.lendLocked(b, now))
	}
	switch {
	case at == b.Armed:
		return
	case at == Never:
		b.timer.Stop()
	case b.timer == nil:
		b.timer = time.AfterFunc(time.Duration(at-now), func() { l.wake(b) })
	default:
		b.timer.Reset(time.Duration(at - now))
	}
	b.Armed = at
}

// wake is what the timer of a bucket calls.
func (l *Core) wake(b *Bucket) {
	l.Mu.Lock()
	defer l.UnlockJudged()
	b.Armed = Never
	now := l.NowLocked()
	l.MarkLocked(b)
	if b.loan != nil && b.loan.out() != nil { // the grace of an outage may be over
		b.loan.look(now)
		l.ReplanLocked(now, b)
	}
	l.ServeLocked(now)
}

// lookLocked grants the requests of a line that are due now, before something changes.
func (l *Core) lookLocked(ln *Line, now Instant) {
	for i := range ln.Stops {
		l.MarkLocked(ln.Stops[i].Bucket)
	}
	l.DueLocked(now)
}

// giveBackLocked gives back a charge. Waiters can use it from now on.
func (l *Core) giveBackLocked(b *Bucket, charged int64, now Instant, cost int64) {
	b.Meter.GiveBack(charged, now, cost)
	b.Limit.Counts.gave(cost)
	b.Limit.Counts.ended++
	l.freeLocked(b, now)
	b.freed(now)
	l.MarkLocked(b)
	if g, ok := b.Meter.(*GateBucket); ok {
		l.markPartyLocked(g.Party) // gates of a party share what is given back
	}
}
