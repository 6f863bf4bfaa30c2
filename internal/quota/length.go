package quota

import "github.com/httpthrottle/throttle/internal/meter"

const (
	lengthSure = 16  // of a length: a part that small is not worth another refusal
	lengthOld  = 256 // of a length: by so much what refusals have shown counts less with each window
)

// A length is how long the windows of a quota are whose ends no response reports. What closed once is expected to close for as long: after
// the last request of a window, the next one is sent when windows are known to have ended. While that may be too late by more than
// a sixteenth, one request of each window tries earlier, halfway to the last time at which one was refused.
type length struct {
	begun meter.Instant // when the first request of this window was sent; 0: unknown
	shut  int64         // windows have not ended by then
	open  int64         // windows have ended by then; 0: unknown
	tried bool          // a request of this window was refused after the last one that was accepted
}

// began takes the first request of a window. If it was sent as soon as one could be, the window before has lasted until then; otherwise no
// longer. If that is earlier than before, windows may have become shorter, so the next try is earlier by more.
func (l *length) began(sent meter.Instant, awaited bool) {
	if took := sent - l.begun; l.begun > 0 && (awaited || took < l.open) {
		l.shut = max(0, min(l.shut, took)-2*max(0, l.open-took)-took/lengthOld)
		l.open = took
	}
	l.begun, l.tried = sent, false
}

// refused takes a request that asked whether the window has ended. It returns a part of the length of the windows before that is
// too small to be worth another refusal; 0: that length is not known.
func (l *length) refused(sent meter.Instant) (part int64) {
	if l.begun == 0 {
		return 0
	}
	part = l.open / lengthSure
	l.shut, l.tried = max(l.shut, sent-l.begun), true
	if l.shut >= l.open {
		l.open = 0
	}
	return part
}

// end returns when this window is expected to end, so that the next request asks; Never: nothing is known of that.
func (l *length) end() meter.Instant {
	switch {
	case l.begun == 0 || l.open == 0:
		return meter.Never
	case !l.tried && l.open-l.shut > l.open/lengthSure:
		return l.begun + l.shut + (l.open-l.shut)/2
	}
	return l.begun + l.open
}
