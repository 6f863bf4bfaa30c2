package worlds

import (
	"fmt"
	"slices"
	"time"

	"github.com/httpthrottle/throttle"
)

const kept = 100 * time.Millisecond // tokens that are not used for so long, and three ways there and back, are given back

// checkBounds checks that no more is sent than a limit allows.
func (f *fleet) checkBounds() (faults []string) {
	for b, all := range f.budgets() {
		_, most := f.percents(b.limit)
		l := f.limits[b.limit].of(most)
		// A response of the store may be late, as a timer may.
		tokens, more := int64(0), slack
		if l.shared {
			// What counts is when a token is leased. A request that costs several may get them one by one.
			tokens, more = (f.most()-1)*int64(f.size()), slack+kept+4*f.link.longest
		}
		if l.shared && (l.kind == "bucket" || l.kind == "pace") && f.givesBack() {
			// See "Promises that are given back" in docs/lab/shared-limits.md: they are promised again behind the promises of others, so
			// that two are due at one instant. Also, what was promised at an earlier rate is used.
			tokens, more = tokens+int64(f.size()), more+horizon+3*f.link.longest
		}
		if l.shared && f.lossy > 0 && f.mode == throttle.OutageLocalShare { // to a process whose first response is lost, it is an outage
			tokens += int64(f.size())
		}
		for _, t := range f.twists {
			if e, ok := t.(excuse); ok {
				n, d := e.excuses(f, l)
				tokens, more = tokens+n, more+d
			}
		}
		if tokens >= noBound {
			continue
		}
		if fault := f.bound(l, all, tokens, more); fault != "" {
			faults = append(faults, fmt.Sprintf("bound: %v: %s", b, fault))
		}
	}
	return faults
}

// givesBack reports whether processes may give back what they were promised, because a request does not wait until the end, waits
// for another limit meanwhile, or the rule changes.
func (f *fleet) givesBack() bool {
	for _, c := range f.crews {
		if c.deadline > 0 || c.maxWait >= 0 || c.to < f.lasts || c.percent != 100 {
			return true
		}
	}
	return f.lossy > 0 || len(f.twists) > 0 || len(f.limits) > 1
}

// bound returns why requests are more than a limit allows, if it allows some tokens more and those of some more time; "": they are not.
func (f *fleet) bound(l limit, all []sent, tokens int64, more time.Duration) string {
	switch l.kind {
	case "bucket", "pace":
		// The level of a bucket that runs out at the rate, in tokens times the period.
		level, at := int64(0), time.Duration(0)
		for _, s := range all {
			level = max(0, level-l.n*int64(s.at-at))
			at = s.at
			room := (l.size()+tokens)*int64(l.per) + l.n*int64(more) - level
			level += s.cost * int64(l.per)
			need := s.cost
			if l.kind == "pace" {
				need = 1
			}
			if need*int64(l.per) > room {
				return fmt.Sprintf("%d tokens at %v, and there are %.2f", s.cost, s.at, float64(room)/float64(l.per))
			}
		}
	case "sliding":
		per := l.per
		if l.shared {
			per -= f.link.longest*3/2 + 10*time.Millisecond
		}
		used, first := int64(0), 0
		for _, last := range all {
			for used += last.cost; all[first].at <= last.at-per; first++ {
				used -= all[first].cost
			}
			if used > l.n+tokens {
				return fmt.Sprintf("%d of %d in %v until %v", used, l.n+tokens, per, last.at)
			}
		}
	case "fixed":
		used := make(map[time.Duration]int64)
		for _, s := range all {
			w := s.at / l.per // a world begins with windows
			if used[w] += s.cost; used[w] > l.n+tokens {
				return fmt.Sprintf("%d of %d in the window that begins at %v, by %v", used[w], l.n+tokens, w*l.per, s.at)
			}
		}
	case "slots":
		var ends []time.Duration // of those in flight
		for _, s := range all {
			ends = append(slices.DeleteFunc(ends, func(end time.Duration) bool { return end <= s.at }), s.ends)
			if flying := int64(len(ends)); flying > l.n+tokens {
				return fmt.Sprintf("%d of %d in flight at %v", flying, l.n+tokens, s.at)
			}
		}
	}
	return ""
}
