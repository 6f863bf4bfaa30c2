package quota

import (
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/server"
)

const firstRetry = second / 32 // after a request was refused although the window should have ended

// A retry is when the next request asks whether something is left, after the last one of a window.
type retry struct {
	try     meter.Instant
	backoff int64 // between such requests after the end
}

// accepted takes a response to an accepted request: the next backoff is shorter.
func (r *retry) accepted() { r.backoff /= 4 }

// again sets when a request tries again after one was refused for a reason that is not known.
func (r *retry) again(now meter.Instant, chance float64) {
	r.backoff = max(min(max(2*r.backoff, firstRetry), server.Longest), r.backoff)
	r.try = r.after(now, chance)
}

// after returns a time a backoff after from, less a random part: at regular times, others might always have used up the window.
func (r *retry) after(from meter.Instant, chance float64) meter.Instant {
	return meter.AddInstant(from, r.backoff-int64(chance*float64(min(r.backoff/2, second))))
}
