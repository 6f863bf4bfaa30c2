package quota

import (
	"math"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/record"
	"github.com/httpthrottle/throttle/internal/server"
)

const (
	longestBack = 6               // doublings of a backoff of 1 s
	mostRow     = longestBack + 4 // refusals in a row that are counted
	closureOver = 60 * second     // the first window began no earlier than what was accepted over that
)

// A row counts refusals in a row, each of a request that was sent after the wait of the one before. From the second on the server is
// closed, and requests ask one by one whether it accepts one. It also knows whether refusals are by chance.
type row struct {
	closures *closures // nil: no request was refused
	asking   bool      // one request a second is sent until one is accepted
	refusals int8
}

// Closures are what rows show of a server that counts in windows. It is closed until one ends, so the next begins with the first request
// that is accepted after a row.
type closures struct {
	window length
	since  meter.Instant // when the first request of the last row was sent
	n      float64       // requests that were accepted in this window
	before float64       // and in the one after which the server was closed last; 0: it was not
	closed int64         // for how long it was closed then
	chance server.Chance
	spell  spell
}

// known returns the closures, and makes them if there are none.
func (r *row) known() *closures {
	if r.closures == nil {
		r.closures = new(closures)
	}
	return r.closures
}

// tests takes a refusal for the test whether refusals are by chance.
func (r *row) tests(now, sent meter.Instant, number, last int64, l server.Learner) server.Finding {
	f := r.known().chance.Refused(now, sent, number, last, l)
	if f == server.IsChance || f == server.IsTried {
		r.asking, r.refusals = false, 0
	}
	return f
}

// byChance reports whether refusals are by chance, as far as is known.
func (r *row) byChance() bool { return r.closures != nil && r.closures.chance.On() }

// rested takes a time in which the client had nothing to send.
func (r *row) rested(d int64) {
	if r.closures != nil {
		r.closures.chance.Rested(d)
	}
}

// add counts a refusal of a client of which that was accepted lately.
func (r *row) add(sent meter.Instant, lately record.Sum) {
	r.refusals = min(r.refusals+1, mostRow)
	if c := r.known(); r.refusals == 1 {
		c.begin(sent, lately)
	} else {
		r.asking = true
		c.refused(sent)
	}
}

// accepted takes an accepted request, which ends the row. The last wait has ended at held.
func (r *row) accepted(sent, held meter.Instant) {
	c := r.closures
	switch {
	case c == nil:
		return
	case r.refusals == 0:
		c.n++
		return
	case r.refusals > 1:
		c.before, c.closed = c.n, sent-c.since
	}
	c.window.began(sent, !c.missed() && sent-held <= (sent-c.window.begun)/lengthSure)
	c.n, r.refusals = 1, 0
}

// wait returns how long to wait from now on, after a refusal with such a backoff: never until after the end of the window. A server that is
// closed after as many requests as the last time is expected to be closed for as long, too. After the longest backoff it is asked all the
// same, because an outage may have been longer than this closure.
func (r *row) wait(now meter.Instant, backoff int64) int64 {
	c := r.closures
	end := c.window.ask()
	if end <= now || end == meter.Never {
		return backoff
	}
	if r.refusals > 1 && math.Abs(c.n-c.before) <= c.before/lengthSure {
		backoff = max(backoff, min(c.closed, second<<longestBack))
	}
	return min(backoff, end-now)
}

// copied returns a row that stays as it is when this one changes.
func (r row) copied() row {
	if r.closures != nil {
		own := *r.closures
		r.closures = &own
	}
	return r
}

// begin begins a row. As long as it is not known how long windows last, this one began no earlier than what was accepted lately.
func (c *closures) begin(sent meter.Instant, lately record.Sum) {
	w := &c.window
	if w.open == 0 && lately.N > 0 && lately.From >= w.begun {
		w.begun, w.after, c.n = max(lately.From, 1), lately.From, lately.N
	}
	c.since = sent
}

// missed reports whether a window has begun since the last one that was seen to begin. So the row does not show how long it lasts.
func (c *closures) missed() bool { return c.window.open > 0 && c.since >= c.window.last() }

// refused takes another refusal of the row.
func (c *closures) refused(sent meter.Instant) {
	if !c.missed() {
		c.window.refused(sent)
	}
}
