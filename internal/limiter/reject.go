package limiter

import (
	"context"
	"time"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/order"
)

// refuseLocked rejects a request that could go at due.
func (l *Core) refuseLocked(p *bucket.Pending, by *bucket.Bounds, reason bucket.Reason, c *bucket.Charge, due, now meter.Instant) {
	*p.Refusal = by.Refuse(reason, c.Limit, c.Key, c.Cost, due, now)
	if c.Bucket != nil {
		p.Refusal.Err = c.Bucket.Err(reason)
		if reason == bucket.ReasonCost && c.Cost > 0 {
			p.Refusal.Most = c.Bucket.Meter.Most()
		}
	}
	l.counts.Refused[reason]++
	p.Ask.By.Refused[reason]++
	c.Limit.Counts.Refused[reason]++
}

// bound sets what bounds the wait of an ask that came now, and its rank. It is not the result, to keep the stack of its callers small.
func (l *Core) bound(ctx context.Context, b *bucket.Bounds, a *bucket.Ask, now meter.Instant) {
	b.Rank, b.Arrived, b.Expiry, b.Deadline = order.RankOf(now, a.Priority), now, meter.Never, meter.Never
	if a.MaxWait >= 0 {
		b.Expiry = meter.AddInstant(now, int64(a.MaxWait))
	}
	if d, ok := ctx.Deadline(); ok {
		b.Deadline = meter.AddInstant(now, max(0, int64(time.Until(d))))
	}
	if l.DeadlineAge > 0 {
		b.Rank += min(0, min(b.Expiry, b.Deadline)-now-int64(l.DeadlineAge))
	}
}

// rejectLocked rejects a waiter that could go at due, because of its i-th bucket.
func (l *Core) rejectLocked(w *Waiter, i int, reason bucket.Reason, due, now meter.Instant) {
	w.Verdict, w.In.Binding = bucket.Refused, i
	b, cost := w.BucketAt(i), w.In.Costs[i]
	r := w.Refuse(reason, b.Limit, b.Key, cost, b.Soonest(due, cost), now)
	r.Err = b.Err(reason)
	w.Refusal = &r
	l.counts.Refused[reason]++
	w.By.Refused[reason]++
	b.Limit.Counts.Refused[reason]++
	l.quitLocked(w, now)
}

// denyPendingLocked is denyLocked for a pending request that may not wait.
func (l *Core) denyPendingLocked(p *bucket.Pending, now meter.Instant) bool {
	return l.denyLocked(p.Charges, p.Ask.By, now, p.Refusal)
}

// denyLocked rejects a request that cannot be paid now and may not wait, where no other request waits: then its wait is the
// longest that its buckets say, and nothing has to be planned. It has no effect, and returns false, where requests wait or may
// have to wait for a store, where costs are to be clamped, and in a dry run.
func (l *Core) denyLocked(charges []bucket.Charge, by *bucket.Counts, now meter.Instant, r *bucket.Refusal) bool {
	if l.supplies != nil || l.dry {
		return false
	}
	due, binding := now, &charges[0]
	for i := range charges {
		c := &charges[i]
		if c.Cost < 0 || c.Bucket.HasLines() || c.Limit.Clamps && c.Cost > c.Bucket.Meter.Most() {
			return false
		}
		if at := c.Bucket.PlanFor(now, 0, c.Cost); at > due {
			due, binding = at, c
		}
	}
	b := binding.Bucket
	reason := b.Denies(due, now)
	r.Reason, r.Limit, r.Key, r.Cost = reason, binding.Limit, b.Key, binding.Cost
	if b.Limit.Plans {
		due = b.Soonest(due, binding.Cost)
	}
	r.Wait, r.Err = bucket.Until(due, now), b.Err(reason)
	if reason == bucket.ReasonCost {
		r.Most = b.Meter.Most()
	}
	l.counts.Refused[reason]++
	by.Refused[reason]++
	binding.Limit.Counts.Refused[reason]++
	return true
}
