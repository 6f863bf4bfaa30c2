package store

import (
	"cmp"
	"slices"
	"time"
)

// A BudgetState is the state of a budget, for people and programs that operate a store.
type BudgetState struct {
	Name       string // of the state in the store
	Kind       string // "bucket", "pace", "sliding-window", "fixed-window", "calendar-window" or "in-flight"
	Limit, Key string // the name of the limit, and the key of the requests

	PerSecond float64       // the rate that applies; 0 for slots
	Most      float64       // the burst, n, or the number of slots
	Left      float64       // tokens or free slots; negative if some are promised or owed
	Held      time.Duration // how long the budget remains blocked
	Processes int           // an estimate of how many processes use it
	Expires   time.Duration // the time until the store forgets it if no process asks
	Holders   []Holder      // of slots
	Err       error         // not nil if the state is unreadable
}

// A Holder is a process that has slots or waits for slots.
type Holder struct {
	Name         string // host, pid and a random number
	Slots, Wants int64
	Expires      time.Duration // the time until its slots are free if it does not ask again
}

// Status returns the state of a budget at an instant, without a Name. Of the budget, only Kind, Limit and Key matter. It returns false if the
// budget is new.
func (b *Book) Status(of *Budget, now time.Time) (status BudgetState, ok bool) {
	s := b.accounts[of.account()]
	at := now.UnixMicro()
	if s == nil || at >= s.expires() {
		return BudgetState{}, false
	}
	status = BudgetState{Kind: string(of.Kind), Limit: of.Limit, Key: of.Key, Held: micros(s.held(at)), Expires: micros(s.expires() - at)}
	perSecond := func(r rule) float64 { return float64(r.n) / float64(r.per) / float64(r.tick) * 1e6 }
	var h header
	switch s := s.(type) {
	case *bucketState:
		then := *s
		then.flow(&Call{}, at)
		h = s.header
		status.PerSecond, status.Most = perSecond(s.rule), float64(s.full)/float64(s.per)
		status.Left = float64(then.level) / float64(s.per)
	case *slidingState:
		h = s.header
		used := s.used
		for _, e := range s.log {
			if e.at+s.per <= at {
				used -= e.count
			}
		}
		status.PerSecond, status.Most, status.Left = perSecond(s.rule), float64(s.n), float64(s.n-used)
	case *fixedState:
		h = s.header
		status.PerSecond, status.Most, status.Left = perSecond(s.rule), float64(s.n), float64(s.n)
		if at < s.ends {
			status.Left -= float64(s.used)
		} else {
			status.Left -= float64(max(0, s.debt-mulSat(s.n, (at-s.ends)/s.per)))
		}
	case *slotsState:
		status.Most, status.Left = float64(s.n), float64(s.n)
		for name, h := range s.holders {
			if h.until > at {
				status.Holders = append(status.Holders, Holder{name, h.count, h.wants, micros(h.until - at)})
				status.Left -= float64(h.count)
			}
		}
		slices.SortFunc(status.Holders, func(a, b Holder) int { return cmp.Compare(a.Name, b.Name) })
		status.Processes = max(1, len(status.Holders))
		return status, true
	}
	h.visit(&Call{}, at)
	status.Processes = int(h.processes())
	return status, true
}

// Hold blocks a budget for d from now on, or ends its hold if d is not positive. It returns false if the budget is new.
func (b *Book) Hold(of *Budget, now time.Time, d time.Duration) bool {
	s := b.accounts[of.account()]
	at := now.UnixMicro()
	if s == nil || at >= s.expires() {
		return false
	}
	until := int64(0)
	if d > 0 {
		until = at + span(d+time.Microsecond-1, mostHold)
	}
	switch s := s.(type) {
	case *bucketState:
		s.flow(&Call{}, at)
		s.hold = until
	case *slidingState:
		s.hold = until
	case *fixedState:
		s.hold = until
	case *slotsState:
		s.hold = until
	}
	return true
}
