package quota

import (
	"math"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A played is a copy of what stops the requests of a gate, at a server that accepts them and reports as before.
type played struct {
	meter.Unlimited
	until  meter.Instant // a hold
	shut   bool          // no request is sent any more, as far as is known
	asks   bool          // the next request finds out what the server allows after a hold
	even   evenly
	rate   meter.Meter   // nil: none is learned
	last   meter.Instant // when the last request was sent
	quotas []playedQuota
	units  meter.Meter // nil: no units stop requests
}

// A playedQuota is a copy of a quota that stops requests.
type playedQuota struct {
	left  int64
	most  int64 // that a window allows; 0: it is not known
	at    meter.Instant
	end   meter.Instant // of the window; Never: it is not known
	lasts int64         // how long the next windows are; 0: that has not been seen
	rate  float64       // at which it refills, per ns; 0: it does not
	held  meter.Instant
	dry   bool // a window ran dry, so what is left is spread
	dries bool // it runs dry when nothing is left
}

// Play implements [meter.Player].
func (g *Gate) Play(now meter.Instant) (m meter.Meter, known bool) {
	a := g.Account
	p := &played{until: a.Until(), shut: a.final != nil, even: a.even, last: a.backoff.Last()}
	if known = true; a.rate != nil {
		p.rate, known = a.rate.Play(now)
	}
	for _, q := range g.quotas {
		if x, stops := q.play(now); stops {
			p.quotas = append(p.quotas, x)
		}
	}
	if g.stopsBy() {
		p.units, _ = a.units.Play(now)
	}
	p.asks = len(p.quotas) == 0 && p.units == nil && p.until > now
	return p, known
}

// play returns what Play copies, and reports whether it stops requests.
func (q *quota) play(now meter.Instant) (p playedQuota, stops bool) {
	p = playedQuota{left: q.free(), most: q.most - q.withheld(), at: now, end: q.end(), held: q.held, rate: q.refills(), dry: q.scarce, dries: !q.account.own.trusted()}
	switch {
	case !q.believed() || q.left == meter.MaxCount, !q.scarce && (q.reserve == 0 || q.left > q.reserve) && !p.dries, !q.counted:
		return p, false
	case q.followed || q.length != nil:
		p.lasts = q.lasts()
	}
	switch {
	case p.rate > 0:
	case p.left <= 0 && (p.end == meter.Never || p.end <= now):
		p.end = max(now, q.try)
	case p.end <= now:
		p.turn(now)
	}
	return p, true
}

// turn begins the window of which an instant is.
func (p *playedQuota) turn(at meter.Instant) {
	if p.left, p.at = p.most, at; p.lasts > 0 {
		p.end += ((at-p.end)/p.lasts + 1) * p.lasts
	} else {
		p.end = meter.Never
	}
}

// ready returns when need requests can be sent, after one that was sent last.
func (p playedQuota) ready(at, last meter.Instant, need int64) meter.Instant {
	at = max(at, p.held)
	if p.rate > 0 {
		short := float64(need-p.left) - p.rate*float64(at-p.at)
		switch lasts := short / (flowUsed * p.rate); {
		case lasts > math.MaxInt64/2:
			return meter.Never
		case lasts > 0:
			return meter.AddInstant(at, int64(lasts)+1)
		}
		return at
	}
	if at >= p.end {
		p.turn(at)
	}
	switch short := need - p.left; {
	case short > 0 && p.most > 0:
		if later := (short - 1) / p.most; later == 0 || p.lasts > 0 && p.end < meter.Never {
			return max(at, meter.AddInstant(p.end, meter.MulCount(later, p.lasts)))
		}
		return meter.Never
	case short > 0:
		return meter.Never
	case p.dry && p.end < meter.Never:
		return max(at, meter.AddInstant(last, min(p.end-max(at, last), spreadOver)/max(1, p.left)))
	}
	return at
}

// take takes a request that is sent then.
func (p *playedQuota) take(now meter.Instant) {
	if p.rate > 0 {
		p.left = min(p.most, p.left+int64(p.rate*float64(now-p.at)))
	} else if now >= p.end {
		p.turn(now)
	}
	p.left--
	p.at = now
	p.dry = p.dry || p.dries && p.left <= 0
}

func (p *played) Payable(now meter.Instant, cost int64) bool { return p.Ready(now, 0, cost) <= now }

func (p *played) Spend(now meter.Instant, cost int64) (int64, bool) {
	return meter.SpendIf(p, now, cost)
}

// Ready implements [meter.Meter].
func (p *played) Ready(from meter.Instant, ahead, cost int64) meter.Instant {
	if p.shut {
		return meter.Never
	}
	at := max(from, p.until, p.even.next)
	if p.rate != nil {
		at = p.rate.Ready(at, 0, 1)
	}
	for i := range p.quotas {
		at = p.quotas[i].ready(at, p.last, meter.AddCount(ahead, cost))
		if at == meter.Never {
			return at
		}
	}
	if p.units != nil {
		at = p.units.Ready(at, ahead, cost)
	}
	return at
}

// Take implements [meter.Meter].
func (p *played) Take(due, now meter.Instant, cost int64, waited bool) int64 {
	if p.units != nil {
		p.units.Take(due, now, cost, waited)
	}
	p.even.take(due)
	if p.rate != nil {
		p.rate.Take(due, now, 1, true)
	}
	for i := range p.quotas {
		p.quotas[i].take(due)
	}
	p.last, p.shut = due, p.asks
	return now
}
