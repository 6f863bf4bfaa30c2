package bucket

import (
	"math"
	"time"

	"github.com/httpthrottle/throttle/internal/keep"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/order"
	"github.com/httpthrottle/throttle/internal/supply"
)

// A Bucket is the state of one limit for one key. There may be a million of them, so what few of them need is in a struct of its
// own.
type Bucket struct {
	Limit *Limit
	Key   string
	Meter meter.Meter
	keep.Entry
	*extra // nil: it needs none, as most methods check; every bucket of a limit that Asks or is Shared has one
}

// An extra is what a bucket needs where requests wait or callers hold it, and in a limit that has RateFor or is Shared.
type extra struct {
	own    meter.Rate             // as RateFor returned it; zero: the limit's
	asked  uint64                 // the number of the last Refresh before RateFor was asked
	lease  *supply.Lease[*Bucket] // the budget is in a store, and the meter is the lease's; nil: the budget is here
	held   meter.Instant          // no request is granted before
	point  order.Point            // where requests wait
	alarm  alarm                  // of a lease
	marked bool                   // in leases.marked

	refusal *holder // because of which it was held; nil: there was none

	estimates *estimates // where they are lowered; nil: nothing was settled

	unkeyed bool // requests without a key are counted here, by host: a hold of the key "" holds them, too
}

// wallCheck is how often a waiter of a fixed window checks whether the wall clock was set.
const wallCheck = int64(time.Minute)

// needs returns what a bucket has beyond what all of them have, and makes it if there is none.
func (b *Bucket) needs() *extra {
	if b.extra == nil {
		b.extra = new(extra)
		b.alarm.of = b
		b.point.Payer, b.point.Fair = (*payer)(b), b.Limit.Fair
		if b.Limit.Wall {
			b.point.Recheck = wallCheck
		}
	}
	return b.extra
}

// IsOpen reports whether no hold and no waiting request stops one that comes now.
func (b *Bucket) IsOpen(now meter.Instant) bool {
	e := b.extra
	return b.Limit.held <= now && (e == nil || e.point.Waiting() == 0 && e.held <= now && (!e.unkeyed || b.Limit.Single.held <= now))
}

// Leased returns the lease of the bucket; nil: its budget is not in a store.
func (b *Bucket) Leased() *supply.Lease[*Bucket] {
	if b.extra == nil {
		return nil
	}
	return b.lease
}

// HasOwnRate reports whether the rate of the bucket is not that of its limit.
func (b *Bucket) HasOwnRate() bool { return b.extra != nil && b.own != meter.Rate{} }

// Rate returns the rate of its limit for its key.
func (b *Bucket) Rate() meter.Rate {
	if b.HasOwnRate() {
		return b.Limit.Shared(b.own)
	}
	return b.Limit.Shared(b.Limit.Rate)
}

// Opens returns the end of all holds by callers in this process.
func (b *Bucket) Opens() meter.Instant { return max(b.heldWithOthers(), b.HeldByCaller()) }

// heldWithOthers returns the end of the holds that hold other keys, too: all of them, or those of requests without a key.
func (b *Bucket) heldWithOthers() meter.Instant {
	if b.extra != nil && b.unkeyed {
		return max(b.Limit.held, b.Limit.Single.held)
	}
	return b.Limit.held
}

// Ready returns when cost can be paid here once ahead has been, not before from.
func (b *Bucket) Ready(from meter.Instant, ahead, cost int64) meter.Instant {
	return b.Meter.Ready(max(from, b.Opens()), ahead, cost)
}

// HeldUntil returns the end of the hold of a caller, a server or a controller.
func (b *Bucket) HeldUntil() meter.Instant {
	return max(b.heldWithOthers(), b.HeldAlone())
}

// HeldAlone returns the end of the hold of this bucket alone.
func (b *Bucket) HeldAlone() meter.Instant {
	until := b.HeldByCaller()
	if b.Limit.isHolder {
		until = max(until, b.Meter.(meter.Holder).HeldUntil())
	}
	return until
}

// Hold blocks all requests until then: in all processes, where the budget is shared.
func (b *Bucket) Hold(now, until meter.Instant) {
	if b.Leased() != nil {
		b.lease.Hold(now, until)
	} else {
		e := b.needs()
		e.held = max(e.held, until)
	}
	b.NoteHold()
}

// NoteHold notes in the limit that a hold of the bucket may be the last to end.
func (b *Bucket) NoteHold() { b.Limit.heldMost = max(b.Limit.heldMost, b.HeldAlone()) }

// HeldByCaller returns the end of the hold that a caller has set in this process; 0: there was none.
func (b *Bucket) HeldByCaller() meter.Instant {
	if b.extra == nil {
		return 0
	}
	return b.held
}

// Lift ends the hold that Hold set, and reports whether there was one.
func (b *Bucket) Lift(now meter.Instant) bool {
	if b.extra == nil {
		return false
	}
	held := b.held > now
	b.held = min(b.held, now)
	if b.lease != nil && (held || b.lease.HeldUntil() > now) {
		b.lease.Hold(now, now)
		return true
	}
	return held
}

// PerSecond returns the rate in tokens per second; 0: there is none.
func (b *Bucket) PerSecond(now meter.Instant) float64 {
	if m, ok := b.Meter.(meter.Rater); ok {
		return m.PerSecond(now)
	}
	return b.PerSecondAsSet()
}

// PerSecondAsSet returns Rate in tokens per second.
func (b *Bucket) PerSecondAsSet() float64 {
	if b.HasOwnRate() {
		return b.Rate().PerSecond()
	}
	return b.Limit.PerSecond
}

// Callers returns how many callers wait, where they take turns.
func (b *Bucket) Callers() int {
	if b.extra == nil {
		return 0
	}
	return b.point.Callers()
}

// Share returns which part of its estimate a request is charged; 0: all of it.
func (b *Bucket) Share() Share {
	if b.extra == nil || b.estimates == nil {
		return 0
	}
	return b.estimates.Share()
}

// NoteShare notes which part of its estimate a request did cost, in a limit that lowers estimates.
func (b *Bucket) NoteShare(now meter.Instant, s Share) {
	e := b.needs()
	if e.estimates == nil {
		e.estimates = new(estimates)
	}
	e.estimates.Add(now, s)
}

// Expected returns what a request will probably cost in the end that is charged that, which is that share of its estimate; 0: all of it.
func (b *Bucket) Expected(cost int64, of Share) int64 {
	ratio := b.Limit.Settled.Ratio()
	if b.Limit.Lowers && b.extra != nil && b.estimates != nil {
		ratio = b.estimates.mean()
		if of > 0 {
			ratio /= of.Part()
		}
	}
	return int64(math.Round(min(ratio*float64(cost), float64(meter.MaxCount))))
}

// RestoreShare has the next request be charged that part of its estimate, in a limit that lowers estimates; 0: all of it.
func (b *Bucket) RestoreShare(now meter.Instant, s Share) {
	if b.Limit.Lowers && s > 0 {
		b.needs().estimates = newEstimates(now, s)
	}
}

// Waiting returns how many requests wait that fall under the bucket.
func (b *Bucket) Waiting() int {
	if b.extra == nil {
		return 0
	}
	return b.point.Waiting()
}

// Wait returns how long a request of cost 1 that comes now would wait for the bucket, as far as is known.
func (b *Bucket) Wait(now meter.Instant) time.Duration {
	var ahead int64
	if b.Waiting() > 0 {
		n := 0
		for first, sums := range b.point.Blocked {
			for i, sum := range sums {
				if Of(first.Point(i)) == b {
					ahead = meter.AddCount(ahead, sum)
				}
			}
			if n++; n == maxBlocked {
				break
			}
		}
	}
	return Until(max(now, b.PlanFor(now, ahead, 1)), now)
}

// Until returns how long it is until due: the longest Duration if that is never.
func Until(due, now meter.Instant) time.Duration {
	if due == meter.Never {
		return math.MaxInt64
	}
	return time.Duration(max(0, due-now))
}

// maxBlocked is how many lines of waiters are looked at.
const maxBlocked = 64

// Capacity returns how many tokens the bucket holds when it is full; 0: there is no bound.
func (b *Bucket) Capacity() float64 {
	if most := b.Meter.Most(); most < meter.MaxCount {
		return float64(most)
	}
	return 0
}

// Matters returns until when the bucket must be kept, and from when it is as good as new.
func (b *Bucket) Matters(now meter.Instant) (must, full meter.Instant) {
	if b.Waiting() > 0 {
		return meter.Never, meter.Never
	}
	must, full = b.Meter.Matters(now)
	must = max(must, b.HeldByCaller())
	if b.extra != nil {
		full = max(full, b.estimates.keptUntil())
	}
	return must, max(must, full)
}

// IsUnused reports whether the bucket is as good as new, and no request waits there.
func (b *Bucket) IsUnused(now meter.Instant) bool {
	_, full := b.Matters(now)
	return full <= now
}

// Yields returns until when the bucket must be kept, and reports whether it may be forgotten all the same to make room for
// another: if only what the server asked for keeps it.
func (b *Bucket) Yields(now meter.Instant) (until meter.Instant, ok bool) {
	m, ok := b.Meter.(yielder)
	if !ok || b.Waiting() > 0 || b.HeldByCaller() > now {
		return 0, false
	}
	return m.Yields(now)
}

// A yielder is a meter that may have to be kept only because of what a server asked for.
type yielder interface {
	Yields(now meter.Instant) (until meter.Instant, ok bool)
}

// A payer is a bucket as the order of waiters sees it.
type payer Bucket

// PointOf returns the point at which requests wait for a bucket, and makes it if there is none.
func PointOf(b *Bucket) *order.Point { return &b.needs().point }

// Of returns the bucket of a point.
func Of(p *order.Point) *Bucket { return (*Bucket)(p.Payer.(*payer)) }

// Ready implements [order.Payer].
func (p *payer) Ready(from, now meter.Instant, cost int64) meter.Instant {
	b := (*Bucket)(p)
	if b.lease != nil {
		b.MarkLease() // what is to be asked for may be something else from now on
		b.lease.Advance(from, now)
	}
	return b.Ready(from, 0, cost)
}

// Plan implements [order.Payer].
func (p *payer) Plan(from meter.Instant, ahead, cost int64) meter.Instant {
	return (*Bucket)(p).PlanFor(from, ahead, cost)
}

// Expect implements [order.Expecter].
func (p *payer) Expect(from meter.Instant, ahead, cost int64) meter.Instant {
	b := (*Bucket)(p)
	m, ok := b.Meter.(meter.Player)
	switch {
	case !ok && ahead > 0 && b.Limit.Settles && b.Limit.Rated && !b.Limit.Settled.IsKnown():
		return meter.Never // what requests cost in the end has not been seen
	case !ok:
		return b.PlanFor(from, b.Expected(ahead, 0), cost)
	}
	played, known := m.Play(from)
	from = max(from, b.Opens())
	if !known && (ahead > 0 || !b.Meter.Payable(from, cost)) {
		return meter.Never
	}
	return played.Ready(from, ahead, cost)
}

// Interval implements [order.Payer].
func (p *payer) Interval() int64 {
	if m, ok := p.Meter.(meter.Steady); ok {
		return m.Interval()
	}
	return 0
}

// Most implements [order.Payer].
func (p *payer) Most() int64 { return p.Meter.Most() }

// WhyRejected returns why a request is rejected that would be granted at due, and may not wait or is held past until.
func (b *Bucket) WhyRejected(due, until meter.Instant) Reason {
	switch {
	case due == meter.Never && b.final() != nil:
		return ReasonFinal
	case due == meter.Never:
		return ReasonCost
	case b.IsHeld(until):
		return ReasonHeld
	}
	return ReasonNoTokens
}

// IsHeld reports whether a hold that lasts longer than until, or a server, stops requests here.
func (b *Bucket) IsHeld(until meter.Instant) bool { return b.Limit.Gates || b.HeldUntil() > until }

// Soonest returns when a request that could go at due can go as things are now, if that is later and known. due is a lower bound
// where it depends on responses that have not come.
func (b *Bucket) Soonest(due meter.Instant, cost int64) meter.Instant {
	if until := b.BlockedUntil(); until > 0 && until <= due && due < meter.Never {
		return b.lease.Out().Again() // the store is asked then
	}
	if b.Limit.Plans {
		ready := b.Ready(0, 0, cost)
		switch {
		case due == meter.Never && b.final() != nil: // until a request may ask
			return ready
		case ready < meter.Never:
			return max(due, ready)
		}
	}
	return due
}

// PlanFor returns when cost can be paid here once what is ahead has been, as far as is known: a lower bound for a planner.
func (b *Bucket) PlanFor(from meter.Instant, ahead, cost int64) meter.Instant {
	from = max(from, b.Opens())
	if !b.Limit.Plans {
		return b.Meter.Ready(from, ahead, cost)
	}
	due := b.Meter.(meter.Planner).Plan(from, ahead, cost)
	if until := b.BlockedUntil(); until > due && due < meter.Never && b.Meter.Ready(from, ahead, cost) == meter.Never {
		return until
	}
	return due
}

// Refresh gives the bucket the rate that the Refresh of that number asked for, except where RateFor was asked since. It reports
// whether that is another rate.
func (b *Bucket) Refresh(own meter.Rate, nth uint64, now meter.Instant) bool {
	if b.asked >= nth {
		return false
	}
	changed := b.own != own
	if b.asked, b.own = nth, own; changed {
		r, size := b.Limit.Terms(own)
		b.SetTerms(r, size, now)
	}
	return changed
}

// IsStale reports whether the rate of the bucket was asked for before the last Refresh of its limit.
func (b *Bucket) IsStale() bool { return b.Limit.Asks && b.asked < b.Limit.Refreshed }

// SetTerms sets the rate and the size of a bucket.
func (b *Bucket) SetTerms(r meter.Rate, size int64, now meter.Instant) {
	b.Meter.Retune(now, r)
	b.Meter.Resize(now, size)
}
