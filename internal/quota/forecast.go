package quota

import (
	"math"

	"github.com/httpthrottle/throttle/internal/meter"
)

const spreadOver = 10 * second // the longest time that what is left of a quota is spread over

// bounds reports whether the quota may have less than n left besides what is in flight.
func (q *quota) bounds(n int64) bool { return q.believed() && q.free() < n }

// believed reports whether what responses report of the quota bounds requests.
func (q *quota) believed() bool { return q.served && !q.doubt.on }

// next returns when need requests can leave, not before from. sure is false if that depends on responses that have not come.
func (q *quota) next(from meter.Instant, need int64) (at meter.Instant, sure bool) {
	at = max(from, q.held)
	switch {
	case !q.believed() || q.left == meter.MaxCount, !q.scarce && (q.reserve == 0 || q.left > q.reserve) && q.account.trusted():
		return at, true
	case !q.counted && !q.empty():
		return at, true
	case !q.counted && q.reset < meter.Never:
		at = max(at, min(q.end(), meter.AddInstant(q.leftAt, longestHold)))
		return at, at >= q.end() || q.inFlight == 0
	case q.counted && q.refills() > 0:
		return q.refilled(at, need), true
	case q.counted && !q.bounds(need):
		return q.spread(at), true
	case q.empty():
		return max(at, q.try), q.inFlight == 0
	case q.reset < meter.Never:
		at = max(at, q.end())
	}
	return at, q.inFlight == 0
}

// over returns the time over which what is left is spread.
func (q *quota) over() int64 {
	if end := q.end(); end > q.last && end < meter.Never {
		d := end - q.last
		if int(q.seen) < len(q.lates) { // it may end a second earlier
			d = max(d/2, d-second)
		}
		return min(d, spreadOver)
	}
	return second
}

// spread returns when the next request leaves of what is left until the end.
func (q *quota) spread(at meter.Instant) meter.Instant {
	if !q.scarce || q.end() <= at {
		return at
	}
	n := q.free()
	if int(q.seen) == len(q.lates) { // else the last one leaves at the earliest end there may be, and shows whether it is one
		n++
	}
	return max(at, meter.AddInstant(q.last, q.over()/max(1, n)))
}

// refilled returns when a quota that refills has enough for need requests. They leave a little slower than it refills, and use what is left
// besides.
func (q *quota) refilled(at meter.Instant, need int64) meter.Instant {
	rate := q.refills()
	level := float64(q.free()) + rate*float64(max(0, at-q.newest.sent))
	level = min(level, float64(q.most)) - float64(need)
	rate = flowUsed*rate + max(0, level)/float64(max(q.over(), second))
	return max(at, meter.AddInstant(q.last, int64(min(1/rate, float64(max(sparsest, q.backoff))))))
}

// room returns how many requests per second the quota can be seen to allow now; +Inf: it does not say.
func (q *quota) room(now meter.Instant) float64 {
	if !q.counted || !q.believed() || q.left == meter.MaxCount {
		return math.Inf(1)
	}
	rate, over := q.refills(), spreadOver
	if end := q.end(); end < meter.Never {
		over = max(end-now, second)
	}
	if rate > 0 {
		over = min(over, sparsest)
	}
	return 1e9 * (rate + float64(max(0, q.left-q.reserve))/float64(over))
}
