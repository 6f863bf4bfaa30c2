// Package keep has what is kept until it may be forgotten: when that is, and what goes to make room for another. It has no lock, clock or
// timer. The time is a parameter, and the owner forgets.
package keep

import (
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// An Instant is a moment on a monotonic clock, in nanoseconds.
type Instant = meter.Instant

const (
	lookAgain = int64(time.Minute) // at a thing, if nothing says when it may be forgotten
	evictLook = 64                 // places brought up to date in search of the thing that is as good as new first
)

// An Item is a thing that embeds an [Entry].
type Item interface {
	comparable
	entry() *Entry
}

// A Keeper holds the things that may be forgotten once: in idle those that may be forgotten to make room for another, ordered by when
// they are as good as new, and in busy those that may not, ordered by when they may. Use moves these instants later, but a request
// should not pay for a heap: the place of a thing is brought up to date when the Keeper looks at it, and busy ones are looked at again
// as soon as Free says so. The zero Keeper with Matters is ready for use.
type Keeper[T Item] struct {
	// Matters returns until when a thing must be kept, and from when it is as good as new.
	Matters    func(x T, now Instant) (must, full Instant)
	idle, busy heap[T]
}

// Len returns how many things are kept.
func (k *Keeper[T]) Len() int { return len(k.idle) + len(k.busy) }

// Add keeps a thing.
func (k *Keeper[T]) Add(x T, now Instant) {
	e := x.entry()
	e.busy, e.lookAt = false, now
	k.idle.push(x)
}

// Remove keeps a thing no more.
func (k *Keeper[T]) Remove(x T) {
	e := x.entry()
	k.heapOf(e).remove(x)
	e.busy = false
}

// Free notes that what made a thing busy may be over. It reports whether First may be earlier now.
func (k *Keeper[T]) Free(x T, now Instant) bool {
	e := x.entry()
	if !e.IsKept() || !e.busy || e.lookAt <= now {
		return false
	}
	e.lookAt = now
	k.busy.fix(x)
	return true
}

// First returns when Sweep has something to do; Never: nothing is kept.
func (k *Keeper[T]) First() Instant { return min(k.idle.first(), k.busy.first()) }

func (k *Keeper[T]) heapOf(e *Entry) *heap[T] {
	if e.busy {
		return &k.busy
	}
	return &k.idle
}

// put has a thing looked at again then.
func (k *Keeper[T]) put(x T, busy bool, at Instant) {
	e := x.entry()
	if busy == e.busy {
		e.lookAt = at
		k.heapOf(e).fix(x)
		return
	}
	k.heapOf(e).remove(x)
	e.busy, e.lookAt = busy, at
	k.heapOf(e).push(x)
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
	case k.busy.first() <= now:
		return k.busy[0], true
	case len(k.idle) > 0:
		return k.idle[0], true
	}
	return x, false
}

// Sweep removes things that are as good as new, and calls forget for each. It looks at most so many, and reports whether there may be
// more to look at.
func (k *Keeper[T]) Sweep(now Instant, most int, forget func(T)) (more bool) {
	for range most {
		x, ok := k.next(now)
		if !ok || x.entry().lookAt > now {
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

// Settle brings things up to date, at most so many, and reports whether Evict would find the thing to go, or that there is none. It is
// work that can be done in pieces before Evict.
func (k *Keeper[T]) Settle(now Instant, most int) (done bool) {
	for range most {
		x, ok := k.next(now)
		if !ok {
			return true
		}
		must, full := k.Matters(x, now)
		if must <= now && !x.entry().busy {
			return true
		}
		k.place(x, must, full, now)
	}
	return false
}

// Evict removes the thing that is as good as new first, except those that must be kept or that spare reports. It looks at most so
// many, and reports whether there was one.
func (k *Keeper[T]) Evict(now Instant, most int, spare func(T) bool) (x T, ok bool) {
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
		e := x.entry()
		must, full := k.Matters(x, now)
		switch {
		case spare(x):
			k.put(x, true, meter.Never)
			apart = append(apart, x)
		case must > now || e.busy || full > e.lookAt && moved < evictLook:
			moved++
			k.place(x, must, full, now)
		default:
			k.Remove(x)
			return x, true
		}
	}
	return x, false
}
