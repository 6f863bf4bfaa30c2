package limiter

import (
	"errors"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
)

var errNoRoom = errors.New("there is no room for another key")

// Restore has f change the bucket of a key, which it makes if there is none, and holds it for d. The error is that of f, that there
// is no room for the bucket, or why there is no rate for the key.
func (l *Core) Restore(li *bucket.Limit, key string, d int64, f func(b *bucket.Bucket, now meter.Instant) error) error {
	var r Request
	r.Add(li, key, 0)
	charges := r.Charges()
	now, rates, err := l.beginRated(charges)
	defer l.end()
	if err != nil {
		return err
	}
	if !l.haveLocked(&charges[0], charges, rateAt(rates, 0), now) {
		return errNoRoom
	}
	b := charges[0].Bucket
	err = f(b, now)
	if d > 0 {
		b.Hold(now, now+min(d, meter.MaxPer))
	}
	b.NoteHold() // a controller may have been held
	l.replanLocked(b)
	return err
}
