package queue

import (
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
)

// An Answer is the outcome of a request that was granted. The zero answer has no news.
type Answer struct {
	Outcome aimd.Outcome
	Unsent  bool  // it never reached the server
	Word    *Word // what the server reported about its limits; nil: nothing
}

// retryAfter returns how long to stay away, by the server; 0 if it did not say.
func (a *Answer) retryAfter() time.Duration {
	if a.Word == nil {
		return 0
	}
	return a.Word.Wait
}

// A learner is a meter that learns from the outcomes of requests.
type learner interface {
	meter.Holder
	// Answered takes the outcome of a request, and returns what stands for charged from then on.
	Answered(now Instant, charged int64, sent Instant, cost int64, o aimd.Outcome, retryAfter time.Duration) int64
	Refund(charged int64, now Instant, cost int64) // as GiveBack, for a request whose outcome was told
	Retuned() (aimd.Retune, bool)
}

// An answered is a meter in which a request counts until some time after its response. Answered reports whether that was moved.
type answered interface {
	Answered(charged int64, now Instant) bool
}

// news is what a response has changed.
type news struct {
	Retunes []retuned
	Holds   []HeldEvent
	Forgot  string // for lack of room; see Core.boundLocked
}

// retuned says that a learner has changed its rate notably.
type retuned struct {
	Bucket *Bucket
	aimd.Retune
}

// ReportAndServe tells the outcome of a request to the buckets that it was charged in. That may change when waiters can go.
func (l *Core) ReportAndServe(g *Grant, a *Answer, by *Counts) (n news) {
	now := l.begin()
	defer l.end()
	if !g.firstLocked(grantReported) {
		return n
	}
	charges := g.Charges()
	if a.Unsent {
		g.Spent = grantCanceled
		l.Counts.Undone++
		by.Undone++
		for i := range charges {
			charges[i].Limit.Counts.Undone++
		}
	}
	var said telling
	if a.Word != nil {
		said = l.tellLocked(a.Word, now)
	}
	for i := range charges { // the gate, if there is one, comes last
		c, held := &charges[i], time.Duration(0)
		switch {
		case c.Limit.Learns: // from an error, whether the request was sent or not
			o := *a
			if said.explained && !l.quotaOff.Explain { // by a quota, which stops requests by itself
				o.Outcome = aimd.Ignore
			}
			m := c.bucket.Meter.(learner)
			held = l.answeredLocked(c, m, g.Mark.At, &o, now)
			if c.Limit.Frees {
				l.endLocked(g, c, a, now)
			} else {
				c.Limit.Counts.ended++
			}
			if r, ok := m.Retuned(); ok {
				c.Limit.Counts.Retunes[r.Cause]++
				n.Retunes = append(n.Retunes, retuned{c.bucket, r})
			}
		case c.Limit.Gates && !a.Unsent:
			gate := c.bucket.Meter.(*GateBucket)
			held = l.heardLocked(gate, g.Mark.At, a, &said, charges, now)
			n.Forgot = l.boundLocked(gate.Party, now)
			c.Limit.Counts.ended++
		case c.Limit.Answered && !a.Unsent && !c.booked:
			if m, ok := c.bucket.Meter.(answered); ok && m.Answered(c.paid, now) {
				l.markLocked(c.bucket)
			}
		default:
			l.endLocked(g, c, a, now)
		}
		l.freeLocked(c.bucket, now)
		if held > 0 {
			l.heldLocked(c.bucket, by)
			n.Holds = append(n.Holds, HeldEvent{Bucket: c.bucket, By: held})
		}
	}
	return n
}

// endLocked gives back a charge that was for nothing, or a slot.
func (l *Core) endLocked(g *Grant, c *Charge, a *Answer, now Instant) {
	switch {
	case a.Unsent && c.Limit.Gates:
		l.giveBackLocked(c.bucket, c.paid, now, c.cost)
	case a.Unsent && !c.Settled, c.Limit.Frees && !c.Kept:
		l.refundLocked(c, now)
		if a.Unsent {
			l.turnLocked(g.Caller, c.bucket, -c.cost)
		}
	}
}

// answeredLocked tells the outcome to the controller of a bucket, and returns for how long the key is held because of it.
func (l *Core) answeredLocked(c *Charge, m learner, sent Instant, a *Answer, now Instant) (held time.Duration) {
	o := a.Outcome
	if c.Outcome != 0 {
		o = c.Outcome
	}
	paused := m.HeldUntil()
	c.paid = m.Answered(now, c.paid, sent, c.cost, o, a.retryAfter())
	if a.Unsent && !c.Settled && !c.Limit.Frees {
		m.Refund(c.paid, now, c.cost)
		c.Limit.Counts.gave(c.cost)
	}
	if m.HeldUntil() != paused {
		held = time.Duration(m.HeldUntil() - now)
		l.replanLocked(now, c.bucket)
	}
	if c.bucket.HasLines() {
		l.markLocked(c.bucket)
	}
	return held
}
