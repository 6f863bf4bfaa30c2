package throttle

import (
	"context"
	"fmt"
	"time"
)

// A Grant represents tokens taken from a Limiter.
type Grant struct {
	limiter *Limiter
	by      *asker // who asked
	mark    mark
	waited  time.Duration
	ctx     context.Context // of the request; nil: it is not known
	caller  *caller         // where it was granted in its turn
	receipt *Receipt        // where to record it
	tracked bool            // the Limiter needs the outcome
	spent   uint8           // guarded by the Limiter's mu: which of the calls below were made
	n       uint8           // of the charges in room
	room    [4]charge
	more    []charge // all of them, if room is too small or they were allocated elsewhere
}

// or returns g, or other if g is nil.
func (g *Grant) or(other *Grant) *Grant {
	if g != nil {
		return g
	}
	return other
}

// charges returns the charges. They are no field, because a field could point into the Grant itself, and then a Grant could
// not be on the stack.
func (g *Grant) charges() []charge {
	if g.more != nil {
		return g.more
	}
	return g.room[:g.n]
}

// space returns an empty slice with room for n charges.
func (g *Grant) space(n int) []charge {
	if n <= len(g.room) {
		return g.room[:0]
	}
	g.more = make([]charge, 0, n)
	return g.more
}

// hold stores that n charges were appended to the space.
func (g *Grant) hold(n int) {
	if g.more != nil {
		g.more = g.more[:n]
	} else {
		g.n = uint8(n)
	}
}

// The calls that count once for a Grant.
const (
	grantReported = 1 << iota
	grantDone
	grantSettled
	grantReturned
	grantCanceled = grantReported | grantDone | grantSettled | grantReturned
)

// firstLocked reports whether none of these calls was made before, and stores that they are made now.
func (g *Grant) firstLocked(what uint8) bool {
	first := g.spent&what == 0
	g.spent |= what
	return first
}

// Cancel gives back the tokens of work that was never done. They are available to waiters immediately. Tokens are not given
// back to a bucket that has been full since, or to a window that is over: no tokens are minted. A second call, and a call after
// [Grant.Report], [Grant.Done] or [Grant.Settle], has no effect.
func (g *Grant) Cancel() {
	l := g.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	if g.spent == 0 {
		g.spent = grantCanceled
		l.undoLocked(g.charges(), g.by, g.caller)
	}
}

// undoLocked gives back all charges except settled ones, for which it is unknown how much to undo.
func (l *Limiter) undoLocked(charges []charge, by *asker, of *caller) {
	l.counts.undone++
	by.counts.undone++
	now := l.nowLocked()
	l.markAllLocked(charges)
	l.serveLocked(now) // requests that are due go first
	for i := range charges {
		c := &charges[i]
		c.limit.counts.undone++
		if !c.settled {
			l.refundLocked(c, now)
			l.turnLocked(of, c.bucket, -c.cost, now)
		}
	}
	l.serveLocked(now)
}

// refundLocked gives back a charge, or drops it if a dry run has not made it yet.
func (l *Limiter) refundLocked(c *charge, now instant) {
	if c.booked {
		c.booked = false
		return
	}
	l.giveBackLocked(c.bucket, c.paid, now, c.cost)
}

// Report tells an [Adaptive] limit the outcome of the work; the time since the grant is its latency. Callers that acquire from
// such a limit must call Report or [Grant.Cancel], because the limit bounds how many grants have no outcome yet. Other limits
// ignore it. Only the first call of either method counts.
func (g *Grant) Report(o Outcome) {
	g.limiter.report(g, &answer{outcome: o})
}

// Done gives back the slots of [InFlight] limits when the work is over. Callers that acquire from such a limit must call Done
// or [Grant.Cancel]. A second call has no effect.
func (g *Grant) Done() {
	l := g.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	if !g.firstLocked(grantDone) {
		return
	}
	now := l.nowLocked()
	for i := range g.charges() {
		if c := &g.charges()[i]; c.kept {
			l.giveBackLocked(c.bucket, c.paid, now, c.cost)
		}
	}
	l.serveLocked(now)
}

// Settle corrects the charge in the limit of that name to the true cost, which may be 0. Overcharged tokens go back to the bucket
// immediately and may release waiters. An undercharge becomes debt: at most the burst of a [TokenBucket], the n of a window, and
// a minute's worth of a [Pace] (n at least) or an [Adaptive] limit. A charge is corrected where it was made: nothing is given
// back if its window is over or its bucket has been full since, and there is no debt in a window that is over.
//
// It is an error without effect if there is no such limit, if it is [InFlight], if nothing was charged there or the charge was
// given back, if it was settled before, or if cost is negative.
func (g *Grant) Settle(limit string, cost int64) error {
	if err := g.settle(limit, cost); err != nil {
		return fmt.Errorf("throttle: Settle(%q, %d): %w", limit, cost, err)
	}
	return nil
}

// chargeOf returns the index of the charge in the limit of that name; -1: there is none.
func (g *Grant) chargeOf(limit string) int {
	charges := g.charges()
	for i := range charges { // without a copy, because another goroutine may be settling the charge
		if li := charges[i].limit; li.name == limit && !li.gates && li.kind != kindNone {
			return i
		}
	}
	return -1
}

func (g *Grant) settle(limit string, cost int64) error {
	if _, err := g.limiter.named(limit); err != nil {
		return err
	}
	i := g.chargeOf(limit)
	if i < 0 {
		return errUncharged
	}
	return g.limiter.settle(g, i, cost)
}
