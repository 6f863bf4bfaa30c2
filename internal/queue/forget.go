package queue

import (
	"container/heap"
	"maps"
	"slices"
	"time"
)

// A keeper holds the buckets that may be forgotten once: in idle those that may be forgotten to make room for another, ordered
// by when they are as good as new, and in busy those that may not, ordered by when they may. Use moves these instants later,
// but a request should not pay for a heap: a bucket's place is brought up to date when the keeper looks at it, and busy ones
// are looked at again as soon as a response, a refund or an empty line may have set them free.
type keeper struct{ idle, busy BucketHeap }

// BucketHeap orders buckets by when they are to be looked at.
type BucketHeap []*Bucket

func (h BucketHeap) Len() int           { return len(h) }
func (h BucketHeap) Less(i, j int) bool { return h[i].lookAt < h[j].lookAt }
func (h BucketHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].Place, h[j].Place = int32(i), int32(j)
}
func (h *BucketHeap) Push(x any) { b := x.(*Bucket); b.Place = int32(len(*h)); *h = append(*h, b) }
func (h *BucketHeap) Pop() any {
	last := len(*h) - 1
	b := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	if cap(*h) > ShrinkAbove && last < cap(*h)/4 {
		*h = slices.Clone(*h)
	}
	b.Place = -1
	return b
}

// first returns when the first is to be looked at; never: there is none.
func (h BucketHeap) first() Instant {
	if len(h) == 0 {
		return Never
	}
	return h[0].lookAt
}

const (
	sweepEvery  = time.Second // buckets are forgotten no more often
	SweepMost   = 1024        // and no more of them are looked at under one lock
	sweepWith   = 4           // are looked at whenever buckets are made, so that forgetting keeps up
	lookAgain   = time.Minute // at a bucket, if nothing tells when it may be forgotten
	evictLook   = 64          // places brought up to date in search of the bucket that is full first
	ShrinkAbove = 1024        // entries; the room that fewer take is not worth giving back
)

func (k *keeper) size() int { return len(k.idle) + len(k.busy) }

func (k *keeper) add(b *Bucket, now Instant) {
	b.busy, b.lookAt = false, now
	heap.Push(&k.idle, b)
}

func (k *keeper) remove(b *Bucket) {
	if b.busy {
		heap.Remove(&k.busy, int(b.Place))
	} else {
		heap.Remove(&k.idle, int(b.Place))
	}
	b.busy = false
}

// put has the bucket looked at again then.
func (k *keeper) put(b *Bucket, busy bool, at Instant) {
	if busy != b.busy {
		k.remove(b)
		b.busy, b.lookAt = busy, at
		if busy {
			heap.Push(&k.busy, b)
		} else {
			heap.Push(&k.idle, b)
		}
		return
	}
	b.lookAt = at
	if busy {
		heap.Fix(&k.busy, int(b.Place))
	} else {
		heap.Fix(&k.idle, int(b.Place))
	}
}

// keep puts the bucket where it belongs, given until when it must be kept and when it is as good as new.
func (k *keeper) keep(b *Bucket, must, full, now Instant) {
	switch later := now + int64(lookAgain); {
	case must > now:
		k.put(b, true, min(must, later))
	case full < Never:
		k.put(b, false, full)
	default:
		k.put(b, false, later)
	}
}

// next returns the bucket that is to be looked at first, one that may have become idle before all others; nil: there is none.
func (k *keeper) next(now Instant) *Bucket {
	switch {
	case k.busy.first() <= now:
		return k.busy[0]
	case len(k.idle) > 0:
		return k.idle[0]
	}
	return nil
}

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
func (l *Core) keeperOf(b *Bucket) *keeper {
	if b.Limit == l.Gate {
		return &l.gateKeys
	}
	return &l.keys
}

// keepLocked keeps a bucket until it is as good as new.
func (l *Core) keepLocked(b *Bucket, now Instant) {
	b.Limit.Buckets[b.Key], b.Limit.Keyed = b, true
	b.Limit.peak = max(b.Limit.peak, len(b.Limit.Buckets))
	l.keys.add(b, now)
	l.sweepLaterLocked(now, sweepEvery)
}

// freeLocked notes that what made a bucket busy may be over.
func (l *Core) freeLocked(b *Bucket, now Instant) {
	if b.busy && b.lookAt > now {
		l.keeperOf(b).put(b, true, now)
		l.sweepLaterLocked(now, sweepEvery)
	}
}

// sweep forgets the buckets that are as good as new.
func (l *Core) sweep() {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	l.SweepAt = Never
	now := l.NowLocked()
	more := l.sweepLocked(&l.keys, SweepMost, now)
	if l.sweepLocked(&l.gateKeys, SweepMost, now) || more {
		l.sweepLaterLocked(now, time.Millisecond) // let others have the lock, then go on
		return
	}
	l.sweepLaterLocked(now, sweepEvery)
}

// sweepLocked looks at the first most buckets that are to be looked at, and reports whether there may be more of them.
func (l *Core) sweepLocked(k *keeper, most int, now Instant) (more bool) {
	for range most {
		b := k.next(now)
		if b == nil || b.lookAt > now {
			return false
		}
		if must, full := b.matters(now); full <= now {
			l.forgetLocked(b)
		} else {
			k.keep(b, must, full, now)
		}
	}
	return true
}

// sweepLaterLocked makes sure that buckets are forgotten once they are as good as new, after a pause.
func (l *Core) sweepLaterLocked(now Instant, pause time.Duration) {
	first := min(l.keys.idle.first(), l.keys.busy.first(), l.gateKeys.idle.first(), l.gateKeys.busy.first())
	if first == Never {
		return
	}
	at := max(first, now+int64(pause))
	if at >= l.SweepAt {
		return
	}
	l.SweepAt = at
	if l.sweeper == nil {
		l.sweeper = time.AfterFunc(time.Duration(at-now), l.sweep)
		return
	}
	l.sweeper.Reset(time.Duration(at - now))
}

// crowdedLocked reports whether a bucket is to be made, for which there is no room, and more than one piece of work is needed
// to find out which bucket may make room. It has done one of them.
func (l *Core) crowdedLocked(charges []Charge) bool {
	if l.keys.size() < l.MaxKeys || !slices.ContainsFunc(charges, func(c Charge) bool { return !c.findLocked() }) {
		return false
	}
	now := l.NowLocked()
	for range SweepMost {
		b := l.keys.next(now)
		if b == nil {
			return false
		}
		must, full := b.matters(now)
		if must <= now && !b.busy {
			return false
		}
		l.keys.keep(b, must, full, now)
	}
	return true
}

// evictLocked makes room for a bucket: the one that is full first is forgotten, except those that must be kept, or are about to
// be charged. It reports whether there was one.
func (l *Core) evictLocked(now Instant, charges []Charge, k *keeper) bool {
	var apart []*Bucket
	defer func() {
		for _, b := range apart {
			k.put(b, true, now)
		}
	}()
	moved := 0
	for range SweepMost {
		b := k.next(now)
		if b == nil {
			return false
		}
		must, full := b.matters(now)
		switch {
		case slices.ContainsFunc(charges, func(c Charge) bool { return c.bucket == b }):
			k.put(b, true, Never)
			apart = append(apart, b)
		case must > now || b.busy || full > b.lookAt && moved < evictLook:
			moved++
			k.keep(b, must, full, now)
		default:
			b.Limit.Counts.Evicted++
			l.forgetLocked(b)
			return true
		}
	}
	return false
}

func (l *Core) forgetLocked(b *Bucket) {
	l.keeperOf(b).remove(b)
	if b.Extra != nil && b.timer != nil {
		b.timer.Stop()
		b.Armed = Never
	}
	if g, ok := b.Meter.(*GateBucket); ok {
		l.forgetGateLocked(b, g)
		return
	}
	delete(b.Limit.Buckets, b.Key)
	b.Limit.Buckets = Shrunk(b.Limit.Buckets, &b.Limit.peak)
}

// Shrunk returns m, or a copy of it when few are left of the most that it ever had: a Go map never gives memory back. The copy
// is made under the lock, and therefore only if it is small.
func Shrunk[K comparable, V any](m map[K]V, peak *int) map[K]V {
	if len(m) > ShrinkAbove || len(m) > *peak/4 || *peak <= ShrinkAbove {
		return m
	}
	*peak = len(m)
	kept := make(map[K]V, len(m))
	maps.Copy(kept, m)
	return kept
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
