package limiter

import (
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
)

// payLocked makes all charges, and sets the mark, if they can be paid now and no request waits there. missing reports that a
// bucket is missing; otherwise all are found.
func (l *Core) payLocked(charges []Charge, mark *Mark, u *User, now meter.Instant) (ok, missing bool) {
	if len(charges) > 0 {
		c := &charges[0]
		if !c.find() {
			return false, true
		}
		if len(charges) > 1 {
			if ok, missing = payable(charges[1:], now); !ok {
				return false, missing
			}
		}
		if !c.passes(now) {
			return false, false
		}
		if c.Paid, ok = c.Bucket.Meter.Spend(now, c.Cost); !ok {
			return false, false
		}
		c.Limit().Counts.Took(c.Cost)
		for i := 1; i < len(charges); i++ {
			c := &charges[i]
			c.Paid = c.Bucket.Meter.Take(now, now, c.Cost, false)
			c.Limit().Counts.Took(c.Cost)
		}
	}
	*mark = l.grantedLocked(u, now)
	if l.supplies != nil {
		l.drawnLocked(charges, now)
	}
	return true, false
}

// payAllLocked is payLocked after it has made missing buckets, with these rates, and clamped costs where limits have ClampCost.
// missing is the first charge without room for its bucket.
func (l *Core) payAllLocked(charges []Charge, mark *Mark, rates []meter.Rate, u *User, now meter.Instant) (ok bool, missing *Charge) {
	kept := l.keys.Len()
	if missing = l.haveAllLocked(charges, rates, now); missing != nil {
		return false, missing
	}
	if ok, _ = l.payLocked(charges, mark, u, now); !ok && clamp(charges) {
		ok, _ = l.payLocked(charges, mark, u, now)
	}
	if ok && l.keys.Len() > kept { // buckets that were charged are not as good as new, and stay
		l.keys.Sweep(now, sweepWith, l.forgetLocked)
	}
	return ok, nil
}

// haveAllLocked finds the buckets of charges or makes them, with these rates. It returns the first charge without room for its bucket.
func (l *Core) haveAllLocked(charges []Charge, rates []meter.Rate, now meter.Instant) (missing *Charge) {
	for i := range charges {
		charges[i].find() // before any is forgotten to make room for another
	}
	for i := range charges {
		if c := &charges[i]; !l.haveLocked(c, charges, rateAt(rates, i), now) {
			return c
		}
	}
	return nil
}

// makeAndPayLocked is payLocked where buckets are missing. They still are if they cannot be made under this lock.
func (l *Core) makeAndPayLocked(charges []Charge, mark *Mark, u *User, now meter.Instant) (ok, missing bool) {
	if !l.canMakeLocked(charges) {
		return false, true
	}
	ok, _ = l.payAllLocked(charges, mark, nil, u, now)
	return ok, false
}

// canMakeLocked reports whether all buckets of these charges that are missing can be made under this lock: there is room, and
// no rate to ask for.
func (l *Core) canMakeLocked(charges []Charge) bool {
	if l.keys.Len()+len(charges) > l.maxKeys {
		return false
	}
	for i := range charges {
		if charges[i].Limit().Asks {
			return false
		}
	}
	return true
}

// haveLocked finds the bucket of a charge or makes it, with that rate. It reports whether there was room. Buckets of the other
// charges are not evicted.
func (l *Core) haveLocked(c *Charge, charges []Charge, r meter.Rate, now meter.Instant) bool {
	if c.find() {
		return true
	}
	if l.keys.Len() >= l.maxKeys && !l.evictLocked(now, charges) {
		return false
	}
	l.makeLocked(c.Limit(), c.Key, r, now)
	return c.find()
}

// reclampLocked reduces the costs of the waiters of a bucket that has become smaller.
func (l *Core) reclampLocked(b *bucket.Bucket) {
	if b.Limit.Clamps && b.Waiting() > 0 {
		l.order.Clamp(bucket.PointOf(b))
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

// meterLocked returns a new meter, which shares what it can with the meter of the key "". With Initial, the bucket of each key has
// filled since the Core was made, so that it makes no difference whether it was forgotten when it was full.
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

// grantedLocked counts a request that is granted now, and did not wait.
func (l *Core) grantedLocked(u *User, now meter.Instant) Mark {
	u.counts.Granted++
	l.counts.Granted++
	l.takeOffLocked(u)
	l.sent.Add(now, 1, 0)
	return Mark{At: now, Nth: l.counts.Sent()}
}
