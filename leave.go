package throttle

import "github.com/httpthrottle/throttle/internal/meter"

// ordered reports whether the order of lines here is not by rank alone: urgent requests go first, or callers take turns.
func (l *rule) ordered() bool { return l.reserve > 0 || l.fair }

// reserved reports whether one of the limits of these charges keeps something back.
func reserved(charges []charge) bool {
	for i := range charges {
		if charges[i].limit.reserve > 0 {
			return true
		}
	}
	return false
}

// leaves reports whether a request below can be paid now, so that enough remains for urgent ones.
func (b *bucket) leaves(cost int64, now instant) bool {
	return b.limit.reserve == 0 || meter.ReadyLeaving(b.meter, now, 0, 0, cost, b.limit.reserve) <= now
}

// readyFor returns when cost can be paid here.
func (b *bucket) readyFor(below bool, cost int64) instant {
	if below && b.limit.reserve > 0 {
		return meter.ReadyLeaving(b.meter, b.opens(), 0, 0, cost, b.limit.reserve)
	}
	return b.ready(0, 0, cost)
}

// planFor returns when cost can be paid here once what is ahead has been, as far as is known.
func (b *bucket) planFor(below bool, from instant, urgent, ahead, cost int64) instant {
	if below && b.limit.reserve > 0 {
		return meter.PlanLeaving(b.meter, max(from, b.opens()), urgent, ahead, cost, b.limit.reserve)
	}
	return b.plan(from, meter.AddCount(urgent, ahead), cost)
}

// most returns the largest cost that can ever be paid here.
func (b *bucket) most(below bool) int64 {
	most := b.meter.Most()
	if below && b.limit.reserve > 0 {
		most -= meter.Reserved(most, b.limit.reserve)
	}
	return most
}
