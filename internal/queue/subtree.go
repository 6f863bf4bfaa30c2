package queue

import "github.com/httpthrottle/throttle/internal/meter"

// This file is about what a request in the tree of a line knows of its subtree, which is itself and all below it.

// sums returns the costs of w and of all below it, by stop.
func (w *Waiter) sums() []int64 {
	n := len(w.costs)
	return w.costs[n : 2*n]
}

// mosts returns the largest costs of w and of all below it, by stop.
func (w *Waiter) mosts() []int64 {
	n := len(w.costs)
	return w.costs[2*n : 3*n]
}

// sum brings what w knows of all below it up to date with those right below it. Its frame is small: waiters join on a small stack.
func (w *Waiter) sum() {
	n := len(w.costs)
	for i := range n {
		w.costs[:3*n][n+i], w.costs[:3*n][2*n+i] = w.costs[i], w.costs[i]
	}
	if w.left != nil {
		w.addBelow(w.left)
	}
	if w.right != nil {
		w.addBelow(w.right)
	}
	w.findBound()
}

// addBelow counts what is below w on one side.
func (w *Waiter) addBelow(below *Waiter) {
	n := len(w.costs)
	all, more := w.costs[:3*n], below.costs[:3*n]
	for i := n; i < 2*n; i++ {
		all[i], all[i+n] = meter.AddCount(all[i], more[i]), max(all[i+n], more[i+n])
	}
}

// gain counts another request below w.
func (w *Waiter) gain(more *Waiter) {
	n := len(w.costs)
	all := w.costs[:3*n]
	for i, cost := range more.costs {
		all[n+i], all[2*n+i] = meter.AddCount(all[n+i], cost), max(all[2*n+i], cost)
	}
}

// lose subtracts the costs of a request without a look at the others: they are seldom in the caches of the processor. It reports
// false if it cannot tell what remains, because the request was the largest, or the sum is at its bound.
func (w *Waiter) lose(less *Waiter) bool {
	n := len(w.costs)
	all := w.costs[:3*n]
	for i, cost := range less.costs {
		if all[n+i] >= 2*meter.MaxCount || cost == all[2*n+i] && all[i] < cost {
			return false
		}
	}
	for i, cost := range less.costs {
		all[n+i] -= cost
	}
	return true
}

// paced returns what w costs at the stop where costs count for bounds.
func (w *Waiter) paced() int64 { return w.costs[w.line.pacer] }

// all returns the same of w and of all below it.
func (w *Waiter) all() int64 { return w.sums()[w.line.pacer] }

// upTo returns the same of w and of those before it in its subtree.
func (w *Waiter) upTo() (sum int64) {
	if w.left != nil {
		sum = w.left.all()
	}
	return sum + w.paced()
}

// mostRise is the most by which a bound rises from the first request to the last, in ns: more than a year. So no bound is before
// -mostRise, because requests may wait until 0 at least, and all of this fits an int64.
const mostRise = 1 << 55

// choosePacer has costs count at the stop where the tokens of the first request take the longest to come in.
func (ln *Line) choosePacer(charges []Charge) {
	longest := -1.
	for i := range charges {
		if m, ok := charges[i].bucket.Meter.(meter.Steady); ok {
			if d := float64(m.Interval()) * float64(charges[i].cost); d > longest {
				longest, ln.pacer, ln.slope = d, i, m.Interval()
			}
		}
	}
}

// pace notes how fast tokens come in now, and finds the bounds of all subtrees again that first requests have left. Other bounds that
// were found before are right, but may be earlier than they need be.
func (ln *Line) pace() {
	if m, ok := ln.Stops[ln.pacer].Bucket.Meter.(meter.Steady); ok {
		ln.slope = m.Interval()
	}
	for w := ln.First; w != nil; w = w.parent {
		w.findBound()
	}
}

// findBound finds the bound of a subtree, given those right below: each request may wait until bound + slope · (what it costs and those
// before it in the subtree). It rises with what is to be paid because in a queue that is full, where all have the same MaxWait, each
// may wait for about as long as it takes to pay those before it.
func (w *Waiter) findBound() {
	if w.slope = w.line.slope; !w.mayRise() {
		w.slope = 0
	}
	upTo := w.upTo()
	w.bound = w.tight() - w.slope*upTo
	if w.left != nil {
		w.bound = min(w.bound, w.left.boundAt(w.slope))
	}
	if w.right != nil {
		w.bound = min(w.bound, w.right.boundAt(w.slope)-w.slope*upTo)
	}
	w.bound = max(w.bound, -mostRise)
}

// mayRise reports whether the bound may rise as fast as it does.
func (w *Waiter) mayRise() bool { return float64(w.slope)*float64(w.all()) <= mostRise }

// boundAt returns a bound for another slope.
func (w *Waiter) boundAt(slope int64) Instant {
	return w.bound + min(0, w.slope-slope)*w.all()
}

// boundWith brings the bound up to date once a request has joined below w, given the costs up to it.
func (w *Waiter) boundWith(more *Waiter, upTo int64) {
	if !w.mayRise() {
		w.findBound()
		return
	}
	if upTo < w.all() { // others come after it
		w.bound -= w.slope * more.paced()
	}
	w.bound = max(min(w.bound, more.tight()-w.slope*upTo), -mostRise)
}

// boundWithout does the same once a request has left.
func (w *Waiter) boundWithout(less *Waiter, upTo int64) {
	if less.tight()-w.slope*upTo == w.bound && (w.slope > 0 || w.tight() > w.bound) { // no other may have been as tight
		w.findBound()
	}
}

// A climb goes from a request up to the root.
type climb struct {
	upTo  int64 // the costs up to the request, in the subtree that it has come to
	all   int64 // the costs of that subtree, once the request has joined or left
	right bool  // it is the right one of its parent
}

// to goes on to the parent.
func (c *climb) to(parent *Waiter) {
	all := parent.all()
	if c.right {
		c.upTo += all - c.all
	}
	c.all, c.right = all, parent.isRight()
}
