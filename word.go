package throttle

import (
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
)

// A word is what a server said about its limits in one response.
type word struct {
	limited  bool
	host     bool          // it concerns all requests to the host, whatever their keys
	global   bool          // it concerns more than the quotas that it names
	wait     time.Duration // until the server would accept the request; 0: it did not say
	quotas   []quotaWord
	after    *word   // what the headers of the same response said, if this is from its body
	from, to instant // the end of the hold before and after it
}

// A quotaWord is what a server said about one of its quotas.
type quotaWord struct {
	name, unit string
	limit      int64 // -1: not known
	left       int64
	known      bool // left is
	ends       bool // reset is known
	violated   bool // the request exceeded it
	advisory   bool // the server does not enforce it
	reset      time.Duration
}

// A telling is a word at an instant.
type telling struct {
	tells     []quota.Tell
	named     bool // it names the quota that was exceeded
	explained bool // an empty quota explains the refusal
}

// tellLocked returns what a word says about quotas now.
func (l *core) tellLocked(w *word, now instant) (t telling) {
	for i := range w.quotas {
		q := w.quotas[i]
		if w.limited && w.wait > 0 && (q.left > 0 || !q.known) && q.violated {
			q.left, q.known, q.reset, q.ends = 0, true, w.wait, true // not enough is nothing, for as long as the server says
		}
		empty := w.limited && q.left <= 0 && q.name != anyQuota
		if !q.known || q.advisory || !q.ends && !empty {
			continue // nothing to count, or it is not known until when
		}
		told := quota.Tell{Name: q.name, Unit: q.unit, Left: q.left, Limit: q.limit, Counted: q.unit == "" || q.unit == "requests"}
		if q.ends {
			told.Reset = meter.AddInstant(now, int64(q.reset))
		}
		if told.Limit > 0 {
			told.Reserve = l.reserveLocked(told.Limit)
		}
		if w.limited && q.left <= 0 {
			t.explained, t.named = true, t.named || empty
			told.Refused, told.Reset = true, max(told.Reset, meter.AddInstant(now, int64(w.wait)))
		}
		t.tells = append(t.tells, told)
	}
	return t
}
