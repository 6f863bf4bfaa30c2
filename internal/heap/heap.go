// Package heap has a heap in which a thing knows its place, so that it can be moved and removed.
package heap

import "slices"

// A Key says what comes first.
type Key[K any] interface{ Before(other K) bool }

// An Entry is what a thing knows of its place in a heap. The zero Entry is of a thing that is in none.
type Entry[K Key[K]] struct {
	key   K
	place int32 // counted from 1; 0: it is in no heap
}

func (e *Entry[K]) entry() *Entry[K] { return e }

// Key returns the key that the thing was given last.
func (e *Entry[K]) Key() K { return e.key }

// IsIn reports whether the thing is in a heap.
func (e *Entry[K]) IsIn() bool { return e.place > 0 }

// An Item is a thing that embeds an [Entry]. It is in one heap at most.
type Item[K Key[K]] interface {
	comparable
	entry() *Entry[K]
}

// A Heap has the thing on top whose key comes first. The zero Heap is empty.
type Heap[T Item[K], K Key[K]] []T

// shrinkAbove is how many places take room that is worth giving back.
const shrinkAbove = 1024

// Top returns the first thing; the zero T if the heap is empty.
func (h Heap[T, K]) Top() (first T) {
	if len(h) > 0 {
		first = h[0]
	}
	return first
}

// Has reports whether x is in this heap.
func (h Heap[T, K]) Has(x T) bool {
	i := int(x.entry().place) - 1
	return i >= 0 && i < len(h) && h[i] == x
}

// Put adds x with that key, or moves it if it is there.
func (h *Heap[T, K]) Put(x T, k K) {
	e := x.entry()
	e.key = k
	if !e.IsIn() {
		*h = append(*h, x)
		e.place = int32(len(*h))
	}
	h.fix(int(e.place) - 1)
}

// Remove takes x out, if it is in a heap.
func (h *Heap[T, K]) Remove(x T) {
	e := x.entry()
	if !e.IsIn() {
		return
	}
	all, none := *h, *new(T)
	i, last := int(e.place)-1, len(all)-1
	all.swap(i, last)
	all[last], *h = none, all[:last]
	e.place = 0
	if i < last {
		h.fix(i)
	}
	if cap(*h) > shrinkAbove && last < cap(*h)/4 {
		*h = slices.Clone(*h)
	}
}

// Clear takes out everything.
func (h *Heap[T, K]) Clear() {
	for _, x := range *h {
		x.entry().place = 0
	}
	clear(*h)
	*h = (*h)[:0]
}

func (h Heap[T, K]) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].entry().place, h[j].entry().place = int32(i)+1, int32(j)+1
}

func (h Heap[T, K]) isBefore(i, j int) bool { return h[i].entry().key.Before(h[j].entry().key) }

// fix moves the i-th thing up or down to where it belongs.
func (h Heap[T, K]) fix(i int) {
	for i > 0 && h.isBefore(i, (i-1)/2) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
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
