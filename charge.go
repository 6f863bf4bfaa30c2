package throttle

import "github.com/httpthrottle/throttle/internal/aimd"

// A charge is what an ask costs against one limit.
type charge struct {
	limit  *limit
	key    string
	cost   int64
	bucket *bucket
	paid   int64 // what refunds and reports need, once it was granted

	outcome aimd.Outcome // by the limit's Classify; 0: by the response
	kept    bool         // a slot that Grant.Done gives back
	told    bool         // the body of the response may tell the cost
	booked  bool         // in Limiter.bookings: paid is not known yet
	settled bool         // guarded by the Limiter's mu, as cost is from then on
}

// charged appends a charge, for which there must be room.
func charged(charges []charge, li *limit, key string, cost int64) []charge {
	charges = charges[:len(charges)+1] // field by field into zeroed memory, because every request comes here
	c := &charges[len(charges)-1]
	c.limit, c.key, c.cost = li, key, min(cost, maxCount)
	if key == "" {
		c.bucket = li.single
	}
	return charges
}

// A grant is what the core knows of a request that was granted.
type grant struct {
	mark   mark
	caller *caller // where it was granted in its turn
	spent  uint8   // guarded by the Limiter's mu: which of the calls below were made
	n      uint8   // of the charges in room
	room   [5]charge
	more   []charge // all of them, if room is too small or they were allocated elsewhere
}

// The calls that count once for a grant.
const (
	grantReported = 1 << iota
	grantDone
	grantSettled
	grantReturned
	grantCanceled = grantReported | grantDone | grantSettled | grantReturned
)

// firstLocked reports whether none of these calls was made before, and stores that they are made now.
func (g *grant) firstLocked(what uint8) bool {
	first := g.spent&what == 0
	g.spent |= what
	return first
}

// charges returns the charges. They are no field, because a field could point into the grant itself, and then a grant could
// not be on the stack.
func (g *grant) charges() []charge {
	if g.more != nil {
		return g.more
	}
	return g.room[:g.n]
}

// space returns an empty slice with room for n charges.
func (g *grant) space(n int) []charge {
	if n <= len(g.room) {
		return g.room[:0]
	}
	g.more = make([]charge, 0, n)
	return g.more
}

// hold stores that n charges were appended to the space.
func (g *grant) hold(n int) {
	if g.more != nil {
		g.more = g.more[:n]
	} else {
		g.n = uint8(n)
	}
}

// cancel gives back the charges of a request that was never sent, unless something else was done with the grant.
func (l *core) cancel(g *grant, by *counts) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g.spent == 0 {
		g.spent = grantCanceled
		l.undoLocked(g.charges(), by, g.caller)
	}
}

// free gives back the slots of a request that is over.
func (l *core) free(g *grant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !g.firstLocked(grantDone) {
		return
	}
	now := l.nowLocked()
	charges := g.charges()
	for i := range charges {
		if c := &charges[i]; c.kept {
			l.giveBackLocked(c.bucket, c.paid, now, c.cost)
		}
	}
	l.serveLocked(now)
}

// charged returns what the i-th charge came to, and whether it was not given back.
func (l *core) charged(g *grant, i int) (cost int64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return g.charges()[i].cost, g.spent&grantReturned == 0
}

// longest returns for how long, in seconds, the rate of a bucket is used up by what it was charged: the longest of all; 0: none has a rate.
func (l *core) longest(charges []charge) (seconds float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.nowLocked()
	for i := range charges {
		c := &charges[i]
		if rate := c.bucket.perSecond(now); rate > 0 {
			seconds = max(seconds, float64(c.cost)/rate)
		}
	}
	return seconds
}

// undo gives back all charges of a request that is not sent after all.
func (l *core) undo(charges []charge, by *counts) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.undoLocked(charges, by, nil)
}

// undoLocked gives back all charges except settled ones, for which it is unknown how much to undo.
func (l *core) undoLocked(charges []charge, by *counts, of *caller) {
	l.counts.undone++
	by.undone++
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
func (l *core) refundLocked(c *charge, now instant) {
	if c.booked {
		c.booked = false
		return
	}
	l.giveBackLocked(c.bucket, c.paid, now, c.cost)
}
