package queue

import (
	"context"
	"math"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/order"
	"github.com/httpthrottle/throttle/internal/supply"
)

// Judge returns why a request that would be granted at due must be rejected; 0 if it need not. MaxWait comes before the
// deadline, so that one client sees one kind of rejection, whatever deadlines its callers set.
//
// A request that waits for a response of a store may wait for longer than MaxWait, as long as it may be granted immediately.
func (b *Bounds) Judge(due, now Instant, binding *Bucket) reason {
	patience := max(b.Expiry, min(now, b.Arrived+b.respite))
	switch {
	case due == Never: // however long the request may wait
	case binding.Lent() != nil && b.isCutOff(due, binding.blockedUntil()):
		return ReasonStore
	case due <= patience && (b.Expiry > b.Arrived || b.respite > 0):
		if due >= b.Deadline {
			return ReasonDeadline
		}
		return 0
	case b.Expiry > b.Arrived && !binding.isHeld(b.Expiry):
		return ReasonMaxWait
	}
	return binding.denies(due, b.Expiry)
}

// denies returns why a request is rejected that would be granted at due, and may not wait or is held past until.
func (b *Bucket) denies(due, until Instant) reason {
	switch {
	case due == Never:
		return ReasonCost
	case b.isHeld(until):
		return ReasonHeld
	}
	return ReasonNoTokens
}

// isHeld reports whether a hold that lasts longer than until, or a server, stops requests here.
func (b *Bucket) isHeld(until Instant) bool { return b.Limit.Gates || b.HeldUntil() > until }

// isCutOff reports whether a request that waits for a store that is unreachable until then cannot wait so long.
func (b *Bounds) isCutOff(due, until Instant) bool {
	return until > 0 && due >= until && (until == supply.Shut || due > b.Expiry || due >= b.Deadline)
}

// Until returns how long it is until due: the longest Duration if that is never.
func Until(due, now Instant) time.Duration {
	if due == Never {
		return math.MaxInt64
	}
	return time.Duration(max(0, due-now))
}

// refuse returns the refusal of a request that could go at due.
func (b *Bounds) refuse(reason reason, li *Limit, key string, cost int64, due, now Instant) Refusal {
	r := Refusal{Reason: reason, Limit: li, Key: key, Cost: cost, Wait: Until(due, now)}
	patience := b.Expiry
	switch reason {
	case ReasonMaxWait, ReasonNoTokens, ReasonHeld:
	case ReasonDeadline:
		patience = b.Deadline
	default:
		patience = min(b.Expiry, b.Deadline)
	}
	if patience < Never {
		r.Patience = time.Duration(patience - b.Arrived)
	}
	return r
}

// soonest returns when a request that could go at due can go as things are now, if that is later and known. due is a lower bound
// where it depends on responses that have not come.
func (b *Bucket) soonest(due Instant, cost int64) Instant {
	if until := b.blockedUntil(); until > 0 && until <= due && due < Never {
		return b.loan.Out().Again() // the store is asked then
	}
	if b.Limit.plans {
		if ready := b.Ready(0, 0, cost); ready < Never {
			return max(due, ready)
		}
	}
	return due
}

// unpayable returns a charge that cannot be made at all, and why: there is no room for its bucket, or it is negative. due is when
// the request may be tried again.
func unpayable(charges []Charge, missing *Charge, now Instant) (why reason, c *Charge, due Instant) {
	if missing != nil {
		return ReasonKeys, missing, now + int64(sweepEvery)
	}
	for i := range charges {
		if c := &charges[i]; c.cost < 0 {
			return ReasonCost, c, Never
		}
	}
	return 0, nil, 0
}

// refuseLocked rejects a request that could go at due.
func (l *Core) refuseLocked(p *Pending, by *Bounds, reason reason, c *Charge, due, now Instant) {
	if p.Refusal == nil {
		p.Refusal = new(Refusal)
	}
	*p.Refusal = by.refuse(reason, c.Limit, c.Key, c.cost, due, now)
	switch {
	case reason == ReasonStore:
		p.Refusal.Err = c.bucket.loan.Out().Err()
	case reason == ReasonCost && c.cost > 0 && c.bucket != nil:
		p.Refusal.Most = c.bucket.Meter.Most()
	}
	l.Counts.Refused[reason]++
	p.Ask.By.Refused[reason]++
	c.Limit.Counts.Refused[reason]++
}

// bound sets what bounds the wait of an ask that came now. It is not the result, to keep the stack of its callers small.
func bound(ctx context.Context, b *Bounds, a *Ask, now Instant) {
	b.Rank, b.Arrived, b.Expiry, b.Deadline = order.RankOf(now, a.Priority), now, Never, Never
	if a.MaxWait >= 0 {
		b.Expiry = meter.AddInstant(now, int64(a.MaxWait))
	}
	if d, ok := ctx.Deadline(); ok {
		b.Deadline = meter.AddInstant(now, max(0, int64(time.Until(d))))
	}
}

// planFor returns when cost can be paid here once what is ahead has been, as far as is known: a lower bound for a planner.
func (b *Bucket) planFor(from Instant, ahead, cost int64) Instant {
	from = max(from, b.opens())
	if !b.Limit.plans {
		return b.Meter.Ready(from, ahead, cost)
	}
	due := b.Meter.(meter.Planner).Plan(from, ahead, cost)
	if until := b.blockedUntil(); until > due && due < Never && b.Meter.Ready(from, ahead, cost) == Never {
		return until
	}
	return due
}

// rejectLocked rejects a waiter that could go at due, because of its i-th bucket.
func (l *Core) rejectLocked(w *Waiter, i int, reason reason, due, now Instant) {
	w.Verdict, w.in.Binding = Refused, i
	b, cost := w.bucket(i), w.in.Costs[i]
	r := w.refuse(reason, b.Limit, b.Key, cost, b.soonest(due, cost), now)
	if reason == ReasonStore {
		r.Err = b.loan.Out().Err()
	}
	w.Refusal = &r
	l.Counts.Refused[reason]++
	w.by.Refused[reason]++
	b.Limit.Counts.Refused[reason]++
	l.quitLocked(w, now)
}
