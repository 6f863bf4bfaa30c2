package queue

import (
	"math/bits"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A Queue is all lines that differ only in their gates. While all gates are open, they are served as one line.
type Queue struct {
	id    string
	lines []*Line
	size  int // requests in line
	Vocal int // lines with a vocal gate; 0: all gates are open

	// What is known of all its requests without looking at each line: there may be one for each family of paths.
	latest   Place   // no request comes after this place
	totals   []total // what they cost, by stop
	mosts    []int64 // no request costs more, by stop
	tightest Instant // no request has an earlier limit

	unjudged bool  // in Limiter.unjudged
	from     Place // if so, requests are judged from there on
}

// stops returns how many stops all its lines have in common.
func (q *Queue) stops() int { return len(q.id) / 8 }

// enter counts a request that joins one of the lines.
func (q *Queue) enter(w *Waiter) {
	if q.size == 0 {
		if q.totals == nil {
			q.totals, q.mosts = make([]total, q.stops()), make([]int64, q.stops())
		}
		q.latest, q.tightest = w.Place, Never
	}
	q.size++
	q.moved(w)
	q.tightest = min(q.tightest, w.tight())
	for i := range q.totals {
		q.totals[i].add(w.costs[i])
		q.mosts[i] = max(q.mosts[i], w.costs[i])
	}
}

// moved notes that a request has another place.
func (q *Queue) moved(w *Waiter) {
	if q.latest.Before(&w.Place) {
		q.latest = w.Place
	}
}

// leave counts a request that is in no line any more.
func (q *Queue) leave(w *Waiter) {
	q.size--
	for i := range q.totals {
		q.totals[i].add(-w.costs[i])
	}
}

// reduced notes that a request costs less at a stop.
func (q *Queue) reduced(stop int, by int64) {
	if stop < len(q.totals) {
		q.totals[stop].add(-by)
	}
}

// look finds the largest costs and the tightest bound again: those that were noted may be of requests that have left.
func (q *Queue) look() {
	clear(q.mosts)
	q.tightest = Never
	for _, ln := range q.lines {
		q.tightest = min(q.tightest, ln.root.bound)
		for i := range q.mosts {
			q.mosts[i] = max(q.mosts[i], ln.root.mosts()[i])
		}
	}
}

// maxAhead is how many other lines of a queue are looked at for what is ahead there, if that must be: for a request that is not
// the last, or while servers stop some lines. With more, the plan of a request is a lower bound, unless it is to be rejected if
// its wait is too long.
const maxAhead = 64

// ahead returns what is to be paid at a stop before a request in that place, in those of the first most lines whose gates are
// open, except one.
func (q *Queue) ahead(but *Line, p *Place, stop int, now Instant, most int) (ahead int64) {
	switch {
	case q == nil || stop >= q.stops() || len(q.lines) == 1 && q.lines[0] == but:
		return 0
	case q.Vocal == 0 && q.isBehindAll(p):
		ahead = q.totals[stop].count()
		if but != nil {
			ahead = max(0, ahead-but.root.sums()[stop])
		}
		return ahead
	}
	for _, ln := range q.lines[:min(most, len(q.lines))] {
		if ln != but && ln.isOpen(now) {
			ahead = meter.AddCount(ahead, ln.ahead(p, stop))
		}
	}
	return ahead
}

// isBehindAll reports whether no request comes after that place, as far as is known.
func (q *Queue) isBehindAll(p *Place) bool { return q.size == 0 || q.latest.Before(p) }

// A total is a sum of costs, which may not fit an int64.
type total struct {
	hi int64
	lo uint64
}

func (t *total) add(n int64) {
	lo, carry := bits.Add64(t.lo, uint64(n), 0)
	t.hi, t.lo = t.hi+n>>63+int64(carry), lo
}

// count returns the total as AddCount would.
func (t *total) count() int64 {
	if t.hi > 0 || t.lo > 2*uint64(meter.MaxCount) {
		return 2 * meter.MaxCount
	}
	return int64(t.lo)
}
