package queue

import "errors"

func (l *Core) Correct(g *Grant, c *Charge, cost int64) (charged int64, err error) {
	now := l.begin()
	defer l.end()
	switch {
	case g.Spent&grantReturned != 0:
		return 0, errReturned
	case c.Settled:
		return 0, ErrSettled
	}
	g.Spent |= GrantSettled
	charged, c.Settled = c.cost, true
	if c.booked {
		l.books.settle(c, cost)
		return charged, nil
	}
	c.cost = cost
	if cost == charged {
		return charged, nil
	}
	b := c.bucket
	if cost > charged {
		b = l.keptLocked(c, now)
	}
	b.Meter.Settle(c.paid, now, charged, cost)
	l.turnLocked(g.Caller, b, cost-charged)
	if cost < charged {
		c.Limit.Counts.gave(charged - cost)
		l.markLocked(b)
		l.freeLocked(b, now)
	} else {
		c.Limit.Counts.Charged += uint64(cost - charged)
		l.replanLocked(now, b)
		l.owedLocked(b, now)
	}
	return charged, nil
}

// owedLocked turns the debt of a bucket into a hold of its key, if the bucket was forgotten and there is no room for it.
func (l *Core) owedLocked(b *Bucket, now Instant) {
	if b.Key == "" || b.IsKept() {
		return
	}
	if must, _ := b.Meter.Matters(now); must > now {
		b.Limit.keepHold(b.Key, must, now)
	}
}

// keptLocked returns the bucket of the key of a charge. The bucket that was charged may have been forgotten, because it was full
// or to make room, and another may have replaced it. If none has, it is kept again.
func (l *Core) keptLocked(c *Charge, now Instant) *Bucket {
	b := c.bucket
	if b.Key == "" || b.Limit.Buckets[b.Key] == b {
		return b
	}
	if other := b.Limit.Buckets[b.Key]; other != nil {
		return other
	}
	stale := b.Limit.Asks && b.asked < b.Limit.refreshed // the next request asks for its rate
	if stale || l.keys.Len() >= l.MaxKeys && !l.evictLocked(now, nil, &l.keys) {
		return b // it is not kept; see owedLocked
	}
	if !b.hasOwnRate() { // it was not there when the limit was changed
		r, burst := b.Limit.terms(Rate{})
		b.setTermsLocked(r, burst, now)
	}
	l.keepLocked(b, now)
	return b
}

var (
	errReturned = errors.New("all was given back")
	ErrSettled  = errors.New("it was settled before")
)
