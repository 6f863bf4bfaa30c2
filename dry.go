package throttle

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
	due    instant
	charge *charge
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
func (h bookings) first() instant {
	if len(h) == 0 {
		return never
	}
	return h[0].due
}

// bookLocked makes the charges that are due.
func (l *core) bookLocked(now instant) {
	for l.bookings.first() <= now {
		b := heap.Pop(&l.bookings).(booking)
		c := b.charge
		if !c.booked {
			continue // it was given back
		}
		c.booked, c.bucket = false, l.keptLocked(c, now)
		c.paid = c.bucket.meter.Take(b.due, b.due, c.cost, true)
		c.limit.counts.charged += uint64(c.cost)
	}
}

// pretendLocked charges a request that would have to wait, and decides about one that would be rejected.
func (l *core) pretendLocked(ctx context.Context, p *pending, now instant, missing *charge) verdict {
	a, charges := &p.ask, p.charges
	var by bounds
	l.bound(ctx, &by, a, charges, now)
	p.mark = mark{at: now}
	if reason, c, due := unpayable(charges, missing, now); reason != 0 {
		l.refuseLocked(p, &by, reason, c, due, now)
		return refused
	}
	due, last := planLocked(charges, nil, nil, &by.place, now, 0)
	binding := charges[last].bucket
	if reason := by.judge(due, now, binding); reason != 0 {
		l.refuseLocked(p, &by, reason, &charges[last], due, now)
		return refused
	}
	for i := range charges {
		c := &charges[i]
		c.limit.counts.granted++
		switch {
		case i == last:
			c.paid = c.bucket.meter.Take(due, due, c.cost, true)
			c.limit.counts.charged += uint64(c.cost)
			c.bucket.needs().since = due
		case c.limit.reported: // it counts what is really on its way
			c.paid = c.bucket.meter.Take(now, now, c.cost, false)
			c.limit.counts.charged += uint64(c.cost)
		case len(l.bookings) < l.maxQueue: // else the others seem to have more than they would
			c.booked = true
			heap.Push(&l.bookings, booking{due, c})
		}
	}
	l.synced = min(l.synced, l.bookings.first())
	l.counts.grantedAfter(due - now)
	a.by.grantedAfter(due - now)
	binding.limit.counts.waited(due - now)
	p.pretended, p.binding = time.Duration(due-now), binding
	return granted
}
