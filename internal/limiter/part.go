package limiter

import (
	"context"
	"time"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/order"
)

// This file is about how long requests wait that wait in several Cores. Each Core says what part of the work it could do by some time if it
// had to do all of it alone. The work cannot be done before these parts add up to 1: that is the dual of the linear program that divides
// the requests between the Cores, if the costs of a request are in the same proportion in all of them.

// Part returns what part of the requests before w, of n requests like w, could be paid here by some time from now on if all of them
// waited here alone; 1 at most. Where they wait in several Cores, the sum of the parts is below 1 as long as it is certain that some of
// them cannot be granted.
func (l *Core) Part(w *Waiter, n int64, within time.Duration) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.nowLocked()
	return l.partLocked(w, n, meter.AddInstant(now, int64(within)), now)
}

// PartInTime is Part for w alone, until it must be granted.
func (l *Core) PartInTime(w *Waiter) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.verdict != waiting {
		return 0
	}
	by := min(w.expiry, w.deadline-1)
	if w.expiry == meter.Never && w.deadline == meter.Never {
		return 1
	}
	return l.partLocked(w, 1, by, l.nowLocked())
}

// Alone returns how long it would take until w, and n-1 others like it, were granted if all requests before waited here alone; the longest
// Duration: that is never, or not known. It is no less than the time from which on Part is 1.
func (l *Core) Alone(w *Waiter, n int64) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.nowLocked()
	ahead, _ := l.order.Ahead(&w.in, now)
	due := now
	for i, cost := range w.in.Costs[:min(len(w.in.Costs), len(ahead))] {
		due = max(due, w.in.Point(i).Plan(now, meter.AddCount(ahead[i], times(cost, n-1)), cost))
	}
	return bucket.Until(due, now)
}

func (l *Core) partLocked(w *Waiter, n int64, by, now meter.Instant) (part float64) {
	if len(w.in.At) == 0 {
		return 0
	}
	ahead, alike := l.order.Ahead(&w.in, now)
	part = 1
	for i, cost := range w.in.Costs[:min(len(w.in.Costs), len(ahead))] {
		p := w.in.Point(i)
		if cost == 0 || p.Apart {
			continue
		}
		step := int64(1)
		if alike {
			step = cost
		}
		all := meter.AddCount(ahead[i], times(cost, n)) / step
		done := payableBy(p, all, step, by, now)
		part = min(part, float64(done)/float64(all))
	}
	return part
}

// payableBy returns how many of n costs can be paid at a point by some time, one after the other.
func payableBy(p *order.Point, n, cost int64, by, now meter.Instant) int64 {
	can := func(k int64) bool { return p.Plan(now, times(cost, k-1), cost) <= by }
	if can(n) {
		return n
	}
	done, step := int64(0), int64(1)
	for done+step < n && can(done+step) {
		done += step
		step *= 2
	}
	for ; step > 0; step /= 2 {
		if done+step < n && can(done+step) {
			done += step
		}
	}
	return done
}

// times returns what n requests of some cost cost.
func times(cost, n int64) int64 {
	if n > 0 && cost > 2*meter.MaxCount/n {
		return 2 * meter.MaxCount
	}
	return cost * n
}

// Stand has a request be as one that would wait now at a Door, for Part and Alone, without taking a place. It makes the buckets that are
// missing. The error is why there is no rate for a key, or that there is no room for another one.
func (l *Core) Stand(w *Waiter, at *Door) error {
	w.standAt(at)
	now, rates, err := l.beginRated(w.charges)
	defer l.end()
	switch {
	case err != nil:
		return err
	case l.haveAllLocked(w.charges, rates, now) != nil:
		return errNoRoom
	}
	clamp(w.charges)
	w.arrived = now
	w.bind(context.Background(), l.deadlineAge, now)
	w.enter()
	return nil
}
