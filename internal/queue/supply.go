package queue

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/lease"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/store"
	"github.com/httpthrottle/throttle/internal/supply"
)

// A Supply is a store as one Limiter uses it. Core.Mu guards it.
type Supply struct {
	*supply.Supply[*Bucket]
	Store   store.Store
	core    *Core
	latency WaitCounts // of the calls that returned in time
	probe   *time.Timer
	probeAt Instant // when probe fires; never: it does not
}

// A loan is the part of a bucket whose budget is in a store.
type loan = supply.Loan[*Bucket]

// supplyOf returns the supply with these terms.
func (l *Core) supplyOf(terms SupplyTerms, limit string) *Supply {
	i := slices.IndexFunc(l.supplies, func(s *Supply) bool { return s.Store == terms.Store && s.Terms == terms.Terms })
	if i < 0 {
		i = len(l.supplies)
		l.supplies = append(l.supplies, &Supply{Supply: &supply.Supply[*Bucket]{Terms: terms.Terms}, Store: terms.Store, core: l, probeAt: Never})
	}
	s := l.supplies[i]
	s.Limits = append(s.Limits, limit)
	return s
}

// lend returns the loan of a new bucket. Fraction is already applied to r and burst.
func (li *Limit) lend(b *Bucket, key string, r Rate, burst int64) *loan {
	config := lease.Config{Ahead: li.Store.Ahead, Name: li.Store.Name, Seed: rand.Uint64()}
	return li.supply.Lend(b, lease.New(li.Budget(key, r, burst), config))
}

// Budget returns what a store is to know of a bucket.
func (l *Rule) Budget(key string, r Rate, burst int64) lease.Budget {
	b := lease.Budget{Kind: l.Stored, Limit: l.Name, Key: key, N: r.N, Per: r.Per, Start: l.Start}
	switch l.Stored {
	case lease.Bucket:
		b.Burst, b.Initial = burst, l.InitialOf(burst)
	case lease.Slots:
		b.N, b.Per = burst, 0
	}
	return b
}

// markLoanLocked notes that a store may have to be asked for something else for a bucket, or at another instant.
func (l *Core) markLoanLocked(b *Bucket) {
	if b.loan != nil && !b.marked {
		b.marked = true
		l.loans = append(l.loans, b)
	}
}

// armLoansLocked sets the timers of the buckets that were marked.
func (l *Core) armLoansLocked(now Instant) {
	for len(l.loans) > 0 {
		b := l.loans[len(l.loans)-1]
		l.loans, b.marked = l.loans[:len(l.loans)-1], false
		at := l.lendLocked(b, now)
		switch {
		case at == b.Armed:
			continue
		case at == Never:
			b.timer.Stop()
		case b.timer == nil:
			b.timer = time.AfterFunc(time.Duration(at-now), func() { l.wakeLoan(b) })
		default:
			b.timer.Reset(time.Duration(at - now))
		}
		b.Armed = at
	}
}

// wakeLoan is what the timer of a bucket calls.
func (l *Core) wakeLoan(b *Bucket) {
	l.Mu.Lock()
	defer l.end()
	b.Armed = Never
	now := l.NowLocked()
	l.markLocked(b)
	if b.loan.Out() != nil { // the grace of an outage may be over
		b.loan.Look(now)
		l.replanLocked(now, b)
	}
}

// lendLocked puts a bucket in the queue of its store if the store is to be asked, and returns when it may be otherwise.
func (l *Core) lendLocked(b *Bucket, now Instant) (at Instant) {
	at, asks := b.loan.Due(now, b.demandLocked(now), b.HasLines())
	if asks {
		if b.loan.Out() != nil && b.HasLines() {
			b.loan.Look(now)
			l.replanLocked(now, b) // waiters that cannot wait for the store are rejected now
		}
		l.callLocked(b.Limit.supply, now)
	}
	return at
}

// callLocked starts a call of the store, if there is something to ask for and it may be called.
func (l *Core) callLocked(s *Supply, now Instant) {
	switch begins, at := s.Begin(now); {
	case begins:
		l.Fly(s)
	case at == Never:
	case s.probe == nil:
		s.probeAt = at
		s.probe = time.AfterFunc(time.Duration(at-now), func() { l.probe(s) })
	case s.probeAt != at:
		s.probeAt = at
		s.probe.Reset(time.Duration(at - now))
	}
}

// probe is what the timer of a supply calls: a store that was unreachable may be called again.
func (l *Core) probe(s *Supply) {
	l.Mu.Lock()
	defer l.end()
	s.probeAt = Never
	l.callLocked(s, l.NowLocked())
}

// drawnLocked sees to the loans from which charges were paid that did not wait. Where no request waits and enough tokens are
// left, the store need not be asked earlier than the timer says.
func (l *Core) drawnLocked(charges []Charge, now Instant) {
	for i := range charges {
		b := charges[i].bucket
		if n := b.Lent(); n != nil && (n.Low() || n.Wanted > 0 || b.HasLines()) {
			l.markLoanLocked(b)
		}
	}
	if len(l.loans) > 0 {
		l.serveLocked(now)
	}
}

// holdLoansLocked holds the shared budgets of a request that a server has refused for a while, in all processes.
func (l *Core) holdLoansLocked(charges []Charge, until, now Instant) {
	for i := range charges {
		if b := charges[i].bucket; b.Lent() != nil {
			b.loan.Hold(now, until)
			l.replanLocked(now, b)
		}
	}
}

// wantLocked has the store asked for a cost that no request waits for.
func (l *Core) wantLocked(charges []Charge) {
	for i := range charges {
		if b := charges[i].bucket; b.Lent() != nil && b.Ready(0, 0, charges[i].cost) == Never {
			b.loan.Wanted = min(charges[i].cost, b.loan.Most())
			l.markLocked(b)
		}
	}
}

// demandLocked describes the requests that wait for tokens of a shared bucket.
func (b *Bucket) demandLocked(now Instant) lease.Demand {
	d := lease.Demand{First: b.loan.Wanted, All: b.loan.Wanted, From: max(b.Held, b.Limit.Held), Until: now, Alone: true}
	n := 0
	for first, sums := range b.point.Blocked {
		w := first.Owner.(*Waiter)
		if n == 0 {
			d.First, d.All, d.Until = w.costAt(b), 0, min(w.Expiry, w.Deadline-1)
			for i, cost := range w.in.Costs {
				other := w.bucket(i)
				if other == b {
					continue
				}
				if other.isAskedWith(b) {
					d.Alone = false
				}
				if ready := other.Ready(0, 0, cost); ready < Never {
					d.From = max(d.From, ready)
				}
			}
		}
		d.All = meter.AddCount(d.All, b.demand(w, sums, now))
		if n++; n == maxBlocked {
			break
		}
	}
	d.All = max(d.All, d.First)
	return d
}

// isAskedWith reports whether the store grants tokens of both buckets together.
func (b *Bucket) isAskedWith(other *Bucket) bool {
	x, y := b.Lent(), other.Lent()
	return x != nil && x.Supply() == y.Supply() && (!x.Supply().Apart || b.Key == other.Key)
}

// demand returns how many tokens of the bucket the requests of a line can use, given the first one and what all of them cost: those of
// requests that another bucket stops would be leased for nothing.
func (b *Bucket) demand(first *Waiter, sums []int64, now Instant) (sum int64) {
	for i := range sums {
		if first.bucket(i) == b {
			sum = sums[i]
		}
	}
	for i, all := range sums {
		other := first.bucket(i)
		if other == b {
			continue
		}
		cost := first.in.Costs[i]
		ready := other.Ready(0, 0, cost)
		switch {
		case ready == Never && other.isAskedWith(b): // for as many
		case ready > now:
			return 0
		case other.Ready(0, max(0, all-cost), cost) > now:
			sum = first.costAt(b)
		}
	}
	return sum
}

// first returns the first request that is stopped here; nil: there is none.
func (b *Bucket) first() *Waiter {
	for in := range b.point.Blocked {
		return in.Owner.(*Waiter)
	}
	return nil
}

// detached returns err without the end of a call's context in its chain, where it would be taken for that of the request's.
func detached(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return errors.New(err.Error())
	}
	return err
}

// blockedUntil returns until when requests wait for a store that is unreachable: supply.Shut if they do not, 0 if it is reachable,
// another meter pays, or there is none.
func (b *Bucket) blockedUntil() Instant {
	if n := b.Lent(); n != nil {
		return n.BlockedUntil()
	}
	return 0
}

// respite brings the loans of charges up to date. It returns for how long a request that may wait until expiry may wait for a
// response of a store that may have the tokens; 0: not at all.
func respite(charges []Charge, try bool, expiry, now Instant) (d int64) {
	for i := range charges {
		if n := charges[i].bucket.Lent(); n != nil {
			n.Look(now)
		}
	}
	for i := range charges {
		c := &charges[i]
		if n := c.bucket.Lent(); n != nil && !try && c.bucket.blockedUntil() == 0 && c.bucket.Ready(0, 0, c.cost) == Never {
			if c.bucket.planFor(now, 0, c.cost) > max(now, expiry) {
				return 0
			}
			d = max(d, int64(n.Supply().Timeout))
		}
	}
	return d
}

// Sharing is what [Shared] says of a limit.
type Sharing struct {
	SupplyTerms
	Ahead time.Duration
	Name  string // of this process, for those who operate the store
}

// SupplyTerms are how a Limiter uses a store.
type SupplyTerms struct {
	Store store.Store
	supply.Terms
}
