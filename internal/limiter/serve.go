package limiter

import (
	"time"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/order"
	"github.com/httpthrottle/throttle/internal/quota"
)

// This file is how a change begins and ends. Between the two, an operation changes what it likes, and marks the buckets that have
// changed.

const (
	// slack is how late a timer may be without costing throughput.
	slack         = order.Slack
	checkAtOnce   = 2_000 // requests that are checked under one lock: about 0.5 ms
	rejectionTake = 30    // times as long as to check a request
	moveTakes     = 6     // times as long, to have a request wait at another gate
)

// markLocked notes that a bucket has changed.
func (l *Core) markLocked(b *bucket.Bucket) {
	if b.Waiting() > 0 {
		l.order.Touch(bucket.PointOf(b))
	}
	b.MarkLease()
}

// replanLocked notes that buckets have changed so that requests there may be too late.
func (l *Core) replanLocked(buckets ...*bucket.Bucket) {
	for _, b := range buckets {
		if b.Waiting() > 0 {
			l.order.Check(bucket.PointOf(b))
		}
		l.markLocked(b)
	}
}

// dueLocked begins a change: it grants the requests that were due before, each as of the instant at which it was. Those that are granted
// after it are granted because of the change, and so not as of an instant before it: only a timer can be late.
func (l *Core) dueLocked(now meter.Instant) {
	for in, due := l.order.Next(now); in != nil; in, due = l.order.Next(now) {
		l.grantLocked(in.Owner.(*Waiter), due, now)
	}
}

// serveLocked ends a change: it rejects the requests that are too late, grants those that can go now, sets timers for the others, and
// ends calls of Shutdown. If some requests are still to be checked, end continues.
func (l *Core) serveLocked(now meter.Instant) {
	if l.restsLocked(now) && l.armed == meter.Never && !l.leases.HasMarked() && len(l.drains) == 0 {
		return // as for most
	}
	work := l.atOnce
	for {
		l.rejectLateLocked(now, &work)
		l.elapseLocked(now, (max(0, work)+rejectionTake-1)/rejectionTake)
		if !l.leases.HasMarked() {
			break
		}
		l.armLeasesLocked(now)
	}
	l.armLocked(now)
	if len(l.drains) > 0 {
		l.drainLocked()
	}
}

// begin takes mu for a change, after all that time has decided before.
func (l *Core) begin() (now meter.Instant) {
	read := l.clock() // before the lock, for which others wait
	if !l.mu.TryLock() {
		l.mu.wait()
	}
	now = l.atLocked(read)
	if l.restsLocked(now) {
		return now // as for most
	}
	for l.elapseLocked(now, endsAtOnce); l.hasEndedLocked(now); l.elapseLocked(now, endsAtOnce) {
		l.mu.Unlock()
		l.pause()
		l.mu.Lock()
		now = l.nowLocked()
	}
	return now
}

// end ends a change and frees mu, in pieces if many requests are to be checked.
func (l *Core) end() {
	l.serveLocked(l.now)
	for !l.order.IsChecked() || l.hasEndedLocked(l.now) || len(l.divided) > 0 {
		l.mu.Unlock()
		l.pause()
		l.mu.Lock()
		l.divideLocked(l.nowLocked())
		l.serveLocked(l.now)
	}
	l.mu.Unlock()
}

// rejectLateLocked rejects requests that are too late.
func (l *Core) rejectLateLocked(now meter.Instant, work *int) {
	for in, due, i := l.order.Overdue(now, work); in != nil; in, due, i = l.order.Overdue(now, work) {
		w := in.Owner.(*Waiter)
		if reason := w.check(due, now, w.bucketAt(i)); reason != 0 {
			*work -= rejectionTake
			l.rejectLocked(w, i, reason, due, now)
		}
	}
}

// grantLocked grants w, which the order has taken out, as of when it was due.
func (l *Core) grantLocked(w *Waiter, due, now meter.Instant) {
	if w.Claim != nil && !w.Claim.take(w) {
		l.yieldLocked(w, now)
		return
	}
	w.verdict, w.at = granted, now
	sent := w.ghost != nil && !w.joining // its owner has the charges
	if w.joining {
		due = now
	} else {
		l.counts.GrantedAfter(now - w.arrived)
		l.sent.Add(now, 1, 0)
		w.user.counts.GrantedAfter(now - w.arrived)
		w.bucket().Limit.Counts.Waited(now - w.arrived)
		if w.ghost == nil { // its request was sent before
			l.takeOffLocked(w.user)
		}
	}
	halted := !w.joining && w.bucket().Leased() != nil
	for i, cost := range w.in.Costs {
		if w.ghost != nil && w.ghost.made&(1<<i) != 0 {
			continue
		}
		b := w.bucketAt(i)
		if halted && b.Limit.Learns {
			if m, ok := b.Meter.(meter.Halter); ok {
				m.Halted(w.arrived, now)
			}
		}
		w.paid()[i] = b.Meter.Take(due, now, cost, !w.joining)
		b.Limit.Counts.Took(cost)
	}
	if !sent {
		w.mark, w.served = Mark{At: now}, true
	}
	l.leftLocked(w, now)
	l.hearLaterLocked(w)
}

// joinLocked has w wait.
func (l *Core) joinLocked(w *Waiter, now meter.Instant) {
	l.order.Join(&w.in, now)
	l.joinedLocked(w)
}

// joinedLocked counts w in, which the order has taken in.
func (l *Core) joinedLocked(w *Waiter) {
	l.counts.Waiting++
	w.user.counts.Waiting++
	for i := range w.in.Costs {
		b := w.bucketAt(i)
		b.Limit.Counts.Waiting++
		l.enteredLocked(b)
		b.MarkLease()
	}
}

// enteredLocked notes that a request has begun to wait at a bucket.
func (l *Core) enteredLocked(b *bucket.Bucket) {
	if g, ok := b.Meter.(*quota.Gate); ok && b.Waiting() == 1 {
		g.SetWaiting(true)
	}
}

// emptiedLocked notes that a request waits at a bucket no more. It may have been the last.
func (l *Core) emptiedLocked(b *bucket.Bucket, now meter.Instant) {
	if b.Waiting() > 0 {
		return
	}
	if g, ok := b.Meter.(*quota.Gate); ok {
		g.SetWaiting(false)
	}
	l.freeLocked(b, now)
}

// quitLocked takes out a waiter that is not granted. Requests that it barred may be granted from now on.
func (l *Core) quitLocked(w *Waiter, now meter.Instant) {
	w.at = now
	l.order.Leave(&w.in)
	l.leftLocked(w, now)
}

// leftLocked counts w out, which the order has taken out.
func (l *Core) leftLocked(w *Waiter, now meter.Instant) {
	l.counts.Waiting--
	w.user.counts.Waiting--
	for i := range w.in.Costs {
		b := w.bucketAt(i)
		b.Limit.Counts.Waiting--
		l.emptiedLocked(b, now)
		b.MarkLease()
	}
	w.tell()
	l.ends.Remove(w)
}

// turnLocked corrects the turns of a caller by what a request of it was charged too little, or too much if it is negative.
func (l *Core) turnLocked(of turn, b *bucket.Bucket, more int64) {
	if of.weight == 0 || !b.Limit.Fair || b.Waiting() == 0 {
		return
	}
	l.order.Correct(bucket.PointOf(b), of.caller, of.weight, min(more, b.Meter.Most())) // no bucket owes more
}

// armLocked sets the timer for the instant at which the next request can go, or the next MaxWait ends.
func (l *Core) armLocked(now meter.Instant) {
	at := min(l.order.Wake(), l.nextEndLocked())
	switch {
	case at == l.armed:
		return
	case at == meter.Never:
		l.timer.Stop()
	case l.timer == nil:
		l.timer = time.AfterFunc(time.Duration(at-now), l.wake)
	default:
		l.timer.Reset(time.Duration(at - now))
	}
	l.armed = at
}

// wake is what the timer calls.
func (l *Core) wake() {
	l.mu.Lock()
	defer l.end()
	l.armed = meter.Never
	l.nowLocked()
}

// giveBackLocked gives back a charge. Waiters can use it from now on.
func (l *Core) giveBackLocked(b *bucket.Bucket, charged int64, now meter.Instant, cost int64) {
	b.Meter.GiveBack(charged, now, cost)
	b.Limit.Counts.Gave(cost)
	b.Limit.Counts.Ended++
	l.freeLocked(b, now)
	l.markLocked(b)
	if g, ok := b.Meter.(*quota.Gate); ok {
		l.markGatesLocked(g.Account) // its gates share what is given back
	}
}

// correctLocked corrects a charge that was made in a bucket, or in one that has been forgotten since.
func (l *Core) correctLocked(b *bucket.Bucket, of turn, paid, charged, cost int64, now meter.Instant) {
	b.Limit.Counts.Settle(charged, cost)
	if cost == charged {
		return
	}
	if cost > charged {
		b = l.keptLocked(b, now)
	}
	b.Meter.Settle(paid, now, charged, cost)
	l.turnLocked(of, b, cost-charged)
	if cost > charged {
		if b.Waiting() > 0 {
			l.order.CheckDebt(bucket.PointOf(b))
		}
		l.owedLocked(b, now)
	}
	l.markLocked(b)
}

// owedLocked turns the debt of a bucket into a hold of its key, if the bucket was forgotten and there is no room for it.
func (l *Core) owedLocked(b *bucket.Bucket, now meter.Instant) {
	if b.Key == "" || b.IsKept() {
		return
	}
	if must, _ := b.Meter.Matters(now); must > now {
		b.Limit.KeepHold(b.Key, must, now)
	}
}

// markGatesLocked marks the gates of an account at which requests wait.
func (l *Core) markGatesLocked(a *quota.Account) {
	for _, g := range a.Waiting() {
		l.markLocked(ownerOf(g))
	}
}

// replanGatesLocked marks the gates of an account at which requests wait that may be too late now.
func (l *Core) replanGatesLocked(a *quota.Account) {
	for _, g := range a.Waiting() {
		l.replanLocked(ownerOf(g))
	}
}
