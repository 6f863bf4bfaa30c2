package throttle

import (
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A bucket is the state of one limit for one key. There may be a million of them, so what few of them need is apart.
type bucket struct {
	limit  *limit
	key    string
	meter  meter.Meter
	lookAt instant // when its keeper is to look at it
	place  int32   // in its keeper; -1: it is never forgotten
	busy   bool    // it may not be forgotten, as far as its keeper knows
	*extra         // nil: it needs none; the methods of bucket check that, and other code knows it or calls needs first
}

// An extra is what a bucket needs where requests wait or callers hold it, and in a limit that has RateFor or is Shared.
type extra struct {
	own     rate        // as RateFor said; zero: the limit's
	asked   uint64      // the number of the last Refresh before RateFor was asked
	loan    *loan       // of a bucket whose budget is in a store, where its meter is the loan's; nil: it is not
	held    instant     // nothing goes before
	since   instant     // no request in line can have been due before; in a dry run, when the last one that it stopped would have gone
	serial  uint64      // tells buckets apart that have or had lines, also those of one key that was forgotten and came back; 0: it had none
	stopped stopHeap    // the lines whose first request cannot be paid here, or may not go before one that cannot
	lines   []*stop     // all lines that fall under this bucket
	fair    *fairBucket // nil: no callers wait here, or they take no turns
	timer   *time.Timer
	armed   instant // when timer fires; never: it does not
	dirty   bool    // in Limiter.dirty
}

// needs returns the extra of a bucket, and makes it if there is none.
func (b *bucket) needs() *extra {
	if b.extra == nil {
		b.extra = &extra{armed: never}
	}
	return b.extra
}

// hasLines reports whether requests wait that fall under the bucket.
func (b *bucket) hasLines() bool { return b.extra != nil && len(b.lines) > 0 }

// lent returns the loan of the bucket; nil: its budget is not in a store.
func (b *bucket) lent() *loan {
	if b.extra == nil {
		return nil
	}
	return b.loan
}

// hasOwnRate reports whether the rate of the bucket is not that of its limit.
func (b *bucket) hasOwnRate() bool { return b.extra != nil && b.own != rate{} }

// number returns what tells the bucket apart; 0: it never had a line.
func (b *bucket) number() uint64 {
	if b.extra == nil {
		return 0
	}
	return b.serial
}

// freed notes that tokens came back. Waiters can use them from now on.
func (b *bucket) freed(now instant) {
	if b.extra != nil {
		b.since = max(b.since, now)
	}
}

// rate returns the rate of its limit for its key.
func (b *bucket) rate() rate {
	if b.hasOwnRate() {
		return b.limit.shared(b.own)
	}
	return b.limit.shared(b.limit.rate)
}

// opens returns the instant before which nothing goes, whatever there is to pay with.
func (b *bucket) opens() instant {
	if b.extra == nil {
		return b.limit.held
	}
	return max(b.limit.held, b.held, b.since)
}

// ready returns when cost can be paid here once ahead has been, not before from.
func (b *bucket) ready(from instant, ahead, cost int64) instant {
	return b.meter.Ready(max(from, b.opens()), ahead, cost)
}

// heldUntil returns the end of the hold of a caller, a server or a controller.
func (b *bucket) heldUntil() instant {
	return max(b.limit.held, b.heldAlone())
}

// heldAlone is the same without HoldAll.
func (b *bucket) heldAlone() (until instant) {
	if b.extra != nil {
		until = b.held
	}
	if m, ok := b.meter.(meter.Holder); ok {
		until = max(until, m.HeldUntil())
	}
	return until
}

// hold lets nothing go before until: in all processes, where the budget is shared.
func (b *bucket) hold(now, until instant) {
	if b.lent() != nil {
		b.loan.Hold(now, until)
		return
	}
	e := b.needs()
	e.held = max(e.held, until)
}

// lift ends what hold did, and reports whether there was a hold.
func (b *bucket) lift(now instant) bool {
	if b.extra == nil {
		return false
	}
	held := b.held > now
	b.held = min(b.held, now)
	if b.loan != nil && (held || b.loan.HeldUntil() > now) {
		b.loan.Hold(now, now)
		return true
	}
	return held
}

// plan returns when cost can be paid here once ahead has been, as far as is known: a lower bound for a planner.
func (b *bucket) plan(from instant, ahead, cost int64) instant {
	if p, ok := b.meter.(meter.Planner); ok {
		due := p.Plan(max(from, b.opens()), ahead, cost)
		if until := b.blockedUntil(); until > due && due < never && b.ready(from, ahead, cost) == never {
			return until
		}
		return due
	}
	return b.ready(from, ahead, cost)
}

// perSecond returns the rate in tokens; 0: there is none.
func (b *bucket) perSecond(now instant) float64 {
	if m, ok := b.meter.(meter.Rater); ok {
		return m.PerSecond(now)
	}
	return b.rate().PerSecond()
}

// waiting returns how many requests in line fall under the bucket.
func (b *bucket) waiting() int {
	n := 0
	if b.extra != nil {
		for _, s := range b.lines {
			n += s.line.size
		}
	}
	return n
}

// A limit is a Limit at work in one Limiter.
type limit struct {
	single  *bucket // of the key "", which most programs use alone; it is never forgotten
	buckets map[string]*bucket
	gates   bool // its buckets are those of gates
	keyed   bool // requests have keys, or some have had one
	index   int  // in core.limits; that of gates comes after all
	rule
	supply *supply // of a limit that is Shared; nil: it is not
	size   int64   // the burst of keys that have no rate of their own
	peak   int     // the most buckets since the map was made

	refreshed uint64 // the number of its last Refresh; 0: there was none

	holds   map[string]instant // of keys that have no bucket, because there was no room; nil: none
	holdNew instant            // nothing goes before in buckets that are yet to be made

	_        [64]byte // what follows is written under the lock while requests read what stands above without it
	held     instant  // by HoldAll: nothing goes before in any bucket
	heldMost instant  // the latest end of a hold of a bucket, past ones included
	counts   limitCounts
	_        [64]byte
}

// findLocked finds the bucket of a charge, and reports whether there is one.
func (c *charge) findLocked() bool {
	if c.key != "" && !c.limit.gates { // else it is found already
		c.bucket = c.limit.buckets[c.key]
	}
	return c.bucket != nil
}

// payLocked makes all charges if they can be paid now and no request waits there. missing is the first without a bucket, or -1.
func (l *core) payLocked(charges []charge, by *counts, below bool, now instant) (m mark, ok bool, missing int) {
	all := charges
	ok = true
	for i := range charges {
		c := &charges[i]
		if !c.findLocked() {
			return m, false, i
		}
		b := c.bucket
		ok = ok && c.cost >= 0 && !b.hasLines() && b.opens() <= now && (i == 0 || b.meter.Payable(now, c.cost)) &&
			(!below || b.leaves(c.cost, now))
	}
	if ok && len(charges) > 0 {
		c := &charges[0]
		if c.paid, ok = c.bucket.meter.Spend(now, c.cost); ok {
			c.limit.counts.took(c.cost)
		}
		charges = charges[1:]
	}
	if ok {
		m = l.takeLocked(charges, by, now)
		if l.supplies != nil {
			l.drawnLocked(all, now)
		}
	}
	return m, ok, -1
}

// payAllLocked is payLocked after it has made missing buckets, with these rates, and clamped costs where limits have ClampCost.
// missing is the first charge without room for its bucket.
func (l *core) payAllLocked(charges []charge, rates []rate, by *counts, below bool, now instant) (m mark, ok bool, missing *charge) {
	kept := l.keys.size()
	for i := range charges {
		charges[i].findLocked() // before any is forgotten to make room for another
	}
	for i := range charges {
		if c := &charges[i]; !l.haveLocked(c, charges, rateAt(rates, i), now) {
			return m, false, c
		}
	}
	if m, ok, _ = l.payLocked(charges, by, below, now); !ok && clampLocked(charges, below) {
		m, ok, _ = l.payLocked(charges, by, below, now)
	}
	if ok && l.keys.size() > kept { // what was charged is not as good as new, and stays
		l.sweepLocked(&l.keys, sweepWith, now)
	}
	return m, ok, nil
}

// makeAndPayLocked is payLocked where buckets are missing, if they can be made under this lock. It is not inlined, to keep the stack
// small on which its callers may have to wait for the lock.
//
//go:noinline
func (l *core) makeAndPayLocked(charges []charge, by *counts, below bool, now instant) (m mark, ok bool) {
	if l.canMakeLocked(charges) {
		m, ok, _ = l.payAllLocked(charges, nil, by, below, now)
	}
	return m, ok
}

// canMakeLocked reports whether all buckets of these charges that are missing can be made under this lock: there is room, and
// no rate to ask for.
func (l *core) canMakeLocked(charges []charge) bool {
	if l.keys.size()+len(charges) > l.maxKeys {
		return false
	}
	for i := range charges {
		if c := &charges[i]; c.limit.asks || c.limit.gates && c.bucket == nil {
			return false
		}
	}
	return true
}

// haveLocked finds the bucket of a charge or makes it, with that rate. It reports whether there was room. Buckets of the other
// charges are not evicted.
func (l *core) haveLocked(c *charge, charges []charge, r rate, now instant) bool {
	if c.findLocked() {
		return true
	}
	if l.keys.size() >= l.maxKeys && !l.evictLocked(now, charges, &l.keys) {
		return false
	}
	c.bucket = l.makeLocked(c.limit, c.key, r, now)
	return true
}

// clampLocked reduces costs to the sizes of limits with ClampCost, and reports whether there was one to reduce.
func clampLocked(charges []charge, below bool) (clamped bool) {
	for i := range charges {
		if c := &charges[i]; c.limit.clamps && c.cost > c.bucket.most(below) {
			c.cost, clamped = c.bucket.most(below), true
		}
	}
	return clamped
}

// reclampLocked does the same for the waiters of a bucket that has become smaller.
func (b *bucket) reclampLocked() {
	if b.limit.clamps && b.extra != nil {
		for _, s := range b.lines {
			s.line.root.clamp(s.index, b.most(s.line.below))
		}
	}
}

// askedLocked reports whether the rates are known of all buckets that are to be made, as of the last [Limiter.Refresh]. It
// finds out under the lock under which they are made: a bucket that was there a moment ago may have been forgotten.
func (p *pending) askedLocked() bool {
	for i := range p.charges {
		c := &p.charges[i]
		if (p.rates == nil || p.asked < c.limit.refreshed) && c.limit.asks && c.key != "" && !c.findLocked() {
			return false
		}
	}
	return true
}

// makeLocked makes a bucket, with that rate or, if it is zero, the limit's own.
func (l *core) makeLocked(li *limit, key string, r rate, now instant) *bucket {
	b := &bucket{limit: li, key: key, place: -1}
	if key == "" || li.asks || li.supply != nil {
		b.extra = &extra{armed: never, own: r, asked: li.refreshed}
	}
	rate, burst := li.terms(r)
	if li.supply != nil {
		b.loan = li.lend(key, rate, burst)
		b.meter = b.loan.Borrower
	} else {
		b.meter = l.meterLocked(li, rate, burst, now)
	}
	if key == "" {
		li.single = b
		return b
	}
	if until := li.takeHold(key); until > 0 {
		b.needs().held = until
	}
	l.keepLocked(b, now)
	return b
}

// meterLocked returns a new meter, which shares with that of the key "" what it can.
func (l *core) meterLocked(li *limit, r rate, burst int64, now instant) meter.Meter {
	if li.single != nil {
		if m, ok := li.single.meter.(meter.Sharer); ok {
			return m.Another(now, r, burst, li.initialOf(burst))
		}
	}
	return li.make(now, r, burst, &l.wall)
}

// terms returns the rate and the burst of a key for which RateFor returned own; zero: the limit's own.
func (li *limit) terms(own rate) (r rate, burst int64) {
	switch {
	case own == rate{}:
		return li.shared(li.rate), li.size
	case li.burst >= 0:
		return li.shared(own), li.size
	}
	return li.shared(own), li.burstOf(own)
}

// rateAt returns what askRates found for a charge.
func rateAt(rates []rate, i int) rate {
	if i < len(rates) {
		return rates[i]
	}
	return rate{}
}
