package throttle

import (
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
)

// An answer is the outcome of a request that was granted. The zero answer has no news.
type answer struct {
	outcome aimd.Outcome
	unsent  bool  // it never reached the server
	word    *word // what the server said about its limits; nil: nothing
}

// retryAfter returns how long to stay away, by the server; 0 if it did not say.
func (a *answer) retryAfter() time.Duration {
	if a.word == nil {
		return 0
	}
	return a.word.wait
}

// A learner is a meter that learns from the outcomes of requests.
type learner interface {
	meter.Holder
	Answered(now instant, charged int64, sent instant, cost int64, o aimd.Outcome, retryAfter time.Duration)
	Refund(charged int64, now instant, cost int64) // as GiveBack, for a request whose outcome was told
	Retuned() (aimd.Retune, bool)
}

// News is what a response has changed.
type news struct {
	retunes []retuned
	holds   []heldEvent
}

// retuned says that a learner has changed its rate notably.
type retuned struct {
	bucket *bucket
	aimd.Retune
}

// reportAndServe tells the outcome of a request to the buckets that it was charged in. That may change when waiters can go.
func (l *core) reportAndServe(g *grant, a *answer, by *counts) (n news) {
	l.mu.Lock()
	defer l.unlockJudged()
	if !g.firstLocked(grantReported) {
		return n
	}
	charges := g.charges()
	if a.unsent {
		g.spent = grantCanceled
		l.counts.undone++
		by.undone++
		for i := range charges {
			charges[i].limit.counts.undone++
		}
	}
	now := l.nowLocked()
	for i := range charges {
		if b := charges[i].bucket; b.hasLines() && (a.unsent || b.limit.reported) {
			l.markLocked(b)
		}
	}
	l.serveLocked(now) // requests that are due go first, as they were planned
	var said telling
	if a.word != nil {
		said = l.tellLocked(a.word, now)
	}
	for i := range charges { // the gate, if there is one, comes last
		c, held := &charges[i], time.Duration(0)
		switch {
		case c.limit.learns: // from an error, whether the request was sent or not
			o := *a
			if said.explained && !l.quotaOff.Explain { // by a quota, which stops requests by itself
				o.outcome = aimd.Ignore
			}
			m := c.bucket.meter.(learner)
			held = l.answeredLocked(c, m, g.mark.at, &o, now)
			c.limit.counts.ended++
			if r, ok := m.Retuned(); ok {
				c.limit.counts.retunes[r.Cause]++
				n.retunes = append(n.retunes, retuned{c.bucket, r})
			}
		case c.limit.gates && !a.unsent:
			held = l.heardLocked(c.bucket.meter.(*gateBucket), g.mark.at, a, &said, charges, now)
			c.limit.counts.ended++
		default:
			l.endLocked(g, c, a, now)
		}
		l.freeLocked(c.bucket, now)
		if held > 0 {
			l.heldLocked(c.bucket, by)
			n.holds = append(n.holds, heldEvent{c.bucket, held})
		}
	}
	l.serveLocked(now)
	return n
}

// endLocked gives back a charge that was for nothing, or a slot.
func (l *core) endLocked(g *grant, c *charge, a *answer, now instant) {
	switch {
	case a.unsent && c.limit.gates:
		l.giveBackLocked(c.bucket, c.paid, now, c.cost)
	case a.unsent && !c.settled, c.limit.frees && !c.kept:
		l.refundLocked(c, now)
		if a.unsent {
			l.turnLocked(g.caller, c.bucket, -c.cost, now)
		}
	}
}

// answeredLocked tells the outcome to the controller of a bucket, and returns for how long the key is held because of it.
func (l *core) answeredLocked(c *charge, m learner, sent instant, a *answer, now instant) (held time.Duration) {
	o := a.outcome
	if c.outcome != 0 {
		o = c.outcome
	}
	paused := m.HeldUntil()
	m.Answered(now, c.paid, sent, c.cost, o, a.retryAfter())
	if a.unsent && !c.settled {
		m.Refund(c.paid, now, c.cost)
		c.limit.counts.gave(c.cost)
	}
	if m.HeldUntil() != paused {
		held = time.Duration(m.HeldUntil() - now)
		l.replanLocked(now, c.bucket)
	}
	if c.bucket.hasLines() {
		l.markLocked(c.bucket)
	}
	return held
}
