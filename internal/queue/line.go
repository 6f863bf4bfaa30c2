package queue

import (
	"container/heap"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A Line holds the requests that wait for the same set of buckets, in order of rank.
//
// It is a treap (Seidel and Aragon, "Randomized Search Trees", 1996): a search tree by rank that is a heap by a random
// weight, in which each request knows the costs of all below it. So a request finds the costs
// before it in logarithmic time, whatever its priority, and leaves the line as fast.
type Line struct {
	id      string
	Queue   *Queue
	Stops   []Stop      // those that the lines of its queue share come first
	gate    *GateBucket // nil: its requests pass none
	root    *Waiter
	First   *Waiter
	size    int
	nth     int  // in its queue
	Vocal   bool // its gate may be closed, or close without notice: see party.vocal
	Starved bool // its first request has been passed over for too long, and bars all its buckets

	pacer int   // the stop at which costs count for the bounds of its waiters
	slope int64 // of bounds that are found from now on, in ns for each token
}

// newLine returns a line of so many stops, and its queue if that is nil. Most lines have one stop and a queue of their own: all
// of it is in one piece of memory.
func newLine(stops int, q *Queue) *Line {
	if q != nil || stops > 1 {
		if q == nil {
			q = &Queue{}
		}
		return &Line{Queue: q, Stops: make([]Stop, stops)}
	}
	all := &struct {
		line  Line
		queue Queue
		stops [1]Stop
		lines [1]*Line
		sums  [1]total
		mosts [1]int64
	}{}
	all.line = Line{Queue: &all.queue, Stops: all.stops[:]}
	all.queue.lines = all.lines[:0]
	all.queue.totals, all.queue.mosts = all.sums[:], all.mosts[:]
	return &all.line
}

// isOpen reports whether the gate of a line stops no request now.
func (ln *Line) isOpen(now Instant) bool {
	return ln.gate == nil || ln.gate.Open(now)
}

// A Stop ties a line to one of its buckets.
type Stop struct {
	Line   *Line
	Bucket *Bucket
	index  int     // of this stop in its line, and of its cost in a waiter
	lined  int     // where the bucket's lines have it
	pos    int     // where the bucket's stopped lines have it; -1: the line is not stopped there
	ready  Instant // as Limiter.TryLocked found it: when its first request can be paid
	short  bool    // and whether it is stopped there
}

// A Place is where a request stands in line.
type Place struct {
	Tag  int64 // its turn, where callers take turns
	Rank Instant
	seq  uint64
}

// Before reports whether p comes before other, in one line.
func (p *Place) Before(other *Place) bool {
	return p.Tag < other.Tag || p.Tag == other.Tag && p.earlier(other)
}

// earlier is the same by arrival and priority alone.
func (p *Place) earlier(other *Place) bool {
	return p.Rank < other.Rank || p.Rank == other.Rank && p.seq < other.seq
}

// Bounds say where a request stands in line, and for how long.
type Bounds struct {
	Place
	Arrived  Instant
	Expiry   Instant // the last at which it may be granted, by its MaxWait; never: none
	Deadline Instant // the first at which it may not, by its context; never: none
	respite  int64   // for how long it may wait for a response of a store, although expiry is earlier
}

// last returns the last instant at which a request may be granted.
func (b *Bounds) last() Instant { return max(b.Expiry, b.Arrived+b.respite) }

// tight returns the last instant at which a request may be granted, or an earlier one.
func (b *Bounds) tight() Instant { return min(b.Expiry, b.Deadline-1, shut-1) }

// A Waiter is a request in line.
type Waiter struct {
	Bounds
	parent, left, right *Waiter
	weight              uint32
	binding             uint16 // the stop that delays it, by its last plan
	Verdict             Verdict
	line                *Line
	costs               []int64  // by stop; behind them come sums and mosts
	inline              [6]int64 // room for all three where there are no more than two stops
	bound               Instant  // of w and of all below it; see findBound
	slope               int64    // of the line when the bound was found
	Passed              Instant  // when it could first have been passed over; never: not yet
	Due                 Instant  // when it would be granted, as it seemed on arrival
	At                  Instant  // when it was granted
	decided             chan struct{}
	Seat                *seat    // nil: no callers take turns where it waits
	Refusal             *Refusal // nil: it was not rejected
	by                  *Counts
}

// take stores what w costs, by stop.
func (w *Waiter) take(charges []Charge) {
	n, room := len(charges), w.inline[:]
	if 3*n > len(room) {
		room = make([]int64, 3*n)
	}
	w.costs = room[: n : 3*n]
	for i := range charges {
		w.costs[i] = charges[i].cost
	}
}

// paid returns what refunds of a granted w need, by stop. It takes the memory of sums, because w is in no line any more and there
// may be many waiters.
func (w *Waiter) paid() []int64 { return w.sums() }

// Stop returns the stop that delays w, or has delayed it.
func (w *Waiter) Stop() *Stop { return &w.line.Stops[w.binding] }

// charges returns what w was charged, once it is granted.
func (w *Waiter) charges() []Charge {
	charges := make([]Charge, len(w.costs))
	for i := range charges {
		b := w.line.Stops[i].Bucket
		charges[i] = Charge{Limit: b.Limit, Key: b.Key, bucket: b, cost: w.costs[i], paid: w.paid()[i]}
	}
	return charges
}

// Granted returns what remains of w, which was granted.
func (w *Waiter) Granted() *Paid {
	p := &Paid{Charges: w.charges(), Waited: time.Duration(w.At - w.Arrived), Mark: Mark{At: w.At}}
	if w.Seat != nil {
		p.Caller = w.Seat.caller
	}
	return p
}

// A Verdict is what has become of a request.
type Verdict uint8

const (
	Waiting Verdict = iota
	Granted
	Refused
	left    // its context was over first
	Unasked // nothing is decided: RateFor must be asked first
)

// ahead returns what is to be paid at a stop before a request in that place.
func (ln *Line) ahead(p *Place, stop int) int64 {
	var sum int64
	for w := ln.root; w != nil; {
		if !w.Before(p) {
			w = w.left
			continue
		}
		sum = meter.AddCount(sum, w.costs[stop])
		if w.left != nil {
			sum = meter.AddCount(sum, w.left.sums()[stop])
		}
		w = w.right
	}
	return sum
}

// insert puts w in its place.
func (ln *Line) insert(w *Waiter) {
	w.line, w.weight = ln, mix(w.seq)
	ln.size++
	if ln.First == nil || w.Before(&ln.First.Place) {
		ln.First = w
	}
	place := &ln.root
	for *place != nil {
		w.parent = *place
		if w.Before(&w.parent.Place) {
			place = &w.parent.left
		} else {
			place = &w.parent.right
		}
	}
	*place = w
	for w.parent != nil && w.parent.weight < w.weight {
		ln.rotate(w)
	}
	w.sum()
	c := climb{w.upTo(), w.all(), w.isRight()}
	for p := w.parent; p != nil; p = p.parent {
		p.gain(w)
		c.to(p)
		p.boundWith(w, c.upTo)
	}
}

// remove takes w out.
func (ln *Line) remove(w *Waiter) {
	first := ln.First == w
	if first {
		ln.First = w.Next()
	}
	ln.size--
	above, c := w.parent, climb{w.upTo(), w.all() - w.paced(), w.isRight()}
	for w.left != nil || w.right != nil {
		if w.right == nil || w.left != nil && w.left.weight > w.right.weight {
			ln.rotate(w.left)
		} else {
			ln.rotate(w.right)
		}
	}
	parent := w.parent
	ln.hang(parent, w, nil)
	for p := parent; p != above; p = p.parent {
		p.sum()
	}
	for p := above; p != nil; p = p.parent {
		known := p.lose(w)
		if !known {
			p.sum()
		}
		if first {
			continue // bounds are right, but earlier than they need be until pace finds them again
		}
		if c.to(p); known {
			p.boundWithout(w, c.upTo)
		}
	}
	w.parent = nil
}

// rotate lifts w into the place of its parent. Sums above w are left to the caller.
func (ln *Line) rotate(w *Waiter) {
	p := w.parent
	ln.hang(p.parent, p, w)
	if p.left == w {
		p.left, w.right = w.right, p
		if p.left != nil {
			p.left.parent = p
		}
	} else {
		p.right, w.left = w.left, p
		if p.right != nil {
			p.right.parent = p
		}
	}
	p.parent = w
	p.sum()
}

// hang puts w where old was below parent.
func (ln *Line) hang(parent, old, w *Waiter) {
	switch {
	case parent == nil:
		ln.root = w
	case parent.left == old:
		parent.left = w
	default:
		parent.right = w
	}
	if w != nil {
		w.parent = parent
	}
}

// clamp brings the costs at a stop down to most, of w and all below it.
func (w *Waiter) clamp(stop int, most int64) {
	if w == nil || w.mosts()[stop] <= most {
		return
	}
	w.left.clamp(stop, most)
	w.right.clamp(stop, most)
	if over := w.costs[stop] - most; over > 0 {
		w.line.Queue.reduced(stop, over)
		w.costs[stop] = most
	}
	w.sum()
}

// from returns the first request that is not before a place; nil: there is none.
func (ln *Line) from(p *Place) (first *Waiter) {
	for w := ln.root; w != nil; {
		if w.Before(p) {
			w = w.right
		} else {
			first, w = w, w.left
		}
	}
	return first
}

// isRight reports whether w is the right child of its parent.
func (w *Waiter) isRight() bool { return w.parent != nil && w.parent.right == w }

// Next returns the one after w, nil if w is the last.
func (w *Waiter) Next() *Waiter {
	if w.right != nil {
		for w = w.right; w.left != nil; w = w.left {
		}
		return w
	}
	for w.isRight() {
		w = w.parent
	}
	return w.parent
}

// mix scatters sequence numbers over the weights of a treap (the finalizer of Steele, Lea and Flood's SplitMix64).
func mix(seq uint64) uint32 {
	z := seq * 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return uint32(z >> 32)
}

// stopHeap orders the lines that are stopped at one bucket by the places of their first requests.
type stopHeap []*Stop

func (h stopHeap) Len() int           { return len(h) }
func (h stopHeap) Less(i, j int) bool { return h[i].Bucket.before(h[i].Line, h[j].Line) }
func (h stopHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].pos, h[j].pos = i, j }
func (h *stopHeap) Push(x any)        { s := x.(*Stop); s.pos = len(*h); *h = append(*h, s) }
func (h *stopHeap) Pop() any {
	old := *h
	s := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	s.pos = -1
	return s
}

// barred reports whether another line goes before this one here.
func (s *Stop) barred() bool {
	if len(s.Bucket.Stopped) == 0 {
		return false
	}
	top := s.Bucket.Stopped[0].Line
	return top != s.Line && s.Bucket.before(top, s.Line)
}

// set notes whether the line is stopped at this bucket.
func (s *Stop) set(stopped bool) {
	switch {
	case stopped && s.pos < 0:
		heap.Push(&s.Bucket.Stopped, s)
	case !stopped && s.pos >= 0:
		heap.Remove(&s.Bucket.Stopped, s.pos)
	default:
		return
	}
	if g, ok := s.Bucket.Meter.(*GateBucket); ok {
		g.list(stoppedGates, s.Bucket, len(s.Bucket.Stopped) > 0)
	}
}

// before reports whether the first request of a line goes before that of another one at this bucket. Where that is not a matter
// of rank alone, lines that have been passed over for too long come first, by rank, so that no two of them bar each other.
func (b *Bucket) before(ln, other *Line) bool {
	if b.Limit.Fair && (ln.Starved || other.Starved) {
		if ln.Starved != other.Starved {
			return ln.Starved
		}
		return ln.First.Place.earlier(&other.First.Place)
	}
	return b.precedes(&ln.First.Place, &other.First.Place)
}

// precedes is the same for requests.
func (b *Bucket) precedes(p, other *Place) bool {
	if b.Limit.Fair {
		return p.Before(other)
	}
	return p.earlier(other)
}

// bars reports whether a request that is stopped here goes before one in that place, which has just come.
func (b *Bucket) bars(p *Place) bool {
	if b.Extra == nil || len(b.Stopped) == 0 {
		return false
	}
	top := b.Stopped[0].Line
	return top.Starved && b.Limit.Fair || b.precedes(&top.First.Place, p)
}

// cost returns what the first request of the line costs here.
func (s *Stop) cost() int64 { return s.Line.First.costs[s.index] }

// readyAt returns when the first request of the line can be paid here.
func (s *Stop) readyAt() Instant { return s.Bucket.Ready(0, 0, s.cost()) }
