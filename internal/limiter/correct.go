package limiter

import (
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
)

func (l *Core) Correct(g *bucket.Grant, c *bucket.Charge, cost int64) (charged int64, err error) {
	now := l.begin()
	defer l.end()
	switch {
	case g.Spent&bucket.GrantReturned != 0:
		return 0, bucket.ErrReturned
	case c.Settled:
		return 0, bucket.ErrSettled
	}
	g.Spent |= bucket.GrantSettled
	charged, c.Settled = c.Cost, true
	c.Cost = cost
	c.Limit.Settled.Add(charged, cost)
	if !l.hearLocked(c, g.Mark.At, cost, now) {
		l.correctLocked(c.Bucket, g.Caller, c.Paid, charged, cost, now)
	}
	return charged, nil
}

// keptLocked returns the bucket of the key of one that was charged, which may have been forgotten, because it was full or to make
// room, and another may have replaced it. If none has, it is kept again.
func (l *Core) keptLocked(b *bucket.Bucket, now meter.Instant) *bucket.Bucket {
	if b.Key == "" || b.Limit.Bucket(b.Key) == b {
		return b
	}
	if other := b.Limit.Bucket(b.Key); other != nil {
		return other
	}
	if b.IsStale() || l.keys.Len() >= l.maxKeys && !l.evictLocked(now, nil) {
		return b // it is not kept, because the next request asks for its rate, or there is no room; see owedLocked
	}
	if !b.HasOwnRate() { // it was not there when the limit was changed
		r, burst := b.Limit.Terms(meter.Rate{})
		b.SetTerms(r, burst, now)
	}
	l.keepLocked(b, now)
	return b
}
