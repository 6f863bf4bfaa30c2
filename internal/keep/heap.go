package keep

import (
	"maps"
	"slices"

	"github.com/httpthrottle/throttle/internal/meter"
)

// An Entry is what a thing knows of its place in a [Keeper]. The zero Entry is of a thing that is not kept.
type Entry struct {
	lookAt Instant // when its Keeper is to look at it
	place  int32   // in its heap, counted from 1; 0: it is not kept
	busy   bool    // it may not be forgotten, as far as its Keeper knows
}

func (e *Entry) entry() *Entry { return e }

// IsKept reports whether a Keeper holds the thing.
func (e *Entry) IsKept() bool { return e.place > 0 }

// A heap has the thing on top that is to be looked at first.
type heap[T Item] []T

// first returns when the first is to be looked at; never: there is none.
func (h heap[T]) first() Instant {
	if len(h) == 0 {
		return meter.Never
	}
	return h[0].entry().lookAt
}

func (h *heap[T]) push(x T) {
	*h = append(*h, x)
	x.entry().place = int32(len(*h))
	h.up(len(*h) - 1)
}

func (h *heap[T]) remove(x T) {
	e := x.entry()
	all := *h
	i, last := int(e.place)-1, len(all)-1
	all.swap(i, last)
	var none T
	all[last], *h = none, all[:last]
	e.place = 0
	if i < last {
		h.up(i)
		h.down(i)
	}
	if cap(*h) > ShrinkAbove && last < cap(*h)/4 {
		*h = slices.Clone(*h)
	}
}

// fix puts x in its place after its instant has changed.
func (h heap[T]) fix(x T) {
	e := x.entry()
	h.up(int(e.place) - 1)
	h.down(int(e.place) - 1)
}

func (h heap[T]) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].entry().place, h[j].entry().place = int32(i)+1, int32(j)+1
}

func (h heap[T]) isBefore(i, j int) bool { return h[i].entry().lookAt < h[j].entry().lookAt }

func (h heap[T]) up(i int) {
	for i > 0 && h.isBefore(i, (i-1)/2) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (h heap[T]) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(h); child++ {
			if h.isBefore(child, least) {
				least = child
			}
		}
		if least == i {
			return
		}
		h.swap(i, least)
		i = least
	}
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
