package throttle

import (
	"context"
	"fmt"
	"time"
)

// A Grant is what was paid.
type Grant struct {
	limiter *Limiter
	by      *asker // who asked
	mark    mark
	waited  time.Duration
	ctx     context.Context // of the request; nil: it is not known
	caller  *caller         // where it was granted in its turn
	receipt *Receipt        // where it is to be filed
	tracked bool            // the Limiter wants to know what becomes of it
	spent   uint8           // guarded by the Limiter's mu: what was done with it
	n       uint8           // of the charges in room
	room    [4]charge
	more    []charge // all of them, if room is not enough, or if they came to be elsewhere
}

// or returns the Grant where it is kept, if it is, and else the one that is not.
func (g *Grant) or(other *Grant) *Grant {
	if g != nil {
		return g
	}
	return other
}

// charges returns what was charged. It is no field, since that could point into the Grant itself, which then could not be
// on the stack of a request that need not wait.
func (g *Grant) charges() []charge {
	if g.more != nil {
		return g.more
	}
	return g.room[:g.n]
}

// space returns where up to n charges are to be appended.
func (g *Grant) space(n int) []charge {
	if n <= len(g.room) {
		return g.room[:0]
	}
	g.more = make([]charge, 0, n)
	return g.more
}

// hold notes that n charges were appended to the space.
func (g *Grant) hold(n int) {
	if g.more != nil {
		g.more = g.more[:n]
	} else {
		g.n = uint8(n)
	}
}

// What may be done with a Grant, each once.
const (
	grantReported = 1 << iota
	grantDone
	grantSettled
	grantReturned
	grantCanceled = grantReported | grantDone | grantSettled | grantReturned
)

// firstLocked reports whether nothing of what has been done before, and notes that it is now.
func (g *Grant) firstLocked(what uint8) bool {
	first := g.spent&what == 0
	g.spent |= what
	return first
}

// Cancel gives all back, for what was never used, at once to those who wait. What would make no difference had it
// never been taken, because its bucket has been full since or its window is over, is not given back: nothing is minted.
// A second call, and one after [Grant.Report], [Grant.Done] or [Grant.Settle], does nothing.
func (g *Grant) Cancel() {
	l := g.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	if g.spent == 0 {
		g.spent = grantCanceled
		l.undoLocked(g.charges(), g.by, g.caller)
	}
}

// undoLocked gives all charges back, but for those that somebody has settled: it cannot be said what of that to undo.
func (l *Limiter) undoLocked(charges []charge, by *asker, of *caller) {
	l.counts.undone++
	by.counts.undone++
	now := l.nowLocked()
	l.markAllLocked(charges)
	l.serveLocked(now) // what is due goes first
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

// refundLocked gives a charge back, or does not make it, if a dry run has yet to.
func (l *Limiter) refundLocked(c *charge, now instant) {
	if c.booked {
		c.booked = false
		return
	}
	l.giveBackLocked(c.bucket, c.paid, now, c.cost)
}

// Report tells an [Adaptive] limit what has become of what was paid for; the time since the grant is its latency. Whoever
// acquires from such a limit must call Report or [Grant.Cancel], since no more than it may have in flight are granted.
// Other limits take no notice, and only the first of all calls to the two counts.
func (g *Grant) Report(o Outcome) {
	g.limiter.report(g, &answer{outcome: o})
}

// Done gives the slots of [InFlight] limits back, when what was acquired for is over. Whoever acquires from such a limit
// must call it, or [Grant.Cancel]. A second call does nothing.
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

// Settle corrects what was charged in the limit of that name to what it really cost, which may be 0. What was too much
// goes at once to those who wait. What was too little is owed from now on: at most the burst of a [TokenBucket], the n of a
// window, and a minute's worth of a [Pace] (n at least) or an [Adaptive] limit. A charge is
// corrected where it was made: if its window is over, or its bucket has been full since, nothing is given back, and of a
// window that is over nothing is owed.
//
// It is an error, and changes nothing, if there is no such limit, if it is [InFlight], if nothing was charged there or
// all was given back, if it was settled before, or if cost is negative.
func (g *Grant) Settle(limit string, cost int64) error {
	if err := g.settle(limit, cost); err != nil {
		return fmt.Errorf("throttle: Settle(%q, %d): %w", limit, cost, err)
	}
	return nil
}

// chargeOf returns which charge is that of the limit of that name; -1: none.
func (g *Grant) chargeOf(limit string) int {
	charges := g.charges()
	for i := range charges { // no copy of a charge, which another may be settling
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
