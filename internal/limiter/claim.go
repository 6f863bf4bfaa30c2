package limiter

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A Claim is a request that waits in several Cores until the first of them grants it. The others never charge it: each Core claims it
// under its own lock, before it pays. Refusals by some of the Cores are not reported, because the others may grant it.
type Claim struct {
	arrived time.Time // zero: when it comes to a Core
	winner  atomic.Pointer[Waiter]
	open    atomic.Int64 // Waiters that may still be granted, and one more until Seal
	closed  atomic.Bool
	done    chan struct{}
}

// NewClaim returns a Claim without a Waiter, of a request that arrived somewhere else before it came to a Core; the zero time: it did not.
func NewClaim(arrived time.Time) *Claim {
	c := &Claim{arrived: arrived, done: make(chan struct{})}
	c.open.Store(1)
	return c
}

// Done returns a channel that is closed when the request is granted, or no Core can grant it any more.
func (c *Claim) Done() <-chan struct{} { return c.done }

// Winner returns the Waiter that is granted, once Done is closed; nil: none.
func (c *Claim) Winner() *Waiter { return c.granted() }

// Seal says that no more Waiters are added. It is called once.
func (c *Claim) Seal() { c.drop() }

// Close has no Waiter be granted from now on. It returns the one that is, once all is noted of its grant; nil: none.
func (c *Claim) Close() *Waiter {
	c.take(closedClaim)
	w := c.granted()
	if w != nil { // its Core claims the request before it charges it
		<-c.done
	}
	return w
}

// closedClaim stands for the winner of a Claim that is closed.
var closedClaim = new(Waiter)

// granted returns the Waiter that is granted; nil: none is, so far.
func (c *Claim) granted() *Waiter {
	if w := c.winner.Load(); w != closedClaim {
		return w
	}
	return nil
}

// take claims the request for w, and reports whether w was the first.
func (c *Claim) take(w *Waiter) bool { return c.winner.CompareAndSwap(nil, w) }

// join notes another Waiter. It reports false if none can be granted any more.
func (c *Claim) join() bool {
	for n := c.open.Load(); n > 0; n = c.open.Load() {
		if c.open.CompareAndSwap(n, n+1) {
			return true
		}
	}
	return false
}

// drop notes that a Waiter cannot be granted any more.
func (c *Claim) drop() {
	if c.open.Add(-1) == 0 {
		c.finish()
	}
}

func (c *Claim) finish() {
	if !c.closed.Swap(true) {
		close(c.done)
	}
}

// arrivalOf returns when the request of w arrived, which has come to a Core now.
func (l *Core) arrivalOf(w *Waiter, now meter.Instant) meter.Instant {
	if w.Claim == nil || w.Claim.arrived.IsZero() {
		return now
	}
	return min(now, meter.Instant(w.Claim.arrived.Sub(l.Start)))
}

// EnqueueClaimed is Enqueue for a request that waits in other Cores, too, and at a Door; nil: at none. The error is never a rejection: see
// Reject. If Done is closed because none can grant the request any more, this one does not either, and does not reject it: the owner may
// have acted on that.
func (l *Core) EnqueueClaimed(ctx context.Context, w *Waiter, at *Door) (waits bool, err error) {
	w.decided = w.Claim.done
	w.standAt(at)
	if !w.Claim.join() {
		w.verdict, w.at = left, meter.Never
		return false, nil
	}
	defer func() { // also if a function of the user's panics
		switch {
		case w.queued: // tell ends it, once all is noted of the grant
		case w.Claim.Winner() == w:
			w.Claim.finish()
		default:
			w.Claim.drop()
		}
	}()
	return l.Enqueue(ctx, w)
}

// payClaimedLocked is payAllLocked for a request that is to be claimed before it is paid: it makes missing buckets, and the request
// lines up in any case unless it costs nothing.
func (l *Core) payClaimedLocked(w *Waiter, rates []meter.Rate, now meter.Instant) (ok bool, missing *Charge) {
	if len(w.charges) == 0 && w.Claim.take(w) {
		return l.payAllLocked(w.charges, &w.mark, rates, w.user, now)
	}
	if missing = l.haveAllLocked(w.charges, rates, now); missing == nil {
		clamp(w.charges)
	}
	return false, missing
}

// Reject reports the rejection of a Waiter with a Claim, because no other Core grants the request either. It returns the error of the
// Observer.
func (l *Core) Reject(ctx context.Context, w *Waiter) error {
	l.mu.Lock()
	l.countRejectionLocked(w.user, w.rejection.Limit, w.rejection.Reason)
	l.mu.Unlock()
	return w.user.Observer.Rejected(ctx, *w.rejection, max(0, w.waited()))
}

// yieldLocked takes out a waiter that would be granted now, but whose request another Core has claimed. Its caller keeps its turn.
func (l *Core) yieldLocked(w *Waiter, now meter.Instant) {
	w.verdict, w.at = left, now
	turn := w.turn()
	for i, cost := range w.in.Costs {
		l.turnLocked(turn, w.bucketAt(i), -cost)
	}
	l.leftLocked(w, now)
}

// IsTrial reports whether a waiter that was granted is a trial of its Door.
func (w *Waiter) IsTrial() bool {
	for i := range w.in.Costs {
		if isDoor(w.bucketAt(i)) {
			return w.paid()[i] == 1
		}
	}
	return false
}

// Return gives back all charges of a waiter that was granted, because its request is not sent after all.
func (l *Core) Return(w *Waiter) { l.undoWaiter(w) }

// RejectClaimed rejects a waiter that certainly cannot be granted in time, because that takes the wait at least.
func (l *Core) RejectClaimed(w *Waiter, wait time.Duration) {
	now := l.begin()
	defer l.end()
	if w.verdict != waiting {
		return
	}
	_, i := l.order.Plan(&w.in, now)
	due := meter.AddInstant(now, int64(wait))
	if reason := w.check(due, now, w.bucketAt(i)); reason != 0 {
		l.rejectLocked(w, i, reason, due, now)
	}
}

// Postpone has the rejection of a waiter say that the request could not have been sent before some time, which is a lower bound.
func (l *Core) Postpone(w *Waiter, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := w.rejection; r != nil {
		r.Wait = max(r.Wait, wait)
		r.Least = r.Wait < math.MaxInt64
	}
}
