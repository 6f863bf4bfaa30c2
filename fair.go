package throttle

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
	tagScale  = 1 << 10 // of a cost of 1 at weight 1
	maxWeight = 1000
	maxTag    = never / 2
	allAtOnce = 16 // requests of a caller whose tags are corrected at once
	someOfAll = 4  // and of one with more
)

// A turns holds the callers that take turns at one bucket, with urgent requests or with other requests.
type turns struct {
	now     int64 // the largest start tag granted
	waiting int   // requests
	active  int   // callers with requests in line
	weights int64 // of the callers that have requests in line
	callers map[string]*caller
	idle    idleCallers

	// As long as callers keep coming that had nothing in line, their start tags are all now, and no other would ever be granted.
	// So once requests have been granted in this turn for twice what the callers in line would have got in it, callers that come
	// from since on have a later tag.
	granted int64 // in this turn, times tagScale
	later   int64 // never before now
	since   instant
}

// A fairBucket is what a bucket knows of turns while requests wait there.
type fairBucket struct{ urgent, below turns }

func (f *fairBucket) of(below bool) *turns {
	if below {
		return &f.below
	}
	return &f.urgent
}

// turns returns what the bucket knows of turns; nil: no callers wait here, or they take none.
func (b *bucket) turns() *fairBucket {
	if b.extra == nil {
		return nil
	}
	return b.fair
}

// active returns how many callers wait.
func (f *fairBucket) active() int {
	if f == nil {
		return 0
	}
	return f.urgent.active + f.below.active
}

// A caller has requests in line at one bucket, or had one granted a moment ago.
type caller struct {
	name   string
	below  bool
	weight int64
	size   int   // requests in line
	end    int64 // the finish tag of its last request
	place  int   // in turns.idle; -1: it has requests in line

	// Its requests in line, in order of arrival. The tag of the first is right; from stale on, they are later or earlier than
	// they should be by what was cancelled or corrected.
	first, last, stale *waiter
}

// A seat is a request's place among those of its caller.
type seat struct {
	turns          *turns
	caller         *caller
	name           string
	weight         int64
	stop           int // of the bucket among its own
	earlier, later *waiter
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

// taken returns by how much a cost moves the tags of a caller on.
func taken(cost, weight int64) int64 {
	return max(0, min(cost, maxTag/tagScale)) * tagScale / weight
}

// after returns the finish tag of a cost that starts at tag.
func (c *caller) after(tag, cost int64) int64 { return min(tag+taken(cost, c.weight), maxTag) }

// fairLocked returns which of the charges is of a bucket where callers take turns; -1: none.
func (l *core) fairLocked(charges []charge) int {
	if l.fair != nil {
		for i := range charges {
			if charges[i].limit == l.fair {
				return i
			}
		}
	}
	return -1
}

// tidyLocked corrects what is stale among the requests of a caller.
func (l *core) tidyLocked(charges []charge, a *ask, below bool, now instant) {
	if i := l.fairLocked(charges); i >= 0 && charges[i].bucket.turns() != nil {
		t := charges[i].bucket.fair.of(below)
		if c := t.callers[a.caller]; c != nil {
			l.rechainStaleLocked(t, c, now)
		}
	}
}

// tagLocked returns the start tag of a request that has just come.
func (l *core) tagLocked(charges []charge, a *ask, p *place) int64 {
	i := l.fairLocked(charges)
	if i < 0 || charges[i].bucket.turns() == nil {
		return 0
	}
	return charges[i].bucket.fair.of(p.below).start(a.caller, p.rank)
}

func (t *turns) start(name string, rank instant) int64 {
	c, tag := t.callers[name], t.later
	if rank < t.since {
		tag = t.now
	}
	switch {
	case c != nil && c.first != nil:
		return c.end
	case c != nil && t.counts(c):
		return max(tag, c.end)
	}
	return tag
}

// counts reports whether it makes a difference what a caller has had.
func (t *turns) counts(c *caller) bool { return c.first != nil || c.end > t.later }

// sitLocked has a request that joins a line take its place among those of its caller.
func (l *core) sitLocked(w *waiter, charges []charge) {
	i := l.fairLocked(charges)
	if i < 0 {
		w.seat = nil
		return
	}
	b := charges[i].bucket
	if b.fair == nil {
		b.fair = new(fairBucket)
	}
	t, s := b.fair.of(w.below), w.seat
	if t.waiting == 0 {
		*t = turns{callers: make(map[string]*caller)}
	}
	c := t.caller(s.name, s.weight, w.below)
	s.turns, s.caller, s.stop = t, c, i
	t.waiting++
	if c.first == nil {
		c.first = w
		t.weights += c.weight
		t.active++
		l.callers++
	} else {
		c.last.seat.later, s.earlier = w, c.last
	}
	c.last = w
	c.size++
	c.end = c.after(w.tag, w.costs[i])
}

// caller returns the caller of that name, which is about to have a request in line or granted.
func (t *turns) caller(name string, weight int64, below bool) *caller {
	c := t.callers[name]
	switch {
	case c == nil:
		c = &caller{name: strings.Clone(name), below: below, weight: weight, place: -1} // a clone, so that the stack of Try may hold what it came in
		t.callers[c.name] = c
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
func (t *turns) rest(c *caller) {
	if t.counts(c) {
		heap.Push(&t.idle, c)
	} else {
		delete(t.callers, c.name)
	}
	for range 2 { // more than come in
		if len(t.idle) == 0 || t.idle[0].end > t.later {
			return
		}
		delete(t.callers, heap.Pop(&t.idle).(*caller).name)
	}
}

// passedLocked notes that a request went before others that wait.
func (l *core) passedLocked(charges []charge, a *ask, p *place, now instant) *caller {
	i := l.fairLocked(charges)
	if i < 0 || charges[i].bucket.turns() == nil {
		return nil
	}
	t := charges[i].bucket.fair.of(p.below)
	if t.waiting == 0 {
		return nil
	}
	if c := t.callers[a.caller]; c != nil && c.first != nil { // it overtook none of its own: they wait elsewhere
		l.chargeLocked(t, c, taken(charges[i].cost, c.weight), now)
		return c
	}
	c := t.caller(a.caller, a.weight, p.below)
	c.end = t.grant(c, p.tag, charges[i].cost, t.weights+c.weight, now)
	t.rest(c)
	return c
}

// grant notes a grant at a start tag, given the weights of all callers in line and this one, and returns the finish tag.
func (t *turns) grant(c *caller, tag, cost, weights int64, now instant) (finish int64) {
	tag = max(tag, t.now)
	finish = c.after(tag, cost)
	if tag > t.now {
		t.now, t.granted = tag, 0
		t.later = max(t.later, t.now)
	}
	t.granted = meter.AddCount(t.granted, taken(cost, 1))
	if turned := t.now + t.granted/weights; turned >= t.later+2*(finish-tag) && turned < maxTag {
		if t.later == t.now {
			t.since = now
		}
		t.later = turned
	}
	return finish
}

// standUpLocked takes a request out of those of its caller, granted or not, which is in no line any more.
func (l *core) standUpLocked(w *waiter, granted bool, now instant) {
	s := w.seat
	if s == nil {
		return
	}
	t, c, cost := s.turns, s.caller, w.taken()
	tag := w.tag
	if granted {
		tag = c.first.tag // in the turn of one that waits elsewhere, if there is one
		tag = t.grant(c, tag, cost, t.weights, now)
	}
	next := s.later
	stale := c.unlink(w)
	t.waiting--
	switch {
	case c.first == nil:
		c.end = tag
		t.weights -= c.weight
		t.active--
		l.callers--
		t.rest(c)
	case granted:
		l.rechainLocked(t, c, c.first, tag, now)
	case !stale:
		l.rechainLocked(t, c, next, tag, now)
	case c.stale == nil:
		c.end = c.after(c.last.tag, c.last.taken())
	default:
		l.rechainStaleLocked(t, c, now)
	}
	if t.waiting == 0 {
		b := w.line.stops[s.stop].bucket
		if *t = (turns{}); b.fair.urgent.waiting+b.fair.below.waiting == 0 {
			b.fair = nil
		}
	}
}

// unlink takes w out of the requests of its caller, and reports whether its tag was stale.
func (c *caller) unlink(w *waiter) (stale bool) {
	s := w.seat
	c.size--
	if stale = c.stale != nil && w.seq >= c.stale.seq; c.stale == w {
		c.stale = s.later
	}
	if s.earlier == nil {
		c.first = s.later
	} else {
		s.earlier.seat.later = s.later
	}
	if s.later == nil {
		c.last = s.earlier
	} else {
		s.later.seat.earlier = s.earlier
	}
	s.earlier, s.later = nil, nil
	return stale
}

// chargeLocked moves the tags of a caller on, or back.
func (l *core) chargeLocked(t *turns, c *caller, by int64, now instant) {
	switch {
	case c.first != nil:
		l.rechainLocked(t, c, c.first, min(max(t.now, c.first.tag+by), maxTag), now)
	case c.place >= 0:
		heap.Remove(&t.idle, c.place)
		fallthrough
	default:
		c.end = min(max(t.now, c.end+by), maxTag)
		t.rest(c)
	}
}

// turnLocked corrects the turns of a caller by what a request of it was charged too little, or too much if it is negative.
func (l *core) turnLocked(c *caller, b *bucket, more int64, now instant) {
	if c == nil || b.limit != l.fair || b.turns() == nil {
		return
	}
	t := b.fair.of(c.below)
	if t.waiting == 0 {
		return
	}
	by := taken(min(max(more, -more), b.meter.Most()), c.weight) // no bucket owes more
	if more < 0 {
		by = -by
	}
	current := t.callers[c.name]
	if current == nil || !t.counts(current) {
		if more < 0 {
			return
		}
		current = t.caller(c.name, c.weight, c.below)
		current.end = t.now
	}
	l.chargeLocked(t, current, by, now)
}

// rechainLocked has w start at tag, and those after it one after the other: all of them if they are few, and else some now, and
// the others, which then are stale, when something becomes of their caller again.
func (l *core) rechainLocked(t *turns, c *caller, w *waiter, tag int64, now instant) {
	fresh := true
	for n := 0; w != nil; n++ {
		if fresh = fresh && w != c.stale; fresh && w.tag == tag {
			return // and so are those after it
		}
		if n == someOfAll && c.size > allAtOnce {
			c.stale = w
			return
		}
		if w.tag != tag {
			l.retagLocked(w, tag, now)
		}
		tag = c.after(tag, w.taken())
		w = w.seat.later
	}
	c.stale, c.end = nil, tag
}

func (l *core) rechainStaleLocked(t *turns, c *caller, now instant) {
	if w := c.stale; w != nil {
		l.rechainLocked(t, c, w, c.after(w.seat.earlier.tag, w.seat.earlier.taken()), now)
	}
}

// retagLocked moves a request in its line.
func (l *core) retagLocked(w *waiter, tag int64, now instant) {
	ln := w.line
	first := ln.first
	ln.remove(w)
	w.tag = tag
	ln.insert(w)
	ln.queue.class(w.below).moved(w)
	if q := ln.queue; q.unjudged && w.below == q.from.below && w.before(&q.from) {
		q.from = w.place // it has the turn of one that was rejected
	}
	if ln.first == first && first != w {
		return
	}
	for i := range ln.stops {
		if s := &ln.stops[i]; s.pos == 0 && ln.first != first {
			s.bucket.since = now // the one before was in the way until now
		}
	}
	l.headLocked(ln)
}

// taken returns what w costs where callers take turns.
func (w *waiter) taken() int64 { return w.costs[w.seat.stop] }
