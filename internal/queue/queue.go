package queue

import (
	"math/bits"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A Queue is all lines that differ only in their gates. While all gates are open, they are served as one line.
type Queue struct {
	Id      string
	Lines   []*Line
	Size    int      // requests in line
	Classes [2]class // of urgent requests, and of all others
	Vocal   int      // lines with a vocal gate; 0: all gates are open

	unjudged bool  // in Limiter.unjudged
	from     Place // if so, requests are judged from there on; those that are not urgent come last
}

// A class is what is known of all urgent requests in a queue, or of all others, without looking at each line: there may be one
// for each family of paths.
type class struct {
	Size     int
	Latest   Place   // no request comes after this place
	Totals   []total // what they cost, by stop
	Mosts    []int64 // no request costs more, by stop
	Tightest Instant // no request has an earlier limit
}

// Stops returns how many stops all its lines have in common.
func (q *Queue) Stops() int { return len(q.Id) / 8 }

func (q *Queue) Class(below bool) *class {
	if below {
		return &q.Classes[1]
	}
	return &q.Classes[0]
}

// enter counts a request that joins one of the lines.
func (q *Queue) enter(w *Waiter) {
	c := q.Class(w.Below)
	if c.Size == 0 {
		c.clear(w, q.Stops())
	}
	q.Size++
	c.Size++
	c.moved(w)
	c.Tightest = min(c.Tightest, w.tight())
	for i := range c.Totals {
		c.Totals[i].add(w.costs[i])
		c.Mosts[i] = max(c.Mosts[i], w.costs[i])
	}
}

// clear begins with the first request of a class.
func (c *class) clear(first *Waiter, stops int) {
	if c.Totals == nil {
		c.Totals, c.Mosts = make([]total, stops), make([]int64, stops)
	}
	clear(c.Totals)
	clear(c.Mosts)
	c.Latest, c.Tightest = first.Place, Never
}

// moved notes that a request has another place.
func (c *class) moved(w *Waiter) {
	if c.Latest.Before(&w.Place) {
		c.Latest = w.Place
	}
}

// leave counts a request that is in no line any more.
func (q *Queue) leave(w *Waiter) {
	q.Size--
	c := q.Class(w.Below)
	c.Size--
	for i := range c.Totals {
		c.Totals[i].add(-w.costs[i])
	}
}

// reduced notes that a request costs less at a stop.
func (q *Queue) reduced(w *Waiter, stop int, by int64) {
	if stop < q.Stops() {
		q.Class(w.Below).Totals[stop].add(-by)
	}
}

// look finds the largest costs and the tightest bound again: those that were noted may be of requests that have left.
func (q *Queue) look(below bool) {
	c := q.Class(below)
	clear(c.Mosts)
	c.Tightest = Never
	for _, ln := range q.Lines {
		if ln.Below != below {
			continue
		}
		c.Tightest = min(c.Tightest, ln.Root.Tightest)
		for i := range c.Mosts {
			c.Mosts[i] = max(c.Mosts[i], ln.Root.Mosts()[i])
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
	if q == nil || stop >= q.Stops() || len(q.Lines) == 1 && q.Lines[0] == but {
		return 0, 0
	}
	if c := q.Class(p.Below); q.Vocal == 0 && (c.Size == 0 || c.Latest.Before(p)) {
		if c.Size > 0 {
			ahead = c.Totals[stop].Count()
		}
		if but != nil {
			ahead = max(0, ahead-but.Root.Sums()[stop])
		}
		if p.Below {
			urgent = q.urgent(stop)
		}
		return urgent, ahead
	}
	for _, ln := range q.Lines[:min(most, len(q.Lines))] {
		switch {
		case ln == but || !ln.isOpen(now):
		case ln.Below == p.Below:
			ahead = meter.AddCount(ahead, ln.ahead(p, stop))
		case ln.Below || !ln.Stops[stop].Bucket.Limit.ordered():
		default:
			urgent = meter.AddCount(urgent, ln.Root.Sums()[stop])
		}
	}
	return urgent, ahead
}

// urgent returns what all urgent requests cost that go before all others at a stop.
func (q *Queue) urgent(stop int) int64 {
	if q.Classes[0].Size == 0 || !q.Lines[0].Stops[stop].Bucket.Limit.ordered() {
		return 0
	}
	return q.Classes[0].Totals[stop].Count()
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

// Count returns the total as AddCount would.
func (t *total) Count() int64 {
	if t.hi > 0 || t.lo > 2*uint64(meter.MaxCount) {
		return 2 * meter.MaxCount
	}
	return int64(t.lo)
}
