package allowance

import "github.com/httpthrottle/throttle/internal/meter"

// A played is a copy of a Meter whose requests end as soon as they are sent, at what others did cost for each token of their estimates.
type played struct {
	Meter
	each float64
}

// Play implements [meter.Player].
func (m *Meter) Play(now meter.Instant) (meter.Meter, bool) {
	p := &played{Meter: *m, each: 1}
	s := &p.sends
	if s.ended > 0 && s.spent > 0 {
		p.each = s.spent / s.ended
	}
	s.spent += p.each * s.pending()
	s.ended, s.open = s.sent, 0
	s.ring, s.kept, s.ripe = nil, s.next, s.next
	p.parts = make([]*part, len(m.parts))
	for i, of := range m.parts {
		part := *of
		part.played = true
		p.parts[i] = &part
	}
	return p, true
}

func (p *played) Payable(now meter.Instant, cost int64) bool { return p.Ready(now, 0, cost) <= now }

func (p *played) Spend(now meter.Instant, cost int64) (int64, bool) {
	return meter.SpendIf(p, now, cost)
}

// Ready implements [meter.Meter]. While no limit is known, the next responses decide what is sent then.
func (p *played) Ready(from meter.Instant, ahead, cost int64) meter.Instant {
	at := p.Meter.Ready(from, ahead, cost)
	if p.unknown() && at > max(from, p.held) {
		return meter.Never
	}
	return at
}

// Take implements [meter.Meter].
func (p *played) Take(due, now meter.Instant, cost int64, waited bool) int64 {
	for _, x := range p.parts {
		if !x.isBucket() && now >= x.turns() && x.reported > 0 && !x.isWindow() {
			x.turn(now, p.sends.total, p.sends.next-1, meter.Never) // how long the next window is has not been seen
			x.dry = false
		}
	}
	took := p.sends.took
	n := p.Meter.Take(due, now, cost, waited)
	p.sends.end(n, now, int64(p.each*float64(cost)))
	p.sends.took = took
	for _, x := range p.parts {
		if x.isBucket() { // as its response would report
			x.now = sample{left: x.free(now, &p.sends), at: now, n: n, then: p.sends.total}
		}
	}
	return n
}

// Settle implements [meter.Meter]: a request has ended before.
func (p *played) Settle(int64, meter.Instant, int64, int64) {}
