package lease

import (
	"maps"
	"math"
	"time"
)

// A slotsState records how many slots each process has, and until when. An ask contains the number that its process has, so
// that a repeated or lost ask leaves no trace.
//
// A process that gives slots back while others wait for slots gets none with the same ask, so that the others can take them.
type slotsState struct {
	holders map[string]holding
	hold    int64

	// Of the processes except the one that asks, as of the latest ask.
	used   int64 // the slots that they have
	wanted int64 // the slots that they wait for
	passes bool  // the one that asks gave slots back that they wait for
}

type holding struct {
	count, wants int64 // slots that the process has, and that it waits for besides
	until        int64
}

const (
	slotsFor = int64(LeaseOfSlots / time.Microsecond)
	slotPoll = int64(10 * time.Millisecond / time.Microsecond) // the wait of a process, times the number of processes
)

func (s *slotsState) advance(c *Call, now int64) {
	maps.DeleteFunc(s.holders, func(_ string, h holding) bool { return h.until <= now })
	had := s.holders[c.Holder].count
	delete(s.holders, c.Holder)
	s.used, s.wanted = 0, 0
	for _, h := range s.holders {
		s.used, s.wanted = s.used+h.count, s.wanted+h.wants
	}
	s.passes = c.Held < had && s.wanted > 0
	if c.Held > 0 || c.Want > 0 {
		s.holders[c.Holder] = holding{c.Held, c.Want, now + slotsFor}
	}
	switch {
	case c.Hold > 0:
		s.hold = max(s.hold, now+c.Hold)
	case c.Hold < 0:
		s.hold = 0
	}
}

// free returns how many more slots the process that asks can get.
func (s *slotsState) free(c *Call) int64 {
	if s.passes {
		return 0
	}
	return max(0, c.N-s.used-c.Held)
}

func (s *slotsState) held(now int64) int64 { return max(0, s.hold-now) }

func (s *slotsState) short(c *Call, _ int64) int64 {
	if c.Need <= s.free(c) {
		return 0
	}
	return min(100, int64(len(s.holders))) * slotPoll
}

func (s *slotsState) most(c *Call) int64 { return max(c.Need, min(c.Want, s.free(c))) }

func (s *slotsState) plenty(c *Call, taken int64) int64 { return max(0, (s.free(c)-taken)/4) }

func (s *slotsState) take(c *Call, tokens, now int64) LeasedPart {
	s.holders[c.Holder] = holding{c.Held + tokens, max(0, c.Want-tokens), now + slotsFor}
	return LeasedPart{ID: now, Tokens: tokens, AtOnce: tokens, Until: Micros(slotsFor)}
}

func (s *slotsState) left(c *Call, p *LeasedPart) {
	p.Left = float64(c.N - s.used - s.wanted - s.holders[c.Holder].count)
	p.Processes = max(1, len(s.holders))
}

func (s *slotsState) expires() int64 {
	last := s.hold
	for _, h := range s.holders {
		last = max(last, h.until)
	}
	if last == 0 {
		return math.MinInt64
	}
	return last + linger
}
