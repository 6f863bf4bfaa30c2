package limiter

import (
	"context"
	"math"
	"time"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/order"
)

// This file is about how long requests wait that wait in several Cores. Each Core says how much of the work before a request it could do
// by some time if it had to do all of it. The request cannot be granted before these add up to all of the work: that is the dual of the
// linear program that divides the requests between the Cores, if their costs are in the same proportion in all of them.

// A Work is what is granted before a request until it is, itself included, in one limit. The unit is what the request costs there.
type Work struct {
	Limit string  // "": any limit, because all requests cost the same as the request, so that it counts requests
	All   float64 // if none of them is granted elsewhere
	Done  float64 // of it by some time, if all of them wait for this Core alone
}

// Work appends the work before n requests like w that is done by some time from now on, by limit; with none, that before w.
func (l *Core) Work(all []Work, w *Waiter, n int64, within time.Duration) []Work {
	if len(w.in.At) == 0 { // it was rejected before it was known where it would wait
		return all
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.nowLocked()
	by := meter.AddInstant(now, int64(within))
	ahead, mosts, alike := l.order.Ahead(&w.in, now)
	least, known := Work{Done: math.Inf(1)}, false
	for i, cost := range w.in.Costs[:min(len(w.in.Costs), len(ahead))] {
		p := w.in.Point(i)
		if cost == 0 || p.Elsewhere {
			continue
		}
		total := workOf(ahead[i], cost, n)
		if total == 0 {
			continue
		}
		var done int64
		if alike {
			done = paidBy(p, total, cost, cost, by, now)
		} else { // the last one may be any
			done = max(paidBy(p, total, 1, 1, by, now), paidBy(p, total, 1, mosts[i], by, now))
		}
		of := Work{Limit: bucket.Of(p).Limit.Name, All: float64(total) / float64(cost), Done: float64(done) / float64(cost)}
		all = append(all, of)
		least.All, least.Done, known = of.All, min(least.Done, of.Done), true
	}
	if alike && known {
		all = append(all, least)
	}
	return all
}

// Patience returns how much longer a waiter may wait; negative: it does not wait any more, and the longest Duration: there is no bound.
func (l *Core) Patience(w *Waiter) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.verdict != waiting {
		return -1
	}
	return bucket.Until(w.in.Last, l.nowLocked())
}

// Alone returns how long it would take until w, and n-1 others like it, were granted if all requests before waited here alone; the longest
// Duration: that is never, or not known. All Work is done by then.
func (l *Core) Alone(w *Waiter, n int64) time.Duration {
	if len(w.in.At) == 0 {
		return math.MaxInt64
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.nowLocked()
	ahead, _, _ := l.order.Ahead(&w.in, now)
	due := now
	for i, cost := range w.in.Costs[:min(len(w.in.Costs), len(ahead))] {
		if all := workOf(ahead[i], cost, n); all > 0 {
			last := min(all, cost)
			due = max(due, w.in.Point(i).Plan(now, all-last, last))
		}
	}
	return bucket.Until(due, now)
}

// paidBy returns how much of a sum of costs can be paid at a point by some time, in whole steps, if the last cost is some one.
func paidBy(p *order.Point, sum, step, last int64, by, now meter.Instant) int64 {
	can := func(steps int64) bool {
		cost := min(steps*step, last)
		return p.Plan(now, steps*step-cost, cost) <= by
	}
	n := sum / step
	if can(n) {
		return sum
	}
	done, more := int64(0), int64(1)
	for done+more < n && can(done+more) {
		done += more
		more *= 2
	}
	for ; more > 0; more /= 2 {
		if done+more < n && can(done+more) {
			done += more
		}
	}
	return done * step
}

// workOf returns what requests before n others cost, and these themselves.
func workOf(ahead, cost, n int64) int64 { return meter.AddCount(ahead, times(cost, n)) }

// times returns what n requests of some cost cost.
func times(cost, n int64) int64 {
	if n > 0 && cost > 2*meter.MaxCount/n {
		return 2 * meter.MaxCount
	}
	return cost * n
}

// Stand has a request be as one that would wait now at a Door, for Work and Alone, without taking a place. It makes the buckets that are
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
