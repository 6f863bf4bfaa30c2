package queue

import (
	"time"

	"github.com/httpthrottle/throttle/internal/keep"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/order"
)

// A Bucket is the state of one limit for one key. There may be a million of them, so what few of them need is apart.
type Bucket struct {
	Limit *Limit
	Key   string
	Meter meter.Meter
	keep.Entry
	*Extra // nil: it needs none; the methods of bucket check that, and other code knows it or calls needs first
}

// An Extra is what a bucket needs where requests wait or callers hold it, and in a limit that has RateFor or is Shared.
type Extra struct {
	own    Rate        // as RateFor said; zero: the limit's
	asked  uint64      // the number of the last Refresh before RateFor was asked
	loan   *loan       // the budget is in a store, and the meter is the loan's; nil: the budget is here
	Held   Instant     // nothing goes before
	since  Instant     // in a dry run, when the last request that it stopped would have gone
	point  order.Point // where requests wait
	timer  *time.Timer // of a loan
	Armed  Instant     // when timer fires; never: it does not
	marked bool        // in Core.loans
}

// needs returns the extra of a bucket, and makes it if there is none.
func (b *Bucket) needs() *Extra {
	if b.Extra == nil {
		b.Extra = &Extra{Armed: Never}
		b.point.Payer, b.point.Fair = (*payer)(b), b.Limit.Fair
		if b.Limit.Wall {
			b.point.Recheck = wallCheck
		}
	}
	return b.Extra
}

// HasLines reports whether requests wait that fall under the bucket.
func (b *Bucket) HasLines() bool { return b.Extra != nil && b.point.Waiting() > 0 }

// isOpen reports whether no hold and no waiting request stops one that comes now.
func (b *Bucket) isOpen(now Instant) bool {
	e := b.Extra
	return b.Limit.Held <= now && (e == nil || e.point.Waiting() == 0 && e.Held <= now && e.since <= now)
}

// Lent returns the loan of the bucket; nil: its budget is not in a store.
func (b *Bucket) Lent() *loan {
	if b.Extra == nil {
		return nil
	}
	return b.loan
}

// hasOwnRate reports whether the rate of the bucket is not that of its limit.
func (b *Bucket) hasOwnRate() bool { return b.Extra != nil && b.own != Rate{} }

// Rate returns the rate of its limit for its key.
func (b *Bucket) Rate() Rate {
	if b.hasOwnRate() {
		return b.Limit.Shared(b.own)
	}
	return b.Limit.Shared(b.Limit.Rate)
}

// opens returns the instant before which nothing goes, whatever there is to pay with.
func (b *Bucket) opens() Instant {
	if b.Extra == nil {
		return b.Limit.Held
	}
	return max(b.Limit.Held, b.Held, b.since)
}

// Ready returns when cost can be paid here once ahead has been, not before from.
func (b *Bucket) Ready(from Instant, ahead, cost int64) Instant {
	return b.Meter.Ready(max(from, b.opens()), ahead, cost)
}

// HeldUntil returns the end of the hold of a caller, a server or a controller.
func (b *Bucket) HeldUntil() Instant {
	return max(b.Limit.Held, b.HeldAlone())
}

// HeldAlone returns the end of the hold of this bucket alone, without HoldAll.
func (b *Bucket) HeldAlone() (until Instant) {
	if b.Extra != nil {
		until = b.Held
	}
	if b.Limit.holds {
		until = max(until, b.Meter.(meter.Holder).HeldUntil())
	}
	return until
}

// hold lets nothing go before until: in all processes, where the budget is shared.
func (b *Bucket) hold(now, until Instant) {
	if b.Lent() != nil {
		b.loan.Hold(now, until)
		return
	}
	e := b.needs()
	e.Held = max(e.Held, until)
}

// lift ends what hold did, and reports whether there was a hold.
func (b *Bucket) lift(now Instant) bool {
	if b.Extra == nil {
		return false
	}
	held := b.Held > now
	b.Held = min(b.Held, now)
	if b.loan != nil && (held || b.loan.HeldUntil() > now) {
		b.loan.Hold(now, now)
		return true
	}
	return held
}

// PerSecond returns the rate in tokens; 0: there is none.
func (b *Bucket) PerSecond(now Instant) float64 {
	if m, ok := b.Meter.(meter.Rater); ok {
		return m.PerSecond(now)
	}
	return b.setPerSecond()
}

// setPerSecond returns Rate in tokens per second.
func (b *Bucket) setPerSecond() float64 {
	if b.hasOwnRate() {
		return b.Rate().PerSecond()
	}
	return b.Limit.perSecond
}

// Callers returns how many callers wait, where they take turns.
func (b *Bucket) Callers() int {
	if b.Extra == nil {
		return 0
	}
	return b.point.Callers()
}

// Waiting returns how many requests in line fall under the bucket.
func (b *Bucket) Waiting() int {
	if b.Extra == nil {
		return 0
	}
	return b.point.Waiting()
}

// A Limit is a Limit at work in one Limiter.
type Limit struct {
	Single  *Bucket // of the key "", which most programs use alone; it is never forgotten
	Buckets map[string]*Bucket
	Gates   bool // its buckets are those of gates
	Keyed   bool // requests have keys, or some have had one
	Index   int  // in core.limits; that of gates comes after all
	plans   bool // its meters are Planners
	holds   bool // its meters are Holders
	Rule
	supply *Supply // of a limit that is Shared; nil: it is not
	size   int64   // the burst of keys that have no rate of their own
	peak   int     // the most buckets since the map was made

	perSecond float64 // the rate of keys that have none of their own, in tokens

	refreshed uint64 // the number of its last Refresh; 0: there was none

	Holds   map[string]Instant // of keys that have no bucket, because there was no room; nil: none
	holdNew Instant            // nothing goes before in buckets that are yet to be made

	_        [64]byte // what follows is written under the lock while requests read what stands above without it
	Held     Instant  // by HoldAll: nothing goes before in any bucket
	HeldMost Instant  // the latest end of a hold of a bucket, past ones included
	Counts   limitCounts
	_        [64]byte
}

// look notes what the meters of the limit are, because it takes time to find out.
func (li *Limit) look(m meter.Meter) {
	_, li.plans = m.(meter.Planner)
	_, li.holds = m.(meter.Holder)
}

// findLocked finds the bucket of a charge, and reports whether there is one.
func (c *Charge) findLocked() bool {
	if c.Key != "" && !c.Limit.Gates { // else it is found already
		c.bucket = c.Limit.Buckets[c.Key]
	}
	return c.bucket != nil
}

// payLocked makes all charges, and sets the mark, if they can be paid now and no request waits there. missing reports that a
// bucket is missing; otherwise all are found.
func (l *Core) payLocked(p *Paid, by *Counts, now Instant) (ok, missing bool) {
	if len(p.Charges) == 0 {
		p.Mark = l.grantedLocked(by, now)
		return true, false
	}
	c := &p.Charges[0]
	if !c.findLocked() {
		return false, true
	}
	if len(p.Charges) > 1 {
		if ok, missing = payableLocked(p.Charges[1:], now); !ok {
			return false, missing
		}
	}
	if !c.passesLocked(now) {
		return false, false
	}
	if c.paid, ok = c.bucket.Meter.Spend(now, c.cost); !ok {
		return false, false
	}
	c.Limit.Counts.took(c.cost)
	if len(p.Charges) > 1 {
		p.Mark = l.takeLocked(p.Charges[1:], by, now)
	} else {
		p.Mark = l.grantedLocked(by, now)
	}
	if l.supplies != nil {
		l.drawnLocked(p.Charges, now)
	}
	return true, false
}

// payableLocked reports whether all charges can be paid now and no request waits there, or whether a bucket is missing; otherwise
// all are found.
func payableLocked(charges []Charge, now Instant) (ok, missing bool) {
	ok = true
	for i := range charges {
		c := &charges[i]
		if !c.findLocked() {
			return false, true
		}
		ok = ok && c.passesLocked(now) && c.bucket.Meter.Payable(now, c.cost)
	}
	return ok, false
}

// passesLocked reports whether nothing stops the charge except what it costs.
func (c *Charge) passesLocked(now Instant) bool {
	return c.cost >= 0 && c.bucket.isOpen(now)
}

// payAllLocked is payLocked after it has made missing buckets, with these rates, and clamped costs where limits have ClampCost.
// missing is the first charge without room for its bucket.
func (l *Core) payAllLocked(p *Paid, rates []Rate, by *Counts, now Instant) (ok bool, missing *Charge) {
	charges, kept := p.Charges, l.keys.Len()
	for i := range charges {
		charges[i].findLocked() // before any is forgotten to make room for another
	}
	for i := range charges {
		if c := &charges[i]; !l.haveLocked(c, charges, rateAt(rates, i), now) {
			return false, c
		}
	}
	if ok, _ = l.payLocked(p, by, now); !ok && clampLocked(charges) {
		ok, _ = l.payLocked(p, by, now)
	}
	if ok && l.keys.Len() > kept { // what was charged is not as good as new, and stays
		l.keys.Sweep(now, sweepWith, l.forgetLocked)
	}
	return ok, nil
}

// makeAndPayLocked is payLocked where buckets are missing, if they can be made under this lock.
func (l *Core) makeAndPayLocked(p *Paid, by *Counts, now Instant) (ok bool) {
	if l.canMakeLocked(p.Charges) {
		ok, _ = l.payAllLocked(p, nil, by, now)
	}
	return ok
}

// canMakeLocked reports whether all buckets of these charges that are missing can be made under this lock: there is room, and
// no rate to ask for.
func (l *Core) canMakeLocked(charges []Charge) bool {
	if l.keys.Len()+len(charges) > l.MaxKeys {
		return false
	}
	for i := range charges {
		if charges[i].Limit.Asks {
			return false
		}
	}
	return true
}

// haveLocked finds the bucket of a charge or makes it, with that rate. It reports whether there was room. Buckets of the other
// charges are not evicted.
func (l *Core) haveLocked(c *Charge, charges []Charge, r Rate, now Instant) bool {
	if c.findLocked() {
		return true
	}
	if l.keys.Len() >= l.MaxKeys && !l.evictLocked(now, charges, &l.keys) {
		return false
	}
	c.bucket = l.makeLocked(c.Limit, c.Key, r, now)
	return true
}

// clampLocked reduces costs to the sizes of limits with ClampCost, and reports whether there was one to reduce.
func clampLocked(charges []Charge) (clamped bool) {
	for i := range charges {
		if c := &charges[i]; c.Limit.Clamps && c.cost > c.bucket.Meter.Most() {
			c.cost, clamped = c.bucket.Meter.Most(), true
		}
	}
	return clamped
}

// reclampLocked reduces the costs of the waiters of a bucket that has become smaller.
func (l *Core) reclampLocked(b *Bucket) {
	if b.Limit.Clamps && b.HasLines() {
		l.order.Clamp(&b.point)
	}
}

// askedLocked reports whether the rates are known of all buckets that are to be made, as of the last [Limiter.Refresh]. It
// finds out under the lock under which they are made: a bucket that was there a moment ago may have been forgotten.
func (p *Pending) askedLocked() bool {
	for i := range p.Charges {
		c := &p.Charges[i]
		if (p.Rates == nil || p.asked < c.Limit.refreshed) && c.Limit.Asks && c.Key != "" && !c.findLocked() {
			return false
		}
	}
	return true
}

// makeLocked makes a bucket, with that rate or, if it is zero, the limit's own.
func (l *Core) makeLocked(li *Limit, key string, r Rate, now Instant) *Bucket {
	b := &Bucket{Limit: li, Key: key}
	if key == "" || li.Asks || li.supply != nil {
		e := b.needs()
		e.own, e.asked = r, li.refreshed
	}
	rate, burst := li.terms(r)
	if li.supply != nil {
		b.loan = li.lend(b, key, rate, burst)
		b.Meter = b.loan.Borrower
	} else {
		b.Meter = l.meterLocked(li, rate, burst, now)
	}
	if key == "" {
		li.Single = b
		li.look(b.Meter)
		return b
	}
	if until := li.takeHold(key); until > 0 {
		b.needs().Held = until
	}
	l.keepLocked(b, now)
	return b
}

// meterLocked returns a new meter, which shares with that of the key "" what it can.
func (l *Core) meterLocked(li *Limit, r Rate, burst int64, now Instant) meter.Meter {
	if li.Single != nil {
		if m, ok := li.Single.Meter.(meter.Sharer); ok {
			return m.Another(now, r, burst, li.InitialOf(burst))
		}
	}
	return li.Make(now, r, burst, &l.Wall)
}

// terms returns the rate and the burst of a key for which RateFor returned own; zero: the limit's own.
func (li *Limit) terms(own Rate) (r Rate, burst int64) {
	switch {
	case own == Rate{}:
		return li.Shared(li.Rate), li.size
	case li.Burst >= 0:
		return li.Shared(own), li.size
	}
	return li.Shared(own), li.BurstOf(own)
}

// rateAt returns what askRates found for a charge.
func rateAt(rates []Rate, i int) Rate {
	if i < len(rates) {
		return rates[i]
	}
	return Rate{}
}
