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
	paceDoubles = float64(2 * second) // in which the rate of a pace doubles once it grows, from paceFew on
	paceFinds   = 0.4e9               // in which it doubles where no rate was known, after a lone refusal
	paceFull    = float64(second)     // for which such a rate is kept after several refusals, and in which it doubles then
	paceFew     = 4.0                 // per second: the least at which it begins there, and below which it grows with requests, not with time
	paceEnough  = 4                   // accepted requests show a rate where none was known
	paceIdle    = second              // a pace is over if no request is sent and no response comes for longer
	paceWait    = 10 * second         // a longer wait says no more about the rate
	paceRest    = 10 * second         // what is longer between two requests counts as that
	rateOver    = 10 * second         // over which a rate was accepted lately
	steadyMost  = 30 * second         // the longest time for which a rate is kept that was refused
	evenFor     = 600 * second        // for which requests of a client with limits of its own are sent evenly after a refusal
	evenStrict  = 30 * second         // for which none of them are sent together
	evenSlack   = 2                   // of them may be later
)

// A pace sends requests one at a time after a refusal that no quota explains. It begins at the rate that was accepted lately, and
// doubles every two seconds until the next refusal. That rate was too high, and the one that was accepted since is too low, because
// of the waits. So the next pace is between them, and steady for twenty waits, 30 s at most.
//
// While it is tried whether refusals are by chance, each of them lets some requests go at once, and changes nothing else.
//
// What was accepted in less than a second is a burst, and no rate, and nothing may have been accepted at all. There the pace begins low,
// and doubles faster: five times as fast after a lone refusal, which may be by chance, and twice as fast, a second later, after several,
// which show that the server is full.
//
// If the first request after a wait is refused, in the order of sending, the server was closed for longer than it said. That shows
// nothing of its rate. If some that were sent later are accepted, the next refusal does.
//
// A client with limits of its own is right about the rate more often than about how many requests may come together. So after a
// refusal, its requests are sent no faster than the fastest of its limits allows in the mean: for half a minute one by one, and for ten
// minutes at most three together. Its rate is lowered only if such requests are refused twice in a row, or if it was lower already.
type pace struct {
	next   meter.Instant // no request is sent before
	rate   float64       // per second; 0: there is no pace
	steady meter.Instant // from then on the rate doubles
	heard  meter.Instant // when the last response came: requests may have waited for it
	fed    meter.Instant // when the last request was sent that was accepted: without, the rate does not grow
	given  float64       // requests that were accepted since from, of which each end of a cycle of work and wait leaves half
	from   meter.Instant // when that count began; each end of a cycle moves it to half as long ago
	waited meter.Instant // the end of the last refusal's wait; 0: there was none
	wait   int64         // how long it was
	most   float64       // the rate of the fastest of the client's own limits, if it has any: no rate is higher until evenly
	evenly meter.Instant
	first  meter.Instant // when the first of the requests was sent that were accepted since the last wait
	worked bool          // there is one
	finds  bool          // no rate was known
	found  int8          // requests that were accepted after the wait since then, up to paceEnough
	lone   bool          // others were accepted, and only one request was refused before the wait began
	asked  bool          // the server has asked for the last wait
	spaced bool          // the last request that was refused had been sent evenly, at the client's own limit
	why    Why           // why it began at that rate

	together int8 // requests that are sent at once next, as a trial whether refusals are by chance
}

// at returns the rate at an instant. It grows only as long as requests are accepted.
func (p *pace) at(now meter.Instant) float64 {
	r := p.rate * math.Exp2(float64(max(0, min(now, p.fed)-p.steady))/p.doubles())
	if now < p.evenly {
		return min(r, p.most)
	}
	return r
}

// doubles returns in which time the rate doubles. At a low rate, few seconds show nothing: hardly a request more is accepted in them than at
// half of it. But refusals that do not ask for a wait may not depend on the rate.
func (p *pace) doubles() float64 {
	switch {
	case !p.finds && p.asked:
		return paceDoubles * max(1, paceFew/p.rate)
	case !p.finds:
		return paceDoubles
	case p.lone:
		return paceFinds
	}
	return paceFull
}

// spacing returns the time between two requests at an instant; 0: the pace has ended.
func (p *pace) spacing(now meter.Instant) int64 {
	if p.over(now) {
		return 0
	}
	return int64(1e9 / p.at(now))
}

// reason returns why the rate is as it is.
func (p *pace) reason(now meter.Instant) Why {
	if now < p.evenly && p.at(now) == p.most {
		return OwnLimit
	}
	return p.why
}

// over reports whether the pace stops nothing any more: it has grown out of use, or was not used for a while.
func (p *pace) over(now meter.Instant) bool {
	return p.rate == 0 || now-max(p.next, p.heard) > paceIdle && now >= p.evenly
}

// take takes a request that is due then, after one that was sent last.
func (p *pace) take(due, last meter.Instant) {
	if rest := due - max(last, p.next); rest > paceRest {
		p.from += rest - paceRest
	}
	if p.together > 1 {
		p.together--
		return
	}
	p.together = 0
	if !p.over(due) {
		if r := p.at(due); r <= paceMost {
			from := due
			if p.evenly-evenFor+evenStrict <= due && due < p.evenly { // what was not used lately may be used now
				from = min(due, max(p.next, due-int64(evenSlack*1e9/r)))
			}
			p.next = meter.AddInstant(from, int64(1e9/r))
			return
		}
	}
	p.rate = 0
}

// putOff has a pace begin at the end of a longer wait, unless the pace is over.
func (p *pace) putOff(now, end meter.Instant) {
	if d := end - p.next; d > 0 && !p.over(now) {
		p.next, p.steady, p.waited, p.wait = end, meter.AddInstant(p.steady, d), end, end-now
	}
}

// joined takes another refusal of the event by which the pace began.
func (p *pace) joined() {
	if p.lone && p.finds {
		p.steady = meter.AddInstant(p.steady, int64(paceFull))
	}
	p.lone = false
}

// space has requests sent evenly from now on, for a time, after one that was sent last.
func (p *pace) space(now, last meter.Instant) {
	p.evenly = meter.AddInstant(now, evenFor)
	if p.rate == 0 {
		p.rate, p.steady, p.finds = p.most, now, true // most may become known to be higher
	}
	p.next = max(p.next, meter.AddInstant(last, int64(1e9/p.most)))
}

func (p *pace) accepted(sentAt meter.Instant) {
	p.given++
	p.fed = max(p.fed, sentAt)
	if sentAt >= p.waited {
		p.found = min(p.found+1, paceEnough)
	}
	if sentAt >= p.waited && (!p.worked || sentAt < p.first) {
		p.worked, p.first, p.steady = true, sentAt, max(p.steady, sentAt)
	}
}

// sustained returns how many requests per second were accepted in the last cycles of work and wait, of which the last counts up to end; 0:
// none was.
func (p *pace) sustained(end meter.Instant) float64 {
	return p.given * 1e9 / float64(max(end-p.from, 1))
}

// begin returns the rate after an isolated refusal of a request that was sent then: that which was accepted lately. A burst of less than a
// second is no rate. There the wait counts as well, up to counts, and at least a second in all, until the rate is known.
func begin(sent, counts meter.Instant, lately record.Sum) (rate float64, known bool) {
	if lately.N == 0 || sent-lately.From < second {
		return max(paceFew, lately.Rate(counts)), false
	}
	return lately.Rate(sent), true
}

// refused begins a pace at the end of the wait after a refusal. A wait counts as long as the one before it: a long one that has not come
// twice shows nothing of the rate.
func (p *pace) refused(r *refusal, wait int64, end meter.Instant, lately record.Sum, own *Own, last meter.Instant) {
	counts := min(end, meter.AddInstant(r.at, p.wait))
	wait = min(wait, p.wait)
	long, worked := min(20*wait, steadyMost), p.worked && p.first < r.sent
	isolated := p.waited == 0 || r.sent > meter.AddInstant(p.waited, long)
	if isolated {
		p.given, p.from = lately.N, min(lately.From, r.sent)
	}
	sustained, too := p.sustained(counts), p.at(r.sent)
	spaced := p.spaced
	p.spaced = r.sent < p.evenly
	before, known := begin(r.sent, counts, lately)
	finds := p.finds && p.found < paceEnough
	switch {
	case worked: // this cycle ends, and counts half as much as the next one
		p.given, p.from, p.worked, p.finds = p.given/2, end-(counts-p.from)/2, false, finds
	case isolated: // a row begins
		p.from, p.worked = p.from+max(0, end-r.at-paceWait), false
	}
	p.waited, p.wait, p.asked, p.lone = end, end-r.at, r.wait > 0, lately.N > 0
	short := meter.AddInstant(end, min(wait, paceWait)/2)
	switch {
	case own.Rate == 0 && own.Adaptive: // it decides
	case !worked && !isolated && p.why == Between: // the server was closed for longer than the first wait
		p.steady = max(p.steady, meter.AddInstant(end, long))
	case !worked && !isolated: // the server is closed, which shows nothing about its rate
		p.steady = max(p.steady, end)
	case own.Rate > 0 && (!spaced || isolated && (p.over(r.sent) || too >= p.most)): // its own limit is trusted, unless it was not reached
		p.rate = 0
	case finds && !p.over(r.sent):
		p.rate, p.steady = max(paceFew, sustained), end
	case !p.over(r.sent):
		p.rate, p.steady, p.why = aimd.Halfway(sustained, too), meter.AddInstant(end, long), Between
	case isolated && !known:
		p.rate, p.steady, p.finds, p.found, p.why = before, end, true, 0, Finding
	case isolated:
		p.rate, p.steady, p.finds, p.why = before, short, false, AsBefore
	default:
		p.rate, p.steady, p.why = sustained, short, AsBefore
	}
	p.next = max(p.next, end)
	if own.trusted() {
		p.space(end, last)
	}
}

// forget returns a pace that is over, after which the same is known of the requests that were sent.
func (p *pace) forget(now meter.Instant) pace {
	return pace{fed: p.fed, from: now, most: p.most}
}
