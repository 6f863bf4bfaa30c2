package limiter

import (
	"cmp"
	"slices"

	"github.com/httpthrottle/throttle/internal/meter"
)

// This file is about requests that would have to wait, in a dry run. They are sent immediately, and a ghost waits for each: a
// waiter without a goroutine. It is granted or rejected when its request would have been, so that it delays others as the request
// would have.
//
// What a response says of a charge is booked when it would have come: as long after the grant of the ghost as it came after the request
// was sent.
//
// A meter that needs the outcome of requests is paid when the response comes, if the ghost still waits then, because such a meter counts
// the requests that are really in flight. Its limit has granted the request then, although the ghost may be rejected later.

// A ghost is what a Waiter has in addition if its request was sent.
type ghost struct {
	made  uint64  // charges that were made before it is granted: bit i for charge i
	heard []heard // reports of the response; each is booked at its time, in this order
}

// A heard is what a response says of the i-th charge of a ghost.
type heard struct {
	index int
	after int64 // the time from the sending of the request
	cost  int64 // the true cost; negative: it only says that the response is there
}

// sendLocked has a request be sent now that is not granted yet, or never.
func (l *Core) sendLocked(w *Waiter, now meter.Instant) {
	w.mark = Mark{At: now}
	l.takeOffLocked(w.user)
}

// sendRejected has a request be sent now that would be rejected. Nothing is charged for it.
func (l *Core) sendRejected(w *Waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.charges = nil
	l.sendLocked(w, l.nowLocked())
}

// unmade returns the ghost of a charge that is yet to be made, and the index of the charge there; nil: it was made.
func (r *Request) unmade(c *Charge) (w *Waiter, i int) {
	if r.ghost == nil || c.made {
		return nil, 0
	}
	if w, i = r.ghost, r.ghost.indexOf(c); w.verdict == granted {
		c.Paid, c.made = w.paid()[i], true
		return nil, 0
	}
	return w, i
}

// indexOf returns the index of a charge of its request.
func (w *Waiter) indexOf(c *Charge) (i int) {
	for w.bucketAt(i) != c.Bucket {
		i++
	}
	return i
}

// payForGhostLocked makes a charge now, if its ghost has not made it yet.
func (l *Core) payForGhostLocked(r *Request, c *Charge, now meter.Instant) {
	w, i := r.unmade(c)
	if w == nil {
		return
	}
	waits := w.in.IsWaiting()
	if waits {
		l.order.Leave(&w.in)
	}
	w.in.Costs[i] = 0
	w.ghost.made |= 1 << i
	c.Paid, c.made = c.Bucket.Meter.Take(now, now, c.Cost, false), true
	c.Limit().Counts.Took(c.Cost)
	if waits {
		l.order.Join(&w.in, now)
	}
	l.markLocked(c.Bucket)
}

// hearLocked has what the response to a request says of a charge be booked later, if a ghost makes the charge. It reports whether one
// does.
func (l *Core) hearLocked(r *Request, c *Charge, cost, now meter.Instant) bool {
	w := r.ghost
	if w == nil {
		return false
	}
	i, g := w.indexOf(c), w.ghost
	if g.made&(1<<i) != 0 {
		return false
	}
	g.heard = append(g.heard, heard{i, now - r.At, cost})
	slices.SortStableFunc(g.heard, func(a, b heard) int { return cmp.Compare(a.after, b.after) })
	if w.verdict == granted {
		l.hearLaterLocked(w)
	}
	return true
}

// hearLaterLocked has the next thing that the response of a granted ghost says be booked when it would come.
func (l *Core) hearLaterLocked(w *Waiter) {
	if w.ghost != nil && len(w.ghost.heard) > 0 {
		l.entered++
		l.ends.Put(w, ending{w.at + w.ghost.heard[0].after, meter.Never, l.entered})
	}
}

// bookLocked books the next thing that the response of a granted ghost says.
func (l *Core) bookLocked(w *Waiter, now meter.Instant) {
	h := w.ghost.heard[0]
	w.ghost.heard = w.ghost.heard[1:]
	l.ends.Remove(w)
	l.hearLaterLocked(w)
	b, paid, charged := w.bucketAt(h.index), w.paid()[h.index], w.in.Costs[h.index]
	switch {
	case w.ghost.made&(1<<h.index) != 0:
	case h.cost >= 0:
		l.correctLocked(b, w.turn(), paid, charged, h.cost, now)
		l.freeLocked(b, now)
	case b.Meter.(answered).Answered(paid, now):
		l.markLocked(b)
	}
}

// dismissLocked has the ghost of a request that is not sent after all wait no more.
func (l *Core) dismissLocked(r *Request, now meter.Instant) {
	charges := r.Charges()
	for i := range charges {
		if w, _ := r.unmade(&charges[i]); w != nil && w.verdict == waiting {
			w.verdict = left
			l.quitLocked(w, now)
			l.counts.Granted++
			w.user.counts.Granted++
		}
	}
	for i := range charges {
		if c := &charges[i]; c.settled { // it stays
			l.payForGhostLocked(r, c, now)
		}
	}
}
