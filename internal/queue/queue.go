package queue

import (
	"math/bits"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A Queue is all lines that differ only in their gates. While all gates are open, they are served as one line.
type Queue struct {
	id      string
	lines   []*Line
	size    int      // requests in line
	classes [2]class // of urgent requests, and of all others
	Vocal   int      // lines with a vocal gate; 0: all gates are open

	unjudged bool  // in Limiter.unjudged
	from     Place // if so, requests are judged from there on; those that are not urgent come last
}

// A class is what is known of all urgent requests in a queue, or of all others, without looking at each line: there may be one
// for each family of paths.
type class struct {
	size     int
	latest   Place   // no request comes after this place
	totals   []total // what they cost, by stop
	mosts    []int64 // no request costs more, by stop
	tightest Instant // no request has an earlier limit
}

// stops returns how many stops all its lines have in common.
func (q *Queue) stops() int { return len(q.id) / 8 }

func (q *Queue) class(below bool) *class {
	if below {
		return &q.classes[1]
	}
	return &q.classes[0]
}

// enter counts a request that joins one of the lines.
func (q *Queue) enter(w *Waiter) {
	c := q.class(w.Below)
	if c.size == 0 {
		c.clear(w, q.stops())
	}
	q.size++
	c.size++
	c.moved(w)
	c.tightest = min(c.tightest, w.tight())
	for i := range c.totals {
		c.totals[i].add(w.costs[i])
		c.mosts[i] = max(c.mosts[i], w.costs[i])
	}
}

// clear begins with the first request of a class.
func (c *class) clear(first *Waiter, stops int) {
	if c.totals == nil {
		c.totals, c.mosts = make([]total, stops), make([]int64, stops)
	}
	clear(c.totals)
	clear(c.mosts)
	c.latest, c.tightest = first.Place, Never
}

// moved notes that a request has another place.
func (c *class) moved(w *Waiter) {
	if c.latest.Before(&w.Place) {
		c.latest = w.Place
	}
}

// leave counts a request that is in no line any more.
func (q *Queue) leave(w *Waiter) {
	q.size--
	c := q.class(w.Below)
	c.size--
	for i := range c.totals {
		c.totals[i].add(-w.costs[i])
	}
}

// reduced notes that a request costs less at a stop.
func (q *Queue) reduced(w *Waiter, stop int, by int64) {
	q.class(w.Below).totals[stop].add(-by)
}

// look finds the largest costs and the tightest bound again: those that were noted may be of requests that have left.
func (q *Queue) look(below bool) {
	c := q.class(below)
	clear(c.mosts)
	c.tightest = Never
	for _, ln := range q.lines {
		if ln.below != below {
			continue
		}
		c.tightest = min(c.tightest, ln.root.bound)
		for i := range c.mosts {
			c.mosts[i] = max(c.mosts[i], ln.root.mosts()[i])
		}
	}
}

// maxAhead is how many other lines of a queue are looked at for what is ahead there, if that must be: for a request that is not
// the last, or while servers stop some lines. With more, the plan of a request is a lower bound, unless it is to be rejected if
// its wait is too long.
const maxAhead = 64

// ahead returns what is to be paid at a stop before a request in that place, in those of the first most lines whose gates are
// open, except one; urgent is the part of requests that are urgent, where that one is not.
func (q *Queue) ahead(but *Line, p *Place, stop int, now Instant, most int) (urgent, ahead int64) {
	if q == nil || stop >= q.stops() || len(q.lines) == 1 && q.lines[0] == but {
		return 0, 0
	}
	if c := q.class(p.Below); q.Vocal == 0 && q.isBehindAll(p) {
		if c.size > 0 {
			ahead = c.totals[stop].count()
		}
		if but != nil {
			ahead = max(0, ahead-but.root.sums()[stop])
		}
		if p.Below {
			urgent = q.urgent(stop)
		}
		return urgent, ahead
	}
	for _, ln := range q.lines[:min(most, len(q.lines))] {
		switch {
		case ln == but || !ln.isOpen(now):
		case ln.below == p.Below:
			ahead = meter.AddCount(ahead, ln.ahead(p, stop))
		case ln.below || !ln.Stops[stop].Bucket.Limit.ordered():
		default:
			urgent = meter.AddCount(urgent, ln.root.sums()[stop])
		}
	}
	return urgent, ahead
}

// isBehindAll reports whether no request of its class comes after that place, as far as is known.
func (q *Queue) isBehindAll(p *Place) bool {
	c := q.class(p.Below)
	return c.size == 0 || c.latest.Before(p)
}

// urgent returns what all urgent requests cost that go before all others at a stop.
func (q *Queue) urgent(stop int) int64 {
	if q.classes[0].size == 0 || !q.lines[0].Stops[stop].Bucket.Limit.ordered() {
		return 0
	}
	return q.classes[0].totals[stop].count()
}

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
