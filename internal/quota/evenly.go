package quota

import "github.com/httpthrottle/throttle/internal/meter"

const (
	evenLeast  = 1.0          // per second
	evenFor    = 600 * second // for which requests of a client with limits of its own are sent evenly after a refusal
	evenStrict = 30 * second  // for which none of them are sent together
	evenSlack  = 2            // of them may be later
	evenDoubt  = 20           // the rate is doubted if more than one in as many that could be sent is lost by refusals
)

// Evenly is how a client with limits of its own sends requests after a refusal. It is right about the rate more often than about how many
// requests may come together. So they are sent no faster than the fastest of its limits allows in the mean: for half a minute one by one, and
// for ten minutes at most three together. A rate is learned besides only if refusals cost more than a twentieth of what could be sent. That
// is two refusals in twenty requests, or in more if they ask for waits.
type evenly struct {
	next  meter.Instant // no request is sent before
	since meter.Instant // from then on they are sent so
	until meter.Instant
	doubt int64   // so many more of them are sent before a refusal of one is the first again
	most  float64 // the rate of the fastest of the limits; 0: there was none
}

// cover takes the rate of the fastest of the client's own limits. Other requests may have other limits, or none.
func (e *evenly) cover(o *Own) { e.most = max(e.most, o.Fastest, evenLeast) }

// includes reports whether a request that was sent then was sent so.
func (e *evenly) includes(sent meter.Instant) bool { return e.since <= sent && sent < e.until }

// refused takes a refusal of a request that was sent then, with a wait until an instant, after which requests are sent so. It reports
// whether the rate of the limits is too high.
func (e *evenly) refused(sent, now, until, last meter.Instant) (wrong bool) {
	even := e.includes(sent)
	wrong = even && e.doubt > 0
	if e.doubt = 0; even {
		e.doubt = evenDoubt * (1 + min(max(0, until-now), longestHold)/e.gap())
	}
	e.begin(max(now, until), last)
	return wrong
}

// begin has requests be sent so from now on, for a time, after one that was sent last.
func (e *evenly) begin(now, last meter.Instant) {
	if now >= e.until {
		e.since = now
	}
	e.until = meter.AddInstant(now, evenFor)
	e.next = max(e.next, meter.AddInstant(last, e.gap()))
}

// gap returns the time between two of them.
func (e *evenly) gap() int64 { return max(1, int64(1e9/e.most)) }

// take takes a request that is due then.
func (e *evenly) take(due meter.Instant) {
	e.doubt = max(0, e.doubt-1)
	if due >= e.until {
		return
	}
	from := due
	if due >= e.until-evenFor+evenStrict { // what was not used lately may be used now
		from = min(due, max(e.next, due-evenSlack*e.gap()))
	}
	e.next = meter.AddInstant(from, e.gap())
}
