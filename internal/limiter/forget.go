package limiter

import (
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
)

const (
	sweepEvery = time.Second // between two sweeps, at least
	sweepMost  = 1024        // buckets that are looked at under one lock, at most
	sweepWith  = 4           // buckets that are looked at whenever others are made, so that forgetting keeps up
)

// keepLocked keeps a bucket until it is as good as new.
func (l *Core) keepLocked(b *bucket.Bucket, now meter.Instant) {
	b.Limit.Keep(b)
	l.keys.Add(b, now)
	l.sweepLaterLocked(now, sweepEvery)
}

// freeLocked notes that a bucket may be less busy than its keeper knows. Gates have a keeper of their own, so that they do not take the
// room of keys.
func (l *Core) freeLocked(b *bucket.Bucket, now meter.Instant) {
	sooner := false
	switch {
	case b.Limit.Gates:
		sooner = l.servers.Free(b.Meter.(*quota.Gate), now)
	case b.IsKept():
		sooner = l.keys.Free(b, now)
	}
	if sooner {
		l.sweepLaterLocked(now, sweepEvery)
	}
}

// sweep forgets the buckets that are as good as new.
func (l *Core) sweep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweepAt = meter.Never
	now := l.nowLocked()
	more := l.keys.Sweep(now, sweepMost, l.forgetLocked)
	if l.servers.Sweep(now, sweepMost) || more {
		l.sweepLaterLocked(now, time.Millisecond) // let others have the lock, then go on
		return
	}
	l.sweepLaterLocked(now, sweepEvery)
}

// sweepLaterLocked makes sure that buckets are forgotten once they are as good as new, after a pause.
func (l *Core) sweepLaterLocked(now meter.Instant, pause time.Duration) {
	first := min(l.keys.First(), l.servers.First())
	if first == meter.Never {
		return
	}
	at := max(first, now+int64(pause))
	if at >= l.sweepAt {
		return
	}
	l.sweepAt = at
	if l.sweeper == nil {
		l.sweeper = time.AfterFunc(time.Duration(at-now), l.sweep)
		return
	}
	l.sweeper.Reset(time.Duration(at - now))
}

// crowdedLocked does a piece of the work of finding a bucket that may make room, if one is to be made for which there is none. It reports
// whether more pieces are needed.
func (l *Core) crowdedLocked(charges []Charge, now meter.Instant) bool {
	if l.keys.Len() < l.maxKeys || !slices.ContainsFunc(charges, func(c Charge) bool { return !c.find() }) {
		return false
	}
	return !l.keys.Prepare(now, sweepMost)
}

// evictLocked makes room for a bucket: the one that is full first is forgotten, except those that must be kept, or are about to
// be charged. It reports whether there was one.
func (l *Core) evictLocked(now meter.Instant, charges []Charge) bool {
	b, ok := l.keys.Evict(now, sweepMost, func(b *bucket.Bucket) bool {
		return slices.ContainsFunc(charges, func(c Charge) bool { return c.Bucket == b })
	})
	if ok {
		b.Limit.Counts.Evicted++
		l.forgetLocked(b)
	}
	return ok
}

// forgetLocked forgets a bucket that its keeper has removed.
func (l *Core) forgetLocked(b *bucket.Bucket) {
	l.leases.SetAlarm(b, meter.Never)
	b.Limit.Forget(b)
}
