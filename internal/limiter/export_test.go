package limiter

import (
	"context"
	"iter"
	"time"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
	"github.com/httpthrottle/throttle/internal/supply"
)

// This file is what the tests of package limiter_test see of the inside. Check, in check_test.go, is the rest.

const (
	Slack        = slack
	SweepMost    = sweepMost
	VisitMost    = visitMost
	PieceSize    = pieceSize
	PieceWaiters = pieceWaiters
)

var ErrSettled = errSettled

// The lock, and what is read under it.

func (l *Core) Lock()                    { l.mu.Lock() }
func (l *Core) Unlock()                  { l.mu.Unlock() }
func (l *Core) TryLock() bool            { return l.mu.TryLock() }
func (l *Core) NowLocked() meter.Instant { return l.nowLocked() }
func (l *Core) Counts() *bucket.Counts   { return &l.counts }
func (l *Core) Servers() *quota.Registry { return l.servers }
func (l *Core) LineCount() int           { return l.order.Lines() }

// Armed returns when a store may have to be asked for something for the bucket; Never: it is not known.
func (l *Core) Armed(b *bucket.Bucket) meter.Instant { return l.leases.AlarmOf(b) }

// OwnOf returns what limits a request with these charges besides the server.
func OwnOf(charges []Charge) quota.Own { return ownOf(charges) }

// The wall clock, which a machine may set.

func (l *Core) Wall() *meter.Wall      { return &l.wall }
func (l *Core) WallAt() *meter.Instant { return &l.wallAt }

// Timers, which may be late.

// StopTimers keeps the timers from waking the core, and returns when the first of them would have. WakeAll is what they call.
func (l *Core) StopTimers() (first meter.Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range []*time.Timer{l.timer, l.leaseTimer, l.sweeper} {
		if t != nil {
			t.Stop()
		}
	}
	first = min(l.armed, l.leaseTimerAt, l.sweepAt)
	for _, p := range l.probes {
		p.timer.Stop()
		first = min(first, p.at)
	}
	return first
}

// WakeAll calls what the timers that are due call, in that order.
func (l *Core) WakeAll(order []int) {
	now := meter.Instant(time.Since(l.Start))
	for _, i := range order {
		switch {
		case i == 0 && l.armed <= now:
			l.wake()
		case i == 1 && l.leaseTimerAt <= now:
			l.wakeLeases()
		case i == 2 && l.sweepAt <= now:
			l.sweep()
		}
	}
	for s, p := range l.probes {
		if p.at <= now {
			l.probe(s)
		}
	}
}

// WakeLate serves the waiters of a bucket as if a timer came so late.
func (l *Core) WakeLate(b *bucket.Bucket, now meter.Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.markLocked(b)
	l.serveLocked(now)
}

// Work that is done in pieces.

// SetChecks sets how many requests are checked under one lock, and what is called between two pieces of work.
func (l *Core) SetChecks(atOnce int, pause func()) { l.atOnce, l.pause = atOnce, pause }

// SetVisits is SetChecks for how many buckets are visited.
func (l *Core) SetVisits(atOnce int, pause func()) { l.visitAtOnce, l.pause = atOnce, pause }

func (l *Core) Pieces(limits ...*bucket.Limit) iter.Seq[[]*bucket.Bucket] { return l.pieces(limits...) }

// Calls of a store, which may arrive and return in any order.

// SetCallStore sets what begins a call, and returns what did before.
func (l *Core) SetCallStore(f func(s *bucket.Supply)) (before func(s *bucket.Supply)) {
	before, l.callStore = l.callStore, f
	return before
}

func (l *Core) Collect(s *bucket.Supply) *bucket.Call { return l.collect(s) }

// Book books the response of a call, or that there is none.
func (l *Core) Book(f *bucket.Call, outcomes []supply.Outcome, err error, givenUp bool) (ok bool) {
	ok, _, _ = l.book(f, outcomes, err, givenUp)
	return ok
}

// Acquire waits until a request is granted, as callers of Enqueue and Await do.
func (l *Core) Acquire(ctx context.Context, w *Waiter) error {
	waits, err := l.Enqueue(ctx, w)
	if !waits {
		return err
	}
	return l.Await(ctx, nil, w)
}

// AddAll is addAll.
func (r *Request) AddAll(charges []Charge) { r.addAll(charges) }
