package queue

// denyPendingLocked is denyLocked for a pending request that may not wait.
func (l *Core) denyPendingLocked(p *Pending, now Instant) bool {
	return l.denyLocked(p.Charges, p.Ask.By, now, p.Refusal)
}

// denyLocked rejects a request that cannot be paid now and may not wait, where no other request waits: then its wait is the
// longest that its buckets say, and nothing has to be planned. It has no effect, and returns false, where requests wait or may
// have to wait for a store, where costs are to be clamped, and in a dry run.
func (l *Core) denyLocked(charges []Charge, by *Counts, now Instant, r *Refusal) bool {
	if l.supplies != nil || l.Dry || r == nil {
		return false
	}
	due, binding := now, &charges[0]
	for i := range charges {
		c := &charges[i]
		if c.cost < 0 || c.bucket.HasLines() || c.Limit.Clamps && c.cost > c.bucket.Meter.Most() {
			return false
		}
		if at := c.bucket.planFor(now, 0, c.cost); at > due {
			due, binding = at, c
		}
	}
	b := binding.bucket
	reason := b.denies(due, now)
	r.Reason, r.Limit, r.Key, r.Cost = reason, binding.Limit, b.Key, binding.cost
	if b.Limit.plans {
		due = b.soonest(due, binding.cost)
	}
	r.Wait = Until(due, now)
	l.Counts.Refused[reason]++
	by.Refused[reason]++
	binding.Limit.Counts.Refused[reason]++
	return true
}
