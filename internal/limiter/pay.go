package limiter

import (
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// payLocked makes all charges, and sets the mark, if they can be paid now and no request waits there. missing reports that a
// bucket is missing; otherwise all are found.
func (l *Core) payLocked(p *bucket.Paid, by *bucket.Counts, now meter.Instant) (ok, missing bool) {
	if len(p.Charges) == 0 {
		p.Mark = l.grantedLocked(by, now)
		return true, false
	}
	c := &p.Charges[0]
	if !c.Find() {
		return false, true
	}
	if len(p.Charges) > 1 {
		if ok, missing = bucket.Payable(p.Charges[1:], now); !ok {
			return false, missing
		}
	}
	if !c.Passes(now) {
		return false, false
	}
	if c.Paid, ok = c.Bucket.Meter.Spend(now, c.Cost); !ok {
		return false, false
	}
	c.Limit.Counts.Took(c.Cost)
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

// payAllLocked is payLocked after it has made missing buckets, with these rates, and clamped costs where limits have ClampCost.
// missing is the first charge without room for its bucket.
func (l *Core) payAllLocked(p *bucket.Paid, rates []meter.Rate, by *bucket.Counts, now meter.Instant) (ok bool, missing *bucket.Charge) {
	charges, kept := p.Charges, l.keys.Len()
	for i := range charges {
		charges[i].Find() // before any is forgotten to make room for another
	}
	for i := range charges {
		if c := &charges[i]; !l.haveLocked(c, charges, bucket.RateAt(rates, i), now) {
			return false, c
		}
	}
	if ok, _ = l.payLocked(p, by, now); !ok && bucket.Clamp(charges) {
		ok, _ = l.payLocked(p, by, now)
	}
	if ok && l.keys.Len() > kept { // what was charged is not as good as new, and stays
		l.keys.Sweep(now, sweepWith, l.forgetLocked)
	}
	return ok, nil
}

// makeAndPayLocked is payLocked where buckets are missing, if they can be made under this lock.
func (l *Core) makeAndPayLocked(p *bucket.Paid, by *bucket.Counts, now meter.Instant) (ok bool) {
	if l.canMakeLocked(p.Charges) {
		ok, _ = l.payAllLocked(p, nil, by, now)
	}
	return ok
}

// canMakeLocked reports whether all buckets of these charges that are missing can be made under this lock: there is room, and
// no rate to ask for.
func (l *Core) canMakeLocked(charges []bucket.Charge) bool {
	if l.keys.Len()+len(charges) > l.maxKeys {
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
func (l *Core) haveLocked(c *bucket.Charge, charges []bucket.Charge, r meter.Rate, now meter.Instant) bool {
	if c.Find() {
		return true
	}
	if l.keys.Len() >= l.maxKeys && !l.evictLocked(now, charges) {
		return false
	}
	l.makeLocked(c.Limit, c.Key, r, now)
	return c.Find()
}

// reclampLocked reduces the costs of the waiters of a bucket that has become smaller.
func (l *Core) reclampLocked(b *bucket.Bucket) {
	if b.Limit.Clamps && b.HasLines() {
		l.order.Clamp(&b.Point)
	}
}

// makeLocked makes a bucket, with that rate or, if it is zero, the limit's own.
func (l *Core) makeLocked(li *bucket.Limit, key string, r meter.Rate, now meter.Instant) *bucket.Bucket {
	b := li.NewBucket(key, r, func(r meter.Rate, burst int64) meter.Meter { return l.meterLocked(li, r, burst, now) })
	if key != "" {
		l.keepLocked(b, now)
	}
	return b
}

// meterLocked returns a new meter, which shares with that of the key "" what it can. With Initial, the bucket of each key has
// filled since the Limiter was made, so that it makes no difference whether it was forgotten when it was full.
func (l *Core) meterLocked(li *bucket.Limit, r meter.Rate, burst int64, now meter.Instant) meter.Meter {
	if li.Initial >= 0 {
		now = li.InitialAt
	}
	if li.Single != nil {
		if m, ok := li.Single.Meter.(meter.Sharer); ok {
			return m.Another(now, r, burst, li.InitialOf(burst))
		}
	}
	return li.Make(now, r, burst, &l.wall)
}

// takeLocked makes charges that can be paid now, for a request that does not wait.
func (l *Core) takeLocked(charges []bucket.Charge, by *bucket.Counts, now meter.Instant) bucket.Mark {
	for i := range charges {
		c := &charges[i]
		c.Paid = c.Bucket.Meter.Take(now, now, c.Cost, false)
		c.Limit.Counts.Took(c.Cost)
	}
	return l.grantedLocked(by, now)
}

// grantedLocked counts a request that is granted now, and did not wait.
func (l *Core) grantedLocked(by *bucket.Counts, now meter.Instant) bucket.Mark {
	by.Granted++
	l.counts.Granted++
	l.sent.Add(now, 1)
	return bucket.Mark{At: now, Nth: l.counts.Sent()}
}

// beginIfAsked is begin if the rates of all buckets are known that must be made for p, and reports whether they are.
func (l *Core) beginIfAsked(p *bucket.Pending) (now meter.Instant, ok bool) {
	for {
		now = l.begin()
		if !p.Asked() {
			p.Refresh = l.refreshes
			l.end()
			return 0, false
		}
		if !l.crowdedLocked(p.Charges, now) {
			return now, true
		}
		l.end() // other goroutines may take mu in between
	}
}

// Add adds a limit, before any request comes. keyed says that requests have keys there.
func (l *Core) Add(r bucket.Rule, keyed bool) *bucket.Limit {
	li := bucket.NewLimit(r, keyed)
	li.Index = len(l.Limits)
	if li.Wall {
		l.wallAt = 0
	}
	if li.Store != nil {
		li.Supply, li.Leases = l.supplyOf(li.Store.SupplyTerms, li.Name), &l.leases
		if li.Stored == store.Calendar {
			li.Calendar = li.Windows(&l.wall)
		}
	}
	if li.Fair {
		l.Fair = li
	}
	l.Limits = append(l.Limits, li)
	l.Gate.Index = len(l.Limits)
	l.makeLocked(li, "", meter.Rate{}, 0)
	return li
}
