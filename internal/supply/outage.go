package supply

import (
	"errors"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// An Outage is the time in which a store is unreachable. The zero value is for none.
type Outage struct {
	err   error         // of the latest call; nil: there is no outage
	since meter.Instant // when the first call failed
	again meter.Instant // when the next call may be made
	tries int           // how many have failed, at most 4
	over  bool          // the grace has passed
}

const (
	// Shut is the end of an outage that requests do not wait for.
	Shut = meter.Never - 1

	firstProbe = int64(25 * time.Millisecond) // after an outage began; twice as long after each further failure
	lastProbe  = int64(250 * time.Millisecond)
)

// fail records that a call has failed.
func (o *Outage) fail(err error, now meter.Instant, dice *meter.Dice) {
	if o.err == nil {
		*o = Outage{since: now}
	}
	wait := min(firstProbe<<o.tries, lastProbe)
	o.err, o.tries, o.again = err, min(o.tries+1, 4), now+wait+int64(dice.Chance()*float64(wait/2))
}

// Err returns why the store is unreachable.
func (o *Outage) Err() error { return o.err }

// Again returns when the next call may be made.
func (o *Outage) Again() meter.Instant { return o.again }

// isSetup reports whether it is a mistake that retrying does not fix.
func (o *Outage) isSetup() bool { return errors.Is(o.err, store.ErrSetup) }
