package quota

import (
	"math"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/record"
)

const (
	paceLeast   = 1.0                 // per second
	paceMost    = 10_000.0            // per second; there is no pace above
	paceDoubles = float64(2 * second) // in which the rate of a pace doubles once it grows
	paceIdle    = second              // a pace is over if no request is sent and no response comes for longer
	paceWait    = 10 * second         // a longer wait says no more about the rate
	paceRest    = 10 * second         // what is longer between two requests counts as that
	rateOver    = 10 * second         // over which a rate was accepted lately
	evenFor     = 600 * second        // for which requests of a client with limits of its own are sent evenly after a refusal
)

// A pace sends requests one at a time after a refusal that no quota explains. It begins at the rate that was accepted lately, and
// doubles every two seconds until the next refusal. That rate was too high, and the one that was accepted since is too low, because of the waits.
// So the next pace is between them, and steady for twenty waits, which then take less than a twentieth of the time.
//
// A client with limits of its own is right about the rate more often than about how many requests may come together. So from the first
// refusal on, its requests are sent no faster than the fastest of its limits allows in the mean.
type pace struct {
	next   meter.Instant // no request is sent before
	rate   float64       // per second; 0: there is no pace
	steady meter.Instant // from then on the rate doubles
	last   meter.Instant // when the last request was sent
	heard  meter.Instant // when the last response came: requests may have waited for it
	fed    meter.Instant // when the last request was sent that was accepted: without, the rate does not grow
	given  float64       // requests that were accepted since from
	from   meter.Instant // the beginning of what was accepted lately at an isolated refusal, or a time in the middle of the last cycles of work and wait
	waited meter.Instant // the end of the last refusal's wait; 0: there was none
	most   float64       // the rate of the fastest of the client's own limits, if it has any: no rate is higher until evenly
	evenly meter.Instant
	worked bool // a request was accepted since the last wait
}

// at returns the rate at an instant. It grows only as long as requests are accepted.
func (p *pace) at(now meter.Instant) float64 {
	r := p.rate * math.Exp2(float64(max(0, min(now, p.fed)-p.steady))/paceDoubles)
	if now < p.evenly {
		return min(r, p.most)
	}
	return r
}

func (p *pace) over(now meter.Instant) bool {
	return p.rate == 0 || now-max(p.next, p.heard) > paceIdle && now >= p.evenly
}

func (p *pace) take(due meter.Instant) {
	if rest := due - max(p.last, p.next); rest > paceRest {
		p.from += rest - paceRest
	}
	p.last = due
	if !p.over(due) {
		if r := p.at(due); r <= paceMost {
			p.next = meter.AddInstant(due, int64(1e9/r))
			return
		}
	}
	p.rate = 0
}

// putOff has a pace begin at the end of a longer wait, unless the pace is over.
func (p *pace) putOff(now, end meter.Instant) {
	if d := end - p.next; d > 0 && !p.over(now) {
		p.next, p.steady, p.waited = end, meter.AddInstant(p.steady, d), end
	}
}

// space has requests sent evenly from now on, for evenFor.
func (p *pace) space(now meter.Instant) {
	p.evenly = meter.AddInstant(now, evenFor)
	if p.rate == 0 {
		p.rate, p.steady = p.most, now
	}
	p.next = max(p.next, meter.AddInstant(p.last, int64(1e9/p.most)))
}

func (p *pace) accepted(sentAt meter.Instant) {
	p.given++
	p.fed = max(p.fed, sentAt)
	if !p.worked && sentAt >= p.waited {
		p.worked, p.steady = true, max(p.steady, sentAt)
	}
}

// sustained returns how many requests per second were accepted in the last cycles of work and wait, the one that ends at end included;
// 0: none was.
func (p *pace) sustained(end meter.Instant) float64 {
	return p.given * 1e9 / float64(max(end-p.from, 1))
}

// begin returns the rate after an isolated refusal, whose wait ends at end: that which was accepted lately, or 0 if nothing was. A burst of less
// than a second is no rate, so there the wait counts as well.
func (p *pace) begin(now, end meter.Instant, lately record.Sum) float64 {
	if p.given > 0 && now-p.from < second {
		return max(paceLeast, p.sustained(end))
	}
	return lately.Rate(now)
}

// refused begins a pace at the end of the wait after a refusal. Of a client of which nothing was accepted no rate is known, so it has none.
func (p *pace) refused(r *refusal, wait int64, end meter.Instant, lately record.Sum, own *Own) {
	wait = min(wait, paceWait)
	long, worked := 20*wait, p.worked
	isolated := p.waited == 0 || r.sent > meter.AddInstant(p.waited, long)
	if isolated {
		p.given, p.from = lately.N, lately.From
	}
	sustained, begin := p.sustained(end), p.begin(r.at, end, lately)
	if worked { // this cycle ends, and counts half as much as the next one
		p.given, p.from, p.worked = p.given/2, end-(end-p.from)/2, false
	}
	p.waited = end
	switch {
	case own.Rate == 0 && own.Adaptive: // it decides
	case !worked && !isolated: // the server is closed, which shows nothing about its rate
		p.steady = max(p.steady, end)
	case own.Rate > 0 && isolated: // its own limit is trusted
		p.rate = 0
	case !p.over(r.sent):
		p.rate, p.steady = aimd.Halfway(sustained, p.at(r.sent)), meter.AddInstant(end, long)
	case isolated:
		p.rate, p.steady = begin, meter.AddInstant(end, wait/2)
	default:
		p.rate, p.steady = sustained, meter.AddInstant(end, wait/2)
	}
	p.next = max(p.next, end)
	if own.Trusted() {
		p.space(end)
	}
}

// forget returns a pace that is over, after which the same is known of the requests that were sent.
func (p *pace) forget(now meter.Instant) pace {
	return pace{last: p.last, fed: p.fed, from: now, most: p.most}
}
