package throttle

import (
	"math"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// bucket returns the bucket of a key; nil: none is kept.
func (li *limit) bucket(key string) *bucket {
	if key == "" {
		return li.single
	}
	return li.buckets[key]
}

// kept returns every bucket that is kept: those of the key "", then those of other keys, then those of gates.
func (l *core) kept() []*bucket {
	for size := 0; ; {
		all := make([]*bucket, 0, size) // without the lock, because the system may have to find the memory
		l.mu.Lock()
		need := len(l.limits) + l.keys.size() + l.gateKeys.size()
		if need > size {
			l.mu.Unlock()
			size = need + need/8
			continue
		}
		for _, li := range l.limits {
			all = append(all, li.single)
		}
		for _, some := range [...]bucketHeap{l.keys.idle, l.keys.busy, l.gateKeys.idle, l.gateKeys.busy} {
			all = append(all, some...)
		}
		l.mu.Unlock()
		return all
	}
}

// look calls f under the lock for those of some buckets that say anything.
func (l *core) look(some []*bucket, f func(b *bucket, now instant)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.nowLocked()
	for _, b := range some {
		if l.showsLocked(b, now) {
			f(b, now)
		}
	}
}

// showsLocked reports whether a bucket says anything: not that of a key "" that nothing has used where requests have keys, a gate
// that stops no request, or a bucket that was forgotten.
func (l *core) showsLocked(b *bucket, now instant) bool {
	switch {
	case b.limit.gates:
		return b.place >= 0 && !b.meter.(*gateBucket).Open(now)
	case b.key != "":
		return b.place >= 0
	case b.limit.keyed || b.limit.open:
		_, full := b.matters(now)
		return max(full, b.limit.held) > now
	}
	return true
}

// waitLocked returns how long a request of cost 1 that comes now would wait for the bucket, as far as is known.
func (b *bucket) waitLocked(now instant) time.Duration {
	var ahead int64
	if b.hasLines() {
		for _, s := range b.lines[:min(len(b.lines), maxAhead)] {
			ahead = meter.AddCount(ahead, s.line.root.sums()[s.index])
		}
	}
	due := b.planLocked(nil, nil, &place{rank: math.MinInt64}, 0, ahead, 1, now)
	return until(due, now)
}

// pieceSize is how many buckets are looked at under one lock.
const pieceSize = 64

// capacity returns how many tokens the bucket holds when it is full; 0: there is no bound.
func (b *bucket) capacity() float64 {
	if most := b.meter.Most(); most < maxCount {
		return float64(most)
	}
	return 0
}
