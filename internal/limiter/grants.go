package limiter

import (
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
)

// Cancel gives back the charges of a request that was never sent, unless something else was done with it.
func (l *Core) Cancel(r *Request) {
	now := l.begin()
	defer l.end()
	if r.spent == 0 {
		r.spent = wasCanceled
		l.undoLocked(r, now)
	}
}

// Free gives back the slots of a request that has ended.
func (l *Core) Free(r *Request) {
	now := l.begin()
	defer l.end()
	if !r.first(wasFreed) {
		return
	}
	charges := r.Charges()
	for i := range charges {
		if c := &charges[i]; c.Kept {
			rest(c.Bucket, c.Cost, now)
			l.refundLocked(r, c, now)
		}
	}
}

// Charged returns what the i-th charge came to, and whether it was not given back.
func (l *Core) Charged(r *Request, i int) (cost int64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return r.Charges()[i].Cost, r.spent&wasReturned == 0
}

// RefillTime returns how long it takes until the rate of each bucket has replaced what it was charged, in seconds; 0: none has a rate.
func (l *Core) RefillTime(r *Request) (seconds float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, charges := l.nowLocked(), r.Charges()
	for i := range charges {
		c := &charges[i]
		if rate := c.Bucket.PerSecond(now); rate > 0 {
			seconds = max(seconds, float64(c.Cost)/rate)
		}
	}
	return seconds
}

// undo gives back all charges of a request that is not sent after all, because its observer panicked.
func (l *Core) undo(r *Request) {
	now := l.begin()
	defer l.end()
	l.undoLocked(r, now)
	l.landedLocked(r.User)
}

// undoLocked gives back all charges except settled ones, for which it is unknown how much to undo.
func (l *Core) undoLocked(r *Request, now meter.Instant) {
	l.undoneLocked(r, now)
	charges, turn := r.Charges(), r.turn()
	for i := range charges {
		if c := &charges[i]; !c.settled {
			l.refundLocked(r, c, now)
			l.turnLocked(turn, c.Bucket, -c.Cost)
		}
	}
}

// undoneLocked counts a request that is not sent after all.
func (l *Core) undoneLocked(r *Request, now meter.Instant) {
	l.dismissLocked(r, now)
	l.counts.Undone++
	r.User.counts.Undone++
	charges := r.Charges()
	for i := range charges {
		charges[i].Limit().Counts.Undone++
	}
}

// refundLocked gives back a charge.
func (l *Core) refundLocked(r *Request, c *Charge, now meter.Instant) {
	l.payForGhostLocked(r, c, now)
	l.giveBackLocked(c.Bucket, c.Paid, now, c.Cost)
}

// CountUnread counts a response whose body a limit needed and that could not be read. It reports whether it was the first.
func (l *Core) CountUnread(li *bucket.Limit) (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	li.Counts.Unread++
	return li.Counts.Unread == 1
}

// CountRefusal counts a refusal of a server.
func (l *Core) CountRefusal(u *User) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts.ServerRefused++
	u.counts.ServerRefused++
}
