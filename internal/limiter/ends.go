package limiter

import (
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/heap"
	"github.com/httpthrottle/throttle/internal/meter"
)

// This file is about what time alone decides: which requests are due, and whose MaxWait ends. An operation begins after all of
// that up to its own instant, so it makes no difference which of several timers, and of goroutines that they wake, runs first.

// endsAtOnce is how many requests are rejected under one lock: about 0.5 ms.
const endsAtOnce = checkAtOnce / rejectionTake

// An ending is the place of a waiter among those whose MaxWait ends, or of a ghost among those that hear a response.
type ending struct {
	at   meter.Instant // the last instant at which it may be granted, or when the response comes
	rank meter.Instant // never: it hears a response, after all that wait
	nth  uint64
}

// Before implements [heap.Key].
func (e ending) Before(other ending) bool {
	switch {
	case e.at != other.at:
		return e.at < other.at
	case e.rank != other.rank:
		return e.rank < other.rank
	}
	return e.nth < other.nth
}

type endsHeap = heap.Heap[*Waiter, ending]

// endLaterLocked has w be rejected at the end of its MaxWait, if it has one.
func (l *Core) endLaterLocked(w *Waiter) {
	if last := w.last(); last < meter.Never {
		l.entered++
		l.ends.Put(w, ending{last, w.in.Rank, l.entered})
	}
}

// nextEndLocked returns when the next MaxWait ends, or the next ghost hears a response; Never: there is none.
func (l *Core) nextEndLocked() meter.Instant {
	if w := l.ends.Top(); w != nil {
		return w.Key().at
	}
	return meter.Never
}

// hasEndedLocked reports whether a request waits whose MaxWait has ended, or a response is to be booked.
func (l *Core) hasEndedLocked(now meter.Instant) bool { return l.nextEndLocked() <= now }

// restsLocked reports whether no request waits, and nothing is to be booked.
func (l *Core) restsLocked(now meter.Instant) bool { return len(l.ends) == 0 && l.order.Rests(now) }

// elapseLocked does what time has decided by now: it grants the requests that are due, rejects those whose MaxWait has ended, and
// books what responses in a dry run say. Each of these may let others go, which are granted before the next one. If most are not
// enough, hasEndedLocked is true afterwards.
func (l *Core) elapseLocked(now meter.Instant, most int) {
	l.dueLocked(now)
	for ; most > 0 && l.hasEndedLocked(now); most-- {
		if w := l.ends.Top(); w.verdict == waiting {
			l.expireLocked(l.frontLocked(w, now), now)
		} else {
			work := l.atOnce
			l.bookLocked(w, now)
			l.rejectLateLocked(now, &work)
		}
		l.dueLocked(now)
	}
}

// frontLocked returns the request that is to be rejected first when the MaxWait of w has ended. That is a request in front of w whose
// MaxWait has ended, too, because w may be granted once it is gone.
func (l *Core) frontLocked(w *Waiter, now meter.Instant) (front *Waiter) {
	front = w
	for range mostInFront {
		in := l.order.Blocker(&w.in)
		if in == &w.in {
			break
		}
		w = in.Owner.(*Waiter)
		if w.IsIn() && w.Key().at <= now {
			front = w
		}
	}
	return front
}

// mostInFront is how many requests are looked at, each of which stops the one before.
const mostInFront = 64

// expireLocked rejects a request at the end of its MaxWait.
func (l *Core) expireLocked(w *Waiter, now meter.Instant) {
	due, i := l.order.Plan(&w.in, now)
	reason := bucket.ReasonMaxWait
	switch {
	case w.bucketAt(i).IsHeld(w.expiry): // as it would have been on arrival, if that had been known
		reason = bucket.ReasonHeld
	case w.expiry == w.arrived: // it has waited for a store
		reason = bucket.ReasonNoTokens
	}
	l.rejectLocked(w, i, reason, due, now)
}
