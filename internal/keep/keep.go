// Package keep has what is kept until it may be forgotten: when that is, and what goes to make room for another. It has no lock,
// clock or timer. The time is a parameter, and the owner forgets.
package keep

import (
	"maps"
	"time"

	"github.com/httpthrottle/throttle/internal/heap"
	"github.com/httpthrottle/throttle/internal/meter"
)

// An Instant is a moment on a monotonic clock, in nanoseconds.
type Instant = meter.Instant

const (
	lookAgain = int64(time.Minute) // at a thing, if nothing says when it may be forgotten
	evictLook = 64                 // places brought up to date in search of the thing that is as good as new first
)

// An instant is when a Keeper is to look at a thing.
type instant Instant

// Before implements [heap.Key].
func (at instant) Before(other instant) bool { return at < other }

// An Entry is what a thing knows of its place in a [Keeper]. The zero Entry is of a thing that is not kept.
type Entry struct{ heap.Entry[instant] }

// IsKept reports whether a Keeper holds the thing.
func (e *Entry) IsKept() bool { return e.IsIn() }

// lookAt returns when the Keeper is to look at the thing.
func (e *Entry) lookAt() Instant { return Instant(e.Key()) }

// An Item is a thing that embeds an [Entry].
type Item interface {
	heap.Item[instant]
	lookAt() Instant
}

// A Keeper holds the things that may be forgotten once: in idle those that may be forgotten to make room for another, ordered by
// when they are as good as new, and in busy those that may not, ordered by when they may. Use moves these instants later, but a
// request should not pay for a heap: the place of a thing is brought up to date when the Keeper looks at it, and busy ones are
// looked at again as soon as Free says so. The zero Keeper with Matters is ready for use.
type Keeper[T Item] struct {
	// Matters returns until when a thing must be kept, and from when it is as good as new.
	Matters func(x T, now Instant) (must, full Instant)
	// Yields returns until when a thing must be kept that may be forgotten all the same if there is no other way to make room. If
	// Yields is nil, there is no such thing.
	Yields     func(x T, now Instant) (until Instant, ok bool)
	idle, busy heap.Heap[T, instant]
	turn       int // where yield looks next
}

// Len returns how many things are kept.
func (k *Keeper[T]) Len() int { return len(k.idle) + len(k.busy) }

// Add keeps a thing.
func (k *Keeper[T]) Add(x T, now Instant) {
	k.idle.Put(x, instant(now))
}

// Remove keeps a thing no more.
func (k *Keeper[T]) Remove(x T) {
	k.heapOf(x).Remove(x)
}

// Free notes that what made a thing busy may be over. It reports whether First may be earlier now.
func (k *Keeper[T]) Free(x T, now Instant) bool {
	if !k.busy.Has(x) || x.lookAt() <= now {
		return false
	}
	k.busy.Put(x, instant(now))
	return true
}

// First returns when Sweep has something to do; Never: nothing is kept.
func (k *Keeper[T]) First() Instant { return min(first(k.idle), first(k.busy)) }

// first returns when the first thing is to be looked at; Never: there is none.
func first[T Item](h heap.Heap[T, instant]) Instant {
	if len(h) == 0 {
		return meter.Never
	}
	return h[0].lookAt()
}

func (k *Keeper[T]) heapOf(x T) *heap.Heap[T, instant] {
	if k.busy.Has(x) {
		return &k.busy
	}
	return &k.idle
}

// put has a thing looked at again then.
func (k *Keeper[T]) put(x T, busy bool, at Instant) {
	from, to := k.heapOf(x), &k.idle
	if busy {
		to = &k.busy
	}
	if from != to {
		from.Remove(x)
	}
	to.Put(x, instant(at))
}

// place puts a thing where it belongs.
func (k *Keeper[T]) place(x T, must, full, now Instant) {
	switch later := now + lookAgain; {
	case must > now:
		k.put(x, true, min(must, later))
	case full < meter.Never:
		k.put(x, false, full)
	default:
		k.put(x, false, later)
	}
}

// next returns the thing that is to be looked at first, one that may have become idle before all others.
func (k *Keeper[T]) next(now Instant) (x T, ok bool) {
	switch {
	case first(k.busy) <= now:
		return k.busy[0], true
	case len(k.idle) > 0:
		return k.idle[0], true
	}
	return x, false
}

// Sweep removes things that are as good as new, and calls forget for each. It looks at no more than most of them, and reports whether there
// may be more to look at.
func (k *Keeper[T]) Sweep(now Instant, most int, forget func(T)) (more bool) {
	for range most {
		x, ok := k.next(now)
		if !ok || x.lookAt() > now {
			return false
		}
		if must, full := k.Matters(x, now); full <= now {
			k.Remove(x)
			forget(x)
		} else {
			k.place(x, must, full, now)
		}
	}
	return true
}

// Prepare updates no more than most things. It reports whether Evict would now find the thing to remove, or that there is none.
// It is work that can be done in pieces before Evict.
func (k *Keeper[T]) Prepare(now Instant, most int) (done bool) {
	for range most {
		x, ok := k.next(now)
		if !ok {
			return true
		}
		must, full := k.Matters(x, now)
		if must <= now && !k.busy.Has(x) {
			return true
		}
		k.place(x, must, full, now)
	}
	return false
}

// Evict removes the thing that is as good as new first, except those that must be kept or that spare reports. If there is none,
// it removes one that Yields. It looks at a bounded number each time, and reports whether there was one.
func (k *Keeper[T]) Evict(now Instant, most int, spare func(T) bool) (x T, ok bool) {
	if x, ok = k.evict(now, most, spare); !ok && k.Yields != nil {
		x, ok = k.yield(now, most, spare)
	}
	return x, ok
}

// yield removes, of the things that may be forgotten all the same, the one that must be kept the longest. If there are more than it
// looks at, it continues with the others next time.
func (k *Keeper[T]) yield(now Instant, most int, spare func(T) bool) (x T, ok bool) {
	var last Instant
	for range min(most, len(k.busy)) {
		k.turn = (k.turn + 1) % len(k.busy)
		y := k.busy[k.turn]
		if until, yields := k.Yields(y, now); yields && (!ok || until > last) && !spare(y) {
			x, last, ok = y, until, true
		}
	}
	if ok {
		k.Remove(x)
	}
	return x, ok
}

func (k *Keeper[T]) evict(now Instant, most int, spare func(T) bool) (x T, ok bool) {
	var apart []T
	defer func() {
		for _, x := range apart {
			k.put(x, true, now)
		}
	}()
	moved := 0
	for range most {
		x, ok := k.next(now)
		if !ok {
			return x, false
		}
		must, full := k.Matters(x, now)
		switch {
		case spare(x):
			k.put(x, true, meter.Never)
			apart = append(apart, x)
		case must > now || k.busy.Has(x) || full > x.lookAt() && moved < evictLook:
			moved++
			k.place(x, must, full, now)
		default:
			k.Remove(x)
			return x, true
		}
	}
	return x, false
}

// ShrinkAbove is how many entries take room that is worth giving back.
const ShrinkAbove = 1024

// Shrunk returns m, or a copy of it when few are left of the most that it ever had: a Go map never gives memory back. The copy
// is made under the lock of the owner, and therefore only if it is small.
func Shrunk[K comparable, V any](m map[K]V, peak *int) map[K]V {
	if len(m) > ShrinkAbove || len(m) > *peak/4 || *peak <= ShrinkAbove {
		return m
	}
	*peak = len(m)
	kept := make(map[K]V, len(m))
	maps.Copy(kept, m)
	return kept
}
