package queue

import (
	"maps"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/keep"
)

const (
	sweepEvery = time.Second // buckets are forgotten no more often
	SweepMost  = 1024        // and no more of them are looked at under one lock
	sweepWith  = 4           // are looked at whenever buckets are made, so that forgetting keeps up
)

// matters returns until when the bucket must be kept, and from when it is as good as new.
func (b *Bucket) matters(now Instant) (must, full Instant) {
	if b.HasLines() {
		return Never, Never
	}
	must, full = b.Meter.Matters(now)
	if b.Extra != nil {
		must = max(must, b.Held)
	}
	return must, max(must, full)
}

// keeperOf returns where a bucket is kept. Gates are kept apart, so that neither take the room of the other.
func (l *Core) keeperOf(b *Bucket) *keep.Keeper[*Bucket] {
	if b.Limit == l.Gate {
		return &l.gateKeys
	}
	return &l.keys
}

// keepLocked keeps a bucket until it is as good as new.
func (l *Core) keepLocked(b *Bucket, now Instant) {
	b.Limit.Buckets[b.Key], b.Limit.Keyed = b, true
	b.Limit.peak = max(b.Limit.peak, len(b.Limit.Buckets))
	l.keys.Add(b, now)
	l.sweepLaterLocked(now, sweepEvery)
}

// freeLocked notes that what made a bucket busy may be over.
func (l *Core) freeLocked(b *Bucket, now Instant) {
	if l.keeperOf(b).Free(b, now) {
		l.sweepLaterLocked(now, sweepEvery)
	}
}

// sweep forgets the buckets that are as good as new.
func (l *Core) sweep() {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	l.sweepAt = Never
	now := l.NowLocked()
	more := l.keys.Sweep(now, SweepMost, l.forgetLocked)
	if l.gateKeys.Sweep(now, SweepMost, l.forgetLocked) || more {
		l.sweepLaterLocked(now, time.Millisecond) // let others have the lock, then go on
		return
	}
	l.sweepLaterLocked(now, sweepEvery)
}

// sweepLaterLocked makes sure that buckets are forgotten once they are as good as new, after a pause.
func (l *Core) sweepLaterLocked(now Instant, pause time.Duration) {
	first := min(l.keys.First(), l.gateKeys.First())
	if first == Never {
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

// crowdedLocked reports whether a bucket is to be made, for which there is no room, and more than one piece of work is needed
// to find out which bucket may make room. It has done one of them.
func (l *Core) crowdedLocked(charges []Charge) bool {
	if l.keys.Len() < l.MaxKeys || !slices.ContainsFunc(charges, func(c Charge) bool { return !c.findLocked() }) {
		return false
	}
	return !l.keys.Settle(l.NowLocked(), SweepMost)
}

// evictLocked makes room for a bucket: the one that is full first is forgotten, except those that must be kept, or are about to
// be charged. It reports whether there was one.
func (l *Core) evictLocked(now Instant, charges []Charge, k *keep.Keeper[*Bucket]) bool {
	b, ok := k.Evict(now, SweepMost, func(b *Bucket) bool {
		return slices.ContainsFunc(charges, func(c Charge) bool { return c.bucket == b })
	})
	if ok {
		b.Limit.Counts.Evicted++
		l.forgetLocked(b)
	}
	return ok
}

// forgetLocked forgets a bucket that its keeper has removed.
func (l *Core) forgetLocked(b *Bucket) {
	if b.Extra != nil && b.timer != nil {
		b.timer.Stop()
		b.Armed = Never
	}
	if g, ok := b.Meter.(*GateBucket); ok {
		l.forgetGateLocked(g)
		return
	}
	delete(b.Limit.Buckets, b.Key)
	b.Limit.Buckets = keep.Shrunk(b.Limit.Buckets, &b.Limit.peak)
}

// MaxHolds is how many holds of keys without a bucket a limit remembers.
const MaxHolds = 1024

// keepHold remembers a hold of a key if there is no room for its bucket. If there is no room for the hold either, all keys are
// held for which a bucket is yet to be made, and it returns false: a hold that is too wide is safer than none.
func (li *Limit) keepHold(key string, until, now Instant) bool {
	if _, ok := li.Holds[key]; !ok && len(li.Holds) == MaxHolds {
		maps.DeleteFunc(li.Holds, func(_ string, until Instant) bool { return until <= now })
		if len(li.Holds) == MaxHolds {
			li.holdNew = max(li.holdNew, until)
			li.HeldMost = max(li.HeldMost, until)
			return false
		}
	}
	if li.Holds == nil {
		li.Holds = make(map[string]Instant)
	}
	li.Holds[key] = max(li.Holds[key], until)
	li.HeldMost = max(li.HeldMost, until)
	return true
}

// takeHold returns until when a new bucket of that key is held.
func (li *Limit) takeHold(key string) Instant {
	until := max(li.Holds[key], li.holdNew)
	delete(li.Holds, key)
	return until
}
