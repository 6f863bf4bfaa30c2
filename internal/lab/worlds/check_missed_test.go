package worlds

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/httpthrottle/throttle"
)

// checkMissed checks that requests were rejected for reasons that the world has, and that none was that could have been sent.
func (f *fleet) checkMissed() (faults []string) {
	budgets, busy := f.budgets(), make(map[ruled][]span)
	for _, m := range f.missed {
		var r *throttle.Rejection
		if errors.As(m.err, &r) {
			if why := f.unfounded(m, r); why != "" {
				return append(faults, fmt.Sprintf("missed: %v of process %d at %v: %s", m.err, m.process.nth, m.at, why))
			}
		}
		if from, ok := f.couldSend(m, budgets, busy); ok {
			return append(faults, fmt.Sprintf("missed: process %d asked at %v for until %v, %v, and there were unused tokens from %v on", m.process.nth, m.asked, m.until, m.err, from))
		}
	}
	return faults
}

// unfounded returns why a rejection has no reason in the world.
func (f *fleet) unfounded(m missed, r *throttle.Rejection) string {
	switch r.Reason {
	case throttle.ReasonNoTokens, throttle.ReasonMaxWait, throttle.ReasonDeadline:
		if m.until == never {
			return "it had no bound"
		}
	case throttle.ReasonHeld:
		if f.server == nil && !slices.ContainsFunc(f.twists, func(t twist) bool { _, ok := t.(hold); return ok }) {
			return "nothing was held"
		}
	case throttle.ReasonStore:
		if f.lossy == 0 && f.isCalm(m.at, m.at) {
			return "the store was there"
		}
	default:
		return "no world has a reason for it"
	}
	return ""
}

// A ruled is a budget under a rule.
type ruled struct {
	budget
	n int64
}

// couldSend reports whether the tokens for a request that was not sent lay there unused for so long while it could have been sent that
// the process must have got them, and from when on.
func (f *fleet) couldSend(m missed, budgets map[budget][]sent, known map[ruled][]span) (from time.Duration, ok bool) {
	if f.server != nil || f.most() > 1 || f.loses(span{m.asked - 2*time.Second, m.until}) {
		return 0, false
	}
	idle := 300*time.Millisecond + 4*f.link.longest
	if f.has("slots") { // while none is free, a process asks this often
		idle += 300*time.Millisecond + time.Duration(min(100, f.size()))*10*time.Millisecond
	}
	if m.until-m.asked < idle || m.until > f.lasts || !f.isCalm(m.asked, m.until) {
		return 0, false
	}
	var busy []span
	for i := range f.limits {
		l := f.limits[i]
		if l.shared && l.windows() {
			return 0, false // a process waits for its turn, for longer than this
		}
		if l.shared && !f.isQuiet(l, budgets[f.budgetOf(i, m.process, m.key)], span{m.asked, m.until}) {
			return 0, false // the tokens may be promised to others
		}
		if l.shared {
			l = f.strictest(i, m.asked, f.processes...)
		} else {
			l = f.strictest(i, m.asked, m.process)
		}
		b := f.budgetOf(i, m.process, m.key)
		of := ruled{b, l.n}
		if _, ok := known[of]; !ok {
			known[of] = f.busy(l, budgets[b])
		}
		for _, s := range known[of] {
			if s.to > m.asked && s.from < m.until {
				busy = append(busy, s)
			}
		}
	}
	slices.SortFunc(busy, func(a, b span) int { return int(a.from - b.from) })
	at := m.asked
	for _, b := range append(busy, span{m.until, m.until}) {
		if min(b.from, m.until)-at >= idle {
			return at, true
		}
		at = max(at, b.to)
	}
	return 0, false
}

// isQuiet reports whether less than half of a limit is used in a stretch of time.
func (f *fleet) isQuiet(l limit, all []sent, in span) bool {
	if l.kind != "slots" && in.to-in.from < 10*l.per/time.Duration(l.n) {
		return false // too short to tell
	}
	used := time.Duration(0)
	for _, s := range all {
		if l.kind == "slots" {
			used += max(0, min(s.ends, in.to)-max(s.at, in.from))
		} else if s.at >= in.from && s.at < in.to {
			used += time.Duration(s.cost) * l.per
		}
	}
	return used < time.Duration(l.n)*(in.to-in.from)/2
}

// busy returns when there is no token.
func (f *fleet) busy(l limit, all []sent) (busy []span) {
	switch l.kind {
	case "bucket", "pace":
		level, at := int64(0), time.Duration(0)
		for _, s := range all {
			level = max(0, level-l.n*int64(s.at-at)) + s.cost*int64(l.per)
			at = s.at
			if over := level - (l.size()-1)*int64(l.per); over > 0 {
				busy = append(busy, span{at, at + time.Duration(over/l.n) + 1})
			}
		}
	case "slots", "sliding":
		var ends []time.Duration // of those that count, in order
		for _, s := range all {
			end := s.ends
			if l.kind == "sliding" {
				end = s.at + l.per
			}
			ends = slices.DeleteFunc(ends, func(end time.Duration) bool { return end <= s.at })
			i, _ := slices.BinarySearch(ends, end)
			ends = slices.Insert(ends, i, end)
			if free := len(ends) - int(l.n); free >= 0 {
				busy = append(busy, span{s.at, ends[free]})
			}
		}
	case "fixed":
		used := make(map[time.Duration]int64)
		for _, s := range all {
			w := s.at / l.per
			if used[w] += s.cost; used[w] >= l.n {
				busy = append(busy, span{s.at, (w + 1) * l.per})
			}
		}
	}
	return busy
}
