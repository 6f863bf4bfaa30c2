package quota

import "github.com/httpthrottle/throttle/internal/meter"

// A window is what responses show of the time over which a server counts: how much is left, and when it ends.
//
//   - The response to the latest request says what is left. Responses to earlier requests can only lower it.
//   - The window ends at the earliest time that was reported for it, corrected by its lateness.
//   - What is left is never more than the limit, where that is known, nor more than most.
type window struct {
	lateness
	length *length       // nil: ends are reported
	limit  int64         // -1: unknown
	most   int64         // the limit or, if that is unknown, the most that was left
	left   int64         // MaxCount: unknown
	leftAt meter.Instant // when a response reported it
	newest struct {      // the latest request that has a response
		n    int64 // its number
		sent meter.Instant
	}
	low   int64         // the least that was left in this window
	span  int64         // from its first response to the end that this reported; 0: none did
	reset meter.Instant // the earliest end that was reported for it; Never: unknown
}

// end returns when the window ends, as is reported or else expected; Never: unknown.
func (w *window) end() meter.Instant {
	if w.reset == meter.Never {
		return w.length.end()
	}
	return w.corrected(w.reset)
}

// lasts returns how long windows last, as far as responses show; 0: it is unknown.
func (w *window) lasts() int64 {
	if w.length != nil {
		return w.length.open
	}
	return w.span
}

// resize takes the limit that a response reports, if it does, and returns what is left by it. It reports whether it is another
// quota, of the same name.
func (w *window) resize(c *Figures) (left int64, other bool) {
	left = min(max(c.Left, 0), meter.MaxCount)
	if limit := min(c.Limit, meter.MaxCount); limit >= 0 {
		other = w.limit >= 0 && w.limit != limit
		w.limit, w.most = limit, limit
	}
	if w.limit >= 0 {
		left = min(left, w.limit)
	}
	w.most = max(w.most, left)
	return left, other
}

// ends takes the end that the newest response reports, which was left at sent. While nothing is left, no new window is believed. Others
// began a short one some time ago: a quarter of what one alone would take for what is used.
func (w *window) ends(now, sent meter.Instant, reset meter.Instant, begun bool, others bool) {
	switch {
	case w.reset == meter.Never, w.end() <= sent && begun:
		w.reset, w.more, w.span = reset, 0, max(0, reset-now)
		if used := max(0, w.most-1-w.left); reset-now <= shortest && others {
			w.reset -= int64(float64(used) / float64(w.most) * float64(reset-now) / 4)
		}
	case w.end() > sent:
		w.reset = min(w.reset, reset)
	}
}
