package quota

import "github.com/httpthrottle/throttle/internal/meter"

const (
	longestBack = 6               // doublings of a backoff of 1 s
	mostRow     = longestBack + 4 // refusals in a row that are counted
)

// A row counts refusals in a row, each of a request that was sent after the wait of the one before. From the second on, requests ask one by
// one whether the server accepts one.
//
// A cycle lasts from the first request that is accepted after one row until the first that is after the next. If the server counts in
// windows, it begins in each of them when the server accepts requests again. So a backoff ends no later in a cycle than an earlier cycle
// has ended.
type row struct {
	opened   meter.Instant // when this cycle began; 0: no request was accepted
	cycle    int64         // after which an earlier cycle was over, and none since was not; 0: unknown
	asking   bool          // one request a second is sent until one is accepted
	refusals int8
}

// add counts a refusal.
func (r *row) add(sent meter.Instant) {
	r.refusals = min(r.refusals+1, mostRow)
	r.asking = r.asking || r.refusals > 1
	if sent-r.opened >= r.cycle {
		r.cycle = 0
	}
}

// accepted ends the row, and the cycle if there was one.
func (r *row) accepted(sent meter.Instant) {
	if r.refusals == 0 && r.opened > 0 {
		return
	}
	if took := sent - r.opened; r.opened > 0 && (r.cycle == 0 || took < r.cycle) {
		r.cycle = took
	}
	r.opened, r.refusals = sent, 0
}

// atMost returns the wait from now on, or until this cycle is expected to end if that is earlier.
func (r *row) atMost(now meter.Instant, wait int64) int64 {
	if left := r.opened + r.cycle - now; left > 0 {
		return min(wait, left)
	}
	return wait
}
