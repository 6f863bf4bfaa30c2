package quota

import (
	"math"

	"github.com/httpthrottle/throttle/internal/meter"
)

// others returns how many requests of other clients are counted for each of the client's, as far as responses show.
func (q *quota) others() int64 { return q.flow.others() }

// shared reports whether others use the quota. A quarter of a request for each of the client's may be by chance.
func (q *quota) shared() bool { return q.flow.foreign() > 1.0/4 }

// slower returns how many times slower the client sends than if it were alone. If each client were slower by what all use for each of its
// requests, it would send in proportion to its share, and all shares would stay as they are. With the root, a client with a small share
// sends more than that, and one with a large share less, until all are the same.
func (q *quota) slower() float64 {
	if !q.shared() {
		return 1
	}
	return math.Sqrt(1 + q.flow.foreign())
}

// turn returns the time between two requests of the client at the beginning of a window.
func (q *quota) turn() int64 {
	return int64(q.slower() * float64(min(q.lasts(), spreadOver)) / float64(max(1, q.most)))
}

// withheld returns how much of what is left is for others. The last requests are: clients that each see one left send several.
func (q *quota) withheld() int64 { return q.reserve + min(q.others(), q.most/8) }

// whole returns how much comes back at once if it is all of a window, as a response to a request shows that was sent then. Others may have
// used some of it before.
func (q *quota) whole(sent meter.Instant) int64 {
	if q.shared() && sent >= q.end() {
		return max(2, (q.most-q.left)/4)
	}
	return max(2, (q.most-q.left)/2)
}
