package limiter

import (
	"context"
	"fmt"
	"slices"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/heap"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
)

// Pass grants a request if all limits can pay now, and its gate if it has one: the charge of the gate comes behind the others,
// for which there must be room. If they cannot, the caller makes the request pending. The two functions are separate so that
// requests wait on a small stack: there may be 100,000 of them.
func (l *Core) Pass(p *bucket.Paid, by *bucket.Counts, key *quota.Key) (ok bool) {
	l.mu.Lock()
	now := l.nowLocked()
	if key != nil && !l.passKnownLocked(p, key, now) { // Decide makes the gate
		l.mu.Unlock()
		return false
	}
	ok, missing := l.payLocked(p, by, now)
	if missing {
		ok = l.makeAndPayLocked(p, by, now)
	}
	l.mu.Unlock()
	if !ok && key != nil { // Decide passes the gate again
		p.Charges = p.Charges[:len(p.Charges)-1]
	}
	return ok
}

// Try grants or rejects a request immediately, and stores why it is rejected. Nothing is decided if a bucket is missing, or if
// other requests wait and the request is not behind them: one that is behind them never overtakes.
func (l *Core) Try(p *bucket.Paid, by *bucket.Counts, priority int, behind bool, r *bucket.Refusal) (v bucket.Verdict) {
	l.mu.Lock()
	now := l.nowLocked()
	if now >= l.armed { // the timer has not come yet
		l.serveLocked(now)
	}
	ok, missing := l.payLocked(p, by, now)
	switch {
	case ok:
		v = bucket.Granted
	case !missing && l.denyLocked(p.Charges, by, now, r):
		v = bucket.Refused
	default:
		v = l.tryAgainLocked(p, by, priority, behind, missing, r, now)
	}
	l.mu.Unlock()
	return v
}

// tryAgainLocked is Try where buckets are missing, costs are to be clamped or requests wait.
func (l *Core) tryAgainLocked(p *bucket.Paid, by *bucket.Counts, priority int, behind, missing bool, r *bucket.Refusal, now meter.Instant) (v bucket.Verdict) {
	ok := false
	if missing && l.canMakeLocked(p.Charges) {
		ok, _ = l.payAllLocked(p, nil, by, now)
		missing = false
	} else if !missing && bucket.Clamp(p.Charges) {
		ok, _ = l.payLocked(p, by, now)
	}
	switch {
	case ok:
		return bucket.Granted
	case missing || l.dry:
		return bucket.Unasked
	case l.denyLocked(p.Charges, by, now, r):
		return bucket.Refused
	case !behind:
		return bucket.Unasked
	}
	pending := &bucket.Pending{Ask: bucket.Ask{Priority: priority, Try: true, By: by}, Paid: bucket.Paid{Charges: slices.Clone(p.Charges)}}
	pending.Refusal = &pending.Room
	v = l.lineUpLocked(context.Background(), pending, nil, nil, now) // it grants no Try
	l.serveLocked(now)
	*r = pending.Room
	return v
}

// Decide grants a request that can be paid by now or that its priority lets overtake, rejects it, or lets it wait as w. If the
// rates of its buckets must be asked for first, the verdict is unasked, and decide is to be called again.
func (l *Core) Decide(ctx context.Context, p *bucket.Pending) (w *Waiter, v bucket.Verdict) {
	a := &p.Ask
	if a.MaxWait != 0 || l.supplies != nil { // allocated before the lock is taken
		w = &Waiter{decided: make(chan struct{})}
	}
	now, asked := l.beginIfAsked(p)
	if !asked {
		return nil, bucket.Unasked
	}
	defer l.end()
	if p.Gate != nil && !p.Late {
		l.passLocked(p, now)
	}
	ok, missing := l.payAllLocked(&p.Paid, p.Rates, a.By, now)
	switch {
	case ok:
		return nil, bucket.Granted
	case l.dry && w != nil:
		w.Ghost, w.decided = true, nil
	}
	if p.Late && missing == nil && w != nil {
		l.passLocked(p, now)
	}
	if w == nil && missing == nil && l.denyPendingLocked(p, now) {
		return nil, bucket.Refused
	}
	v = l.lineUpLocked(ctx, p, missing, w, now)
	if v == bucket.Waiting && w.Ghost {
		l.sendLocked(p, w, now)
		return nil, bucket.Granted
	}
	return w, v
}

// lineUpLocked decides about a request that could not be granted immediately: it waits as w, is rejected, or overtakes by its
// priority.
func (l *Core) lineUpLocked(ctx context.Context, p *bucket.Pending, missing *bucket.Charge, w *Waiter, now meter.Instant) bucket.Verdict {
	if w == nil {
		w = new(Waiter)
	}
	l.bound(ctx, &w.Bounds, &p.Ask, now)
	if reason, c, due := bucket.Unpayable(p.Charges, missing, now); reason != 0 {
		l.refuseLocked(p, &w.Bounds, reason, c, due, now)
		return bucket.Refused
	}
	w.Enter(p.Charges, &p.Ask, w)
	reason := l.planLocked(p, w, now)
	c := &p.Charges[w.In.Binding]
	if reason == 0 || w.Due <= now && !p.Ask.Try { // it may overtake
		switch granted := l.joins(p, w, now); {
		case granted:
			return bucket.Granted
		case reason == 0:
			l.endLaterLocked(w)
			return bucket.Waiting
		}
		w.Verdict = bucket.Left
		l.quitLocked(w, now)
	}
	l.refuseLocked(p, &w.Bounds, reason, c, c.Bucket.Soonest(w.Due, c.Cost), now)
	if l.supplies != nil {
		l.wantLocked(p.Charges)
	}
	return bucket.Refused
}

// planLocked finds out when and by which charge w would be granted, and returns why it must not wait; 0: it may. It does not have w
// wait, because the two one after the other need less stack than one within the other.
func (l *Core) planLocked(p *bucket.Pending, w *Waiter, now meter.Instant) (reason bucket.Reason) {
	l.dueLocked(now) // requests that are due go first
	if l.supplies != nil {
		w.Respite = bucket.Respite(p.Charges, p.Ask.Try, w.Expiry, now)
	}
	w.Due, w.In.Binding = l.order.Plan(&w.In, now)
	reason = w.Check(w.Due, now, p.Charges[w.In.Binding].Bucket)
	if reason == 0 && l.order.Alike(&w.In) >= l.maxQueue {
		reason = bucket.ReasonQueueFull
	}
	return reason
}

// joins has w wait, and reports whether it is granted immediately. Then p says what it has paid.
func (l *Core) joins(p *bucket.Pending, w *Waiter, now meter.Instant) bool {
	w.joining = true
	l.joinLocked(w, now)
	l.dueLocked(now)
	w.joining = false
	if w.Verdict != bucket.Granted {
		return false
	}
	for i := range p.Charges {
		p.Charges[i].Paid = w.Paid()[i]
	}
	p.Mark, p.Caller = l.grantedLocked(p.Ask.By, now), w.Caller()
	return true
}

// WaitsFor returns the bucket that w waits for, and what w costs there. It takes the lock because a smaller burst may be
// clamping the costs of waiters.
func (l *Core) WaitsFor(w *Waiter) (b *bucket.Bucket, cost int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return w.Bucket(), w.In.Costs[w.In.Binding]
}

// Most returns the largest cost that a bucket can ever pay.
func (l *Core) Most(b *bucket.Bucket) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return b.Meter.Most()
}

// Await waits until w is decided: without a rejection or an error, it was granted. If the context has ended by then, its end
// counts, and all tokens are given back, because a request that cannot be sent must not be charged.
func (l *Core) Await(ctx context.Context, cancel <-chan struct{}, w *Waiter) error {
	select {
	case <-w.decided:
	case <-ctx.Done():
	case <-cancel:
	}
	if err := Ended(ctx, cancel); err != nil && l.Abandon(w) {
		return err
	}
	return nil
}

// DueOf returns when w was decided, or when it would be granted if nothing else happened; Never: that depends on a response.
func (l *Core) DueOf(w *Waiter) meter.Instant {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.Verdict != bucket.Waiting {
		return w.At
	}
	due, _ := l.order.Plan(&w.In, l.nowLocked())
	return due
}

// Abandon takes back a request whose context has ended, granted or not, and reports whether it did. A rejection stays one, also
// if MaxWait ends at that instant, because MaxWait is checked before the deadline.
func (l *Core) Abandon(w *Waiter) bool {
	now := l.begin()
	defer l.end()
	if w.Verdict == bucket.Waiting && w.Expiry <= now {
		l.expireLocked(w, now)
	}
	switch w.Verdict {
	case bucket.Refused:
		return false
	case bucket.Granted:
		w.By.Undone++
		l.counts.Undone++
		c := w.Caller()
		for i, cost := range w.In.Costs {
			b := w.BucketAt(i)
			b.Limit.Counts.Undone++
			l.giveBackLocked(b, w.Paid()[i], now, cost)
			l.turnLocked(c, b, -cost)
		}
	case bucket.Waiting:
		w.Verdict = bucket.Left // its MaxWait may end at the same time
		_, w.In.Binding = l.order.Plan(&w.In, now)
		l.quitLocked(w, now)
	}
	l.counts.Canceled++
	w.By.Canceled++
	w.Bucket().Limit.Counts.Canceled++
	return true
}

// Ended returns why a request has ended: the cause of its context, or its Cancel. It returns nil if it has not.
func Ended(ctx context.Context, cancel <-chan struct{}) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case <-cancel:
		return errCanceled
	default:
		return nil
	}
}

// errCanceled is returned when Request.Cancel was closed while the request waited.
var errCanceled = fmt.Errorf("throttle: request canceled while waiting: %w", context.Canceled)

// A Waiter is a request that waits.
type Waiter struct {
	bucket.Place
	heap.Entry[ending]               // in Core.ends
	joining            bool          // it may be granted on arrival
	decided            chan struct{} // closed when it is decided; nil: it is a ghost
}

// Decided returns a channel that is closed when the request is granted or rejected.
func (w *Waiter) Decided() <-chan struct{} { return w.decided }
