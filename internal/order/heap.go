package order

// A key is the place of something in an order: by major, then by rank, then by the order of arrival.
type key struct {
	major int64
	rank  Instant
	seq   uint64
}

func (k key) before(other key) bool {
	switch {
	case k.major != other.major:
		return k.major < other.major
	case k.rank != other.rank:
		return k.rank < other.rank
	}
	return k.seq < other.seq
}

// An entry is what a thing in a heap knows of its place there.
type entry struct {
	key   key
	place int // counted from 1; 0: it is in no heap
}

func (e *entry) at() *entry { return e }

// isIn reports whether it is in a heap.
func (e *entry) isIn() bool { return e.place > 0 }

// A heap has the thing with the least key on top. A thing knows its place, so that it can be moved and removed.
type heap[T interface{ at() *entry }] []T

// top returns the first; the zero T, which is nil here, if the heap is empty.
func (h heap[T]) top() (first T) {
	if len(h) > 0 {
		first = h[0]
	}
	return first
}

func (h *heap[T]) push(x T, k key) {
	*h = append(*h, x)
	x.at().key, x.at().place = k, len(*h)
	h.up(len(*h) - 1)
}

// move gives x another key.
func (h heap[T]) move(x T, k key) {
	e := x.at()
	e.key = k
	h.up(e.place - 1)
	h.down(e.place - 1)
}

// remove takes x out, if it is there.
func (h *heap[T]) remove(x T) {
	e := x.at()
	if !e.isIn() {
		return
	}
	all := *h
	i, last := e.place-1, len(all)-1
	all.swap(i, last)
	var none T
	all[last], *h = none, all[:last]
	e.place = 0
	if i < last {
		h.up(i)
		h.down(i)
	}
}

func (h heap[T]) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at().place, h[j].at().place = i+1, j+1
}

func (h heap[T]) isBefore(i, j int) bool { return h[i].at().key.before(h[j].at().key) }

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
