package throttle

import (
	"context"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
)

// tracked reports whether a limit needs the outcome of the requests that it granted.
func (li *Limit) tracked() bool { return li.reported() || li.settled() }

// settled reports whether responses tell the limit the true cost of requests.
func (li *Limit) settled() bool { return li.settles != nil || li.costAt != nil }

// reported reports whether the meters of the limit need the outcome.
func (li *Limit) reported() bool {
	return li.kind == kindAIMD || li.kind == kindInFlight || li.kind == kindServer
}

// report tells the outcome of a request to the buckets that it was charged in. That may change when waiters can go.
func (l *Limiter) report(g *Grant, a *answer) {
	retunes, holds := l.reportAndServe(g, a)
	for _, e := range retunes {
		g.by.observer.retuned(e)
	}
	for _, e := range holds {
		g.by.observer.held(e)
	}
}

func (l *Limiter) reportAndServe(g *Grant, a *answer) (retunes []RetuneEvent, holds []HoldEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !g.firstLocked(grantReported) {
		return nil, nil
	}
	if a.unsent {
		g.spent = grantCanceled
		l.counts.undone++
		g.by.counts.undone++
		for i := range g.charges() {
			g.charges()[i].limit.counts.undone++
		}
	}
	now := l.nowLocked()
	charges := g.charges()
	for i := range charges {
		if b := charges[i].bucket; len(b.lines) > 0 && (a.unsent || b.limit.reported()) {
			l.markLocked(b)
		}
	}
	l.serveLocked(now) // requests that are due go first, as they were planned
	explained := false
	if a.word != nil && !l.quotaOff.Explain {
		_, _, explained = a.word.tells(now)
	}
	for i := range charges { // the gate, if there is one, comes last
		c, held := &charges[i], time.Duration(0)
		switch m := c.bucket.meter.(type) {
		case *aimd.Meter: // learns from an error, whether the request was sent or not
			b := *a
			if explained { // by a quota, which stops requests by itself
				b.outcome = OutcomeIgnore
			}
			held = l.answeredLocked(c, m, g.mark.at, &b, now)
			c.limit.counts.ended++
			if r, ok := m.Retuned(); ok {
				c.limit.counts.retunes[r.Cause]++
				retunes = append(retunes, RetuneEvent{g.ctx, c.bucket.limit.name, c.bucket.key, r.Cause.String(), r.From, r.To})
			}
		case *gateBucket:
			if !a.unsent {
				held = l.heardLocked(m, g.mark.at, a, charges, now)
				c.limit.counts.ended++
				break
			}
			l.giveBackLocked(c.bucket, c.paid, now, c.cost)
		default:
			if a.unsent && !c.settled || c.limit.kind == kindInFlight && !c.kept {
				l.refundLocked(c, now)
				if a.unsent {
					l.turnLocked(g.caller, c.bucket, -c.cost, now)
				}
			}
		}
		l.freeLocked(c.bucket, now)
		if held > 0 {
			holds = append(holds, l.heldLocked(g.ctx, c.bucket, held, g.by))
		}
	}
	l.serveLocked(now)
	return retunes, holds
}

// answeredLocked tells the outcome to the controller of a bucket, and returns for how long the key is held because of it.
func (l *Limiter) answeredLocked(c *charge, b *aimd.Meter, sent instant, a *answer, now instant) (held time.Duration) {
	o := a.outcome
	if c.outcome != 0 {
		o = c.outcome
	}
	paused := b.HeldUntil()
	b.Answered(now, c.paid, sent, c.cost, aimd.Outcome(o), a.retryAfter())
	if a.unsent && !c.settled {
		b.Refund(c.paid, now, c.cost)
		c.limit.counts.gave(c.cost)
	}
	if b.HeldUntil() != paused {
		held = time.Duration(b.HeldUntil() - now)
		l.replanLocked(now, c.bucket)
	}
	if len(c.bucket.lines) > 0 {
		l.markLocked(c.bucket)
	}
	return held
}

// forget records the charges of a request whose outcome will not be reported. It is not inlined, to keep the stack small on
// which its callers waited.
//
//go:noinline
func (l *Limiter) forget(p *pending) {
	if p.receipt == nil && !l.tracks {
		return
	}
	g := p.grant(l, &l.direct)
	if p.receipt != nil {
		g.filed()
	}
	if l.tracks {
		l.report(&g, &answer{outcome: OutcomeIgnore})
	}
}

// forgetNow is forget for a request that did not wait.
func (l *Limiter) forgetNow(charges []charge, m mark, r *Receipt) {
	if r != nil || l.tracks {
		l.forget(&pending{mark: m, charges: slices.Clone(charges), receipt: r})
	}
}

// A RetuneEvent says that an [Adaptive] limit has changed the rate of a key.
//
// Reason stays the same in later versions: growth, throttled, errors, errors_stayed, latency, queue_drained, latency_stayed,
// silence, probe_answered or restored.
type RetuneEvent struct {
	Context    context.Context // of the request whose response caused it; nil: unknown
	Limit, Key string
	Reason     string  // see above
	Old, New   float64 // tokens per second; growth is told when it comes to a tenth
}
