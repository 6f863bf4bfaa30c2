package quota

import (
	"slices"

	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	rounding = second     // by which times that servers report are wrong, or differ
	shortest = 2 * second // windows that are no longer than that may end at any time, as far as rounded times show
)

// A lateness is how much later than reported the windows of a quota end. It is never more than a second.
type lateness struct {
	lates [3]int64 // of the last windows; negative: earlier, by a second until they have shown it
	more  int32    // how much later than that this window ends, in ns, as refusals past the end show
	seen  int8     // windows that have shown it, up to three
	// followed says that this window began after one that was seen to end, so that it is known how long it lasts.
	followed bool
}

// newLateness returns that of a quota of which no window has ended yet.
func newLateness() lateness { return lateness{lates: [3]int64{-rounding, -rounding, -rounding}} }

// late returns how much later than reported the next window ends, as far as those before it show.
func (l *lateness) late() int64 {
	if l.seen == 0 {
		return 0
	}
	return slices.Max(l.lates[:])
}

// corrected returns when a window ends that is reported to end then; Never: unknown.
func (l *lateness) corrected(reset meter.Instant) meter.Instant {
	if reset == meter.Never {
		return reset
	}
	return meter.AddInstant(reset, min(l.late()+int64(l.more), rounding))
}

// certain reports whether as many windows have ended as are remembered. Until then, the next may end a second earlier.
func (l *lateness) certain() bool { return int(l.seen) == len(l.lates) }

// past notes a refusal after the end that was reported.
func (l *lateness) past() { l.more = int32(min(int64(l.more)+rounding/2, rounding)) }

// closed takes a window that ended between from and to, both relative to the end that was reported. What others have used up may have
// begun earlier than it seems, so of a shared window a refusal past the end shows nothing.
func (l *lateness) closed(from, to int64, shared bool) {
	least := l.late() + int64(l.more)
	if shared {
		least, l.more = 0, 0
	}
	l.seen = min(l.seen+1, int8(len(l.lates)))
	copy(l.lates[1:], l.lates[:])
	l.lates[0] = min(max(least, from), to, rounding)
}
