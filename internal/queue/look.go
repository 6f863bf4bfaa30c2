package queue

import (
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// bucket returns the bucket of a key; nil: none is kept.
func (li *Limit) bucket(key string) *Bucket {
	if key == "" {
		return li.Single
	}
	return li.Buckets[key]
}

// Look calls look under the lock for all buckets that say anything, a few at a time, and between without it, which reports whether
// to go on.
func (l *Core) Look(look func(b *Bucket, now Instant), between func() bool) {
	l.Visit(l.allLimits(), func(b *Bucket, now Instant) {
		if l.showsLocked(b, now) {
			look(b, now)
		}
	}, between)
}

// LookAt calls f under the lock for the bucket of a key, and returns whether it did: a bucket is kept, and it says anything.
func (l *Core) LookAt(li *Limit, key string, f func(b *Bucket, now Instant)) bool {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	now, b := l.NowLocked(), li.bucket(key)
	if b == nil || !l.showsLocked(b, now) {
		return false
	}
	f(b, now)
	return true
}

// LookAtLimits calls f under the lock for every limit, and last for that of gates.
func (l *Core) LookAtLimits(f func(li *Limit, now Instant)) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	now := l.NowLocked()
	for _, li := range l.Limits {
		f(li, now)
	}
	f(l.Gate, now)
}

// LookAtGates calls f under the lock for some gates.
func (l *Core) LookAtGates(some []*Bucket, f func(g *GateBucket, now Instant)) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	now := l.NowLocked()
	for _, b := range some {
		f(b.Meter.(*GateBucket), now)
	}
}

// showsLocked reports whether a bucket says anything: not that of a key "" that nothing has used where requests have keys, a gate
// that stops no request, or a bucket that was forgotten.
func (l *Core) showsLocked(b *Bucket, now Instant) bool {
	switch {
	case b.Limit.Gates:
		return b.IsKept() && !b.Meter.(*GateBucket).Open(now)
	case b.Key != "":
		return b.IsKept()
	case b.Limit.Keyed || b.Limit.Open:
		_, full := b.matters(now)
		return max(full, b.Limit.Held) > now
	}
	return true
}

// WaitLocked returns how long a request of cost 1 that comes now would wait for the bucket, as far as is known.
func (b *Bucket) WaitLocked(now Instant) time.Duration {
	var ahead int64
	if b.HasLines() {
		n := 0
		for first, sums := range b.point.Blocked {
			for i, sum := range sums {
				if first.Owner.(*Waiter).bucket(i) == b {
					ahead = meter.AddCount(ahead, sum)
				}
			}
			if n++; n == maxBlocked {
				break
			}
		}
	}
	return Until(max(now, b.planFor(now, ahead, 1)), now)
}

// maxBlocked is how many lines of waiters are looked at.
const maxBlocked = 64

// Capacity returns how many tokens the bucket holds when it is full; 0: there is no bound.
func (b *Bucket) Capacity() float64 {
	if most := b.Meter.Most(); most < MaxCount {
		return float64(most)
	}
	return 0
}
