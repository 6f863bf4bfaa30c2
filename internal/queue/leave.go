package queue

import "github.com/httpthrottle/throttle/internal/meter"

// ordered reports whether the order of lines here is not by rank alone: urgent requests go first, or callers take turns.
func (l *Rule) ordered() bool { return l.Reserve > 0 || l.Fair }

// reserved reports whether one of the limits of these charges keeps something back.
func reserved(charges []Charge) bool {
	for i := range charges {
		if charges[i].Limit.Reserve > 0 {
			return true
		}
	}
	return false
}

// Leaves reports whether a request below can be paid now, so that enough remains for urgent ones.
func (b *Bucket) Leaves(cost int64, now Instant) bool {
	return b.Limit.Reserve == 0 || meter.ReadyLeaving(b.Meter, now, 0, 0, cost, b.Limit.Reserve) <= now
}

// readyFor returns when cost can be paid here.
func (b *Bucket) readyFor(below bool, cost int64) Instant {
	if below && b.Limit.Reserve > 0 {
		return meter.ReadyLeaving(b.Meter, b.opens(), 0, 0, cost, b.Limit.Reserve)
	}
	return b.Ready(0, 0, cost)
}

// planFor returns when cost can be paid here once what is ahead has been, as far as is known: a lower bound for a planner.
func (b *Bucket) planFor(below bool, from Instant, urgent, ahead, cost int64) Instant {
	from = max(from, b.opens())
	if below && b.Limit.Reserve > 0 {
		return meter.PlanLeaving(b.Meter, from, urgent, ahead, cost, b.Limit.Reserve)
	}
	ahead = meter.AddCount(urgent, ahead)
	if !b.Limit.plans {
		return b.Meter.Ready(from, ahead, cost)
	}
	due := b.Meter.(meter.Planner).Plan(from, ahead, cost)
	if until := b.blockedUntil(); until > due && due < Never && b.Meter.Ready(from, ahead, cost) == Never {
		return until
	}
	return due
}

// most returns the largest cost that can ever be paid here.
func (b *Bucket) most(below bool) int64 {
	most := b.Meter.Most()
	if below && b.Limit.Reserve > 0 {
		most -= meter.Reserved(most, b.Limit.Reserve)
	}
	return most
}
