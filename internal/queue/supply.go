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
)

// A Supply is a store as one Limiter uses it. Core.Mu guards it.
type Supply struct {
	SupplyTerms
	core      *Core
	limits    []string  // the names of the limits that use it
	asking    []*Bucket // those for which the store is to be asked, in this order
	calls     int       // under way
	aloft     int       // of those, which were sent and did not land
	late      int       // given up, but not returned yet
	Apart     bool      // budgets with different keys cannot be granted together
	processes int       // as the store told last; 0: it has not
	outage    outage    // of the whole store
	probe     *time.Timer
	probeAt   Instant // when probe fires; never: it does not
	counts    storeCounts
}

// storeCounts count calls of a store and tokens; see [StoreStats].
type storeCounts struct{ Ok, Failed, Setup, Leased, Returned, Alone uint64 }

// A Without says what happens to requests when a store is out of reach for long; see [Outage].
type Without uint8

const (
	WithoutNothing Without = iota // they are rejected
	WithoutButLocally
	WithoutLimit
)

// A loan is the part of a bucket whose budget is in a store.
type loan struct {
	lease.Borrower
	supply *Supply
	queued bool   // in supply.asking
	news   bool   // the latest response may delay its requests for longer than planned
	wanted int64  // a cost that could not be paid and does not wait: the store is asked for it once
	outage outage // of this budget alone, while the store decides about others
}

const (
	MaxCalls = 2   // under way at the same time, and given up without having returned
	maxAsks  = 128 // of one call

	splitFrom = 16 // fewer asks are not worth another call
)

// supplyOf returns the supply with these terms.
func (l *Core) supplyOf(terms SupplyTerms, limit string) *Supply {
	i := slices.IndexFunc(l.Supplies, func(s *Supply) bool { return s.SupplyTerms == terms })
	if i < 0 {
		i = len(l.Supplies)
		l.Supplies = append(l.Supplies, &Supply{SupplyTerms: terms, core: l, probeAt: Never})
	}
	s := l.Supplies[i]
	s.limits = append(s.limits, limit)
	return s
}

// lend returns the loan of a new bucket. Share is already applied to r and burst.
func (li *Limit) lend(key string, r Rate, burst int64) *loan {
	config := lease.Config{Ahead: li.Store.Ahead, Seed: rand.Uint64()}
	return &loan{Borrower: lease.New(li.Budget(key, r, burst), config), supply: li.supply}
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
	defer l.UnlockJudged()
	b.Armed = Never
	now := l.NowLocked()
	l.MarkLocked(b)
	if b.loan.out() != nil { // the grace of an outage may be over
		b.loan.look(now)
		l.ReplanLocked(now, b)
	}
}

// lendLocked puts a bucket in the queue of its store if the store is to be asked, and returns when it may be otherwise. It is
// not inlined, to keep the stack small on which requests wait.
//
//go:noinline
func (l *Core) lendLocked(b *Bucket, now Instant) (at Instant) {
	n := b.loan
	at = Never
	out := n.out()
	if out != nil && b.HasLines() && now < n.graceEnd(out) {
		at = n.graceEnd(out)
	}
	if n.queued {
		return at
	}
	ask := max(n.AskAt(now, b.demandLocked(now)), n.outage.again)
	if ask > now {
		return min(at, ask)
	}
	n.queued = true
	n.supply.asking = append(n.supply.asking, b)
	if out != nil && b.HasLines() {
		n.look(now)
		l.ReplanLocked(now, b) // waiters that cannot wait for the store are rejected now
	}
	l.callLocked(n.supply, now)
	return at
}

// callLocked starts a call of the store, if there is something to ask for and it may be called.
func (l *Core) callLocked(s *Supply, now Instant) {
	switch out := &s.outage; {
	case len(s.asking) == 0 || s.late >= MaxCalls || s.calls >= MaxCalls || out.err != nil && s.calls > 0:
	case out.err == nil || now >= out.again:
		s.calls++
		l.Fly(s)
	case s.probe == nil:
		s.probeAt = out.again
		s.probe = time.AfterFunc(time.Duration(out.again-now), func() { l.probe(s) })
	case s.probeAt != out.again:
		s.probeAt = out.again
		s.probe.Reset(time.Duration(out.again - now))
	}
}

// probe is what the timer of a supply calls: a store that was out of reach may be called again.
func (l *Core) probe(s *Supply) {
	l.Mu.Lock()
	defer l.UnlockJudged()
	s.probeAt = Never
	l.callLocked(s, l.NowLocked())
}

// drawnLocked sees to the loans from which charges were paid that did not wait. Where no request waits and enough tokens are
// left, the store need not be asked earlier than the timer says.
func (l *Core) drawnLocked(charges []Charge, now Instant) {
	for i := range charges {
		b := charges[i].bucket
		if n := b.Lent(); n != nil && (n.Low() || n.wanted > 0 || b.HasLines()) {
			l.markLoanLocked(b)
		}
	}
	if len(l.loans) > 0 {
		l.ServeLocked(now)
	}
}

// holdLoansLocked holds the shared budgets of a request that a server has refused for a while, in all processes.
func (l *Core) holdLoansLocked(charges []Charge, until, now Instant) {
	for i := range charges {
		if b := charges[i].bucket; b.Lent() != nil {
			b.loan.Hold(now, until)
			l.ReplanLocked(now, b)
		}
	}
}

// wantLocked has the store asked for a cost that no request waits for. It is not inlined, to keep the stack small on which
// requests wait.
//
//go:noinline
func (l *Core) wantLocked(charges []Charge, now Instant) {
	for i := range charges {
		if b := charges[i].bucket; b.Lent() != nil && b.Ready(0, 0, charges[i].cost) == Never {
			b.loan.wanted = min(charges[i].cost, b.loan.Most())
			l.MarkLocked(b)
		}
	}
	l.ServeLocked(now)
}

// demandLocked describes the requests that wait for tokens of a shared bucket.
func (b *Bucket) demandLocked(now Instant) lease.Demand {
	d := lease.Demand{First: b.loan.wanted, All: b.loan.wanted, From: max(b.Held, b.Limit.Held), Until: now, Alone: true}
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
	return x != nil && x.supply == y.supply && (!x.supply.Apart || b.Key == other.Key)
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

// An outage is the time in which a store is out of reach. The zero value is for none.
type outage struct {
	err   error   // of the latest call; nil: there is no outage
	since Instant // when the first call failed
	again Instant // when the next call may be made
	tries int     // how many have failed, at most 4
	over  bool    // the grace has passed
}

const (
	firstProbe = int64(25 * time.Millisecond) // after an outage began; twice as long after each further failure
	lastProbe  = int64(250 * time.Millisecond)
	shut       = Never - 1 // the end of an outage that requests do not wait for
)

// fail records that a call has failed.
func (o *outage) fail(err error, now Instant) {
	if o.err == nil {
		*o = outage{since: now}
	}
	wait := min(firstProbe<<o.tries, lastProbe)
	o.err, o.tries, o.again = detached(err), min(o.tries+1, 4), now+wait+rand.Int64N(wait/2)
}

// detached returns err without the end of a call's context in its chain, where it would be taken for that of the request's.
func detached(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return errors.New(err.Error())
	}
	return err
}

// isSetup reports whether it is a mistake that retrying does not fix.
func (o *outage) isSetup() bool { return errors.Is(o.err, lease.ErrSetup) }

// out returns the outage of the bucket or of its store; nil: there is none.
func (n *loan) out() *outage {
	switch {
	case n.outage.err != nil:
		return &n.outage
	case n.supply.outage.err != nil:
		return &n.supply.outage
	}
	return nil
}

func (n *loan) graceEnd(o *outage) Instant { return meter.AddInstant(o.since, int64(n.supply.Grace)) }

// look brings the loan up to date with an outage: when the grace has passed, another meter may pay. An outage that no call
// has looked at for long is forgotten, so that the next request finds out.
func (n *loan) look(now Instant) {
	s := n.supply
	idle := int64(max(s.Grace, time.Second) + s.Timeout)
	if n.outage.err != nil && !n.queued && now-n.outage.again > idle {
		n.outage = outage{}
	}
	if s.outage.err != nil && len(s.asking)+s.calls+s.late == 0 && now-s.outage.again > idle {
		s.outage = outage{}
	}
	o := n.out()
	if o == nil {
		return
	}
	if o.over = now >= n.graceEnd(o); !o.over || o.isSetup() || n.IsAlone() {
		return
	}
	switch s.Without {
	case WithoutButLocally:
		processes := n.Processes()
		if processes == 0 {
			processes = s.processes
		}
		if processes > 0 {
			n.Alone(now, n.Local(now, processes), true, &s.counts.Alone)
		}
	case WithoutLimit:
		n.Alone(now, meter.Unlimited{}, false, &s.counts.Alone)
	}
}

// blockedUntil returns until when requests wait for a store that is out of reach: shut if they do not, 0 if it is in reach or
// another meter pays.
func (b *Bucket) blockedUntil() Instant {
	n := b.Lent()
	if n == nil {
		return 0
	}
	switch o := n.out(); {
	case o == nil:
		return 0
	case o.isSetup():
		return shut
	case n.IsAlone():
		return 0
	case o.over:
		return shut
	default:
		return n.graceEnd(o)
	}
}

// respite brings the loans of charges up to date. It returns for how long a request that may wait until expiry may wait for a
// response of a store that may have the tokens; 0: not at all. It is not inlined, to keep the stack small on which
// requests wait.
//
//go:noinline
func respite(charges []Charge, try bool, expiry, now Instant) (d int64) {
	for i := range charges {
		if n := charges[i].bucket.Lent(); n != nil {
			n.look(now)
		}
	}
	for i := range charges {
		c := &charges[i]
		if n := c.bucket.Lent(); n != nil && !try && c.bucket.blockedUntil() == 0 && c.bucket.Ready(0, 0, c.cost) == Never {
			if c.bucket.planFor(now, 0, c.cost) > max(now, expiry) {
				return 0
			}
			d = max(d, int64(n.supply.Timeout))
		}
	}
	return d
}

// Sharing is what [Shared] says of a limit.
type Sharing struct {
	SupplyTerms
	Ahead time.Duration
}

// SupplyTerms are how a Limiter uses a store.
type SupplyTerms struct {
	Store          store.Store
	Timeout, Grace time.Duration
	Without        Without
}
