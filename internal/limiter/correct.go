package limiter

import (
	"errors"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
)

// Settle corrects the i-th charge of a request to the true cost, and returns what was charged first.
func (l *Core) Settle(r *Request, i int, cost int64) (charged int64, err error) {
	now := l.begin()
	defer l.end()
	if charged, err = l.settleLocked(r, i, cost, now); err == nil {
		l.freeLocked(r.Charges()[i].Bucket, now)
	}
	return charged, err
}

// settleLocked is Settle, before what made the bucket busy has ended.
func (l *Core) settleLocked(r *Request, i int, cost int64, now meter.Instant) (charged int64, err error) {
	c := &r.Charges()[i]
	switch {
	case r.spent&wasReturned != 0:
		return 0, errReturned
	case c.settled:
		return 0, errSettled
	}
	r.spent |= wasSettled
	charged, c.settled = c.Cost, true
	c.Cost = cost
	if c.Limit().Rated {
		c.Limit().Settled.Add(charged, cost)
	}
	switch {
	case c.Limit().Unit != "":
		l.settleUnitLocked(r, c, charged, now)
	case !l.hearLocked(r, c, cost, now):
		l.correctLocked(c.Bucket, r.turn(), c.Paid, charged, cost, now)
	}
	if c.share > 0 && cost > 0 { // what costs nothing, as errors may, shows nothing
		l.keptLocked(c.Bucket, now).NoteShare(now, bucket.ShareOf(charged, cost, c.share))
	}
	return charged, nil
}

var (
	errReturned = errors.New("all was given back")
	errSettled  = errors.New("it was settled before")
)

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
