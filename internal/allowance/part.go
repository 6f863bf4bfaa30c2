package allowance

import (
	"math"
	"strings"

	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	minute      = 60 * second
	mixed       = second / 50 // in which the network may change the order of requests
	mostLate    = 5 * mixed   // from the sending of a request to its arrival, longer for one than for another
	rounding    = 1.1e9       // by which resets that servers report are wrong, in ns
	spareFlow   = 1.0 / 16    // of a limit that refills is left unused, once, because what is in flight may cost more than usual
	spareEach   = 1.0 / 256   // of a window, each time
	mostWeighed = 16          // responses by which a part is known to refill, or not to
	dryBelow    = 16          // as many times as what is left is the limit of what is used up
	clear       = 4           // times as much as is uncertain must be spent between two responses to be a sample
)

// Figures are what a response reports of a part.
type Figures struct {
	Name  string
	Limit int64 // -1: unknown
	Left  int64
	Reset int64 // in how many ns more is left, or all; -1: unknown
}

// A part is a quota that responses report: a bucket that refills steadily, or a window in which all comes back at the end. If
// neither an end nor a rate is reported, it is taken for a window of a minute of the clock.
type part struct {
	name     string
	limit    float64 // 0: no response has reported the part
	now      sample  // what the newest response reported
	said     int64   // the number of its request
	base     sample  // what the next sample of the fit is compared with
	first    int64   // the last request that was counted before the window; -1: there was none
	fit      fit
	ends     meter.Instant // of the window, if the request whose response says so came when it was sent
	late     int64         // by how much later the window ends at most, because it came later
	reported meter.Instant // the latest end of a window that the newest response allows; 0: none has reported one
	lasts    int64         // how long a window is, by two reported ends; 0: it is not known
	rate     float64       // per ns, of a bucket
	refills  float64       // responses that speak for a bucket, less those that speak for a window
	dry      bool          // it was used up before, so what is left of a window is spread until its end
	played   bool          // it is a copy of one, which says what is not known; see Play
	tight    bool          // requests are refused although enough is left: it is counted over a shorter time, too
}

// A sample is what was left when a request came.
type sample struct {
	left  float64
	at    meter.Instant
	n     int64   // requests up to this number are counted
	then  total   // with these
	near  float64 // what other requests were estimated to cost that were sent at about the same time, so that they may be counted or not
	back  float64 // what requests were estimated to cost that ended at about the same time, so that left may have their true cost already
	whole bool    // nothing was cut off, so another sample can be compared with it
}

func newPart(c *Figures) *part {
	return &part{name: strings.Clone(c.Name), first: -1, fit: newFit(1, 0)}
}

// turns returns when the window has ended for requests that are sent then.
func (p *part) turns() meter.Instant { return meter.AddInstant(p.ends, p.late) }

func (p *part) isBucket() bool { return p.refills > 0 && p.rate > 0 }

// take takes what the response to a request reports, which came after some time. A request that was refused is not charged.
func (p *part) take(n int64, x *send, c *Figures, refused bool, near, back float64, took int64, ends func(meter.Instant) meter.Instant) {
	s := sample{left: float64(max(c.Left, 0)), at: x.at, n: n, then: x.before, near: near, back: back}
	if refused {
		s.n--
	} else {
		s.then.sent += float64(x.cost)
	}
	limit := p.limit
	if c.Limit >= 0 {
		limit = float64(c.Limit)
	}
	limit = max(limit, s.left)
	s.whole = s.left > 0 && s.left < limit && !refused
	if known := p.limit == limit; known {
		if before := &p.now; math.Abs(float64(s.at-before.at)) < float64(mixed) && (n < p.said || s.left > before.left) {
			s.left = min(s.left, before.left) // which of them the server has counted is not known
			before.left = s.left
		}
		if n < p.said {
			if n > p.first {
				p.learn(&s)
			}
			return
		}
		if !p.isBucket() && s.at >= p.turns() {
			p.turn(s.at, x.before, n-1, p.next(s.at, ends))
		}
		p.learn(&s)
		if p.fit.n > 0 { // before, what a request costs is a guess
			s.left = min(s.left, max(s.left-p.fit.sent*near, p.expected(&s)))
		}
	}
	p.limit, p.now, p.said = limit, s, n
	p.resets(c, took, ends)
	if now := x.at + took; !p.isBucket() && now >= p.turns() { // the requests since may be counted in the next window
		p.turn(now, s.then, s.n, p.next(now, ends))
	}
	p.dry = p.dry || s.left < limit/dryBelow
}

// expected returns what the newest response lets expect to be left in a later sample. If the sample has more, but no more than requests
// cost that were sent at about the same time, these reached the server after it.
func (p *part) expected(s *sample) float64 {
	left := p.now.left
	if p.isBucket() {
		left += p.rate * float64(s.at-p.now.at)
	}
	return min(p.limit, left) - p.since(&s.then)
}

// learn takes a sample for the fit, if it is of the same window as the one before, and what was spent between is clear. What is
// cut off, because nothing is left or all of it, shows less than was spent, so a sample ends where some is left. A response that
// others have overtaken is one, too: up to the newest.
func (p *part) learn(s *sample) {
	if !s.whole {
		return
	}
	from, to, before := &p.base, s, p.now.left
	overtaken := s.n < p.base.n // by the response to a later request
	if overtaken {
		from, to, before = s, &p.base, s.left
	}
	sent, ended, less := to.then.sent-from.then.sent, to.then.ended-from.then.ended, from.left-to.left
	same := p.base.whole
	if p.isBucket() {
		less += p.rate * float64(to.at-from.at)
		same = same && less+to.left < p.limit // else it may have been full meanwhile
	} else {
		same = same && to.left-before <= max((p.limit-before)/2, p.limit/64) // else it has turned
	}
	switch uncertain := clear * (from.near + to.near + from.back + to.back); {
	case same && sent >= uncertain:
		p.fit.add(sent, ended, less, s.then.sent/float64(s.n+1))
	case same && s.near+s.back >= p.base.near+p.base.back:
		return // a longer stretch is clearer
	}
	if !overtaken {
		p.base = *s
	}
}

// resets takes in how many ns the newest response says that more is left, or all of it: the end of a window stays the same, and
// until a bucket is full it takes as long as it refills what was used. What little use shows is less than what is rounded.
func (p *part) resets(c *Figures, took int64, ends func(meter.Instant) meter.Instant) {
	at, in, used := p.now.at, c.Reset, p.limit-float64(max(c.Left, 0))
	end := meter.AddInstant(at, max(in, 0))
	switch {
	case in < 0:
		end = ends(at)
	case in > 0 && used >= p.limit/64:
		p.ended(end, in, took)
		if rate := used / float64(in); p.rate == 0 {
			p.rate = rate
		} else {
			unsure := rounding
			if in%second != 0 { // it is not in whole seconds
				unsure = float64(mostLate)
			}
			p.weigh(float64(in), used/p.rate, math.Abs(float64(end-p.ends)) <= unsure)
			p.rate += (rate - p.rate) / 8
		}
		p.ends, p.late = end, min(took, mostLate)
	}
	if p.ends <= at {
		p.ends = end
	}
}

// isWindow reports whether it is known how long its windows last.
func (p *part) isWindow() bool { return p.refills < 0 && p.lasts > 0 }

// ended takes the end of a window, which is later by as much as its response took if it was reported at the end of that. Windows follow each
// other, so the next one ends one or several of them later.
func (p *part) ended(end meter.Instant, in, took int64) {
	if later := end - p.reported; p.reported > 0 && float64(later) > rounding && (p.lasts == 0 || later < p.lasts) {
		p.lasts = later
	}
	p.reported = meter.AddInstant(end, took)
	if p.lasts > 0 {
		p.lasts = max(p.lasts, in)
	}
}

// next returns the end of the window of which an instant is, if no response reports it: a minute of the clock, or as long as windows before.
func (p *part) next(at meter.Instant, ends func(meter.Instant) meter.Instant) meter.Instant {
	if !p.isWindow() {
		return ends(at)
	}
	return p.ends + ((at-p.ends)/p.lasts+1)*p.lasts
}

// weigh weighs a response that says in how many ns more is left. full is when the bucket would be full.
func (p *part) weigh(in, full float64, sameEnd bool) {
	switch fits := math.Abs(full-in) <= max(rounding, full/16); {
	case sameEnd && !fits:
		p.refills = max(p.refills-1, -mostWeighed)
	case !sameEnd && fits:
		p.refills = min(p.refills+1.5, mostWeighed)
	case !sameEnd:
		p.refills = min(p.refills+.5, mostWeighed)
	}
}

// undo takes back a request that was not sent, or was refused.
func (p *part) undo(n int64, cost float64) {
	for _, s := range [...]*sample{&p.now, &p.base} {
		if n <= s.n {
			s.then.sent -= cost
		}
	}
}

// waits takes for how long a refusal asks because too little is left: until there is enough for the request.
func (p *part) waits(now meter.Instant, wait int64, cost float64, s *sends) {
	if p.isBucket() {
		p.now = sample{left: p.fit.sent * cost, at: meter.AddInstant(now, wait), n: s.next - 1, then: s.total}
	}
}

// turn begins the window of which at is a part, and which ends then. Requests up to that number were counted before.
func (p *part) turn(at meter.Instant, then total, n int64, ends meter.Instant) {
	p.now = sample{left: p.limit, at: at, n: n, then: then}
	p.said, p.first, p.ends, p.late, p.base.whole = n, n, ends, 0, false
}

// overflow takes what a bucket has lost because it was full before a request is sent.
func (p *part) overflow(now meter.Instant, s *sends) {
	if p.now.left+p.rate*float64(now-p.now.at)-p.since(&s.total) > p.limit {
		p.now = sample{left: p.limit, at: now, n: s.next - 1, then: s.total}
	}
}

// free returns what is left at an instant, less what requests in flight are still going to cost.
func (p *part) free(at meter.Instant, s *sends) float64 {
	now, f, since := &p.now, &p.fit, p.since(&s.total)
	switch {
	case p.isBucket():
		back := p.rate * float64(at-now.at)
		return min(p.limit, now.left+back-since) - max(0, f.ended*s.pending()-p.rate*s.took/2)
	case at >= p.turns():
		return p.limit - p.owed(s, math.Inf(1))
	}
	return now.left - since - p.owed(s, float64(p.turns()-at))
}

// since returns what was spent since the newest response, up to a total.
func (p *part) since(t *total) float64 {
	now, f := &p.now, &p.fit
	ended := t.ended - now.then.ended
	if f.ended < 0 {
		ended -= now.back
	}
	return f.sent*(t.sent-now.then.sent) + f.ended*ended
}

// owed returns what requests in flight are going to cost within a time.
func (p *part) owed(s *sends, within float64) float64 {
	if p.fit.ended <= 0 || s.took <= 0 {
		return 0
	}
	return p.fit.ended * s.pending() * min(1, within/s.took)
}

// ready returns when cost can be paid once ahead has been, not before from, after a request that was sent last. What costs more
// than half of the limit is sent when half of it is left.
func (p *part) ready(from, last meter.Instant, ahead, cost float64, s *sends) meter.Instant {
	want := p.fit.whole*ahead + min(p.fit.most*cost, p.limit/2)
	short := want - p.free(from, s)
	switch bucket := p.isBucket(); {
	case bucket && short+p.limit*spareFlow > 0:
		return meter.AddInstant(from, int64(min((short+p.limit*spareFlow)/p.rate, float64(meter.MaxPer)))+1)
	case bucket, ahead == 0 && from >= p.turns():
		return from
	}
	spare := p.limit * spareEach
	if short += spare; short > 0 {
		later := int64(min(short/max(p.limit-spare, 1), float64(meter.MaxPer/minute))) // windows after the next one
		lasts := minute
		switch {
		case p.isWindow():
			lasts = p.lasts
		case p.played && later > 0 && p.reported > 0:
			return meter.Never
		}
		return meter.AddInstant(max(from, p.turns()), later*lasts)
	}
	if !p.dry || from >= p.turns() {
		return from
	}
	each := float64(p.turns()-from) / (want - short)
	if p.tight {
		each = max(each, float64(minute)/p.limit)
	}
	return min(p.turns(), max(from, meter.AddInstant(last, int64(min(each*p.fit.whole*(ahead+cost), float64(meter.MaxPer))))))
}

// perSecond returns how much comes back in a second; 0: it is not known.
func (p *part) perSecond() float64 {
	if p.isBucket() {
		return p.rate * 1e9
	}
	return 0
}
