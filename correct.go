package throttle

import "errors"

func (l *core) correct(g *grant, c *charge, cost int64) (charged int64, err error) {
	l.mu.Lock()
	defer l.unlockJudged()
	switch {
	case g.spent&grantReturned != 0:
		return 0, errReturned
	case c.settled:
		return 0, errSettled
	}
	g.spent |= grantSettled
	charged, c.cost, c.settled = c.cost, cost, true
	if cost == charged || c.booked {
		return charged, nil
	}
	now := l.nowLocked()
	b := c.bucket
	if cost > charged {
		b = l.keptLocked(c, now)
	}
	l.markLocked(b)
	l.serveLocked(now) // requests that are due go first
	b.meter.Settle(c.paid, now, charged, cost)
	l.turnLocked(g.caller, b, cost-charged, now)
	if cost < charged {
		c.limit.counts.gave(charged - cost)
		b.freed(now)
		l.markLocked(b)
		l.freeLocked(b, now)
	} else {
		c.limit.counts.charged += uint64(cost - charged)
		l.replanLocked(now, b)
		l.owedLocked(b, now)
	}
	l.serveLocked(now)
	return charged, nil
}

// owedLocked turns the debt of a bucket into a hold of its key, if the bucket was forgotten and there is no room for it.
func (l *core) owedLocked(b *bucket, now instant) {
	if b.key == "" || b.place >= 0 {
		return
	}
	if must, _ := b.meter.Matters(now); must > now {
		b.limit.keepHold(b.key, must, now)
	}
}

// keptLocked returns the bucket of the key of a charge. The bucket that was charged may have been forgotten, because it was full
// or to make room, and another may have replaced it. If none has, it is kept again.
func (l *core) keptLocked(c *charge, now instant) *bucket {
	b := c.bucket
	if b.key == "" || b.limit.buckets[b.key] == b {
		return b
	}
	if other := b.limit.buckets[b.key]; other != nil {
		return other
	}
	stale := b.limit.asks && b.asked < b.limit.refreshed // the next request asks for its rate
	if stale || l.keys.size() >= l.maxKeys && !l.evictLocked(now, nil, &l.keys) {
		return b // it is not kept; see owedLocked
	}
	if !b.hasOwnRate() { // it was not there when the limit was changed
		r, burst := b.limit.terms(rate{})
		b.setTermsLocked(r, burst, now)
	}
	l.keepLocked(b, now)
	return b
}

var (
	errReturned = errors.New("all was given back")
	errSettled  = errors.New("it was settled before")
)
