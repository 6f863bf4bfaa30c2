package throttletest

import (
	"math"
	"time"
)

// fixed counts per window. Windows are half-open: the instant at which one ends belongs to the next.
type fixed struct {
	n, per    int64
	fromFirst bool
	elastic   bool // every charge begins the period again

	open       bool // begin and end hold a window that something was charged in
	begin, end int64
	used       int64
}

// advance forgets a window that has ended.
func (f *fixed) advance(now int64) {
	if f.open && now >= f.end {
		f.open, f.used = false, 0
	}
}

// bounds is the window that a charge now falls into.
func (f *fixed) bounds(now int64) (begin, end int64) {
	switch {
	case f.open:
		return f.begin, f.end
	case f.fromFirst, f.elastic:
		begin = now
	default:
		begin = now - floorMod(now, f.per)
	}
	return begin, satAdd(begin, f.per)
}

func (f *fixed) check(now, cost int64) (time.Duration, bool) {
	f.advance(now)
	if cost > f.n {
		return never, false
	}
	if f.used <= f.n-cost {
		return 0, true
	}
	_, end := f.bounds(now)
	return time.Duration(end - now), false
}

func (f *fixed) charge(now, cost int64) time.Duration {
	f.advance(now)
	f.begin, f.end = f.bounds(now)
	if f.elastic {
		f.end = satAdd(now, f.per)
	}
	f.open = true
	f.used = satAdd(f.used, cost)
	return 0
}

func (f *fixed) credit(now, charged, cost int64) {
	f.advance(now)
	if f.open && charged >= f.begin {
		f.used = max(f.used-cost, 0)
	}
}

func (f *fixed) left(now int64) (tokens int64, more, full time.Duration) {
	f.advance(now)
	if !f.open && (f.fromFirst || f.elastic) {
		return f.n, 0, 0
	}
	// Aligned windows end whether or not something was charged, and real servers say so.
	_, end := f.bounds(now)
	more = time.Duration(end - now)
	return max(f.n-f.used, 0), more, more
}

func (f *fixed) retune(now int64, l Limit) {
	f.advance(now)
	if f.per != int64(l.per) || f.fromFirst != l.fromFirst || f.elastic != l.elastic {
		f.open, f.used = false, 0 // there is no way to say which part of the old window falls into the new one
	}
	f.n, f.per, f.fromFirst, f.elastic = l.n, int64(l.per), l.fromFirst, l.elastic
}

// sliding keeps a log of what was charged within the last period. An event exactly one period old no longer counts.
type sliding struct {
	n, per int64
	log    []event // oldest first; log[:head] is forgotten
	head   int
	used   int64 // the sum of log[head:]
}

type event struct{ at, cost int64 }

func (s *sliding) advance(now int64) {
	for s.head < len(s.log) && now-s.log[s.head].at >= s.per {
		s.drop()
	}
	// With CountRefused the log would grow with every press. What is hidden behind newer events that fill the window
	// by themselves can never decide anything.
	for s.head < len(s.log) && s.used-s.log[s.head].cost >= s.n {
		s.drop()
	}
	if s.head == len(s.log) || s.head > 64 && s.head > len(s.log)/2 {
		s.log = s.log[:copy(s.log, s.log[s.head:])]
		s.head = 0
	}
}

func (s *sliding) drop() {
	s.used -= s.log[s.head].cost
	s.head++
}

func (s *sliding) check(now, cost int64) (time.Duration, bool) {
	s.advance(now)
	if cost > s.n {
		return never, false
	}
	used := s.used
	if used <= s.n-cost {
		return 0, true
	}
	for _, e := range s.log[s.head:] {
		if used -= e.cost; used <= s.n-cost {
			return time.Duration(e.at + s.per - now), false
		}
	}
	panic("throttletest: bug: an empty window has no room for a cost that fits")
}

func (s *sliding) charge(now, cost int64) time.Duration {
	s.advance(now)
	cost = min(cost, s.n) // more than full is full, and sums stay small
	if last := len(s.log) - 1; last >= s.head && s.log[last].at == now {
		s.log[last].cost += cost
	} else {
		s.log = append(s.log, event{now, cost})
	}
	s.used += cost
	return 0
}

func (s *sliding) credit(now, charged, cost int64) {
	s.advance(now)
	for i := s.head; i < len(s.log); i++ {
		if e := &s.log[i]; e.at == charged {
			cost = min(cost, e.cost)
			e.cost -= cost
			s.used -= cost
		}
	}
}

func (s *sliding) left(now int64) (tokens int64, more, full time.Duration) {
	s.advance(now)
	if s.used == 0 {
		return s.n, 0, 0
	}
	first, last := s.log[s.head].at, s.log[len(s.log)-1].at
	return max(s.n-s.used, 0), time.Duration(first + s.per - now), time.Duration(last + s.per - now)
}

func (s *sliding) retune(now int64, l Limit) {
	s.advance(now)
	s.n, s.per = l.n, int64(l.per)
}

func floorMod(v, m int64) int64 {
	if r := v % m; r < 0 {
		return r + m
	} else {
		return r
	}
}

func satAdd(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
