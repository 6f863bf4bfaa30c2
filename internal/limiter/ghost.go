package limiter

import (
	"time"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
)

// This file is about requests that would have to wait, in a dry run. They are sent immediately, and a ghost waits for each: a
// waiter without a goroutine. It is granted or rejected when its request would have been, so that it delays others as the request
// would have.
//
// A meter that needs the outcome of requests is paid when the response comes, if the ghost still waits then: it counts what is
// really under way.

// sendLocked has w wait for a request that is sent now.
func (l *Core) sendLocked(p *bucket.Pending, w *Waiter, now meter.Instant) {
	p.Mark, p.Pretended, p.Binding = bucket.Mark{At: now}, time.Duration(w.Due-now), w.Bucket()
	for i := range p.Charges {
		p.Charges[i].Ghost = &w.Place
	}
}

// payForGhostLocked makes a charge now, if its ghost has not made it yet.
func (l *Core) payForGhostLocked(c *bucket.Charge, now meter.Instant) {
	w, i := c.Unmade()
	if w == nil {
		return
	}
	waits := w.In.IsWaiting()
	if waits {
		l.order.Leave(&w.In)
	}
	w.In.Costs[i] = 0
	w.Made |= 1 << i
	c.Paid, c.Ghost = c.Bucket.Meter.Take(now, now, c.Cost, false), nil
	c.Limit.Counts.Took(c.Cost)
	if waits {
		l.order.Join(&w.In, now)
	}
	l.markLocked(c.Bucket)
}

// dismissLocked has the ghost of a request that is not sent after all wait no more.
func (l *Core) dismissLocked(charges []bucket.Charge, now meter.Instant) {
	for i := range charges {
		if w, _ := charges[i].Unmade(); w != nil && w.Verdict == bucket.Waiting {
			w.Verdict = bucket.Left
			l.quitLocked(w.In.Owner.(*Waiter), now)
			l.counts.Granted++
			w.By.Granted++
		}
	}
	for i := range charges {
		if c := &charges[i]; c.Settled { // it stays
			l.payForGhostLocked(c, now)
		}
	}
}
