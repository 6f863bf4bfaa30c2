package limiter

import (
	"time"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/order"
	"github.com/httpthrottle/throttle/internal/quota"
	"github.com/httpthrottle/throttle/internal/supply"
)

// This file is what tests outside of the package see of its inside.

// LineCount returns how many lines of requests there are.
func (l *Core) LineCount() int { return l.order.Lines() }

// PointOf returns the point of a bucket.
func PointOf(b *bucket.Bucket) *order.Point { return &b.Needs().Point }

func (l *Core) MarkLocked(b *bucket.Bucket)   { l.markLocked(b) }
func (l *Core) ServeLocked(now meter.Instant) { l.serveLocked(now) }

// GateLocked returns a gate that has a bucket.
func (l *Core) GateLocked(key quota.Key, now meter.Instant) *quota.Gate {
	g := l.servers.Gate(&key, now)
	l.ownerLocked(g, now)
	return g
}

// OwnOf returns what limits a request with these charges besides the server.
func OwnOf(charges []Charge) quota.Own { return ownOf(charges) }

func (l *Core) AtOnce() *int                { return &l.atOnce }
func (l *Core) VisitAtOnce() *int           { return &l.visitAtOnce }
func (l *Core) Pause() *func()              { return &l.pause }
func (l *Core) Supplies() *[]*bucket.Supply { return &l.supplies }
func (l *Core) SweepAt() *meter.Instant     { return &l.sweepAt }
func (l *Core) WallAt() *meter.Instant      { return &l.wallAt }

// Armed returns when a store may have to be asked for something for the bucket; Never: it is not known.
func (l *Core) Armed(b *bucket.Bucket) meter.Instant { return l.leases.AlarmOf(b) }

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

const (
	Slack        = slack
	SweepMost    = sweepMost
	VisitMost    = visitMost
	PieceSize    = pieceSize
	PieceWaiters = pieceWaiters
)

// IsGranted reports whether a Waiter was granted; IsWaiting, whether it is undecided.
func (w *Waiter) IsGranted() bool { return w.verdict == granted }
func (w *Waiter) IsWaiting() bool { return w.verdict == waiting }

// Why returns why a Waiter was rejected; nil: it was not.
func (w *Waiter) Why() *Refusal { return w.refusal }

// Abandon takes back a request whose context has ended, and reports whether it did.
func (l *Core) Abandon(w *Waiter) bool { return l.abandon(w) }

// Spent reports whether a charge of a request was settled. Unsettle takes that back.
func (r *Request) Spent() bool { return r.spent&wasSettled != 0 }
func (r *Request) Unsettle()   { r.spent, r.Charges()[0].settled = 0, false }

// MarkSettled has the i-th charge be one that was settled.
func (r *Request) MarkSettled(i int) { r.Charges()[i].settled = true }

func (l *Core) Collect(s *bucket.Supply) *bucket.Call { return l.collect(s) }
func (l *Core) CallStore() *func(s *bucket.Supply)    { return &l.callStore }

// Book books the response of a call, or that there is none.
func (l *Core) Book(f *bucket.Call, outcomes []supply.Outcome, err error, givenUp bool) (ok bool) {
	ok, _, _ = l.book(f, outcomes, err, givenUp)
	return ok
}

// CountsOf returns what is counted for a User.
func CountsOf(u *User) *bucket.Counts { return &u.counts }

func (l *Core) Lock()                    { l.mu.Lock() }
func (l *Core) Unlock()                  { l.mu.Unlock() }
func (l *Core) TryLock() bool            { return l.mu.TryLock() }
func (l *Core) NowLocked() meter.Instant { return l.nowLocked() }
func (l *Core) Wall() *meter.Wall        { return &l.wall }
func (l *Core) Servers() *quota.Registry { return l.servers }
func (l *Core) Counts() *bucket.Counts   { return &l.counts }

func (l *Core) VisitAll(some []*bucket.Limit, visit func(*bucket.Bucket, meter.Instant), between func() bool) {
	l.visitAll(some, visit, between)
}
