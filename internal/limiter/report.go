package limiter

import (
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
)

// Report passes the outcome of a request to the buckets in which it was charged. Waiters may be granted earlier or later because
// of it.
func (l *Core) Report(g *bucket.Grant, a *bucket.Answer, by *bucket.Counts) (n bucket.News) {
	now := l.begin()
	defer l.end()
	if !g.First(bucket.GrantReported) {
		return n
	}
	charges := g.Charges()
	if a.Unsent {
		g.Spent = bucket.GrantCanceled
		l.undoneLocked(charges, by, now)
	}
	var hints quota.Reading
	if a.Hints != nil {
		hints = l.readLocked(a.Hints, now)
	}
	explained, wait, gate := a.Explained, a.RetryAfter(), gateOf(charges)
	if gate != nil {
		explained, wait = gate.Explains(&hints), gate.Wait(&hints, now)
	}
	tried := triesMore(charges, a, wait)
	for i := range charges { // the gate, if there is one, comes last
		c, held := &charges[i], time.Duration(0)
		if c.Limit.Reported {
			l.payForGhostLocked(c, now)
		}
		switch {
		case c.Limit.Learns: // from an error, whether the request was sent or not
			o := *a
			if explained || tried && !c.Limit.Frees { // by a quota, which stops requests by itself, or by one request too many in flight
				o.Outcome = aimd.Ignore
			}
			m := c.Bucket.Meter.(bucket.Learner)
			held = l.answeredLocked(c, m, g.Mark.At, &o, wait, now)
			if c.Limit.Frees {
				l.endLocked(g, c, a, now)
			} else {
				c.Limit.Counts.Ended++
			}
			if r, ok := m.Retuned(); ok {
				c.Limit.Counts.Retunes[r.Cause]++
				n.Retunes = append(n.Retunes, bucket.Retuned{Bucket: c.Bucket, Retune: r})
			}
		case c.Limit.Gates && !a.Unsent:
			rep := reportOf(a, g.Mark.At, charges)
			rep.Reading, rep.Number = hints, c.Paid
			change := l.applyLocked(c.Bucket.Meter.(*quota.Gate), &rep, charges, a.Doubts, now)
			n.Forgot = change.Forgot
			n.Holds = append(n.Holds, l.heldByLocked(c.Bucket, &change, by, now)...)
			c.Limit.Counts.Ended++
		case c.Limit.Answered && !a.Unsent:
			if m, ok := c.Bucket.Meter.(bucket.Answered); ok && !l.hearLocked(c, g.Mark.At, -1, now) && m.Answered(c.Paid, now) {
				l.markLocked(c.Bucket)
			}
		default:
			l.endLocked(g, c, a, now)
		}
		l.freeLocked(c.Bucket, now)
		if held > 0 {
			l.heldLocked(c.Bucket, by)
			n.Holds = append(n.Holds, bucket.HeldEvent{Bucket: c.Bucket, By: held})
		}
	}
	if gate != nil && a.Outcome == aimd.OK { // the gate has taken the response, which may be the first that reports a quota
		for i := range charges {
			if m, ok := charges[i].Bucket.Meter.(*aimd.Meter); ok {
				m.Room(now, gate.Room(now))
			}
		}
	}
	return n
}

// triesMore reports whether a refusal is of a request by which a higher number in flight was tried, so that it says nothing of a rate.
func triesMore(charges []bucket.Charge, a *bucket.Answer, wait time.Duration) bool {
	if a.Outcome != aimd.Throttled || wait > 0 {
		return false
	}
	return slices.ContainsFunc(charges, func(c bucket.Charge) bool {
		m, ok := c.Bucket.Meter.(bucket.Trier)
		return ok && m.Tries(c.Paid)
	})
}

// gateOf returns the gate that is among charges; nil: there is none.
func gateOf(charges []bucket.Charge) *quota.Gate {
	if n := len(charges); n > 0 && charges[n-1].Limit.Gates {
		return charges[n-1].Bucket.Meter.(*quota.Gate)
	}
	return nil
}

// endLocked gives back a charge that was for nothing, or a slot.
func (l *Core) endLocked(g *bucket.Grant, c *bucket.Charge, a *bucket.Answer, now meter.Instant) {
	switch {
	case a.Unsent && c.Limit.Gates:
		l.refundLocked(c, now)
	case a.Unsent && !c.Settled, c.Limit.Frees && !c.Kept:
		if !a.Unsent {
			c.Rest(now)
		}
		l.refundLocked(c, now)
		if a.Unsent {
			l.turnLocked(g.Caller, c.Bucket, -c.Cost)
		}
	}
}

// answeredLocked passes the outcome to the controller of a bucket, and returns for how long the key is held because of it.
func (l *Core) answeredLocked(c *bucket.Charge, m bucket.Learner, sent meter.Instant, a *bucket.Answer, wait time.Duration, now meter.Instant) (held time.Duration) {
	o := a.Outcome
	switch {
	case c.Outcome != 0:
		o = c.Outcome
	case o == aimd.ClientError && a.Hints != nil && a.Hints.Bare == quota.Forbidden:
		o = aimd.Forbidden
	}
	switch {
	case o != aimd.Throttled && o != aimd.Unavailable && o != aimd.Error && o != aimd.Forbidden:
	case a.Doubts != nil && c.Outcome == 0:
		a.Doubts.Add(c.Bucket, m.Doubt(now, c.Paid, sent, c.Cost))
	default:
		m.Stand()
	}
	paused := m.HeldUntil()
	c.Paid = m.Answered(now, c.Paid, sent, c.Cost, o, wait)
	if a.Unsent && !c.Settled && !c.Limit.Frees {
		m.Refund(c.Paid, now, c.Cost)
		c.Limit.Counts.Gave(c.Cost)
	}
	if m.HeldUntil() != paused {
		held = time.Duration(m.HeldUntil() - now)
		l.replanLocked(c.Bucket)
	}
	if c.Bucket.HasLines() {
		l.markLocked(c.Bucket)
	}
	return held
}
