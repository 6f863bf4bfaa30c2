package throttle

// denyPendingLocked is denyLocked for a pending request that may not wait. It is not inlined, to keep the stack small on which its
// callers wait.
//
//go:noinline
func (l *core) denyPendingLocked(p *pending, now instant) bool {
	return l.denyLocked(p.charges, p.ask.by, p.ask.priority < l.urgent, now, p.refusal)
}

// denyLocked rejects a request that cannot be paid now and may not wait, where no other request waits: then its wait is the
// longest that its buckets say, and nothing has to be planned. It has no effect, and returns false, where requests wait, or may
// have to wait for a store.
func (l *core) denyLocked(charges []charge, by *counts, below bool, now instant, r *refusal) bool {
	if l.supplies != nil || r == nil {
		return false
	}
	due, binding := now, 0
	for i := range charges {
		c := &charges[i]
		if c.cost < 0 || c.bucket.hasLines() {
			return false
		}
		if at := c.bucket.planFor(below, now, 0, 0, c.cost); at > due {
			due, binding = at, i
		}
	}
	c, none := &charges[binding], bounds{arrived: now, expiry: now, deadline: never}
	r.reason, r.limit, r.key, r.cost = none.judge(due, now, c.bucket), c.limit, c.bucket.key, c.cost
	r.wait = until(c.bucket.soonest(due, c.cost, below), now)
	l.counts.refused[r.reason]++
	by.refused[r.reason]++
	c.limit.counts.refused[r.reason]++
	return true
}
