package limiter

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
)

// This file is how a Core, or one of its Users, comes to an end.

// A drain waits until nothing waits and nothing is in flight.
type drain struct {
	of     *User // whose requests count; nil: all do
	stores bool  // and no store is to be asked for anything
	done   chan struct{}
}

// Shutdown rejects the requests of a User that come from now on, or all requests if it is nil; a User that is shut down is Alone. It returns
// when none of them waits or is in flight and, for all requests, when everything that was leased is back in the stores that are reachable.
// If ctx ends before, those that wait are rejected, and the error is its cause.
func (l *Core) Shutdown(ctx context.Context, of *User) error {
	l.shutDown(of)
	err := l.drain(ctx, of, false)
	if err != nil {
		l.rejectAll(of)
	}
	if of != nil || len(l.supplies) == 0 {
		return err
	}
	l.leaveStores()
	return cmp.Or(err, l.drain(ctx, nil, true))
}

func (l *Core) shutDown(of *User) {
	now := l.begin()
	defer l.end()
	l.draining.Store(true)
	switch {
	case of == nil && !l.shut:
		l.shut, l.shutAt = true, now
	case of != nil && !of.shut:
		of.shut, of.shutAt = true, now
	}
}

// drain waits until nothing waits and nothing is in flight. The error is the cause of the context, if that ends before.
func (l *Core) drain(ctx context.Context, of *User, stores bool) error {
	d := &drain{of, stores, make(chan struct{})}
	l.begin()
	l.drains = append(l.drains, d)
	l.end()
	select {
	case <-d.done:
		return nil
	default: // even if the context has ended, too
	}
	select {
	case <-d.done:
	case <-ctx.Done():
		l.mu.Lock()
		defer l.mu.Unlock()
		l.drains = slices.DeleteFunc(l.drains, func(other *drain) bool { return other == d })
		return context.Cause(ctx)
	}
	return nil
}

// drainLocked ends the drains for which nothing waits and nothing is in flight.
func (l *Core) drainLocked() {
	l.drains = slices.DeleteFunc(l.drains, func(d *drain) bool {
		drained := l.isDrainedLocked(d)
		if drained {
			close(d.done)
		}
		return drained
	})
}

// isDrainedLocked reports whether a drain has ended. It does not wait for ghosts, nor for a store that is unreachable: a store takes back
// by itself what no process reports.
func (l *Core) isDrainedLocked(d *drain) bool {
	switch u := d.of; {
	case u != nil:
		return u.flights.n == u.flights.ended.Load() && u.counts.Waiting == 0
	case l.flights.n != l.flights.ended.Load():
		return false
	case l.dry:
		return true
	}
	busy := func(li *bucket.Limit) bool { return li.InFlight() > 0 }
	if l.counts.Waiting > 0 || slices.ContainsFunc(l.Limits, busy) {
		return false
	}
	if !d.stores {
		return true
	}
	asks, down := false, false
	for _, s := range l.supplies {
		asks, down = asks || !s.IsIdle(), down || s.Err() != nil
	}
	_, alarm := l.leases.FirstAlarm()
	return !asks && (down || alarm == meter.Never)
}

// Finish reports that a request of a User that Flies is not in flight any more.
func (l *Core) Finish(u *User) {
	if u.Alone {
		u.flights.ended.Add(1)
	}
	l.flights.ended.Add(1)
	if l.draining.Load() {
		l.begin()
		l.end()
	}
}

// takeOffLocked counts a request that is about to be sent, and landedLocked one that is not in flight any more.
func (l *Core) takeOffLocked(u *User) {
	if u.Flies {
		l.flights.n++
	}
	if u.Alone {
		u.flights.n++
	}
}

func (l *Core) landedLocked(u *User) {
	if u.Flies {
		l.flights.n--
	}
	if u.Alone {
		u.flights.n--
	}
}

func (l *Core) isShutLocked(u *User) bool { return l.shut || u.shut }

// Expect counts a request that waits elsewhere and may come to this Core yet, as one in flight. Finish ends that.
func (l *Core) Expect(u *User) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.takeOffLocked(u)
}

// shutsOutLocked rejects a request that arrived after Shutdown, and reports whether it did.
func (l *Core) shutsOutLocked(w *Waiter, now meter.Instant) bool {
	before := func(shut bool, at meter.Instant) bool { return !shut || w.arrived < now && w.arrived <= at }
	if !before(l.shut, l.shutAt) || !before(w.user.shut, w.user.shutAt) {
		w.rejection = l.rejectionOfShut(w.charges)
		l.rejectedLocked(w)
	}
	return w.rejection != nil
}

// rejectionOfShut returns the rejection of a request that came after Shutdown.
func (l *Core) rejectionOfShut(charges []Charge) *Rejection {
	r := &Rejection{Reason: bucket.ReasonShutdown, Limit: l.Limits[0], Wait: math.MaxInt64}
	if len(charges) > 0 {
		c := &charges[0]
		r.Limit, r.Key, r.Cost = c.Limit(), c.Key, c.Cost
	}
	return r
}

// rejectAll rejects the requests that wait, the last ones first, because a request that is gone may let those behind it go.
func (l *Core) rejectAll(of *User) {
	for some := range slices.Chunk(l.waitersOf(of), endsAtOnce) {
		l.rejectSome(some)
		l.pause()
	}
}

func (l *Core) rejectSome(some []*Waiter) {
	now := l.begin()
	defer l.end()
	for _, w := range some {
		if w.verdict == waiting {
			_, i := l.order.Plan(&w.in, now)
			l.rejectLocked(w, i, bucket.ReasonShutdown, meter.Never, now)
		}
	}
}

// waitersOf returns the requests that wait, except ghosts, the last ones first.
func (l *Core) waitersOf(of *User) (all []*Waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for in := range l.order.All {
		if w := in.Owner.(*Waiter); w.ghost == nil && (of == nil || w.user == of) {
			all = append(all, w)
		}
	}
	slices.Reverse(all)
	slices.SortStableFunc(all, func(a, b *Waiter) int { return cmp.Compare(b.in.Rank, a.in.Rank) })
	return all
}

// leaveStores gives back everything that is leased and not used.
func (l *Core) leaveStores() {
	shared := slices.DeleteFunc(slices.Clone(l.Limits), func(li *bucket.Limit) bool { return li.Supply == nil })
	l.visitAll(shared, func(b *bucket.Bucket, now meter.Instant) {
		b.Leased().Leave(now)
		l.markLocked(b)
	}, onward)
}
