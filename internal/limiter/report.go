package limiter

import (
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
	"github.com/httpthrottle/throttle/internal/server"
)

// Report passes the outcome of a request to the buckets in which it was charged. Waiters may be granted earlier or later because
// of it.
func (l *Core) Report(r *Request, a *Answer) {
	var n news
	if l.report(r, a, &n); n.any() {
		r.User.tell(r.Context, &n)
	}
}

// report is Report, and notes what has changed.
func (l *Core) report(r *Request, a *Answer, n *news) {
	now := l.begin()
	defer l.end()
	if a.settles != 0 {
		l.settleAnswerLocked(r, a, now)
	}
	if !r.first(wasReported) {
		return
	}
	if a.Ended {
		l.landedLocked(r.User)
	}
	charges := r.Charges()
	f := finding{charge: -1, verdict: a.verdict, ofPart: a.ofPart}
	if a.Hints != nil {
		f = findingOf(charges, a)
	}
	switch gate := gateOf(charges); {
	case a.Unsent:
		r.spent = wasCanceled
		l.undoneLocked(r, now)
		l.reportChargesLocked(r, charges, a, &f, now, n)
	case gate != nil && gate.IsKept():
		l.reportGatedLocked(r, gate, a, &f, now, n)
	case gate != nil: // in a dry run, it may have been forgotten once the ghost was rejected
		l.reportChargesLocked(r, charges[:len(charges)-1], a, &f, now, n)
	default:
		l.reportChargesLocked(r, charges, a, &f, now, n)
	}
}

// reportGatedLocked takes the outcome of a request that passed a gate, whose charge comes last.
func (l *Core) reportGatedLocked(r *Request, gate *quota.Gate, a *Answer, f *finding, now meter.Instant, n *news) {
	charges := r.Charges()
	own, c := charges[:len(charges)-1], &charges[len(charges)-1]
	var rep quota.Report
	fillReport(&rep, a, r.At, own)
	if a.Hints != nil {
		rep.Reading = l.readLocked(a.Hints, now)
	}
	rep.Number, rep.Traits = c.Paid, a.Traits
	if l.judgeLocked(gate, &rep, now) && rep.Parts {
		l.apartLocked(own, now)
	}
	reportsFrom(own, gate.Account.Key.Host)
	f.verdict, f.ofPart, f.wait = rep.Verdict, rep.OfPart(), rep.Wait
	if rep.Verdict == server.ByChance {
		f.charge = -1 // no limit takes it
	}
	if rep.Chance != server.NoFinding {
		found(own, rep.Chance, now)
	}
	l.reportChargesLocked(r, own, a, f, now, n)
	if rep.Verdict.Teaches() && shut(own, now) {
		rep.Learned(server.Closed)
	}
	if rep.Chance == server.IsTried {
		l.trialLocked(own, now)
	}
	l.payForGhostLocked(r, c, now)
	change := l.applyLocked(gate, &rep, charges, a.Doubts, now)
	n.forgot = change.Forgot
	if change.Until > 0 || change.Final != nil {
		n.holds = append(n.holds, l.heldByLocked(c.Bucket, &change, r.User, now)...)
	}
	c.Limit().Counts.Ended++
	l.freeLocked(c.Bucket, now)
	if a.Outcome != aimd.OK {
		return
	}
	for i := range own { // now that the gate has taken the response, which may be the first that reports a quota
		if m, ok := own[i].Bucket.Meter.(*aimd.Meter); ok {
			m.Room(now, gate.Room(now))
		}
	}
}

// An unlearner is a meter that learns from refusals.
type unlearner interface {
	Unlearn(now meter.Instant) // refusals do not depend on the rate: what they have taught is wrong
	Relearn(now meter.Instant) // they do, even if they did not seem to
}

// A tester is a meter that tests whether load causes failures.
type tester interface {
	Failures() *server.Failures
	Agree(now meter.Instant, with *server.Failures)
}

// found takes whether refusals are by chance, for limits that learn from them.
func found(charges []Charge, f server.Finding, now meter.Instant) {
	for i := range charges {
		m, ok := charges[i].Bucket.Meter.(unlearner)
		switch {
		case !ok:
		case f == server.IsChance:
			m.Unlearn(now)
		case f == server.IsNone:
			m.Relearn(now)
		}
	}
}

// agreeLocked passes what a trial has found on to the other learned limits of a request.
func (l *Core) agreeLocked(charges []Charge, now meter.Instant) {
	for i := range charges {
		m, ok := charges[i].Bucket.Meter.(tester)
		if !ok || !m.Failures().News() {
			continue
		}
		for k := range charges {
			if other, ok := charges[k].Bucket.Meter.(tester); ok && k != i {
				other.Agree(now, m.Failures())
				l.markLocked(charges[k].Bucket)
			}
		}
	}
}

// trialLocked has learned rates send requests at once, after they have taken the refusal that asks for that.
func (l *Core) trialLocked(charges []Charge, now meter.Instant) {
	for i := range charges {
		if m, ok := charges[i].Bucket.Meter.(*aimd.Meter); ok {
			m.Trial(now)
			l.markLocked(charges[i].Bucket)
		}
	}
}

// apartLocked has learned rates forget what refusals have taught: these were of requests that the server counts separately.
func (l *Core) apartLocked(charges []Charge, now meter.Instant) {
	for i := range charges {
		if m, ok := charges[i].Bucket.Meter.(*aimd.Meter); ok {
			m.Apart(now)
			l.markLocked(charges[i].Bucket)
		}
	}
}

// reportChargesLocked takes the outcome of a request for some of its charges.
func (l *Core) reportChargesLocked(r *Request, charges []Charge, a *Answer, f *finding, now meter.Instant, n *news) {
	sides := sidesOf(charges, f)
	if sides.learned == ofBoth {
		defer l.agreeLocked(charges, now)
	}
	for i := range charges {
		c, pause := &charges[i], time.Duration(0)
		if c.Limit().Reported {
			l.payForGhostLocked(r, c, now)
		}
		switch {
		case c.Limit().Learns: // from an error, whether the request was sent or not
			o := *a
			if f.verdict.Explained() { // by a quota, which stops requests by itself, or by chance
				o.Outcome = aimd.Ignore
			}
			m := c.Bucket.Meter.(learner)
			pause = l.answeredLocked(c, m, r.At, &o, sides, f.wait, now)
			if c.Limit().Frees {
				l.endLocked(r, c, a, now)
			} else {
				c.Limit().Counts.Ended++
			}
			n.noteRetune(c.Bucket, m)
		case c.Limit().Unit != "":
			l.reportUnitLocked(r, charges, i, a, f, now)
		case c.Limit().Answered && !a.Unsent:
			if m, ok := c.Bucket.Meter.(answered); ok && !l.hearLocked(r, c, -1, now) && m.Answered(c.Paid, now) {
				l.markLocked(c.Bucket)
			}
		default:
			l.endLocked(r, c, a, now)
		}
		l.freeLocked(c.Bucket, now)
		if pause > 0 {
			l.heldLocked(c.Bucket, r.User)
			n.holds = append(n.holds, paused(c.Bucket, pause, a.Outcome != aimd.Unavailable || a.Hints != nil))
		}
	}
}

// endLocked gives back a charge that was for nothing, or a slot.
func (l *Core) endLocked(r *Request, c *Charge, a *Answer, now meter.Instant) {
	switch {
	case a.Unsent && c.Limit().Gates:
		l.refundLocked(r, c, now)
	case a.Unsent && !c.settled, c.Limit().Frees && !c.Kept:
		if !a.Unsent {
			rest(c.Bucket, c.Cost, now)
		}
		l.refundLocked(r, c, now)
		if a.Unsent {
			l.turnLocked(r.turn(), c.Bucket, -c.Cost)
		}
	}
}

// answeredLocked passes the outcome to the controller of a bucket, and returns for how long the key is held because of it.
func (l *Core) answeredLocked(c *Charge, m learner, sent meter.Instant, a *Answer, s sides, wait time.Duration, now meter.Instant) (held time.Duration) {
	o := a.Outcome
	switch {
	case c.Outcome != 0:
		o = c.Outcome
	case o == aimd.ClientError && a.Hints != nil && a.Hints.Bare == quota.Forbidden:
		if o = aimd.Forbidden; a.Hints.Given {
			m.Gave()
		}
	}
	o = s.seen(sideOf(c), o)
	switch {
	case o != aimd.Throttled && o != aimd.Unavailable && o != aimd.Error && o != aimd.Forbidden:
	case a.Doubts != nil && c.Outcome == 0:
		a.Doubts.add(c.Bucket, m.Doubt(now, c.Paid, sent, c.Cost))
	default:
		m.Stand()
	}
	before := heldUntil(m)
	c.Paid = m.Answered(now, c.Paid, sent, c.Cost, o, wait)
	if a.Unsent && !c.settled && !c.Limit().Frees {
		m.Refund(c.Paid, now, c.Cost)
		c.Limit().Counts.Gave(c.Cost)
	}
	return l.pausedLocked(c.Bucket, m, before, a, now)
}

// pausedLocked marks a bucket whose meter has taken an outcome, and returns for how long it is held because of that. It was held until then.
func (l *Core) pausedLocked(b *bucket.Bucket, m learner, then meter.Instant, a *Answer, now meter.Instant) (held time.Duration) {
	if until := heldUntil(m); until != then {
		held = time.Duration(until - now)
		if a.Hints != nil && a.Hints.Status > 0 {
			b.HeldBy(quota.LastRefusal{At: now, Asked: int64(a.Hints.Wait), Status: int32(a.Hints.Status), Verdict: server.Closed}, until)
		}
		l.replanLocked(b)
	}
	if b.Waiting() > 0 {
		l.markLocked(b)
	}
	return held
}

// shut reports whether a limit that learns has found that the server refuses each request for now.
func shut(charges []Charge, now meter.Instant) bool {
	for i := range charges {
		switch m := charges[i].Bucket.Meter.(type) {
		case *aimd.Meter:
			if gap, _ := m.Silent(); gap > 0 {
				return true
			}
		case learner:
			if heldUntil(m) > now {
				return true
			}
		}
	}
	return false
}

// heldUntil returns until when a learner sends nothing: a number in flight, after refusals in a row.
func heldUntil(m learner) meter.Instant {
	if h, ok := m.(meter.Holder); ok {
		return h.HeldUntil()
	}
	return 0
}
