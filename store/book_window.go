package store

import (
	"math"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	exactEvents = 128 // a sliding window with fewer leases is exact
	slices64    = 64  // with more, leases in the same 64th of the period are joined
)

// mostDebt returns how much more a window may owe, given what it counts as used.
func (c *Call) mostDebt(used int64) int64 { return max(0, min(meter.MostUsed*c.N, 2*mostUnits)-used) }

const mostTurn = int64(mostAhead / time.Microsecond) // µs

func (s *slidingState) turn(c *Call, now, after int64) int64 {
	missing := s.ahead(c, 0, math.MaxInt64) + c.Need - (c.N - s.used)
	again := max(0, missing-1-max(0, s.used-c.N)) / c.N // what is used when it comes in does so again after a period
	return max(after, min(mulSat(again, c.Per), mostTurn)+s.until(missing-again*c.N, now))
}

func (s *fixedState) turn(c *Call, now, after int64) int64 {
	windows := max(0, floorDiv(now+after-s.ends, c.Per)+1) // that begin until then
	begins, ends := int64(0), s.ends+mulSat(windows, c.Per)
	if windows > 0 {
		begins = ends - c.Per
	}
	missing := s.ahead(c, 0, ends) + c.Need - (c.N - s.used)
	switch {
	case missing > mulSat(windows, c.N):
		return max(after, min(mulSat((missing-1)/c.N, c.Per), mostTurn)+s.ends-now)
	case s.ahead(c, begins, ends) > max(0, c.N-c.Need): // others come in this window
		return ends - now
	}
	return after
}

// A slidingState is a log of leases. When it has exactEvents entries, those of the same 64th of the period are joined; they
// expire with the last of them.
//
// A debt takes tokens when it becomes known. Those that are missing then are taken as soon as they come in: the log has them at these
// instants, which are known, although they are later.
type slidingState struct {
	header
	queue
	log  []event // in order of time
	used int64
}

type event struct{ at, count int64 }

func (s *slidingState) advance(c *Call, now int64) {
	if back := s.seen - now; back > 0 { // the clock went back: no time has passed
		for i := range s.log {
			s.log[i].at -= back
		}
	}
	s.visit(c, now)
	s.clear(now)
	n, per := s.n, s.per
	if s.govern(c, now) {
		s.rule = c.rule()
	}
	expired := 0
	for expired < len(s.log) && s.log[expired].at+s.per <= now {
		s.used -= s.log[expired].count
		expired++
	}
	s.log = slices.Delete(s.log, 0, expired)
	for _, r := range c.Back {
		s.giveBack(r.Lease, r.Tokens, now)
	}
	if c.Owe > 0 || s.used < s.n || len(c.Back) > 0 || s.per != per || s.n != n { // what is owed is paid at other instants
		owed := s.owed(now) + c.Owe
		s.charge(now, min(owed, c.mostDebt(s.used)))
	}
}

// charge spends tokens that are owed, each when it is there.
func (s *slidingState) charge(now, owed int64) {
	i, sum := 0, int64(0) // sum: of the log before i
	for owed > 0 {
		at, tokens := now, owed
		if left := s.n - s.used; left > 0 {
			tokens = min(owed, left)
		} else {
			for ; sum+s.log[i].count <= -left; i++ {
				sum += s.log[i].count
			}
			at, tokens = s.log[i].at+s.per, min(owed, sum+s.log[i].count+left)
		}
		s.used, owed = s.used+tokens, owed-tokens
		if last := len(s.log) - 1; last >= 0 && s.log[last].at >= at {
			s.log[last].count += tokens
		} else {
			s.log = append(s.log, event{at, tokens})
		}
	}
}

// owed takes out of the log what is spent later than now, and returns how much that is.
func (s *slidingState) owed(now int64) (tokens int64) {
	last := len(s.log) - 1
	for ; last >= 0 && s.log[last].at > now; last-- {
		tokens += s.log[last].count
	}
	s.log, s.used = s.log[:last+1], s.used-tokens
	return tokens
}

func (s *slidingState) giveBack(leased, tokens, now int64) {
	if leased+s.per <= now {
		return
	}
	for i := range s.log {
		if e := &s.log[i]; e.at >= leased {
			tokens = min(tokens, e.count)
			e.count -= tokens
			s.used -= tokens
			return
		}
	}
}

func (s *slidingState) add(now, tokens int64) {
	s.used += tokens
	if n := len(s.log); n > 0 && s.log[n-1].at == now {
		s.log[n-1].count += tokens
		return
	}
	if s.log = append(s.log, event{now, tokens}); len(s.log) >= exactEvents {
		s.join()
	}
}

func (s *slidingState) join() {
	slot, kept := max(1, s.per/slices64), 0
	for _, e := range s.log[1:] {
		if e.at/slot == s.log[kept].at/slot {
			e.count += s.log[kept].count
		} else {
			kept++
		}
		s.log[kept] = e
	}
	s.log = s.log[:kept+1]
}

func (s *slidingState) short(c *Call, now int64) int64 {
	if c.Need == 0 {
		return 0
	}
	return s.until(c.Need-(c.N-s.used), now)
}

// until returns how long it takes until a number of tokens come in.
func (s *slidingState) until(missing, now int64) int64 {
	if missing <= 0 {
		return 0
	}
	for _, e := range s.log {
		if missing -= e.count; missing <= 0 {
			return e.at + s.per - now
		}
	}
	return s.per
}

func (s *slidingState) most(c *Call) int64 { return max(c.Need, min(c.Want, c.N-s.used)) }

func (s *slidingState) plenty(c *Call, taken int64) int64 { return max(0, (c.N-s.used-taken)/4) }

func (s *slidingState) take(c *Call, tokens, now int64) LeasedPart {
	s.add(now, tokens)
	s.leave(c)
	return LeasedPart{ID: now, Tokens: tokens, AtOnce: tokens, Until: micros(s.per)}
}

func (s *slidingState) left(c *Call, p *LeasedPart) {
	p.Left = float64(c.N - s.used)
	p.Processes = int(s.processes())
	if p.Wait == 0 {
		p.Wait = micros(s.until(1-(c.N-s.used), s.seen))
	}
}

func (s *slidingState) expires() int64 {
	last := s.seen
	if n := len(s.log); n > 0 {
		last = s.log[n-1].at + s.per
	}
	return max(last, s.last(), s.hold) + linger
}

// come returns how long it takes until a number of tokens of a window have come in, in whole periods.
func (h *header) come(tokens int64) int64 { return min(mulSat((tokens+h.n-1)/h.n, h.per), mostTurn) }

// A fixedState counts the tokens of the window in which the last ask was, of a Fixed limit or a Calendar. The next windows of a Fixed
// limit pay its debt first.
type fixedState struct {
	header
	queue
	used, at int64 // at: the last use
	ends     int64
	debt     int64 // what of used the next windows have to pay
}

func (s *fixedState) advance(c *Call, now int64) {
	s.visit(c, now)
	s.clear(now)
	if s.govern(c, now) {
		s.rule = c.rule()
	}
	s.at = min(s.at, now) // the clock went back: no time has passed
	begins, ends := c.window(now)
	if c.Kind == Calendar && c.differs && now < s.ends { // the window is that of the rule that counts
		begins, ends = s.at, s.ends
	}
	came := mulSat(c.N, max(1, (ends-s.ends)/c.Per))
	s.ends = ends
	if s.at < begins {
		s.debt = max(0, s.debt-(came-c.N))
		s.used, s.at = s.debt, now
	}
	for _, r := range c.Back {
		if r.Lease >= begins {
			s.used = max(0, s.used-r.Tokens)
		}
	}
	owe := min(c.Owe, c.mostDebt(s.used))
	if owe > 0 {
		s.used, s.at = s.used+owe, now
	}
	s.debt = max(0, min(s.debt+owe, s.used-c.N))
	if c.Kind == Calendar { // a month does not pay for the one before
		s.debt = 0
	}
}

func (s *fixedState) short(c *Call, now int64) int64 {
	if c.Need <= max(0, c.N-s.used) {
		return 0
	}
	return s.ends - now + min(mulSat((s.debt+c.Need-1)/c.N, c.Per), mostTurn)
}

func (s *fixedState) most(c *Call) int64 { return max(c.Need, min(c.Want, c.N-s.used)) }

func (s *fixedState) plenty(c *Call, taken int64) int64 { return max(0, (c.N-s.used-taken)/4) }

func (s *fixedState) take(c *Call, tokens, now int64) LeasedPart {
	s.used, s.at = s.used+tokens, now
	s.leave(c)
	return LeasedPart{ID: now, Tokens: tokens, AtOnce: tokens, Until: micros(s.ends - now)}
}

func (s *fixedState) left(c *Call, p *LeasedPart) {
	p.Left = float64(c.N - s.used)
	p.Processes = int(s.processes())
}

func (s *fixedState) expires() int64 {
	return max(s.ends+s.come(s.debt), s.last(), s.hold) + linger
}

func (q *queue) line() *queue { return q }
