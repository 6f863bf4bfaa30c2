// Package lease is a process's side of budgets that several processes share.
//
// A process sends a [store.Ask] to a store and gets a [store.Lease] back: tokens that it may use without asking again. A [Leased] is
// the meter of a bucket that is filled by leases instead of by time. It decides when to ask for how much.
//
// Like package meter it has no lock and no clock, and does no I/O. The time is a parameter.
package lease

import (
	"fmt"
	"math"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// Check returns an error if no store that decides by the rules of a [store.Book] can have sent p in response to asked.
func Check(p *store.LeasedPart, asked *store.Part) error {
	most := meter.AddCount(max(0, asked.Need, asked.Want), max(0, asked.Ahead))
	if p.Tokens < 0 || p.Tokens > most || p.AtOnce < 0 || p.AtOnce > p.Tokens || min(p.Next, p.Until, p.Wait, p.Turn, p.Hold) < 0 || p.Over < 0 || p.Over > asked.Held || math.IsNaN(p.Left) {
		return fmt.Errorf("%w: limit %q: no response to an ask for %d tokens can be %+v", store.ErrSetup, asked.Budget.Limit, most, *p)
	}
	return nil
}

// voidAt returns from when on what a store granted for d must not be used, given when the ask was sent. A store counts whole µs, so its
// d may have begun up to one before the ask.
func voidAt(sent meter.Instant, d time.Duration) meter.Instant {
	return meter.AddInstant(sent, int64(d-time.Microsecond))
}
