package limiter

import (
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
)

// Cancel gives back the charges of a request that was never sent, unless something else was done with the grant.
func (l *Core) Cancel(g *bucket.Grant, by *bucket.Counts) {
	now := l.begin()
	defer l.end()
	if g.Spent == 0 {
		g.Spent = bucket.GrantCanceled
		l.undoLocked(g.Charges(), by, g.Caller, now)
	}
}

// Free gives back the slots of a request that has ended.
func (l *Core) Free(g *bucket.Grant) {
	now := l.begin()
	defer l.end()
	if !g.First(bucket.GrantDone) {
		return
	}
	charges := g.Charges()
	for i := range charges {
		if c := &charges[i]; c.Kept {
			c.Rest(now)
			l.refundLocked(c, now)
		}
	}
}

// Charged returns what the i-th charge came to, and whether it was not given back.
func (l *Core) Charged(g *bucket.Grant, i int) (cost int64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return g.Charges()[i].Cost, g.Spent&bucket.GrantReturned == 0
}

// Longest returns for how long, in seconds, the rate of a bucket is used up by what it was charged: the longest of all; 0: none
// has a rate.
func (l *Core) Longest(charges []bucket.Charge) (seconds float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.nowLocked()
	for i := range charges {
		c := &charges[i]
		if rate := c.Bucket.PerSecond(now); rate > 0 {
			seconds = max(seconds, float64(c.Cost)/rate)
		}
	}
	return seconds
}

// Undo gives back all charges of a request that is not sent after all.
func (l *Core) Undo(charges []bucket.Charge, by *bucket.Counts) {
	now := l.begin()
	defer l.end()
	l.undoLocked(charges, by, nil, now)
}

// undoLocked gives back all charges except settled ones, for which it is unknown how much to undo.
func (l *Core) undoLocked(charges []bucket.Charge, by *bucket.Counts, of *bucket.Caller, now meter.Instant) {
	l.undoneLocked(charges, by, now)
	for i := range charges {
		if c := &charges[i]; !c.Settled {
			l.refundLocked(c, now)
			l.turnLocked(of, c.Bucket, -c.Cost)
		}
	}
}

// undoneLocked counts a request that is not sent after all.
func (l *Core) undoneLocked(charges []bucket.Charge, by *bucket.Counts, now meter.Instant) {
	l.dismissLocked(charges, now)
	l.counts.Undone++
	by.Undone++
	for i := range charges {
		charges[i].Limit.Counts.Undone++
	}
}

// refundLocked gives back a charge.
func (l *Core) refundLocked(c *bucket.Charge, now meter.Instant) {
	l.payForGhostLocked(c, now)
	l.giveBackLocked(c.Bucket, c.Paid, now, c.Cost)
}

// Read returns a copy of counters, or of those of all requests if of is nil, with the callers that wait and the buckets that are
// kept.
func (l *Core) Read(of *bucket.Counts) (c bucket.Counts, callers, buckets int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if of == nil {
		of = &l.counts
	}
	return *of, l.order.Callers(), l.keys.Len()
}

// CountRefusal counts a refusal of a server.
func (l *Core) CountRefusal(by *bucket.Counts) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts.ServerRefused++
	by.ServerRefused++
}
