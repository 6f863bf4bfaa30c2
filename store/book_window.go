package store

import "slices"

const (
	exactEvents = 128 // a sliding window with fewer leases is exact
	slices64    = 64  // with more, leases in the same 64th of the period are joined
)

// A slidingState is a log of leases. When it has exactEvents entries, those of the same 64th of the period are joined; they
// expire with the last of them.
type slidingState struct {
	header
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
	if owe := min(c.Owe, 2*c.N-s.used); owe > 0 {
		s.add(now, owe)
	}
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

func (s *slidingState) take(_ *Call, tokens, now int64) LeasedPart {
	s.add(now, tokens)
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
	return max(last, s.hold) + linger
}

// A fixedState counts the tokens of the window in which the last ask was, of a Fixed limit or a Calendar.
type fixedState struct {
	header
	used, at int64 // at: the last use
	ends     int64
}

func (s *fixedState) advance(c *Call, now int64) {
	s.visit(c, now)
	if s.govern(c, now) {
		s.rule = c.rule()
	}
	s.at = min(s.at, now) // the clock went back: no time has passed
	begins, ends := c.window(now)
	if c.Kind == Calendar && c.differs && now < s.ends { // the window is that of the rule that counts
		begins, ends = s.at, s.ends
	}
	s.ends = ends
	if s.at < begins {
		s.used, s.at = 0, now
	}
	for _, r := range c.Back {
		if r.Lease >= begins {
			s.used = max(0, s.used-r.Tokens)
		}
	}
	if owe := min(c.Owe, 2*c.N-s.used); owe > 0 {
		s.used, s.at = s.used+owe, now
	}
}

func (s *fixedState) short(c *Call, now int64) int64 {
	if c.Need <= max(0, c.N-s.used) {
		return 0
	}
	return s.ends - now
}

func (s *fixedState) most(c *Call) int64 { return max(c.Need, min(c.Want, c.N-s.used)) }

func (s *fixedState) plenty(c *Call, taken int64) int64 { return max(0, (c.N-s.used-taken)/4) }

func (s *fixedState) take(_ *Call, tokens, now int64) LeasedPart {
	s.used, s.at = s.used+tokens, now
	return LeasedPart{ID: now, Tokens: tokens, AtOnce: tokens, Until: micros(s.ends - now)}
}

func (s *fixedState) left(c *Call, p *LeasedPart) {
	p.Left = float64(c.N - s.used)
	p.Processes = int(s.processes())
}

func (s *fixedState) expires() int64 { return max(s.ends, s.hold) + linger }
