package queue

import (
	"container/heap"
	"math"

	"github.com/httpthrottle/throttle/internal/meter"
)

// This file judges waiting requests again, after a change that may make some of them too late. It goes in order, so that a
// rejected request delays no other: the first that is too late is rejected, until none is.
//
// A line skips a subtree if the plans of the requests there meet their bound. The bound rises with what is to be paid, as the plans
// do, so to reject k of n requests visits O(k log n) of them, also in a queue that is full because all requests have the same
// MaxWait. It rises at the rate of the time at which it was found: if the rate has changed by a fraction f since, subtrees of more
// than 1/f requests without time to spare are visited, and their bounds found again. It does not rise at windows, where tokens come
// in all at once, nor at limits other than the slowest of a line: there the requests of a subtree are visited if one of them cannot
// wait until all are paid.
//
// If many requests must be visited, the work goes in pieces between which others have the lock.

const (
	judgeAtOnce   = 2_000 // so many requests are judged under one lock: about 0.5 ms
	rejectionTake = 30    // times as long as to judge a request
)

// firstPlace is before those of all requests.
func firstPlace() Place { return Place{Tag: math.MinInt64, Rank: math.MinInt64} }

// lastPlace is after those of all: what bars any request bars one there.
func lastPlace() *Place { return &Place{Tag: math.MaxInt64, Rank: math.MaxInt64} }

// judgeAgainLocked notes that all requests of a queue must be judged.
func (l *Core) judgeAgainLocked(q *Queue) {
	if !q.unjudged {
		q.unjudged = true
		l.unjudged = append(l.unjudged, q)
	}
	q.from = firstPlace()
}

// judgeLocked judges requests that must be, as many as one lock is held for. Where it leaves some, the caller frees Mu by
// UnlockJudged.
func (l *Core) judgeLocked(now Instant) {
	if len(l.unjudged) == 0 {
		return
	}
	left := l.AtOnce // allocated
	for len(l.unjudged) > 0 {
		q := l.unjudged[0]
		if !l.judgeQueueLocked(q, now, &left) {
			return
		}
		q.unjudged = false
		l.unjudged[0], l.unjudged = nil, l.unjudged[1:]
	}
	l.unjudged = nil
}

// UnlockJudged frees Mu once all requests are judged that must be.
func (l *Core) UnlockJudged() {
	for len(l.unjudged) > 0 {
		l.Mu.Unlock()
		l.Pause()
		l.Mu.Lock()
		now := l.NowLocked()
		l.DueLocked(now)
		l.judgeLocked(now)
		l.ServeLocked(now)
	}
	l.Mu.Unlock()
}

// judgeQueueLocked goes on with a queue, and reports whether it came to the end.
func (l *Core) judgeQueueLocked(q *Queue, now Instant, left *int) (done bool) {
	j := judge{queue: q, now: now, left: left}
	if j.meetQueue() {
		return true
	}
	q.look()
	j.gather()
	switch {
	case j.meetAll():
		return true
	case len(q.lines) == 1:
		return l.judgeLineLocked(&j)
	}
	return l.judgeLinesLocked(&j)
}

// A judge judges the requests of one queue.
type judge struct {
	queue *Queue
	now   Instant
	left  *int // how many more may be judged under this lock

	open   []int64 // by stop: what all cost in lines with open gates
	late   *Waiter // the first that must be rejected
	due    Instant // when it could be granted
	stop   *Stop   // because of this stop
	reason reason
}

// gather adds up what all requests cost in lines with open gates.
func (j *judge) gather() {
	j.open = make([]int64, j.queue.stops()+1) // one more for a gate
	for _, ln := range j.queue.lines {
		if ln.isOpen(j.now) {
			addCounts(j.open, ln.root.sums()[:j.queue.stops()])
		}
	}
}

// meet reports whether all requests of the subtree of n can certainly be granted in time, given what is to be paid until then.
func (j *judge) meet(n *Waiter, all []int64) bool {
	for i := range n.line.Stops {
		s := &n.line.Stops[i]
		plan := func(ahead, cost int64) Instant {
			return s.Bucket.planLocked(j.queue, s.Line, lastPlace(), ahead, cost, j.now)
		}
		switch {
		case i != s.Line.pacer || n.slope == 0:
			if plan(all[i], n.mosts()[i]) > n.bound {
				return false
			}
		case n.mosts()[i] > s.Bucket.Meter.Most(): // it is never paid
			return false
		default: // plans are convex: if they meet the bound at both ends, they do so between them
			if plan(all[i]-n.all(), 1) > n.bound+n.slope || plan(all[i]-1, 1) > n.bound+n.slope*n.all() {
				return false
			}
		}
	}
	return true
}

// meetQueue is the same for all lines, without looking at them.
func (j *judge) meetQueue() bool {
	q := j.queue
	if q.Vocal > 0 || q.tightest < j.now || q.from != firstPlace() {
		return q.size == 0
	}
	for i := range q.stops() {
		if q.size > 0 && q.lines[0].Stops[i].Bucket.planLocked(q, nil, lastPlace(), q.totals[i].count(), q.mosts[i], j.now) > q.tightest {
			return false
		}
	}
	return true
}

// meetAll is the same for all lines, one by one.
func (j *judge) meetAll() bool {
	if j.queue.from != firstPlace() {
		return false // it did not before
	}
	var all []int64
	for _, ln := range j.queue.lines {
		all = append(all[:0], j.open...)
		for i := range ln.Stops {
			if i >= j.queue.stops() || !ln.isOpen(j.now) {
				all[i] = meter.AddCount(all[i], ln.root.sums()[i])
			}
		}
		if !j.meet(ln.root, all) {
			if ln.pace(); !j.meet(ln.root, all) {
				return false
			}
		}
	}
	return true
}

// convict judges w, given what is ahead of it. It reports true if w must be rejected or there is no time left to judge it.
func (j *judge) convict(w *Waiter, ahead []int64) bool {
	j.late = nil
	if *j.left <= 0 {
		j.queue.from = w.Place
		return true
	}
	*j.left--
	j.due, j.stop = w.planLocked(ahead, j.now)
	if j.reason = w.Judge(j.due, j.now, j.stop.Bucket); j.reason != 0 {
		j.late = w
		return true
	}
	w.binding = uint16(j.stop.index)
	return false
}

// rejectLateLocked rejects the request that is too late.
func (l *Core) rejectLateLocked(j *judge) {
	*j.left -= rejectionTake
	j.queue.from = j.late.Place
	l.RejectLocked(j.late, j.stop, j.reason, j.due, j.now)
}

// judgeLineLocked judges the requests of the only line.
func (l *Core) judgeLineLocked(j *judge) (done bool) {
	ln := j.queue.lines[0]
	n := len(ln.Stops)
	room := make([]int64, 2*n) // for what is ahead of a request, and for what is to be paid until then
	ahead, all := room[:n], room[n:]
	for w := ln.from(&j.queue.from); w != nil; w = ln.from(&j.queue.from) {
		for i := range ahead {
			ahead[i] = ln.ahead(&w.Place, i)
		}
		if !j.search(w, ahead, all) {
			return true
		}
		if j.late == nil {
			return false
		}
		l.rejectLateLocked(j)
	}
	return true
}

// search looks for the first request from w on that convict reports, given what is ahead of w. Bounds that did not do are found
// again.
func (j *judge) search(w *Waiter, ahead, all []int64) bool {
	for !j.convict(w, ahead) {
		addCounts(ahead, w.costs)
		if w.right != nil && !j.skip(w.right, ahead, all) {
			for w = w.right; w.left != nil && !j.skip(w.left, ahead, all); {
				w = w.left
			}
			continue
		}
		for ; w.isRight(); w = w.parent {
			w.findBound()
		}
		w.findBound()
		if w = w.parent; w == nil {
			return false
		}
	}
	return true
}

// skip passes n and those below it, if all of them meet their bounds. It adds what they cost to ahead.
func (j *judge) skip(n *Waiter, ahead, all []int64) bool {
	copy(all, ahead)
	addCounts(all, n.sums())
	if !j.meet(n, all) {
		return false
	}
	copy(ahead, all)
	return true
}

// addCounts adds counts to sums.
func addCounts(sums, counts []int64) {
	for i, n := range counts {
		sums[i] = meter.AddCount(sums[i], n)
	}
}

// judgeLinesLocked judges the requests of several lines, all of them from queue.from on.
func (l *Core) judgeLinesLocked(j *judge) (done bool) {
	m := j.merge()
	for len(m.next) > 0 {
		w := m.next[0]
		follower := w.Next()
		if j.convict(w, m.ahead(w)) {
			if j.late == nil {
				return false
			}
			if l.rejectLateLocked(j); w.Seat != nil { // that may have moved others
				m = j.merge()
				continue
			}
		} else {
			m.pass(w)
		}
		if follower != nil {
			m.next[0] = follower
			heap.Fix(&m.next, 0)
		} else {
			heap.Pop(&m.next)
		}
	}
	return true
}

// A merge goes through several lines in order.
type merge struct {
	next   inOrder
	passed map[*Line]*mergedLine
	shared []int64 // passed in all lines that are open, by stop of the queue
	before []int64 // room for ahead
}

// A mergedLine is what a merge has passed of a line.
type mergedLine struct {
	open  bool
	costs []int64 // by stop
}

// merge begins at queue.from.
func (j *judge) merge() *merge {
	m := &merge{passed: make(map[*Line]*mergedLine, len(j.queue.lines)), shared: make([]int64, j.queue.stops()), before: make([]int64, len(j.open))}
	for _, ln := range j.queue.lines {
		p := &mergedLine{ln.isOpen(j.now), make([]int64, len(ln.Stops))}
		for i := range p.costs {
			p.costs[i] = ln.ahead(&j.queue.from, i)
		}
		if m.passed[ln] = p; p.open {
			addCounts(m.shared, p.costs[:len(m.shared)])
		}
		if w := ln.from(&j.queue.from); w != nil {
			m.next = append(m.next, w)
		}
	}
	heap.Init(&m.next)
	return m
}

// ahead returns what is to be paid before w, which is next.
func (m *merge) ahead(w *Waiter) []int64 {
	p := m.passed[w.line]
	for i := range w.costs {
		m.before[i] = p.costs[i]
		switch {
		case i >= len(m.shared):
		case p.open:
			m.before[i] = m.shared[i]
		default:
			m.before[i] = meter.AddCount(m.shared[i], p.costs[i])
		}
	}
	return m.before
}

// pass goes past w, which stays.
func (m *merge) pass(w *Waiter) {
	p := m.passed[w.line]
	addCounts(p.costs, w.costs)
	if p.open {
		addCounts(m.shared, w.costs[:len(m.shared)])
	}
}

// inOrder is a heap of the requests that are next in their lines.
type inOrder []*Waiter

func (h inOrder) Len() int           { return len(h) }
func (h inOrder) Less(i, j int) bool { return h[i].Before(&h[j].Place) }
func (h inOrder) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *inOrder) Push(x any)        { *h = append(*h, x.(*Waiter)) }
func (h *inOrder) Pop() any {
	old := *h
	w := old[len(old)-1]
	*h = old[:len(old)-1]
	return w
}
