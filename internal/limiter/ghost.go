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
// What a response says of a charge is booked as long after the grant of the ghost as the response came after the request was sent:
// that is when the response to the request would have come.
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
	c.Paid, c.Made = c.Bucket.Meter.Take(now, now, c.Cost, false), true
	c.Limit.Counts.Took(c.Cost)
	if waits {
		l.order.Join(&w.In, now)
	}
	l.markLocked(c.Bucket)
}

// hearLocked has what a response to a request that is sent at an instant says of a charge be booked later, if a ghost makes the
// charge, and reports whether it does.
func (l *Core) hearLocked(c *bucket.Charge, sent, cost, now meter.Instant) bool {
	if !c.Hear(now-sent, cost) {
		return false
	}
	if c.Ghost.Verdict == bucket.Granted {
		l.hearLaterLocked(c.Ghost.In.Owner.(*Waiter))
	}
	return true
}

// hearLaterLocked has the next thing that the response of a granted ghost says be booked when it would come.
func (l *Core) hearLaterLocked(w *Waiter) {
	if len(w.Heard) > 0 {
		l.entered++
		l.ends.Put(w, ending{w.At + w.Heard[0].After, meter.Never, l.entered})
	}
}

// bookLocked books the next thing that the response of a granted ghost says.
func (l *Core) bookLocked(w *Waiter, now meter.Instant) {
	h := w.Heard[0]
	w.Heard = w.Heard[1:]
	l.ends.Remove(w)
	l.hearLaterLocked(w)
	b, paid, charged := w.BucketAt(h.Index), w.Paid()[h.Index], w.In.Costs[h.Index]
	switch {
	case w.Made&(1<<h.Index) != 0:
	case h.Cost >= 0:
		l.correctLocked(b, w.Caller(), paid, charged, h.Cost, now)
	case b.Meter.(bucket.Answered).Answered(paid, now):
		l.markLocked(b)
	}
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
