package limiter

import (
	"time"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
)

// A Rejection is the decision not to grant a request.
type Rejection struct {
	Reason   bucket.Reason
	Held     bool // a hold or a server stops the request for longer than it could have waited
	Least    bool // Wait is a lower bound, because the request may wait in several Cores
	Limit    *bucket.Limit
	Key      string
	Cost     int64
	Wait     time.Duration // until it could have gone; the longest Duration: never
	Patience time.Duration // for which it could have waited, counted from its arrival; 0: there is no bound
	Most     int64         // the largest cost that its bucket can pay, where that is the reason; 0: there is no bucket
	Err      error         // of a store, or what a server said; nil: neither is the reason
	Cause    quota.Cause   // why the server stops requests, where it does
	Ago      time.Duration // since the refusal that is the cause
}

// explain adds what a bucket knows of the reason.
func (r *Rejection) explain(b *bucket.Bucket, now meter.Instant) {
	r.Err = b.Err(r.Reason)
	r.Cause = b.Cause(now)
	r.Ago = time.Duration(now - r.Cause.Refusal.At)
}

// rejectOnArrivalLocked rejects a request that could go at due.
func (l *Core) rejectOnArrivalLocked(w *Waiter, reason bucket.Reason, c *Charge, due, now meter.Instant) {
	w.rejection = w.bounds.rejection(reason, due, now)
	w.rejection.Limit, w.rejection.Key, w.rejection.Cost = c.Limit(), c.Key, c.Cost
	if c.isFound() {
		w.rejection.Held = c.Bucket.IsHeld(min(w.expiry, w.deadline))
		l.expectLocked(w, c.Limit(), due, now)
		w.rejection.explain(c.Bucket, now)
		if reason == bucket.ReasonCost && c.Cost > 0 {
			w.rejection.Most = c.Bucket.Meter.Most()
		}
	}
	l.rejectedLocked(w)
}

// rejectedLocked counts a waiter that is rejected, unless other Cores may grant its request.
func (l *Core) rejectedLocked(w *Waiter) {
	if w.Claim == nil {
		l.countRejectionLocked(w.user, w.rejection.Limit, w.rejection.Reason)
	}
}

// rejectLocked rejects a waiter that could go at due, because of its i-th bucket.
func (l *Core) rejectLocked(w *Waiter, i int, reason bucket.Reason, due, now meter.Instant) {
	w.verdict, w.in.Binding = rejected, int32(i)
	b, cost := w.bucketAt(i), w.in.Costs[i]
	w.rejection = w.bounds.rejection(reason, b.Soonest(due, cost), now)
	w.rejection.Held = b.IsHeld(min(w.expiry, w.deadline))
	w.rejection.Limit, w.rejection.Key, w.rejection.Cost = b.Limit, b.Key, cost
	w.rejection.explain(b, now)
	l.expectLocked(w, b.Limit, due, now)
	l.rejectedLocked(w)
	l.quitLocked(w, now)
}

// expectLocked has the rejection of w, which could go at due at the earliest, say when it would probably have been granted, where estimates are
// corrected later or a server sets the limit: there, a lower bound says nothing.
func (l *Core) expectLocked(w *Waiter, li *bucket.Limit, due, now meter.Instant) {
	if due < meter.Never && due > now && (li.Unit != "" || li.Settles) {
		at, _ := l.order.Expect(&w.in, now)
		w.rejection.Wait = bucket.Until(at, now)
	}
}

// countRejectionLocked counts a request that is rejected.
func (l *Core) countRejectionLocked(u *User, li *bucket.Limit, reason bucket.Reason) {
	l.counts.Rejected[reason]++
	u.counts.Rejected[reason]++
	li.Counts.Rejected[reason]++
}

// rejectWaiterNowLocked is rejectNowLocked for a request that may not wait.
func (l *Core) rejectWaiterNowLocked(w *Waiter, now meter.Instant) bool {
	why := new(Rejection)
	if !l.rejectNowLocked(w.charges, w.user, now, why) {
		return false
	}
	w.rejection = why
	return true
}

// rejectNowLocked rejects a request that cannot be paid now and may not wait, where no other request waits: then its wait is the
// longest that its buckets say, and nothing has to be planned. It has no effect, and returns false, where requests wait or may
// have to wait for a store, where costs are to be clamped, and in a dry run.
func (l *Core) rejectNowLocked(charges []Charge, u *User, now meter.Instant, r *Rejection) bool {
	if l.supplies != nil || l.dry {
		return false
	}
	due, binding := now, &charges[0]
	for i := range charges {
		c := &charges[i]
		if c.Cost < 0 || c.Bucket.Waiting() > 0 || c.Limit().Clamps && c.Cost > c.Bucket.Meter.Most() {
			return false
		}
		if at := c.Bucket.PlanFor(now, 0, c.Cost); at > due {
			due, binding = at, c
		}
	}
	b := binding.Bucket
	reason := b.WhyRejected(due, now)
	r.Reason, r.Limit, r.Key, r.Cost = reason, binding.Limit(), b.Key, binding.Cost
	if b.Limit.Plans {
		due = b.Soonest(due, binding.Cost)
	}
	r.Wait = bucket.Until(due, now)
	r.explain(b, now)
	if reason == bucket.ReasonCost {
		r.Most = b.Meter.Most()
	}
	l.countRejectionLocked(u, binding.Limit(), reason)
	return true
}
