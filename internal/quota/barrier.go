package quota

import "github.com/httpthrottle/throttle/internal/meter"

const (
	othersMost  = 60 * second     // the longest hold of accounts because of a response to another one
	longestHold = 86_400 * second // a server that asks for a longer one is asked again after that time
)

// A barrier stops all requests for a time, which is called a hold.
type barrier struct {
	held meter.Instant // no request is sent before
	set  meter.Instant // when held was set last; refusals of requests sent earlier belong to that event
	dice meter.Dice
}

// Held returns the end of the hold.
func (b *barrier) Held() meter.Instant { return b.held }

// Hold blocks all requests for d, a day at most, and for a random time longer: up to a tenth of d, at most a second.
func (b *barrier) Hold(now meter.Instant, d int64) {
	if d <= 0 {
		return
	}
	d = min(d, longestHold)
	b.set = now
	b.held = max(b.held, meter.AddInstant(meter.AddInstant(now, d), b.dice.Jitter(d)))
}

// release ends a hold. Refusals of requests that were sent before are old news.
func (b *barrier) release(now meter.Instant) {
	if b.held > now {
		b.held, b.set = now, now
	}
}

// A hold is a change of the end of an account's hold.
type hold struct {
	from, to meter.Instant
	guessed  bool // no server has asked for the end from
}
