package throttle

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
type keeper struct{ idle, busy bucketHeap }

// bucketHeap orders buckets by when they are to be looked at.
type bucketHeap []*bucket

func (h bucketHeap) Len() int           { return len(h) }
func (h bucketHeap) Less(i, j int) bool { return h[i].lookAt < h[j].lookAt }
func (h bucketHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = int32(i), int32(j)
}
func (h *bucketHeap) Push(x any) { b := x.(*bucket); b.place = int32(len(*h)); *h = append(*h, b) }
func (h *bucketHeap) Pop() any {
	last := len(*h) - 1
	b := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	if cap(*h) > shrinkAbove && last < cap(*h)/4 {
		*h = slices.Clone(*h)
	}
	b.place = -1
	return b
}

// first returns when the first is to be looked at; never: there is none.
func (h bucketHeap) first() instant {
	if len(h) == 0 {
		return never
	}
	return h[0].lookAt
}

const (
	sweepEvery  = time.Second // buckets are forgotten no more often
	sweepMost   = 1024        // and no more of them are looked at under one lock
	sweepWith   = 4           // are looked at whenever buckets are made, so that forgetting keeps up
	lookAgain   = time.Minute // at a bucket of which it is not known when it may be forgotten
	evictLook   = 64          // places brought up to date in search of the bucket that is full first
	shrinkAbove = 1024        // entries; the room that fewer take is not worth giving back
)

func (k *keeper) size() int { return len(k.idle) + len(k.busy) }

func (k *keeper) add(b *bucket, now instant) {
	b.busy, b.lookAt = false, now
	heap.Push(&k.idle, b)
}

func (k *keeper) remove(b *bucket) {
	if b.busy {
		heap.Remove(&k.busy, int(b.place))
	} else {
		heap.Remove(&k.idle, int(b.place))
	}
	b.busy = false
}

// put has the bucket looked at again then.
func (k *keeper) put(b *bucket, busy bool, at instant) {
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
		heap.Fix(&k.busy, int(b.place))
	} else {
		heap.Fix(&k.idle, int(b.place))
	}
}

// keep puts the bucket where it belongs, given until when it must be kept and when it is as good as new.
func (k *keeper) keep(b *bucket, must, full, now instant) {
	switch later := now + int64(lookAgain); {
	case must > now:
		k.put(b, true, min(must, later))
	case full < never:
		k.put(b, false, full)
	default:
		k.put(b, false, later)
	}
}

// next returns the bucket that is to be looked at first, one that may have become idle before all others; nil: there is none.
func (k *keeper) next(now instant) *bucket {
	switch {
	case k.busy.first() <= now:
		return k.busy[0]
	case len(k.idle) > 0:
		return k.idle[0]
	}
	return nil
}

// matters returns until when the bucket must be kept, and from when it is as good as new.
func (b *bucket) matters(now instant) (must, full instant) {
	if b.hasLines() {
		return never, never
	}
	must, full = b.meter.Matters(now)
	if b.extra != nil {
		must = max(must, b.held)
	}
	return must, max(must, full)
}

// keeperOf returns where a bucket is kept. Gates are kept apart, so that neither take the room of the other.
func (l *core) keeperOf(b *bucket) *keeper {
	if b.limit == l.gate {
		return &l.gateKeys
	}
	return &l.keys
}

// keepLocked keeps a bucket until it is as good as new.
func (l *core) keepLocked(b *bucket, now instant) {
	b.limit.buckets[b.key], b.limit.keyed = b, true
	b.limit.peak = max(b.limit.peak, len(b.limit.buckets))
	l.keys.add(b, now)
	l.sweepLaterLocked(now, sweepEvery)
}

// freeLocked notes that what made a bucket busy may be over.
func (l *core) freeLocked(b *bucket, now instant) {
	if b.busy && b.lookAt > now {
		l.keeperOf(b).put(b, true, now)
		l.sweepLaterLocked(now, sweepEvery)
	}
}

// sweep forgets the buckets that are as good as new.
func (l *core) sweep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweepAt = never
	now := l.nowLocked()
	more := l.sweepLocked(&l.keys, sweepMost, now)
	if l.sweepLocked(&l.gateKeys, sweepMost, now) || more {
		l.sweepLaterLocked(now, time.Millisecond) // let others have the lock, then go on
		return
	}
	l.sweepLaterLocked(now, sweepEvery)
}

// sweepLocked looks at the first most buckets that are to be looked at, and reports whether there may be more of them.
func (l *core) sweepLocked(k *keeper, most int, now instant) (more bool) {
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
func (l *core) sweepLaterLocked(now instant, pause time.Duration) {
	first := min(l.keys.idle.first(), l.keys.busy.first(), l.gateKeys.idle.first(), l.gateKeys.busy.first())
	if first == never {
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
func (l *core) crowdedLocked(charges []charge) bool {
	if l.keys.size() < l.maxKeys || !slices.ContainsFunc(charges, func(c charge) bool { return !c.findLocked() }) {
		return false
	}
	now := l.nowLocked()
	for range sweepMost {
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
func (l *core) evictLocked(now instant, charges []charge, k *keeper) bool {
	var apart []*bucket
	defer func() {
		for _, b := range apart {
			k.put(b, true, now)
		}
	}()
	moved := 0
	for range sweepMost {
		b := k.next(now)
		if b == nil {
			return false
		}
		must, full := b.matters(now)
		switch {
		case slices.ContainsFunc(charges, func(c charge) bool { return c.bucket == b }):
			k.put(b, true, never)
			apart = append(apart, b)
		case must > now || b.busy || full > b.lookAt && moved < evictLook:
			moved++
			k.keep(b, must, full, now)
		default:
			b.limit.counts.evicted++
			l.forgetLocked(b)
			return true
		}
	}
	return false
}

func (l *core) forgetLocked(b *bucket) {
	l.keeperOf(b).remove(b)
	if b.extra != nil && b.timer != nil {
		b.timer.Stop()
		b.armed = never
	}
	if g, ok := b.meter.(*gateBucket); ok {
		l.forgetGateLocked(b, g)
		return
	}
	delete(b.limit.buckets, b.key)
	b.limit.buckets = shrunk(b.limit.buckets, &b.limit.peak)
}

// shrunk returns m, or a copy of it when few are left of the most that it ever had: a Go map never gives memory back. The copy
// is made under the lock, and therefore only if it is small.
func shrunk[K comparable, V any](m map[K]V, peak *int) map[K]V {
	if len(m) > shrinkAbove || len(m) > *peak/4 || *peak <= shrinkAbove {
		return m
	}
	*peak = len(m)
	kept := make(map[K]V, len(m))
	maps.Copy(kept, m)
	return kept
}

// maxHolds is how many holds of keys without a bucket a limit remembers.
const maxHolds = 1024

// keepHold remembers a hold of a key for whose bucket there is no room. If there is no room for the hold either, all keys are
// held for which a bucket is yet to be made, and it returns false: a hold that is too wide is safer than none.
func (li *limit) keepHold(key string, until, now instant) bool {
	if _, ok := li.holds[key]; !ok && len(li.holds) == maxHolds {
		maps.DeleteFunc(li.holds, func(_ string, until instant) bool { return until <= now })
		if len(li.holds) == maxHolds {
			li.holdNew = max(li.holdNew, until)
			li.heldMost = max(li.heldMost, until)
			return false
		}
	}
	if li.holds == nil {
		li.holds = make(map[string]instant)
	}
	li.holds[key] = max(li.holds[key], until)
	li.heldMost = max(li.heldMost, until)
	return true
}

// takeHold returns until when a new bucket of that key is held.
func (li *limit) takeHold(key string) instant {
	until := max(li.holds[key], li.holdNew)
	delete(li.holds, key)
	return until
}
