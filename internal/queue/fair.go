package queue

import (
	"container/heap"
	"strings"

	"github.com/httpthrottle/throttle/internal/meter"
)

// This file is how the callers of a bucket take turns, by start-time fair queueing (Goyal, Vin and Cheng, "Start-time Fair
// Queueing: A Scheduling Algorithm for Integrated Services Packet Switching Networks", SIGCOMM 1996). Each request in line has
// a start tag: the finish tag of its caller's request before it, which is cost/weight after the start tag of that one, but not
// before the start tag that was granted last. Requests go in the order of these tags, and of rank where they are equal, as those
// of callers are that had nothing in line.

const (
	TagScale  = 1 << 10 // of a cost of 1 at weight 1
	MaxWeight = 1000
	MaxTag    = Never / 2
	allAtOnce = 16 // requests of a caller whose tags are corrected at once
	someOfAll = 4  // and of one with more
)

// A Turns holds the callers that take turns at one bucket, while requests wait there.
type Turns struct {
	now     int64 // the largest start tag granted
	waiting int   // requests
	active  int   // callers with requests in line
	weights int64 // of the callers that have requests in line
	Callers map[string]*caller
	idle    idleCallers

	// As long as callers keep coming that had nothing in line, their start tags are all now, and no other would ever be granted.
	// So once requests have been granted in this turn for twice what the callers in line would have got in it, callers that come
	// from since on have a later tag.
	granted int64 // in this turn, times TagScale
	later   int64 // never before now
	since   Instant
}

// Turns returns what the bucket knows of turns; nil: no callers wait here, or they take none.
func (b *Bucket) Turns() *Turns {
	if b.Extra == nil {
		return nil
	}
	return b.Fair
}

// Active returns how many callers wait.
func (t *Turns) Active() int {
	if t == nil {
		return 0
	}
	return t.active
}

// A caller has requests in line at one bucket, or had one granted a moment ago.
type caller struct {
	name   string
	weight int64
	size   int   // requests in line
	end    int64 // the finish tag of its last request
	place  int   // in turns.idle; -1: it has requests in line

	// Its requests in line, in order of arrival. The tag of the first is right; from stale on, they are later or earlier than
	// they should be by what was cancelled or corrected.
	First, last, stale *Waiter
}

// A seat is a request's place among those of its caller.
type seat struct {
	turns          *Turns
	caller         *caller
	name           string
	weight         int64
	stop           int // of the bucket among its own
	earlier, Later *Waiter
}

// idleCallers is a heap of callers with nothing in line, by their finish tags.
type idleCallers []*caller

func (h idleCallers) Len() int           { return len(h) }
func (h idleCallers) Less(i, j int) bool { return h[i].end < h[j].end }
func (h idleCallers) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].place, h[j].place = i, j }
func (h *idleCallers) Push(x any)        { c := x.(*caller); c.place = len(*h); *h = append(*h, c) }
func (h *idleCallers) Pop() any {
	last := len(*h) - 1
	c := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	c.place = -1
	return c
}

// Taken returns by how much a cost moves the tags of a caller on.
func Taken(cost, weight int64) int64 {
	return max(0, min(cost, MaxTag/TagScale)) * TagScale / weight
}

// after returns the finish tag of a cost that starts at tag.
func (c *caller) after(tag, cost int64) int64 { return min(tag+Taken(cost, c.weight), MaxTag) }

// fairLocked returns which of the charges is of a bucket where callers take turns; -1: none.
func (l *Core) fairLocked(charges []Charge) int {
	if l.Fair != nil {
		for i := range charges {
			if charges[i].Limit == l.Fair {
				return i
			}
		}
	}
	return -1
}

// tidyLocked corrects what is stale among the requests of a caller.
func (l *Core) tidyLocked(charges []Charge, a *Ask, now Instant) {
	if i := l.fairLocked(charges); i >= 0 && charges[i].bucket.Turns() != nil {
		t := charges[i].bucket.Fair
		if c := t.Callers[a.Caller]; c != nil {
			l.rechainStaleLocked(t, c, now)
		}
	}
}

// tagLocked returns the start tag of a request that has just come.
func (l *Core) tagLocked(charges []Charge, a *Ask, p *Place) int64 {
	i := l.fairLocked(charges)
	if i < 0 || charges[i].bucket.Turns() == nil {
		return 0
	}
	return charges[i].bucket.Fair.start(a.Caller, p.Rank)
}

func (t *Turns) start(name string, rank Instant) int64 {
	c, tag := t.Callers[name], t.later
	if rank < t.since {
		tag = t.now
	}
	switch {
	case c != nil && c.First != nil:
		return c.end
	case c != nil && t.counts(c):
		return max(tag, c.end)
	}
	return tag
}

// counts reports whether it makes a difference what a caller has had.
func (t *Turns) counts(c *caller) bool { return c.First != nil || c.end > t.later }

// sitLocked has a request that joins a line take its place among those of its caller.
func (l *Core) sitLocked(w *Waiter, charges []Charge) {
	i := l.fairLocked(charges)
	if i < 0 {
		w.Seat = nil
		return
	}
	b := charges[i].bucket
	if b.Fair == nil {
		b.Fair = &Turns{Callers: make(map[string]*caller)}
	}
	t, s := b.Fair, w.Seat
	c := t.caller(s.name, s.weight)
	s.turns, s.caller, s.stop = t, c, i
	t.waiting++
	if c.First == nil {
		c.First = w
		t.weights += c.weight
		t.active++
		l.Callers++
	} else {
		c.last.Seat.Later, s.earlier = w, c.last
	}
	c.last = w
	c.size++
	c.end = c.after(w.Tag, w.costs[i])
}

// caller returns the caller of that name, which is about to have a request in line or granted.
func (t *Turns) caller(name string, weight int64) *caller {
	c := t.Callers[name]
	switch {
	case c == nil:
		c = &caller{name: strings.Clone(name), weight: weight, place: -1} // a clone, so that the stack of Try may hold what it came in
		t.Callers[c.name] = c
		return c
	case c.place >= 0:
		heap.Remove(&t.idle, c.place)
	default:
		t.weights += weight - c.weight
	}
	c.weight = weight
	return c
}

// rest notes that a caller has nothing in line, and forgets it if that makes no difference.
func (t *Turns) rest(c *caller) {
	if t.counts(c) {
		heap.Push(&t.idle, c)
	} else {
		delete(t.Callers, c.name)
	}
	for range 2 { // more than come in
		if len(t.idle) == 0 || t.idle[0].end > t.later {
			return
		}
		delete(t.Callers, heap.Pop(&t.idle).(*caller).name)
	}
}

// passedLocked notes that a request went before others that wait.
func (l *Core) passedLocked(charges []Charge, a *Ask, p *Place, now Instant) *caller {
	i := l.fairLocked(charges)
	if i < 0 || charges[i].bucket.Turns() == nil {
		return nil
	}
	t := charges[i].bucket.Fair
	if c := t.Callers[a.Caller]; c != nil && c.First != nil { // it overtook none of its own: they wait elsewhere
		l.chargeLocked(t, c, Taken(charges[i].cost, c.weight), now)
		return c
	}
	c := t.caller(a.Caller, a.Weight)
	c.end = t.grant(c, p.Tag, charges[i].cost, t.weights+c.weight, now)
	t.rest(c)
	return c
}

// grant notes a grant at a start tag, given the weights of all callers in line and this one, and returns the finish tag.
func (t *Turns) grant(c *caller, tag, cost, weights int64, now Instant) (finish int64) {
	tag = max(tag, t.now)
	finish = c.after(tag, cost)
	if tag > t.now {
		t.now, t.granted = tag, 0
		t.later = max(t.later, t.now)
	}
	t.granted = meter.AddCount(t.granted, Taken(cost, 1))
	if turned := t.now + t.granted/weights; turned >= t.later+2*(finish-tag) && turned < MaxTag {
		if t.later == t.now {
			t.since = now
		}
		t.later = turned
	}
	return finish
}

// standUpLocked takes a request out of those of its caller, granted or not, which is in no line any more.
func (l *Core) standUpLocked(w *Waiter, granted bool, now Instant) {
	s := w.Seat
	if s == nil {
		return
	}
	t, c, cost := s.turns, s.caller, w.taken()
	tag := w.Tag
	if granted {
		tag = c.First.Tag // in the turn of one that waits elsewhere, if there is one
		tag = t.grant(c, tag, cost, t.weights, now)
	}
	next := s.Later
	stale := c.unlink(w)
	t.waiting--
	switch {
	case c.First == nil:
		c.end = tag
		t.weights -= c.weight
		t.active--
		l.Callers--
		t.rest(c)
	case granted:
		l.rechainLocked(t, c, c.First, tag, now)
	case !stale:
		l.rechainLocked(t, c, next, tag, now)
	case c.stale == nil:
		c.end = c.after(c.last.Tag, c.last.taken())
	default:
		l.rechainStaleLocked(t, c, now)
	}
	if t.waiting == 0 {
		w.line.Stops[s.stop].Bucket.Fair = nil
	}
}

// unlink takes w out of the requests of its caller, and reports whether its tag was stale.
func (c *caller) unlink(w *Waiter) (stale bool) {
	s := w.Seat
	c.size--
	if stale = c.stale != nil && w.seq >= c.stale.seq; c.stale == w {
		c.stale = s.Later
	}
	if s.earlier == nil {
		c.First = s.Later
	} else {
		s.earlier.Seat.Later = s.Later
	}
	if s.Later == nil {
		c.last = s.earlier
	} else {
		s.Later.Seat.earlier = s.earlier
	}
	s.earlier, s.Later = nil, nil
	return stale
}

// chargeLocked moves the tags of a caller on, or back.
func (l *Core) chargeLocked(t *Turns, c *caller, by int64, now Instant) {
	switch {
	case c.First != nil:
		l.rechainLocked(t, c, c.First, min(max(t.now, c.First.Tag+by), MaxTag), now)
	case c.place >= 0:
		heap.Remove(&t.idle, c.place)
		fallthrough
	default:
		c.end = min(max(t.now, c.end+by), MaxTag)
		t.rest(c)
	}
}

// turnLocked corrects the turns of a caller by what a request of it was charged too little, or too much if it is negative.
func (l *Core) turnLocked(c *caller, b *Bucket, more int64, now Instant) {
	if c == nil || b.Limit != l.Fair || b.Turns() == nil {
		return
	}
	t := b.Fair
	by := -Taken(-more, c.weight)
	if more > 0 {
		by = Taken(min(more, b.Meter.Most()), c.weight) // no bucket owes more
	}
	current := t.Callers[c.name]
	if current == nil || !t.counts(current) {
		if more < 0 {
			return
		}
		current = t.caller(c.name, c.weight)
		current.end = t.now
	}
	l.chargeLocked(t, current, by, now)
}

// rechainLocked has w start at tag, and those after it one after the other: all of them if they are few, and else some now, and
// the others, which then are stale, when something becomes of their caller again.
func (l *Core) rechainLocked(t *Turns, c *caller, w *Waiter, tag int64, now Instant) {
	fresh := true
	for n := 0; w != nil; n++ {
		if fresh = fresh && w != c.stale; fresh && w.Tag == tag {
			return // and so are those after it
		}
		if n == someOfAll && c.size > allAtOnce {
			c.stale = w
			return
		}
		if w.Tag != tag {
			l.retagLocked(w, tag, now)
		}
		tag = c.after(tag, w.taken())
		w = w.Seat.Later
	}
	c.stale, c.end = nil, tag
}

func (l *Core) rechainStaleLocked(t *Turns, c *caller, now Instant) {
	if w := c.stale; w != nil {
		l.rechainLocked(t, c, w, c.after(w.Seat.earlier.Tag, w.Seat.earlier.taken()), now)
	}
}

// retagLocked moves a request in its line.
func (l *Core) retagLocked(w *Waiter, tag int64, now Instant) {
	ln := w.line
	first := ln.First
	ln.remove(w)
	w.Tag = tag
	ln.insert(w)
	ln.Queue.moved(w)
	if q := ln.Queue; q.unjudged && w.Before(&q.from) {
		q.from = w.Place // it has the turn of one that was rejected
	}
	if ln.First == first && first != w {
		return
	}
	for i := range ln.Stops {
		if s := &ln.Stops[i]; s.pos == 0 && ln.First != first {
			s.Bucket.since = now // the one before was in the way until now
		}
	}
	l.headLocked(ln)
}

// taken returns what w costs where callers take turns.
func (w *Waiter) taken() int64 { return w.costs[w.Seat.stop] }
