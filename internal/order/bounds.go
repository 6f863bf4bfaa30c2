package order

// This file is about until when the requests of a queue can wait, found without a look at each of them.
//
// The bound of a subtree says: each request in it may wait until bound + slope · (what it costs and those before it in the
// subtree). It rises with what is to be paid because in a queue that is full, where all have the same MaxWait, each may wait for
// about as long as it takes to pay those before it.

// mostRise is the most by which a bound rises from the first request to the last, in ns: more than a year. So no bound is before
// -mostRise, because requests may wait until 0 at least, and all of this fits an int64.
const mostRise = 1 << 55

// choosePacer has costs count at the stop where the tokens of the first request take the longest to come in.
func (q *queue) choosePacer(w *Waiter) {
	if q.lane.line.elsewhere { // nothing is certain to be paid before
		return
	}
	longest := 0.
	for i, p := range w.At {
		if d := float64(p.Interval()) * float64(w.Costs[i]); d > longest {
			longest, q.pacer, q.slope = d, i, p.Interval()
		}
	}
}

// pace notes how fast tokens come in now, and finds the bounds of all subtrees again that first requests have left. Other bounds
// that were found before are right, but may be earlier than they need be.
func (q *queue) pace() {
	if ln := q.lane.line; !ln.elsewhere {
		q.slope = ln.points[q.pacer].Interval()
	}
	for w := q.first; w != nil; w = w.parent {
		w.findBound()
	}
}

// paced returns what w costs at the stop where costs count for bounds.
func (w *Waiter) paced() int64 { return w.Costs[w.queue.pacer] }

// all returns what w and all below it cost there.
func (w *Waiter) all() int64 { return w.sums()[w.queue.pacer] }

// upTo returns what w and those before it in its subtree cost there.
func (w *Waiter) upTo() (sum int64) {
	if w.left != nil {
		sum = w.left.all()
	}
	return sum + w.paced()
}

// tight returns the last instant at which w may be granted, or an earlier one.
func (w *Waiter) tight() Instant { return min(w.Last, Never-2) }

// findBound finds the bound of a subtree, given those right below.
func (w *Waiter) findBound() {
	if w.slope = w.queue.slope; !w.mayRise() {
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

// boundWithout brings it up to date once a request has left.
func (w *Waiter) boundWithout(less *Waiter, upTo int64) {
	if less.tight()-w.slope*upTo == w.bound && (w.slope > 0 || w.tight() > w.bound) { // no other may have been as tight
		w.findBound()
	}
}

// A climb leads from a request up to the root.
type climb struct {
	upTo  int64 // the costs up to the request, in the subtree that it has come to
	all   int64 // the costs of that subtree, once the request has joined or left
	right bool  // it is the right one of its parent
}

// to continues at the parent.
func (c *climb) to(parent *Waiter) {
	all := parent.all()
	if c.right {
		c.upTo += all - c.all
	}
	c.all, c.right = all, parent.isRight()
}
