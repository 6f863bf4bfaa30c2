package store

import (
	"maps"
	"math"
	"time"
)

// A slotsState records how many slots each process has, and until when. An ask contains the number that its process has, so
// that a repeated or lost ask has no effect.
//
// A process that gives slots back while others wait for slots gets none with the same ask, so that the others can take them.
//
// A process that has slots of which the state does not know shows that the state was lost, or that the process used its share in an
// outage. Others may have such slots, too, and use them for one request after the other. So no slot is granted until all of them have
// asked.
type slotsState struct {
	ruling
	holders  map[string]holding
	hold     int64
	earliest int64 // no process loses its slots before
	closed   int64 // no slot is granted before, because processes may have slots that are not counted

	// Sums over all processes; while an ask is decided, over all except the one that asks.
	used   int64 // the slots that they have
	wanted int64 // the slots that they wait for

	passes   bool  // the one that asks gave slots back that others wait for
	isClosed bool  // closed is later than now
	over     int64 // of the slots that the one that asks has and that were not counted, those that others have as well
}

type holding struct {
	count, wants int64 // slots that the process has, and that it waits for besides
	until        int64
}

const (
	slotsFor = int64(SlotLease / time.Microsecond)
	surelyIn = slotsFor - int64(time.Second/time.Microsecond)  // a process that asked less than this ago is counted, however long its calls took
	closeFor = int64(4 * time.Second / time.Microsecond)       // processes with slots ask again after 3 s
	slotPoll = int64(10 * time.Millisecond / time.Microsecond) // the wait of a process, times the number of processes
)

func (s *slotsState) advance(c *Call, now int64) {
	if now >= s.earliest {
		s.sweep(now)
	}
	mine, isIn := s.holders[c.Holder]
	delete(s.holders, c.Holder)
	s.used, s.wanted = s.used-mine.count, s.wanted-mine.wants
	if s.govern(c, now) {
		s.rule = c.rule()
	}
	s.passes = c.Held < mine.count && s.wanted > 0
	s.closed = min(s.closed, now+closeFor) // the clock went back: no time has passed
	if isLost := !isIn && c.Since > 0 && c.Since < surelyIn; now >= s.closed && (isLost || c.Held > mine.count) {
		s.closed = now + closeFor
	}
	s.isClosed = now < s.closed
	s.over = max(0, min(c.Held-mine.count, s.used+c.Held-c.N))
	if c.Held > 0 || c.Want > 0 {
		s.set(c, c.Held, c.Want, now)
	}
	switch {
	case c.Hold > 0:
		s.hold = max(s.hold, now+c.Hold)
	case c.Hold < 0:
		s.hold = 0
	}
}

// sweep frees the slots of processes that have not asked for long. While all processes renew theirs it runs every 7 s or so, because
// earliest is at least so far ahead then: an ask costs as much with many processes as with one.
func (s *slotsState) sweep(now int64) {
	s.used, s.wanted, s.earliest = 0, 0, now+slotsFor
	maps.DeleteFunc(s.holders, func(_ string, h holding) bool { return h.until <= now })
	for _, h := range s.holders {
		s.used, s.wanted, s.earliest = s.used+h.count, s.wanted+h.wants, min(s.earliest, h.until)
	}
}

// set records what the process that asks has, which the sums leave out until left.
func (s *slotsState) set(c *Call, count, wants, now int64) {
	s.holders[c.Holder] = holding{count, wants, now + slotsFor}
	s.earliest = min(s.earliest, now+slotsFor)
}

// free returns how many more slots the process that asks can get.
func (s *slotsState) free(c *Call) int64 {
	if s.passes || s.isClosed {
		return 0
	}
	return max(0, c.N-s.used-c.Held)
}

func (s *slotsState) held(now int64) int64 { return max(0, s.hold-now) }

func (s *slotsState) short(c *Call, now int64) int64 {
	if c.Need <= s.free(c) {
		return 0
	}
	return max(s.closed-now, min(100, int64(len(s.holders)))*slotPoll)
}

func (s *slotsState) most(c *Call) int64 { return max(c.Need, min(c.Want, s.free(c))) }

func (s *slotsState) plenty(c *Call, taken int64) int64 { return max(0, (s.free(c)-taken)/4) }

func (s *slotsState) take(c *Call, tokens, now int64) LeasedPart {
	s.set(c, c.Held+tokens, max(0, c.Want-tokens), now)
	return LeasedPart{ID: now, Tokens: tokens, AtOnce: tokens, Until: micros(slotsFor)}
}

func (s *slotsState) left(c *Call, p *LeasedPart) {
	mine := s.holders[c.Holder]
	p.Left, p.Over = float64(c.N-s.used-mine.count), s.over
	if !s.isClosed { // no other process gets what a process gives back before
		p.Left -= float64(s.wanted)
	}
	s.used, s.wanted = s.used+mine.count, s.wanted+mine.wants
	p.Processes = max(1, len(s.holders))
}

func (s *slotsState) expires() int64 {
	last := max(s.hold, s.closed)
	for _, h := range s.holders {
		last = max(last, h.until)
	}
	if last == 0 {
		return math.MinInt64
	}
	return last + linger
}
