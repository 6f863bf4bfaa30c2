package queue

// denyPendingLocked is denyLocked for a pending request that may not wait. It is not inlined, to keep the stack small on which its
// callers wait.
//
//go:noinline
func (l *Core) denyPendingLocked(p *Pending, now Instant) bool {
	return l.denyLocked(p.Charges, p.Ask.By, p.Ask.Priority < l.Urgent, now, p.Refusal)
}

// denyLocked rejects a request that cannot be paid now and may not wait, where no other request waits: then its wait is the
// longest that its buckets say, and nothing has to be planned. It has no effect, and returns false, where requests wait, or may
// have to wait for a store.
func (l *Core) denyLocked(charges []Charge, by *Counts, below bool, now Instant, r *Refusal) bool {
	if l.Supplies != nil || r == nil {
		return false
	}
	due, binding := now, 0
	for i := range charges {
		c := &charges[i]
		if c.cost < 0 || c.Bucket.HasLines() {
			return false
		}
		if at := c.Bucket.planFor(below, now, 0, 0, c.cost); at > due {
			due, binding = at, i
		}
	}
	c, none := &charges[binding], Bounds{Arrived: now, Expiry: now, Deadline: Never}
	r.Reason, r.Limit, r.Key, r.Cost = none.Judge(due, now, c.Bucket), c.Limit, c.Bucket.Key, c.cost
	r.Wait = Until(c.Bucket.soonest(due, c.cost, below), now)
	l.Counts.Refused[r.Reason]++
	by.Refused[r.Reason]++
	c.Limit.Counts.Refused[r.Reason]++
	return true
}
