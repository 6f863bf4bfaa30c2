package quota

import "github.com/httpthrottle/throttle/internal/meter"

const (
	lengthSure   = 16  // of a length: a part that small is not worth another refusal
	lengthOld    = 256 // of a length: by so much what refusals have shown counts less with each window
	lengthDoubts = 8   // doublings of that, after which it counts nothing
)

// A length is how long the windows of a quota are whose ends no response reports. What closed once is expected to close for as long: after
// the last request of a window, the next one is sent when windows are known to have ended. While that may be too late by more than
// a sixteenth, one request of each window tries earlier, halfway to the time at which the window has not ended.
//
// A window begins with its first request, until one ends later than those before it did: then windows begin with the clock. Such a window
// has begun after the last request that was refused, by a time that differs from window to window. So the length is counted from the
// earliest time at which a window may have begun, and over as many windows as are known to have the same.
type length struct {
	opening
	first   opening       // of an earlier window
	shut    int64         // windows have not ended by then
	open    int64         // windows have ended by then; 0: unknown
	tried   meter.Instant // when a request of this window was refused after the last one that was accepted; 0: none was
	windows int32         // from first to this one; 0: there is no first
	clock   bool          // one was longer than those before, so they begin with the clock
	early   int8          // windows since the last refusal that had ended by an early try
}

// An opening is when a window began.
type opening struct {
	after meter.Instant // the earliest time at which it may have begun
	begun meter.Instant // when its first request was sent; 0: unknown
}

// began takes the first request of a window. If it was sent as soon as one could be, the window before has lasted until then; otherwise no
// longer. The more windows in a row end before an early try, the less what refusals have shown counts: windows may have become shorter.
func (l *length) began(sent meter.Instant, awaited bool) {
	this := opening{sent, sent}
	if l.clock {
		this.after = min(max(l.after+l.shut, l.tried), sent)
	}
	if took := sent - l.begun; l.begun > 0 && (awaited || sent-l.after < l.open) {
		n := int64(l.windows) + 1
		if n == 1 || sent-l.after < (sent-l.first.after)/n { // those before were longer
			l.first, n = l.opening, 1
		}
		l.windows = int32(n)
		open := (sent - l.first.after + n - 1) / n
		if l.open > 0 {
			if took < l.open {
				l.early = min(l.early+1, lengthDoubts)
			}
			open = min(open, l.open)
			l.shut = max(0, min(l.shut, took)-2*(l.open-open)-took/lengthOld<<l.early)
		}
		l.open = open
		if l.tried > 0 {
			l.shut = max(l.shut, min((l.tried-l.first.begun)/n, l.open))
		}
	} else {
		this.after, l.windows = max(this.after, sent-l.open), 0
	}
	l.opening, l.tried = this, 0
}

// refused takes a request that asked whether the window has ended. It returns a part of the length of the windows before that is
// too small to be worth another refusal; 0: that length is not known.
func (l *length) refused(sent meter.Instant) (part int64) {
	if l.begun == 0 {
		return 0
	}
	part = l.open / lengthSure
	l.shut, l.tried, l.early = max(l.shut, sent-l.begun), sent, 0
	if l.shut >= l.open {
		l.clock = l.clock || l.open > 0
		l.open, l.windows = 0, 0
	}
	return part
}

// end returns when this window is expected to end, so that the next request asks; Never: nothing is known of that. It works for nil.
func (l *length) end() meter.Instant {
	if l == nil || l.tried == 0 {
		return l.ask()
	}
	return l.last()
}

// ask returns when a request may ask although the window may last longer; otherwise it is as end.
func (l *length) ask() meter.Instant {
	last := l.last()
	if last == meter.Never {
		return last
	}
	if soonest := max(l.after+l.shut, l.begun); last-soonest > l.open/lengthSure {
		return soonest + (last-soonest)/2
	}
	return last
}

// last returns when the window has ended for sure.
func (l *length) last() meter.Instant {
	if l == nil || l.begun == 0 || l.open == 0 {
		return meter.Never
	}
	return l.begun + l.open
}
