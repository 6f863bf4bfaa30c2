package queue

import (
	"container/heap"
	"context"
	"time"
)

// This file handles requests that would have to wait, in a dry run. They are sent immediately and charged as of when they would
// have left: immediately in the bucket that stops them, because requests behind them there would leave later still, and in the
// other buckets when that time has come, because until then they would bar no request there.

// A booking is a charge that is yet to be made.
type booking struct {
	due    Instant
	charge *Charge
}

// bookings is a heap by when they are due.
type bookings []booking

func (h bookings) Len() int           { return len(h) }
func (h bookings) Less(i, j int) bool { return h[i].due < h[j].due }
func (h bookings) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *bookings) Push(x any)        { *h = append(*h, x.(booking)) }
func (h *bookings) Pop() any {
	last := len(*h) - 1
	b := (*h)[last]
	(*h)[last] = booking{}
	*h = (*h)[:last]
	return b
}

// first returns when the first is due; never: there is none.
func (h bookings) first() Instant {
	if len(h) == 0 {
		return Never
	}
	return h[0].due
}

// bookLocked makes the charges that are due.
func (l *Core) bookLocked(now Instant) {
	for l.bookings.first() <= now {
		b := heap.Pop(&l.bookings).(booking)
		c := b.charge
		if !c.booked {
			continue // it was given back
		}
		c.booked, c.bucket = false, l.keptLocked(c, now)
		c.paid = c.bucket.Meter.Take(b.due, b.due, c.cost, true)
		c.Limit.Counts.Charged += uint64(c.cost)
	}
}

// pretendLocked charges a request that would have to wait, and decides about one that would be rejected.
func (l *Core) pretendLocked(ctx context.Context, p *Pending, now Instant, missing *Charge) Verdict {
	a, charges := &p.Ask, p.Charges
	var by Bounds
	l.bound(ctx, &by, a, charges, now)
	p.Mark = Mark{At: now}
	if reason, c, due := unpayable(charges, missing, now); reason != 0 {
		l.refuseLocked(p, &by, reason, c, due, now)
		return Refused
	}
	due, last := planLocked(charges, nil, nil, &by.Place, now, 0)
	binding := charges[last].bucket
	if reason := by.Judge(due, now, binding); reason != 0 {
		l.refuseLocked(p, &by, reason, &charges[last], due, now)
		return Refused
	}
	for i := range charges {
		c := &charges[i]
		c.Limit.Counts.Granted++
		switch {
		case i == last:
			c.paid = c.bucket.Meter.Take(due, due, c.cost, true)
			c.Limit.Counts.Charged += uint64(c.cost)
			c.bucket.needs().since = due
		case c.Limit.Reported: // it counts what is really on its way
			c.paid = c.bucket.Meter.Take(now, now, c.cost, false)
			c.Limit.Counts.Charged += uint64(c.cost)
		case len(l.bookings) < l.MaxQueue: // else the others seem to have more than they would
			c.booked = true
			heap.Push(&l.bookings, booking{due, c})
		}
	}
	l.Synced = min(l.Synced, l.bookings.first())
	l.Counts.grantedAfter(due - now)
	a.By.grantedAfter(due - now)
	binding.Limit.Counts.waited(due - now)
	p.Pretended, p.Binding = time.Duration(due-now), binding
	return Granted
}
