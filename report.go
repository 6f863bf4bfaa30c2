package throttle

import "time"

// tracked reports whether a limit wants to know what becomes of the requests that it let go.
func (li *Limit) tracked() bool {
	return li.kind == kindAIMD || li.kind == kindInFlight || li.kind == kindServer
}

// report tells the buckets that a request was charged in what has become of it, which may change when others can go.
func (l *Limiter) report(s *receipt, a *answer, o *observer) {
	retunes, holds := l.reportAndServe(s, a)
	for _, e := range retunes {
		o.retuned(e)
	}
	for _, e := range holds {
		o.held(e.Key, e.For)
	}
}

func (l *Limiter) reportAndServe(s *receipt, a *answer) (retunes []RetuneEvent, holds []HoldEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.nowLocked()
	for i := range s.len() {
		l.markLocked(s.charge(i).bucket)
	}
	l.serveLocked(now) // who is due goes first, as it was planned
	adaptive := false
	for i := range s.len() { // the gate, if there is one, comes last
		c, held := s.charge(i), time.Duration(0)
		switch m := c.bucket.meter.(type) {
		case *adaptiveBucket:
			adaptive = true
			held = l.answeredLocked(c, m, s.at, a, now)
			if r, ok := m.control.retuned(); ok {
				retunes = append(retunes, RetuneEvent{c.bucket.limit.name, c.bucket.key, string(r.cause), r.from, r.to})
			}
		case *semaphore:
			if !c.kept {
				l.giveBackLocked(c.bucket, c.paid, now, c.cost)
			}
		case *gateBucket:
			held = l.heardLocked(m, s.at, a, adaptive, now)
		}
		if held > 0 {
			holds = append(holds, HoldEvent{Key: c.bucket.key, For: held})
		}
	}
	l.serveLocked(now)
	return retunes, holds
}

// answeredLocked tells the controller of a bucket, and returns for how long the key is held because of it.
func (l *Limiter) answeredLocked(c *tracked, b *adaptiveBucket, sent instant, a *answer, now instant) (held time.Duration) {
	o := a.outcome
	if c.outcome != 0 {
		o = c.outcome
	}
	paused := b.control.pausedUntil
	b.answered(now, c.paid, sent, c.cost, o, a.retryAfter)
	if b.control.pausedUntil != paused {
		held = time.Duration(b.control.pausedUntil - now)
		l.replanLocked(now, c.bucket)
	}
	l.markLocked(c.bucket)
	return held
}

// forget reports charges of whose fate nobody will tell.
func (l *Limiter) forget(at instant, charges []charge) {
	if l.tracks {
		l.reportCharges(at, charges, &answer{outcome: OutcomeIgnore})
	}
}

// Report tells an [Adaptive] limit what has become of what was paid for; the time since the grant is its latency. Whoever
// acquires from such a limit must call Report or [Grant.Cancel], since no more than it may have in flight are granted.
// Other limits take no notice, and only the first of all calls to the two counts.
func (g *Grant) Report(o Outcome) {
	if g.first(grantReported) {
		g.limiter.reportCharges(g.at, g.charges, &answer{outcome: o})
	}
}

func (l *Limiter) reportCharges(at instant, charges []charge, a *answer) {
	var s receipt
	s.track(at, charges)
	for i := range s.len() {
		s.charge(i).kept = true // until Done
	}
	if !s.empty() {
		l.report(&s, a, &l.observer)
	}
}

// What may be done with a Grant, each once.
const (
	grantReported = 1 << iota
	grantDone
	grantCanceled = grantReported | grantDone
)

// first reports whether nothing of what has been done before, and notes that it is now.
func (g *Grant) first(what uint8) bool {
	g.limiter.mu.Lock()
	defer g.limiter.mu.Unlock()
	first := g.spent&what == 0
	g.spent |= what
	return first
}

// A RetuneEvent says that an [Adaptive] limit has changed the rate of a key.
type RetuneEvent struct {
	Limit, Key string
	Reason     string  // what made it so: growth, throttled, errors, latency, silence, …
	Old, New   float64 // tokens per second; growth is told when it comes to a tenth
}
