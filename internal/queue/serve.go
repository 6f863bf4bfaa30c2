package queue

import (
	"time"

	"github.com/httpthrottle/throttle/internal/order"
)

// This file is how a change begins and ends. Between the two, an operation changes what it likes, and marks the buckets that have
// changed.

const (
	// Slack is how late a timer may be without costing throughput.
	Slack = order.Slack
	// wallCheck is how often a waiter of a fixed window checks whether the wall clock was set.
	wallCheck = int64(time.Minute)

	judgeAtOnce   = 2_000 // so many requests are checked under one lock: about 0.5 ms
	rejectionTake = 30    // times as long as to check a request
)

// markLocked notes that a bucket has changed.
func (l *Core) markLocked(b *Bucket) {
	if b.Extra == nil {
		return
	}
	if b.point.Waiting() > 0 {
		l.order.Touch(&b.point)
	}
	l.markLoanLocked(b)
}

// replanLocked notes that buckets have changed so that requests there may be too late.
func (l *Core) replanLocked(_ Instant, buckets ...*Bucket) {
	for _, b := range buckets {
		if b.HasLines() {
			l.order.Check(&b.point)
		}
		l.markLocked(b)
	}
}

// dueLocked begins a change: it grants the requests that were due before, as they were planned. Those that are granted after it are
// due to the change, and therefore not as of before now: only a timer can be late.
func (l *Core) dueLocked(now Instant) {
	for in, due := l.order.Next(now); in != nil; in, due = l.order.Next(now) {
		l.grantLocked(in.Owner.(*Waiter), due, now)
	}
}

// serveLocked ends a change: it rejects the requests that are too late, grants those that can go now, and sets timers for the others.
// If some are still to be checked, end goes on.
func (l *Core) serveLocked(now Instant) {
	work := l.atOnce
	for {
		l.rejectLateLocked(now, &work)
		l.dueLocked(now)
		if len(l.loans) == 0 {
			break
		}
		l.armLoansLocked(now)
	}
	l.armLocked(now)
}

// begin takes Mu for a change, and grants what was due before.
func (l *Core) begin() (now Instant) {
	l.Mu.Lock()
	now = l.NowLocked()
	l.dueLocked(now)
	return now
}

// end ends a change and frees Mu, in pieces if many requests are to be checked.
func (l *Core) end() {
	l.serveLocked(l.now)
	for !l.order.IsChecked() {
		l.Mu.Unlock()
		l.pause()
		l.Mu.Lock()
		l.serveLocked(l.NowLocked())
	}
	l.Mu.Unlock()
}

// rejectLateLocked rejects requests that are too late.
func (l *Core) rejectLateLocked(now Instant, work *int) {
	for in, due, i := l.order.Overdue(now, work); in != nil; in, due, i = l.order.Overdue(now, work) {
		w := in.Owner.(*Waiter)
		if reason := w.Judge(due, now, w.bucket(i)); reason != 0 {
			*work -= rejectionTake
			l.rejectLocked(w, i, reason, due, now)
		}
	}
}

// grantLocked grants w, which is in line no more, as of when it was due.
func (l *Core) grantLocked(w *Waiter, due, now Instant) {
	w.Verdict, w.At = Granted, now
	if w.joining {
		due = now
	} else {
		l.Counts.grantedAfter(now - w.Arrived)
		w.by.grantedAfter(now - w.Arrived)
		w.Bucket().Limit.Counts.waited(now - w.Arrived)
	}
	for i, cost := range w.in.Costs {
		b := w.bucket(i)
		w.paid()[i] = b.Meter.Take(due, now, cost, !w.joining)
		b.Limit.Counts.took(cost)
	}
	l.leftLocked(w, now)
}

// joinLocked has w wait.
func (l *Core) joinLocked(w *Waiter, now Instant) {
	l.order.Join(&w.in, now)
	l.Counts.Waiting++
	w.by.Waiting++
	for i := range w.in.Costs {
		b := w.bucket(i)
		b.Limit.Counts.Waiting++
		if g, ok := b.Meter.(*GateBucket); ok && b.point.Waiting() == 1 {
			g.list(b, true)
		}
		l.markLoanLocked(b)
	}
}

// quitLocked takes a waiter that is not granted out of its line. Requests that it barred can go from now on.
func (l *Core) quitLocked(w *Waiter, now Instant) {
	w.At = now
	l.order.Leave(&w.in, now)
	l.leftLocked(w, now)
}

// leftLocked updates what is known of w, which is in line no more.
func (l *Core) leftLocked(w *Waiter, now Instant) {
	l.Counts.Waiting--
	w.by.Waiting--
	for i := range w.in.Costs {
		b := w.bucket(i)
		b.Limit.Counts.Waiting--
		if b.point.Waiting() == 0 {
			if g, ok := b.Meter.(*GateBucket); ok {
				g.list(b, false)
			}
			l.freeLocked(b, now)
		}
		l.markLoanLocked(b)
	}
	if w.decided != nil && w.Verdict != left {
		close(w.decided)
	}
}

// turnLocked corrects the turns of a caller by what a request of it was charged too little, or too much if it is negative.
func (l *Core) turnLocked(c *Caller, b *Bucket, more int64) {
	if c == nil || !b.Limit.Fair || !b.HasLines() {
		return
	}
	l.order.Correct(&b.point, c.name, c.weight, min(more, b.Meter.Most())) // no bucket owes more
}

// armLocked sets the timer for the instant at which the next request can go.
func (l *Core) armLocked(now Instant) {
	at := l.order.Wake()
	switch {
	case at == l.armed:
		return
	case at == Never:
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
	l.Mu.Lock()
	defer l.end()
	l.armed = Never
	l.NowLocked()
}

// giveBackLocked gives back a charge. Waiters can use it from now on.
func (l *Core) giveBackLocked(b *Bucket, charged int64, now Instant, cost int64) {
	b.Meter.GiveBack(charged, now, cost)
	b.Limit.Counts.gave(cost)
	b.Limit.Counts.ended++
	l.freeLocked(b, now)
	l.markLocked(b)
	if g, ok := b.Meter.(*GateBucket); ok {
		l.markPartyLocked(g.Party) // gates of a party share what is given back
	}
}
