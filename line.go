package throttle

import (
	"container/heap"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A line holds the requests that wait for the same set of buckets, in order of rank.
//
// It is a treap (Seidel and Aragon, "Randomized Search Trees", 1996): a search tree by rank that is a heap by a random
// weight, in which each request knows the costs of all below it. So a request finds the costs
// before it in logarithmic time, whatever its priority, and leaves the line as fast.
type line struct {
	id      string
	queue   *queue
	stops   []stop
	root    *waiter
	first   *waiter
	size    int
	nth     int  // in its queue
	vocal   bool // its gate may be closed, or close without notice: see party.vocal
	starved bool // its first request has been passed over for too long, and bars all its buckets
	below   bool // of all its requests: they leave a part of some limits to urgent ones
}

// isOpen reports whether the gate of a line stops no request now.
func (ln *line) isOpen(now instant) bool {
	g, ok := ln.stops[len(ln.stops)-1].bucket.meter.(*gateBucket)
	return !ok || g.Open(now)
}

// A stop ties a line to one of its buckets.
type stop struct {
	line   *line
	bucket *bucket
	index  int     // of this stop in its line, and of its cost in a waiter
	lined  int     // where the bucket's lines have it
	pos    int     // where the bucket's stopped lines have it; -1: the line is not stopped there
	ready  instant // as Limiter.tryLocked found it: when its first request can be paid
	short  bool    // and whether it is stopped there
}

// A place is where a request stands in line.
type place struct {
	tag   int64 // its turn, where callers take turns
	rank  instant
	seq   uint64
	below bool // it leaves a part of some limits to urgent requests
}

// before reports whether p comes before other, in one line.
func (p *place) before(other *place) bool {
	return p.tag < other.tag || p.tag == other.tag && p.earlier(other)
}

// earlier is the same by arrival and priority alone.
func (p *place) earlier(other *place) bool {
	return p.rank < other.rank || p.rank == other.rank && p.seq < other.seq
}

// Bounds say where a request stands in line, and for how long.
type bounds struct {
	place
	arrived  instant
	expiry   instant // the last at which it may be granted, by its MaxWait; never: none
	deadline instant // the first at which it may not, by its context; never: none
	respite  int64   // for how long it may wait for a response of a store, although expiry is earlier
}

// last returns the last instant at which a request may be granted.
func (b *bounds) last() instant { return max(b.expiry, b.arrived+b.respite) }

// tight returns an instant at which a request may certainly be granted, if it may wait until then.
func (b *bounds) tight() instant { return min(b.expiry, b.deadline-1, shut-1) }

// A waiter is a request in line.
type waiter struct {
	bounds
	parent, left, right *waiter
	weight              uint32
	binding             uint16 // the stop because of which it waits, as it seemed when it was planned last
	verdict             verdict
	line                *line
	costs               []int64  // by stop; behind them come sums and mosts
	inline              [6]int64 // room for all three where there are no more than two stops
	tightest            instant  // the earliest limit of its own and of all below it
	passed              instant  // when it could first have been passed over; never: not yet
	due                 instant  // when it would be granted, as it seemed on arrival
	at                  instant  // when it was granted
	decided             chan struct{}
	seat                *seat    // nil: no callers take turns where it waits
	refusal             *refusal // nil: it was not rejected
	by                  *counts
}

// take stores what w costs, by stop.
func (w *waiter) take(charges []charge) {
	n, room := len(charges), w.inline[:]
	if 3*n > len(room) {
		room = make([]int64, 3*n)
	}
	w.costs = room[: n : 3*n]
	for i := range charges {
		w.costs[i] = charges[i].cost
	}
}

// sums returns the costs of w and of all below it, by stop.
func (w *waiter) sums() []int64 {
	n := len(w.costs)
	return w.costs[n : 2*n]
}

// mosts returns the largest costs of w and of all below it, by stop.
func (w *waiter) mosts() []int64 {
	n := len(w.costs)
	return w.costs[2*n : 3*n]
}

// paid returns what refunds of a granted w need, by stop. It takes the memory of sums, because w is in no line any more and there
// may be many waiters.
func (w *waiter) paid() []int64 { return w.sums() }

// stop returns the stop because of which w waits, or has waited.
func (w *waiter) stop() *stop { return &w.line.stops[w.binding] }

// charges returns what w was charged, once it is granted.
func (w *waiter) charges() []charge {
	charges := make([]charge, len(w.costs))
	for i := range charges {
		b := w.line.stops[i].bucket
		charges[i] = charge{limit: b.limit, key: b.key, bucket: b, cost: w.costs[i], paid: w.paid()[i]}
	}
	return charges
}

// granted returns w as a request that was granted.
func (w *waiter) granted() *pending {
	p := &pending{charges: w.charges(), waited: time.Duration(w.at - w.arrived), mark: mark{at: w.at}}
	if w.seat != nil {
		p.caller = w.seat.caller
	}
	return p
}

// A verdict is what has become of a request.
type verdict uint8

const (
	waiting verdict = iota
	granted
	refused
	left    // its context was over first
	unasked // nothing is decided: RateFor must be asked first
)

// ahead returns what is to be paid at a stop before a request in that place.
func (ln *line) ahead(p *place, stop int) int64 {
	var sum int64
	for w := ln.root; w != nil; {
		if !w.before(p) {
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
func (ln *line) insert(w *waiter) {
	w.line, w.weight = ln, mix(w.seq)
	ln.size++
	if ln.first == nil || w.before(&ln.first.place) {
		ln.first = w
	}
	place := &ln.root
	for *place != nil {
		w.parent = *place
		if w.before(&w.parent.place) {
			place = &w.parent.left
		} else {
			place = &w.parent.right
		}
	}
	*place = w
	for w.parent != nil && w.parent.weight < w.weight {
		ln.rotate(w)
	}
	for p := w; p != nil; p = p.parent {
		p.sum()
	}
}

// remove takes w out.
func (ln *line) remove(w *waiter) {
	if ln.first == w {
		ln.first = w.next()
	}
	ln.size--
	for w.left != nil || w.right != nil {
		if w.right == nil || w.left != nil && w.left.weight > w.right.weight {
			ln.rotate(w.left)
		} else {
			ln.rotate(w.right)
		}
	}
	parent := w.parent
	ln.hang(parent, w, nil)
	for p := parent; p != nil; p = p.parent {
		p.sum()
	}
	w.parent = nil
}

// rotate lifts w into the place of its parent. Sums above w are left to the caller.
func (ln *line) rotate(w *waiter) {
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
func (ln *line) hang(parent, old, w *waiter) {
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

// sum brings what w knows of all below it up to date with those right below it. Its frame is small: waiters join on a small stack.
func (w *waiter) sum() {
	n, tightest := len(w.costs), w.tight()
	for i := range n {
		w.costs[:3*n][n+i], w.costs[:3*n][2*n+i] = w.costs[i], w.costs[i]
	}
	if w.left != nil {
		tightest = min(tightest, w.left.tightest)
		w.addBelow(w.left)
	}
	if w.right != nil {
		tightest = min(tightest, w.right.tightest)
		w.addBelow(w.right)
	}
	w.tightest = tightest
}

// addBelow counts what is below w on one side.
func (w *waiter) addBelow(below *waiter) {
	n := len(w.costs)
	all, more := w.costs[:3*n], below.costs[:3*n]
	for i := n; i < 2*n; i++ {
		all[i], all[i+n] = meter.AddCount(all[i], more[i]), max(all[i+n], more[i+n])
	}
}

// clamp brings the costs at a stop down to most, of w and all below it.
func (w *waiter) clamp(stop int, most int64) {
	if w == nil || w.mosts()[stop] <= most {
		return
	}
	w.left.clamp(stop, most)
	w.right.clamp(stop, most)
	if over := w.costs[stop] - most; over > 0 {
		w.line.queue.reduced(w, stop, over)
		w.costs[stop] = most
	}
	w.sum()
}

// from returns the first request that is not before a place; nil: there is none.
func (ln *line) from(p *place) (first *waiter) {
	for w := ln.root; w != nil; {
		if w.before(p) {
			w = w.right
		} else {
			first, w = w, w.left
		}
	}
	return first
}

// next returns the one after w, nil if w is the last.
func (w *waiter) next() *waiter {
	if w.right != nil {
		for w = w.right; w.left != nil; w = w.left {
		}
		return w
	}
	for w.parent != nil && w.parent.right == w {
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
type stopHeap []*stop

func (h stopHeap) Len() int           { return len(h) }
func (h stopHeap) Less(i, j int) bool { return h[i].bucket.before(h[i].line, h[j].line) }
func (h stopHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].pos, h[j].pos = i, j }
func (h *stopHeap) Push(x any)        { s := x.(*stop); s.pos = len(*h); *h = append(*h, s) }
func (h *stopHeap) Pop() any {
	old := *h
	s := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	s.pos = -1
	return s
}

// barred reports whether another line goes before this one here.
func (s *stop) barred() bool {
	if len(s.bucket.stopped) == 0 {
		return false
	}
	top := s.bucket.stopped[0].line
	return top != s.line && s.bucket.before(top, s.line)
}

// set notes whether the line is stopped at this bucket.
func (s *stop) set(stopped bool) {
	switch {
	case stopped && s.pos < 0:
		heap.Push(&s.bucket.stopped, s)
	case !stopped && s.pos >= 0:
		heap.Remove(&s.bucket.stopped, s.pos)
	default:
		return
	}
	if g, ok := s.bucket.meter.(*gateBucket); ok {
		g.list(stoppedGates, s.bucket, len(s.bucket.stopped) > 0)
	}
}

// before reports whether the first request of a line goes before that of another one at this bucket. Where that is not a matter
// of rank alone, lines that have been passed over for too long come first, by rank, so that no two of them bar each other.
func (b *bucket) before(ln, other *line) bool {
	if b.limit.ordered() && (ln.starved || other.starved) {
		if ln.starved != other.starved {
			return ln.starved
		}
		return ln.first.place.earlier(&other.first.place)
	}
	return b.precedes(&ln.first.place, &other.first.place)
}

// precedes is the same for requests.
func (b *bucket) precedes(p, other *place) bool {
	switch {
	case p.below != other.below && b.limit.ordered():
		return other.below
	case b.limit.fair:
		return p.before(other)
	}
	return p.earlier(other)
}

// bars reports whether a request that is stopped here goes before one in that place, which has just come.
func (b *bucket) bars(p *place) bool {
	if b.extra == nil || len(b.stopped) == 0 {
		return false
	}
	top := b.stopped[0].line
	return top.starved && b.limit.ordered() || b.precedes(&top.first.place, p)
}

// cost returns what the first request of the line costs here.
func (s *stop) cost() int64 { return s.line.first.costs[s.index] }

// readyAt returns when the first request of the line can be paid here.
func (s *stop) readyAt() instant { return s.bucket.readyFor(s.line.below, s.cost()) }
