package order

import "github.com/httpthrottle/throttle/internal/meter"

// A queue holds the requests of a lane that are of one caller, in order.
//
// It is a treap (Seidel and Aragon, "Randomized Search Trees", 1996): a search tree by place that is a heap by a random weight,
// in which each request knows the costs of all below it. So a request finds the costs before it in logarithmic time, whatever its
// priority, and is removed as fast.
type queue struct {
	entry  // in queues of the lane, by the turn of the caller and the first request
	lane   *lane
	caller *caller // nil: callers take no turns
	root   *Waiter
	first  *Waiter
	nth    int // in queues of the line
	ofNth  int // in queues of the caller

	pacer  int   // the stop at which costs count for the bounds of its requests
	slope  int64 // of bounds that are found from now on, in ns for each token
	cursor cursor
}

// tag returns the turn of its first request.
func (q *queue) tag() int64 {
	if q.caller == nil {
		return 0
	}
	return q.caller.tag
}

// take copies what w costs to where it stays, with a cost of 1 for its gate. Sums and mosts come behind.
func (w *Waiter) take() {
	n := w.stops()
	room := w.room[:]
	if 3*n > len(room) {
		room = make([]int64, 3*n)
	}
	room[n-1] = 1
	copy(room[:len(w.At)], w.Costs)
	w.Costs = room[: n : 3*n]
}

// sums returns what w and all below it cost, by stop.
func (w *Waiter) sums() []int64 {
	n := len(w.Costs)
	return w.Costs[n : 2*n : 3*n]
}

// mosts returns the largest costs of w and of all below it, by stop.
func (w *Waiter) mosts() []int64 {
	n := len(w.Costs)
	return w.Costs[2*n : 3*n]
}

// addCounts adds counts to sums.
func addCounts(sums, counts []int64) {
	for i := range sums {
		sums[i] = meter.AddCount(sums[i], counts[i])
	}
}

// addAhead adds to sums what the first requests cost, as far as goes reports true. It is given a request and what those before it
// cost at one of the stops.
func (q *queue) addAhead(sums []int64, stop int, goes func(w *Waiter, before int64) bool) {
	before := int64(0)
	for w := q.root; w != nil; {
		upTo := before
		if w.left != nil {
			upTo = meter.AddCount(upTo, w.left.sums()[stop])
		}
		if !goes(w, upTo) {
			w = w.left
			continue
		}
		if w.left != nil {
			addCounts(sums, w.left.sums())
		}
		addCounts(sums, w.Costs)
		before, w = meter.AddCount(upTo, w.Costs[stop]), w.right
	}
}

// insert puts w in its place.
func (q *queue) insert(w *Waiter) {
	w.queue, w.weight = q, mix(w.key.seq)
	w.parent, w.left, w.right = nil, nil, nil
	if q.first == nil || w.key.Before(q.first.key) {
		q.first = w
	}
	place := &q.root
	for *place != nil {
		w.parent = *place
		if w.key.Before(w.parent.key) {
			place = &w.parent.left
		} else {
			place = &w.parent.right
		}
	}
	*place = w
	for w.parent != nil && w.parent.weight < w.weight {
		q.rotate(w)
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
func (q *queue) remove(w *Waiter) {
	first := q.first == w
	if first {
		q.first = w.next()
	}
	above, c := w.parent, climb{w.upTo(), w.all() - w.paced(), w.isRight()}
	for w.left != nil || w.right != nil {
		if w.right == nil || w.left != nil && w.left.weight > w.right.weight {
			q.rotate(w.left)
		} else {
			q.rotate(w.right)
		}
	}
	parent := w.parent
	q.hang(parent, w, nil)
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
func (q *queue) rotate(w *Waiter) {
	p := w.parent
	q.hang(p.parent, p, w)
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
func (q *queue) hang(parent, old, w *Waiter) {
	switch {
	case parent == nil:
		q.root = w
	case parent.left == old:
		parent.left = w
	default:
		parent.right = w
	}
	if w != nil {
		w.parent = parent
	}
}

// isRight reports whether w is the right child of its parent.
func (w *Waiter) isRight() bool { return w.parent != nil && w.parent.right == w }

// next returns the request after w, nil if w is the last.
func (w *Waiter) next() *Waiter {
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

// Together returns what the first requests in the queue of w cost at its i-th point, and the last of them: as many of them as cost at most
// that much together, but one more than cost at most least. It returns 0 and nil if all together cost at most least.
func (w *Waiter) Together(i int, least, most int64) (sum int64, last *Waiter) {
	var before int64 // what those before n and all below it cost
	var passed *Waiter
	for n := w.queue.root; n != nil; {
		through := meter.AddCount(before, n.Costs[i])
		if n.left != nil {
			through = meter.AddCount(through, n.left.sums()[i])
		}
		if through > least && through > most {
			sum, last, n = through, n, n.left // the least that is enough, unless more is found to its left
		} else {
			before, passed, n = through, n, n.right
		}
	}
	if before > least {
		return before, passed
	}
	return sum, last
}

// Largest returns the largest cost in the queue of w at its i-th point.
func (w *Waiter) Largest(i int) int64 { return w.queue.root.mosts()[i] }

// from returns the first request that is not before a place; nil: there is none.
func (q *queue) from(k key) (first *Waiter) {
	for w := q.root; w != nil; {
		if w.key.Before(k) {
			w = w.right
		} else {
			first, w = w, w.left
		}
	}
	return first
}

// sum brings what w knows of all below it up to date with those right below it.
func (w *Waiter) sum() {
	sums, mosts := w.sums(), w.mosts()
	copy(sums, w.Costs)
	copy(mosts, w.Costs)
	for _, below := range [2]*Waiter{w.left, w.right} {
		if below != nil {
			addCounts(sums, below.sums())
			for i, most := range below.mosts() {
				mosts[i] = max(mosts[i], most)
			}
		}
	}
	w.findBound()
}

// gain counts another request below w.
func (w *Waiter) gain(more *Waiter) {
	addCounts(w.sums(), more.Costs)
	for i, mosts := 0, w.mosts(); i < len(mosts); i++ {
		mosts[i] = max(mosts[i], more.Costs[i])
	}
}

// lose subtracts the costs of a request without a look at the others: they are seldom in the caches of the processor. It reports
// false if it does not know what remains, because the request was the largest, or the sum is at its bound.
func (w *Waiter) lose(less *Waiter) bool {
	sums, mosts := w.sums(), w.mosts()
	for i, cost := range less.Costs {
		if sums[i] >= 2*meter.MaxCount || cost == mosts[i] && w.Costs[i] < cost {
			return false
		}
	}
	for i, cost := range less.Costs {
		sums[i] -= cost
	}
	return true
}

// clamp brings the costs at a stop down to most, of w and all below it.
func (w *Waiter) clamp(stop int, most int64) {
	if w == nil || w.mosts()[stop] <= most {
		return
	}
	w.left.clamp(stop, most)
	w.right.clamp(stop, most)
	w.Costs[stop] = min(w.Costs[stop], most)
	w.sum()
}

// Clamp brings the costs of all requests at a point down to the largest that it can ever pay.
func (o *Order) Clamp(p *Point) {
	for _, s := range p.stops {
		for _, q := range s.line.queues {
			if s.lane == nil || q.lane == s.lane {
				q.root.clamp(s.index, p.Most())
			}
		}
	}
	o.Touch(p)
}

// mix scatters sequence numbers over the weights of a treap (the finalizer of Steele, Lea and Flood's SplitMix64).
func mix(seq uint64) uint32 {
	z := seq * 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return uint32(z >> 32)
}
