package throttle

import "time"

// tracked reports whether a limit wants to know what becomes of the requests that it let go.
func (li *Limit) tracked() bool { return li.kind == kindAIMD || li.kind == kindServer }

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
	s.each(func(c *tracked) { l.markLocked(c.bucket) })
	l.serveLocked(now) // who is due goes first, as it was planned
	adaptive := false
	s.each(func(c *tracked) {
		if b, ok := c.bucket.meter.(*adaptiveBucket); ok {
			adaptive = true
			e, held, ok := l.answeredLocked(c, b, s.at, *a, now)
			if ok {
				retunes = append(retunes, e)
			}
			if held > 0 {
				holds = append(holds, HoldEvent{Key: c.bucket.key, For: held})
			}
		}
	})
	s.each(func(c *tracked) {
		if g, ok := c.bucket.meter.(*gateBucket); ok {
			if d := l.heardLocked(g, s.at, a, adaptive, now); d > 0 {
				holds = append(holds, HoldEvent{Key: c.bucket.key, For: d})
			}
		}
	})
	l.serveLocked(now)
	return retunes, holds
}

// answeredLocked tells the controller of a bucket, and returns what came of it, if it is worth to be told, and for how
// long the key is held by it, if it is.
func (l *Limiter) answeredLocked(
	c *tracked, b *adaptiveBucket, sent instant, a answer, now instant,
) (e RetuneEvent, held time.Duration, tell bool) {
	if c.outcome != 0 {
		a.outcome = c.outcome
	}
	paused := b.control.pausedUntil
	b.answered(now, c.paid, sent, c.cost, &a)
	if b.control.pausedUntil != paused {
		held = time.Duration(b.control.pausedUntil - now)
		l.replanLocked(c.bucket, now)
	}
	l.markLocked(c.bucket)
	r, tell := b.control.retuned()
	return RetuneEvent{
		Limit: c.bucket.limit.name, Key: c.bucket.key, Reason: string(r.cause), Old: r.from, New: r.to,
	}, held, tell
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
	if g.finish() {
		g.limiter.reportCharges(g.at, g.charges, &answer{outcome: o})
	}
}

func (l *Limiter) reportCharges(at instant, charges []charge, a *answer) {
	var s receipt
	s.track(at, charges)
	if !s.empty() {
		l.report(&s, a, &l.observer)
	}
}

// finish reports whether nobody has called it before.
func (g *Grant) finish() bool {
	g.limiter.mu.Lock()
	defer g.limiter.mu.Unlock()
	first := !g.undone
	g.undone = true
	return first
}

// A RetuneEvent says that an [Adaptive] limit has changed the rate of a key.
type RetuneEvent struct {
	Limit, Key string
	Reason     string  // what made it so: growth, throttled, errors, latency, silence, …
	Old, New   float64 // tokens per second; growth is told when it comes to a tenth
}
