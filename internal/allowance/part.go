package allowance

import (
	"math"
	"strings"

	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	minute    = 60 * second
	mixed     = 20 * second / 1000 // in which the network may change the order of requests
	rounding  = float64(second)    // by which resets that servers report are wrong
	spareFlow = 1.0 / 16           // of a limit that refills is left unused, once
	spareEach = 1.0 / 256          // of a window, each time
	lateMost  = 2 * second         // by which windows may end later than reported
)

// A Claim is what a response reports of a part.
type Claim struct {
	Name, Unit string
	Limit      int64 // -1: unknown
	Left       int64
	Reset      int64 // in how many ns, of the response; -1: unknown
}

// A part is a quota that responses report: a bucket that refills steadily, or a window in which all comes back at the end. If neither an end
// nor a rate is reported, it is taken for a window of a minute of the clock.
type part struct {
	name, unit string
	limit      float64
	left       float64 // when the newest request came that has a response
	newest     int64   // requests up to this number are counted in it
	said       int64   // the number of the request whose response reported it
	at         meter.Instant
	then       total // with that request
	fit        fit
	base       sample
	ends       meter.Instant // of the window
	rate       float64       // per ns
	refills    float64       // responses that speak for a bucket less those that speak for a window
	late       int64         // by which windows end later than reported
	dry        bool          // it was used up before
	tight      bool          // a request was refused although enough was left: it is counted over a shorter time, too
}

func (p *part) isBucket() bool { return p.refills > 0 && p.rate > 0 }

// take takes what the response to a request reports. The request may have been refused, and was not charged then.
func (p *part) take(n int64, x *send, c *Claim, refused bool, near float64, clock func(meter.Instant) meter.Instant) {
	left := float64(max(c.Left, 0))
	limit := p.limit
	if c.Limit >= 0 {
		limit = float64(c.Limit)
	}
	limit = max(limit, left)
	then := x.before
	if !refused {
		then.sent += float64(x.cost)
	}
	first := p.limit == 0
	if together := x.at-p.at < mixed && p.at-x.at < mixed; !first && limit == p.limit && together && (n < p.newest || left > p.left) {
		p.left = min(p.left, left) // which of them the server has counted is not known
		if left = p.left; n < p.newest {
			return
		}
	}
	if !first && n < p.newest {
		return
	}
	if !first && x.at >= p.ends && !p.isBucket() {
		p.turn(x.at, x.before, n-1, clock)
	}
	if !first && limit == p.limit {
		p.learn(n, x.at, then, left, refused, near)
	}
	p.limit, p.left, p.newest, p.at, p.then, p.said = limit, left, n, x.at, then, n
	if refused {
		p.newest--
	}
	p.resets(x.at, left, c.Reset, clock)
	p.dry = p.dry || left < limit/16
}

// learn takes by how much less is left than before. What is cut off, because nothing is left or all of it, shows less, so a sample ends where some is left.
func (p *part) learn(n int64, at meter.Instant, then total, left float64, refused bool, near float64) {
	base := &p.base
	sent, ended := then.sent-base.then.sent, then.ended-base.then.ended
	less := base.left - left
	turned, filled := false, left >= p.limit
	if p.isBucket() {
		less += p.rate * float64(at-base.at)
		filled = filled || less+left >= p.limit
	} else {
		used := p.limit - p.left
		turned = left-p.left > max(used/2, p.limit/64)
	}
	if left <= 0 || refused {
		return
	}
	whole := base.known && !turned && !filled && left < p.limit
	if whole && sent < 4*(near+base.near) && near >= base.near {
		return // a longer stretch shows more
	}
	if whole && sent >= 4*(near+base.near) {
		p.fit.add(sent, ended, less)
	}
	p.base = sample{n, left, near, at, then, left < p.limit}
}

// A sample is a response that a later one is compared with.
type sample struct {
	n     int64
	left  float64
	near  float64 // what other requests cost that were sent at about the same time, so that the server may have counted them or not
	at    meter.Instant
	then  total
	known bool
}

// resets takes in how many ns a response says that more is left, or all.
func (p *part) resets(at meter.Instant, left float64, reset int64, clock func(meter.Instant) meter.Instant) {
	if reset < 0 {
		if p.ends <= at {
			p.ends = clock(at)
		}
		return
	}
	used, in := p.limit-left, float64(reset)
	if used < p.limit/64 || in <= 0 { // rounding is more than what it shows
		if p.ends <= at {
			p.ends = meter.AddInstant(at, reset)
		}
		return
	}
	const most = 16
	rate := used / in
	if p.rate > 0 {
		if full := used / p.rate; math.Abs(full-in) <= max(rounding*1.1, full/16) {
			p.refills = min(p.refills+1, most)
		}
		if ends := meter.AddInstant(at, reset); math.Abs(float64(ends-p.ends)) <= rounding*1.1 {
			p.refills = max(p.refills-1, -most)
		} else {
			p.refills = min(p.refills+.5, most)
		}
	}
	if p.rate == 0 {
		p.rate = rate
	} else {
		p.rate += (rate - p.rate) / 8
	}
	p.ends = meter.AddInstant(at, reset)
}

// undo takes back a request that was not sent, or was refused.
func (p *part) undo(n int64, cost int64) {
	if n <= p.newest {
		p.then.sent -= float64(cost)
	}
	if n <= p.base.n {
		p.base.then.sent -= float64(cost)
	}
}

// waits takes for how long a refusal asks because too little is left: until there is enough for the request.
func (p *part) waits(now meter.Instant, wait int64, cost float64, s *sends) {
	p.left, p.at, p.then, p.newest = p.fit.sent*cost, meter.AddInstant(now, wait), s.total, s.next-1
}

// turn begins the window of which at is a part.
func (p *part) turn(at meter.Instant, then total, n int64, clock func(meter.Instant) meter.Instant) {
	p.left, p.at, p.then, p.newest = p.limit, at, then, n
	p.ends = clock(at)
	p.base.known = false
}

// free returns what is left at an instant, less what requests in flight are still going to cost.
func (p *part) free(at meter.Instant, s *sends) float64 {
	switch {
	case p.isBucket():
		have := min(p.limit, p.left+p.rate*float64(at-p.at))
		f := &p.fit
		have -= f.sent*(s.sent-p.then.sent) + f.ended*(s.ended-p.then.ended)
		return have - max(0, f.ended*s.pending()-p.rate*s.took/2)
	case at >= p.ends+p.late:
		return p.limit - p.owed(s, math.MaxInt64)
	}
	f := &p.fit
	have := p.left - f.sent*(s.sent-p.then.sent) - f.ended*(s.ended-p.then.ended)
	return have - p.owed(s, p.ends-at)
}

// owed returns what requests in flight are going to cost within a time.
func (p *part) owed(s *sends, within int64) float64 {
	if p.fit.ended <= 0 || s.took <= 0 {
		return 0
	}
	return p.fit.ended * s.pending() * min(1, float64(within)/s.took)
}

// ready returns when cost can be paid, not before from, after a request that was sent last.
func (p *part) ready(from, last meter.Instant, cost float64, s *sends) meter.Instant {
	want := min(p.fit.most()*cost, p.limit/2)
	if p.isBucket() {
		want += p.limit * spareFlow
		if short := want - p.free(from, s); short > 0 {
			return meter.AddInstant(from, int64(short/p.rate)+1)
		}
		return from
	}
	end := meter.AddInstant(p.ends, p.late)
	if from >= end {
		return from
	}
	spare := p.limit * spareEach
	free := p.free(from, s) - spare
	if free < want {
		return end
	}
	if p.dry {
		even := float64(end-from) / free * p.fit.whole() * cost
		if p.tight {
			even = max(even, p.fit.whole()*cost*float64(minute)/p.limit)
		}
		return min(end, max(from, meter.AddInstant(last, int64(min(even, float64(minute))))))
	}
	return from
}

func newPart(c *Claim) *part {
	return &part{name: strings.Clone(c.Name), unit: strings.Clone(c.Unit), newest: -1, fit: newFit()}
}
