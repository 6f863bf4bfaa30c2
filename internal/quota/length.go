package quota

import "github.com/httpthrottle/throttle/internal/meter"

// A length is how long the windows of a quota are at most. Many servers tell the reset in whole seconds, rounded up, or a
// second late, and a client that believes them waits for that long in each window. The length is learned from two windows
// that were seen to begin.
type length struct {
	most   int64         // maxCount: unknown
	sentAt meter.Instant // when the last request left that has a response
	at     meter.Instant // when that response came; -1: there was none
	left   int64         // what it told
	opened meter.Instant // the last window that was seen to begin did so after that; -1: none was
}

func newLength() length { return length{most: meter.MaxCount, at: -1, opened: -1} }

// hear takes what is left, as told by the response to a request that left at sentAt.
func (l *length) hear(now, sentAt meter.Instant, left, limit int64) {
	if sentAt < l.at {
		return // it is not certain which of the two was counted first
	}
	if l.at >= 0 && jumped(l.left, left, limit) {
		if l.opened >= 0 {
			l.most = min(l.most, now-l.opened)
		}
		l.opened = l.sentAt
	}
	l.sentAt, l.at, l.left = sentAt, now, left
}

// jumped reports whether what is left has risen to nearly the whole limit at once. That shows a new window: in a sliding log
// or a token bucket, what is left rises slowly.
func jumped(from, left, limit int64) bool {
	return limit > 0 && left >= limit-limit/8 && left-from >= max(1, limit/4)
}
