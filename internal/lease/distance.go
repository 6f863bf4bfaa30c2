package lease

import (
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A Distance is how far away a store is. It is one for all budgets there: if it differed, what a request needs of several would be asked for
// one by one. The zero value is unknown.
type Distance struct {
	trip  time.Duration // the round trip, as an average of the latest ones; 0: unknown
	least time.Duration // the fastest of the latest ones
	late  bool          // the latest one was later than a token of a Sliding window may be used
	lead  time.Duration // the next tokens are asked for so long before the last promised one is due
	sent  meter.Instant // when the latest ask was sent
}

// measureTrip takes the round trip of an ask, once for all its parts. One that is late on its own says nothing about the next ones: if it
// counted, tokens of those that are late as well would count as used in time.
func (d *Distance) measureTrip(sent meter.Instant, trip time.Duration) {
	switch {
	case d.trip == 0:
		d.trip, d.least = trip, trip
	case sent <= d.sent:
		return
	}
	d.sent, d.lead = sent, 2*trip+lateAsk
	before := d.late
	if d.late = trip > inTime(d.trip); d.late && !before {
		return
	}
	d.trip += (trip - d.trip) / 8
	d.least = min(trip, d.least+(trip-d.least)/16)
}
