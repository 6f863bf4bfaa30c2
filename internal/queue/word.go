package queue

import (
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
)

// A Word is what a server reported about its limits in one response.
type Word struct {
	Limited  bool
	Host     bool          // it concerns all requests to the host, whatever their keys
	Global   bool          // it concerns more than the quotas that it names
	Wait     time.Duration // until the server would accept the request; 0: it did not say
	Quotas   []QuotaWord
	After    *Word   // what the headers of the same response said, if this is from its body
	from, to Instant // the end of the hold before and after it
}

// A QuotaWord is what a server reported about one of its quotas.
type QuotaWord struct {
	Name, Unit string
	Limit      int64 // -1: not known
	Left       int64
	Known      bool // left is
	Ends       bool // reset is known
	Violated   bool // the request exceeded it
	Advisory   bool // the server does not enforce it
	Reset      time.Duration
}

// A telling is a word at an instant.
type telling struct {
	tells     []quota.Tell
	named     bool // it names the quota that was exceeded
	explained bool // an empty quota explains the refusal
}

// tellLocked returns what a word says about quotas now.
func (l *Core) tellLocked(w *Word, now Instant) (t telling) {
	for i := range w.Quotas {
		q := w.Quotas[i]
		if w.Limited && w.Wait > 0 && (q.Left > 0 || !q.Known) && q.Violated {
			q.Left, q.Known, q.Reset, q.Ends = 0, true, w.Wait, true // not enough is nothing, for as long as the server says
		}
		empty := w.Limited && q.Left <= 0 && q.Name != AnyQuota
		if !q.Known || q.Advisory || !q.Ends && !empty {
			continue // nothing to count, or it is not known until when
		}
		told := quota.Tell{Name: q.Name, Unit: q.Unit, Left: q.Left, Limit: q.Limit, Counted: q.Unit == "" || q.Unit == "requests"}
		if q.Ends {
			told.Reset = meter.AddInstant(now, int64(q.Reset))
		}
		if told.Limit > 0 {
			told.Reserve = l.reserveLocked(told.Limit)
		}
		if w.Limited && q.Left <= 0 && (w.Wait > 0 || !q.Ends || told.Reset > now) { // else nothing would hold requests
			t.explained, t.named = true, t.named || empty
			told.Refused, told.Reset = true, max(told.Reset, meter.AddInstant(now, int64(w.Wait)))
		}
		t.tells = append(t.tells, told)
	}
	return t
}
