package limiter

import (
	"context"
	"fmt"
	"time"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
)

// This file is how a request is granted, rejected, or made to wait.

// Now grants a request if all its charges can be paid now, and that of its gate if it has one. Otherwise the request is to wait as a
// Waiter. The two are separate so that requests wait on a small stack: there may be 100,000 of them.
func (l *Core) Now(r *Request, gate *quota.Key) (ok bool) { return l.grantNow(r, gate, nil) }

// NowOrNever is Now for a request that must not wait. If it rejects the request, it returns the error of the Observer. It does neither where
// requests wait, where a bucket or the gate cannot be made under the lock, and in a dry run: then Enqueue decides.
func (l *Core) NowOrNever(r *Request, gate *quota.Key) (ok bool, err error) {
	var why Rejection
	if ok = l.grantNow(r, gate, &why); why.Reason != 0 {
		err = r.User.Observer.Rejected(r.Context, why, 0)
	}
	return ok, err
}

// Try grants a request immediately, or returns how long it would wait. It never overtakes a request that waits.
func (l *Core) Try(r *Request) (wait time.Duration, ok bool) {
	var why Rejection
	ok = l.grantNow(r, nil, &why)
	switch {
	case ok:
		return 0, true
	case why.Reason == 0:
		return l.tryLater(r)
	case r.User.Rejected:
		_ = r.User.Observer.Rejected(r.Context, why, 0)
	}
	return max(1, why.Wait), false
}

// grantNow is Now. If why is not nil, it may reject the request instead, as NowOrNever documents, and says why.
func (l *Core) grantNow(r *Request, gate *quota.Key, why *Rejection) (ok bool) {
	read := l.clock() // before the lock, for which others wait
	if !l.mu.TryLock() {
		l.mu.wait()
	}
	ok = l.payNowLocked(r, gate, why, l.atLocked(read))
	l.mu.Unlock()
	if ok && r.User.Granted {
		l.tellNow(r)
	}
	return ok
}

// payNowLocked makes the charges of a request, and that of its gate, if they can be paid now.
func (l *Core) payNowLocked(r *Request, gate *quota.Key, why *Rejection, now meter.Instant) (ok bool) {
	if l.isShutLocked(r.User) {
		return false
	}
	if gate != nil {
		b := l.knownGateLocked(gate, now)
		if b == nil {
			return false
		}
		r.addGate(b)
	}
	charges := r.Charges()
	ok, missing := l.payLocked(charges, &r.Mark, r.User, now)
	if missing {
		ok, missing = l.makeAndPayLocked(charges, &r.Mark, r.User, now)
	}
	if ok {
		return true
	}
	if why != nil && !missing && now < l.armed { // no timer is late
		l.rejectNowLocked(charges, r.User, now, why)
	}
	if gate != nil {
		r.dropGate() // Enqueue passes it again
	}
	return false
}

// tryLater is Try where Enqueue decides.
func (l *Core) tryLater(r *Request) (wait time.Duration, ok bool) {
	w := r.Waiter()
	w.MaxWait, w.try = 0, true
	_, err := l.Enqueue(r.Context, w)
	switch {
	case err == nil:
		*r = Request{Context: r.Context}
		w.Take(r)
		return 0, true
	case w.rejection != nil:
		return max(1, w.rejection.Wait), false
	}
	return bucket.Until(meter.Never, 0), false // there is no rate for this key
}

// Enqueue grants a request if it can be paid now or may overtake by its priority, rejects it, or has it wait. It reports whether the
// request waits: then call Await, or Leave. The error is that of the Observer for a request that is rejected, or says why there is no rate
// for a key.
//
// The steps are called one after the other instead of one by the other, because a goroutine that waits keeps the largest stack that it
// has needed.
func (l *Core) Enqueue(ctx context.Context, w *Waiter) (waits bool, err error) {
	if w.Claim == nil && (w.MaxWait != 0 || l.supplies != nil) { // allocated before the lock is taken
		w.decided = make(chan struct{})
	}
	now, rates, err := l.beginRated(w.charges)
	if err != nil {
		l.end()
		return false, err
	}
	w.arrived = l.arrivalOf(w, now)
	var a arrival
	switch {
	case l.shutsOutLocked(w, now):
		a.verdict = rejected
	case l.payOnArrivalLocked(w, &a, rates, now):
	case w.decided == nil && a.missing == nil && l.rejectWaiterNowLocked(w, now):
		a.verdict = rejected
	default:
		a.verdict = l.lineUpLocked(ctx, w, &a, now)
	}
	w.verdict, w.at = a.verdict, now
	if a.verdict == waiting {
		l.waitsLocked(w, &a, now)
	}
	w.queued = a.verdict == waiting
	l.end()
	return w.queued, l.tellArrival(ctx, w, &a)
}

// An arrival is what was decided about a request when it came. From then on, other goroutines may change the Waiter under the lock.
type arrival struct {
	verdict verdict
	missing *Charge        // the first one without room for its bucket; nil: there is none
	at      *bucket.Bucket // what the request waits for, or would wait for without a dry run; nil: nothing
	cost    int64          // of the request there
	wait    time.Duration  // until it would be granted, as it seems
}

// tellArrival reports what was decided. Its frame is on the stack neither while that is decided nor while the request waits.
func (l *Core) tellArrival(ctx context.Context, w *Waiter, a *arrival) error {
	switch at := (Place{Context: ctx}); {
	case a.verdict == waiting:
		l.tellWaits(w, placeOf(ctx, a.at), a.cost, a.wait)
	case w.Claim != nil && a.verdict != granted: // another Core may grant it, or has; see Reject
	case a.verdict == rejected:
		err := w.user.Observer.Rejected(ctx, *w.rejection, 0)
		if !l.dry {
			return err
		}
		l.sendRejected(w)
	case w.user.Granted:
		if a.at != nil {
			at = placeOf(ctx, a.at)
		}
		l.tellGranted(w, at, a.wait)
	}
	return nil
}

// payOnArrivalLocked passes the gate of w, and grants w if it can be paid now. It reports whether w is decided. Otherwise it finds the
// first charge without room for its bucket and, in a dry run, makes w a ghost.
func (l *Core) payOnArrivalLocked(w *Waiter, a *arrival, rates []meter.Rate, now meter.Instant) (decided bool) {
	if w.Gate != nil && !w.Late {
		l.passLocked(w, now)
	}
	ok := false
	if w.Claim == nil {
		ok, a.missing = l.payAllLocked(w.charges, &w.mark, rates, w.user, now)
	} else if ok, a.missing = l.payClaimedLocked(w, rates, now); !ok && len(w.charges) == 0 {
		a.verdict = left // another Core was first
		return true
	}
	if ok {
		a.verdict = granted
		return true
	}
	if w.decided == nil {
		return false
	}
	if l.dry {
		w.ghost, w.decided = new(ghost), nil
	}
	if w.Gate != nil && w.Late && a.missing == nil {
		l.passLocked(w, now)
	}
	return false
}

// waitsLocked notes what w waits for. If w is a ghost, its request is granted all the same.
func (l *Core) waitsLocked(w *Waiter, a *arrival, now meter.Instant) {
	a.at, a.cost = w.bucket(), w.in.Costs[w.in.Binding]
	if w.ghost != nil {
		l.sendLocked(w, now)
		a.verdict = granted
	}
}

// lineUpLocked decides about a request that could not be granted immediately: it waits, is rejected, or overtakes by its priority.
func (l *Core) lineUpLocked(ctx context.Context, w *Waiter, a *arrival, now meter.Instant) verdict {
	w.bind(ctx, l.deadlineAge, now)
	if reason, c, due := unpayable(w.charges, a.missing, now); reason != 0 {
		l.rejectOnArrivalLocked(w, reason, c, due, now)
		return rejected
	}
	w.enter()
	reason, due := l.planLocked(w, now)
	c := &w.charges[w.in.Binding]
	if reason == 0 || due <= now && !w.try { // it may overtake
		switch joined := l.joinsLocked(w, now); {
		case joined:
			return granted
		case w.verdict == left: // another Core was first
			return left
		case reason == 0:
			a.wait = bucket.Until(due, now)
			l.endLaterLocked(w)
			if w.ghost == nil && !w.lowered {
				w.charges, w.Gate = nil, nil // the order has them, and there may be many waiters
			}
			return waiting
		}
		w.verdict = left
		l.quitLocked(w, now)
	}
	l.rejectOnArrivalLocked(w, reason, c, c.Bucket.Soonest(due, c.Cost), now)
	if l.supplies != nil {
		l.wantLocked(w.charges, w.try, now)
	}
	return rejected
}

// planLocked finds out when w would be granted and which charge delays it, and returns why it must not wait; 0: it may. joinsLocked is not
// called here, because the two need less stack one after the other than one within the other.
func (l *Core) planLocked(w *Waiter, now meter.Instant) (reason bucket.Reason, due meter.Instant) {
	l.dueLocked(now) // requests that are due go first
	if l.supplies != nil {
		w.respite = respite(w.charges, w.try, w.expiry, now)
	}
	due, i := l.order.Plan(&w.in, now)
	w.in.Binding = int32(i)
	reason = w.check(due, now, w.charges[w.in.Binding].Bucket)
	if reason == 0 && l.order.Alike(&w.in) >= l.maxQueue {
		reason = bucket.ReasonQueueFull
	}
	return reason, due
}

// joinsLocked puts w into the order of waiters, and reports whether it is granted immediately.
func (l *Core) joinsLocked(w *Waiter, now meter.Instant) bool {
	w.joining = true
	l.joinLocked(w, now)
	l.dueLocked(now)
	w.joining = false
	if w.verdict != granted {
		return false
	}
	w.mark = l.grantedLocked(w.user, now)
	return true
}

// Await waits until w is granted, for which Enqueue reported that it waits. The error is that of the Observer for a request that is
// rejected, or the cause of a context that has ended. If the context has ended by then, its end counts, and all tokens are given back,
// because a request that cannot be sent must not be charged. The same is true once cancel is closed, if it is not nil.
func (l *Core) Await(ctx context.Context, cancel <-chan struct{}, w *Waiter) error {
	select {
	case <-w.decided:
	case <-ctx.Done():
	case <-cancel:
	}
	cause := Ended(ctx, cancel)
	if cause == nil && w.at >= w.deadline { // ctx ends at this instant, and its timer is late
		cause = context.DeadlineExceeded
	}
	return l.tellDecided(ctx, w, cause)
}

// Leave takes back a request for which Enqueue reported that it waits. It may have been granted since.
func (l *Core) Leave(w *Waiter) {
	if w.Claim != nil {
		l.abandon(w) // which is no news if another Core grants it
		return
	}
	_ = l.tellDecided(context.Background(), w, context.Canceled)
}

// tellDecided reports what has become of w, which waited. If its context has ended, cause is why, and w is taken back.
func (l *Core) tellDecided(ctx context.Context, w *Waiter, cause error) error {
	switch {
	case cause != nil && l.abandon(w):
		w.user.Observer.Canceled(placeOf(ctx, w.bucket()), cause, w.waited())
		return cause
	case w.rejection != nil:
		return w.user.Observer.Rejected(ctx, *w.rejection, w.waited())
	case w.user.Granted:
		l.tellGranted(w, placeOf(ctx, w.bucket()), w.waited())
	}
	return nil
}

// waited returns how long w waited, once it is decided.
func (w *Waiter) waited() time.Duration { return time.Duration(w.at - w.arrived) }

// abandon takes back a request whose context has ended, granted or not, and reports whether it did. A rejection stays one, also
// if MaxWait ends at that instant, because MaxWait is checked before the deadline.
func (l *Core) abandon(w *Waiter) bool {
	now := l.begin()
	defer l.end()
	if w.verdict == waiting && w.expiry <= now {
		l.expireLocked(w, now)
	}
	switch w.verdict {
	case rejected:
		return false
	case granted:
		l.landedLocked(w.user)
		w.user.counts.Undone++
		l.counts.Undone++
		turn := w.turn()
		for i, cost := range w.in.Costs {
			b := w.bucketAt(i)
			b.Limit.Counts.Undone++
			l.giveBackLocked(b, w.paid()[i], now, cost)
			l.turnLocked(turn, b, -cost)
		}
	case left:
		return true
	case waiting:
		w.verdict = left // its MaxWait may end at the same time
		if w.Claim != nil {
			w.Claim.drop()
			l.quitLocked(w, now)
			return true
		}
		_, i := l.order.Plan(&w.in, now)
		w.in.Binding = int32(i)
		l.quitLocked(w, now)
	}
	l.counts.Canceled++
	w.user.counts.Canceled++
	if len(w.in.Costs) > 0 { // it has charges
		w.bucket().Limit.Counts.Canceled++
	}
	return true
}

// Ended returns why a request has ended: the cause of its context, or its Cancel. It returns nil if it has not.
func Ended(ctx context.Context, cancel <-chan struct{}) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if cancel == nil {
		return nil
	}
	select {
	case <-cancel:
		return errCanceled
	default:
		return nil
	}
}

// errCanceled is the error of a request whose cancel was closed.
var errCanceled = fmt.Errorf("throttle: request canceled while waiting: %w", context.Canceled)
