package queue

import (
	"container/heap"
	"math"

	"github.com/httpthrottle/throttle/internal/meter"
)

// This file judges waiting requests again, after a change that may make some of them too late. It goes in order, so that a
// rejected request delays no other: the first that is too late is rejected, until none is.
//
// A line skips a part of its tree if the plan of the last request there meets the tightest bound there. So a part is skipped where
// each request has more time to spare than it takes to grant the part: to reject k of n requests visits O(k log n) of them if the
// others are patient, and O((k + n/s) log n) if the least patient could still be granted s requests later. In a queue that is full
// because all requests have the same MaxWait, s is less than 1, and all are visited.
//
// If many requests must be visited, the work goes in pieces between which others have the lock.

const (
	judgeAtOnce   = 2_000 // so many requests are judged under one lock: about 0.5 ms
	rejectionTake = 30    // times as long as to judge a request
)

// firstPlace is before those of all requests that are urgent, or of all others.
func firstPlace(below bool) Place {
	return Place{Tag: math.MinInt64, Rank: math.MinInt64, Below: below}
}

// lastPlace is after those of all: what bars any request bars one there.
func lastPlace(below bool) *Place {
	return &Place{Tag: math.MaxInt64, Rank: math.MaxInt64, Below: below}
}

// judgeAgainLocked notes that all requests of a queue must be judged.
func (l *Core) judgeAgainLocked(q *Queue) {
	if !q.unjudged {
		q.unjudged = true
		l.unjudged = append(l.unjudged, q)
	}
	q.from = firstPlace(false)
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
		l.judgeLocked(now)
		l.ServeLocked(now)
	}
	l.Mu.Unlock()
}

// judgeQueueLocked goes on with a queue, and reports whether it came to the end: first of the urgent requests, then of all.
func (l *Core) judgeQueueLocked(q *Queue, now Instant, left *int) (done bool) {
	j := judge{queue: q, now: now, left: left}
	for {
		if done = j.meetQueue(); !done {
			q.look(q.from.Below)
			j.gather(q.from.Below)
		}
		switch {
		case done:
		case len(j.lines) == 1:
			done = l.judgeLineLocked(&j)
		default:
			done = j.meetAll() || l.judgeLinesLocked(&j)
		}
		if !done || q.from.Below {
			return done
		}
		q.from = firstPlace(true)
	}
}

// A judge judges requests of one queue that are all urgent or all not.
type judge struct {
	queue *Queue
	now   Instant
	left  *int // how many more may be judged under this lock

	lines        []*Line
	urgent, open []int64 // by stop: what urgent requests cost before, and what all cost in lines with open gates
	late         *Waiter // the first that must be rejected
	due          Instant // when it could be granted
	stop         *Stop   // because of this stop
	reason       reason
}

// gather finds the lines that are to be judged.
func (j *judge) gather(below bool) {
	q := j.queue
	j.lines, j.urgent, j.open = j.lines[:0], make([]int64, q.stops()+1), make([]int64, q.stops()+1) // one more for a gate
	for _, ln := range q.lines {
		if ln.below == below {
			j.lines = append(j.lines, ln)
		} else if !below || !ln.isOpen(j.now) {
			continue
		}
		for i := range q.stops() {
			switch {
			case ln.below == below && ln.isOpen(j.now):
				j.open[i] = meter.AddCount(j.open[i], ln.root.sums()[i])
			case ln.below != below && ln.Stops[i].Bucket.Limit.ordered(): // elsewhere they wait by rank
				j.urgent[i] = meter.AddCount(j.urgent[i], ln.root.sums()[i])
			}
		}
	}
}

// meet reports whether all requests below n, n included, can certainly be granted in time, given what is to be paid until then.
func (j *judge) meet(n *Waiter, all []int64) bool {
	ln := n.line
	for i := range ln.Stops {
		b := ln.Stops[i].Bucket
		if b.loan != nil || b.planLocked(j.queue, ln, lastPlace(n.Below), j.urgent[i], all[i], n.mosts()[i], j.now) > n.tightest {
			return false
		}
	}
	return true
}

// meetQueue is the same for all lines, without looking at them.
func (j *judge) meetQueue() bool {
	q := j.queue
	c := q.class(q.from.Below)
	switch {
	case c.size == 0:
		return true
	case q.Vocal > 0 || c.tightest < j.now || q.from != firstPlace(q.from.Below):
		return false
	}
	for i := range q.stops() {
		b, urgent := q.lines[0].Stops[i].Bucket, int64(0)
		if q.from.Below {
			urgent = q.urgent(i)
		}
		if b.loan != nil || b.planLocked(q, nil, lastPlace(q.from.Below), urgent, c.totals[i].count(), c.mosts[i], j.now) > c.tightest {
			return false
		}
	}
	return true
}

// meetAll is the same for all lines, one by one.
func (j *judge) meetAll() bool {
	if j.queue.from != firstPlace(j.queue.from.Below) {
		return false // it did not before
	}
	var all []int64
	for _, ln := range j.lines {
		all = append(all[:0], j.open...)
		for i := range ln.Stops {
			if i >= j.queue.stops() || !ln.isOpen(j.now) {
				all[i] = meter.AddCount(all[i], ln.root.sums()[i])
			}
		}
		if !j.meet(ln.root, all) {
			return false
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
	j.due, j.stop = w.planLocked(j.urgent, ahead, j.now)
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
	ln := j.lines[0]
	n := len(ln.Stops)
	room := make([]int64, 2*n) // for what is ahead of a request, and with it
	for ln.size > 0 {
		clear(room)
		ahead := room[:n]
		if !j.search(ln.root, ahead) {
			return true
		}
		if j.late == nil {
			return false
		}
		l.rejectLateLocked(j)
	}
	return true
}

// search looks for the first request from queue.from on that convict reports, among n and those below it. It adds what they cost
// to ahead if there is none.
func (j *judge) search(n *Waiter, ahead []int64) bool {
	if n == nil {
		return false
	}
	all := ahead[len(ahead):]
	for i, sum := range n.sums() {
		all = append(all, meter.AddCount(ahead[i], sum))
	}
	if j.meet(n, all) {
		copy(ahead, all)
		return false
	}
	if !n.Before(&j.queue.from) {
		if j.search(n.left, ahead) || j.convict(n, ahead) {
			return true
		}
	} else if n.left != nil {
		addCounts(ahead, n.left.sums())
	}
	addCounts(ahead, n.costs)
	return j.search(n.right, ahead)
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
	m := &merge{passed: make(map[*Line]*mergedLine, len(j.lines)), shared: make([]int64, j.queue.stops()), before: make([]int64, len(j.open))}
	for _, ln := range j.queue.lines {
		if ln.below != j.queue.from.Below {
			continue
		}
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
