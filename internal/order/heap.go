package order

import "github.com/httpthrottle/throttle/internal/heap"

// A key is the place of something in an order: by major, then by rank, then by the order of arrival.
type key struct {
	major int64
	rank  Instant
	seq   uint64
}

// Before implements [heap.Key].
func (k key) Before(other key) bool {
	switch {
	case k.major != other.major:
		return k.major < other.major
	case k.rank != other.rank:
		return k.rank < other.rank
	}
	return k.seq < other.seq
}

type (
	entry                    = heap.Entry[key]
	heapOf[T heap.Item[key]] = heap.Heap[T, key]
)
