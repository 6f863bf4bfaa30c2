package limiter

import (
	"errors"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
)

var errNoRoom = errors.New("there is no room for another key")

// Restore has f change the bucket of the only charge of p, which it makes if there is none, and holds it for d. It does nothing
// if the rate of the bucket must be asked for first. The error is that of f, or that there is no room for the bucket.
func (l *Core) Restore(p *bucket.Pending, d int64, f func(b *bucket.Bucket, now meter.Instant) error) (asked bool, err error) {
	now, ok := l.beginIfAsked(p)
	if !ok {
		return false, nil
	}
	defer l.end()
	c := p.Charges
	if !l.haveLocked(&c[0], c, bucket.RateAt(p.Rates, 0), now) {
		return true, errNoRoom
	}
	b := c[0].Bucket
	err = f(b, now)
	if d > 0 {
		b.Hold(now, now+min(d, meter.MaxPer))
	}
	b.NoteHold() // a controller may have been held
	l.replanLocked(b)
	return true, err
}
