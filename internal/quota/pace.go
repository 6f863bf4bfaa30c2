package quota

import (
	"math"

	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	paceLeast   = 1.0                 // per second
	paceMost    = 10_000.0            // per second; there is no pace above
	paceDoubles = float64(2 * second) // in which the rate of a pace doubles once it grows
	paceIdle    = second              // a pace that is unused for longer is over
	paceWait    = 10 * second         // a longer wait says no more about the rate
	paceEven    = 5 * second          // requests leave evenly for so long after a refusal that names no wait
)

// A pace lets requests leave one by one after a refusal that asked to stay away, because nothing else tells a client which
// rate the server accepts. The pace begins at the rate that was accepted before, with the wait counted in. Then the rate
// doubles every two seconds, so that the pace ends.
type pace struct {
	next   meter.Instant // no request leaves before
	rate   float64       // per second; 0: there is no pace
	steady meter.Instant // from then on the rate doubles
	last   meter.Instant // when the last request left
	since  meter.Instant // done counts from here: the last refusal's wait, a second of rest or the beginning of growth
	done   int64         // accepted since then
	before float64       // accepted per second before the last rest, with that rest counted in
	waited meter.Instant // the end of the last refusal's wait; 0: there was none
	evenly bool          // no two requests leave closer together, not even to make up for a late timer
}

// at returns the rate at an instant.
func (p *pace) at(now meter.Instant) float64 {
	return p.rate * math.Exp2(float64(max(0, now-p.steady))/paceDoubles)
}

func (p *pace) over(now meter.Instant) bool { return p.rate == 0 || now-p.next > paceIdle }

func (p *pace) take(due, now meter.Instant) {
	if p.evenly {
		due = now
	}
	switch {
	case due-p.last > paceIdle && due > p.next:
		p.before = float64(p.done) * 1e9 / float64(max(due-p.since, second))
		p.since, p.done = due, 0
	case p.rate > 0 && due >= p.steady && p.since < p.steady:
		p.since, p.done = p.steady, 0
	}
	p.last = due
	if !p.over(due) {
		if r := p.at(due); r <= paceMost {
			p.next = meter.AddInstant(due, int64(1e9/r))
			return
		}
	}
	p.rate, p.evenly = 0, false
}

func (p *pace) accepted(sentAt meter.Instant) {
	if sentAt >= p.since {
		p.done++
	}
}

// even lets requests leave evenly at a rate, for some time after a refusal that names no wait.
func (p *pace) even(now meter.Instant, rate float64) {
	p.rate, p.steady, p.evenly = rate, meter.AddInstant(now, paceEven), true
	p.next = max(p.next, meter.AddInstant(p.last, int64(1e9/rate)))
}

// refused begins a pace at the end of a wait.
func (p *pace) refused(end, sentAt meter.Instant, wait int64, a *Account) {
	wait, p.evenly = min(wait, paceWait), false
	found := max(paceLeast, p.before, float64(p.done)*1e9/float64(max(sentAt-p.since, wait)))
	long := meter.AddInstant(end, 20*wait)
	isolated := sentAt > meter.AddInstant(p.waited, 20*wait) || p.waited == 0
	p.waited = end
	switch {
	case a.covered && a.own == 0: // Adaptive decides
	case !p.over(sentAt) && sentAt < p.steady:
		p.rate, p.steady = max(paceLeast, 0.9*p.rate), long
	case !p.over(sentAt):
		p.rate, p.steady = max(found, p.rate), long
	case a.own > 0 && isolated: // its own limit is trusted
		p.rate = 0
	case a.own > 0 && a.own <= 1.25*found: // its own limit is about right, but its bursts are not
		p.rate, p.steady = a.own, long
	case p.done == 0 && p.before == 0:
		p.rate, p.steady = max(paceLeast, a.own/2), end
	default:
		p.rate, p.steady = found, meter.AddInstant(end, wait/2)
	}
	p.next, p.since, p.done, p.before = max(p.next, end), end, 0, 0
}
