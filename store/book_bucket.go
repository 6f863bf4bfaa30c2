package store

import (
	"math"
	"slices"
	"time"
)

// A bucketState is a token bucket, counted in [Units]. Its level is negative while it has promised tokens, or is in debt.
type bucketState struct {
	header
	queue
	at     int64 // the level is as of this tick
	level  int64
	seq    int64 // the last lease: when it was, or one more than the one before
	filled int64 // the first lease after the bucket was full
	debt   int64 // what was owed, less what has come in since. What is promised does not count, so it leaves room for debts
	peaks  []peak
}

// A peak records the room below full before a lease, if the room has been larger ever since. In order of time, it grows.
type peak struct{ seq, room int64 }

// maxPeaks bounds the number of peaks. Of more, the two that are closest become one, and fewer tokens can be given back.
const maxPeaks = 15

func newBucketState(c *Call, now int64) *bucketState {
	return &bucketState{
		header: newHeader(c, now), at: c.after(now, c.Tick), level: c.Initial,
		seq: now, filled: now, // IDs grow even if the state was lost, and older leases give nothing back
	}
}

func (s *bucketState) advance(c *Call, now int64) {
	s.flow(c, now)
	s.visit(c, now)
	s.clear(now)
	had := s.level
	for _, r := range c.Back {
		s.giveBack(r.Lease, mulSat(r.Tokens, s.per))
	}
	if now < s.hold {
		s.level = min(s.level, max(had, s.per))
	}
	if s.govern(c, now) {
		s.retune(c, now)
	}
	if s.level >= s.full {
		s.level, s.at, s.debt = s.full, c.after(now, s.tick), 0
	}
	if c.Owe > 0 {
		s.owe(c, now)
	}
}

// owe charges tokens. What is not there is a debt.
func (s *bucketState) owe(c *Call, now int64) {
	s.remember(now, -s.debt)
	owed := mulSat(c.Owe, s.per)
	there := min(owed, max(0, s.level))
	more := min(owed-there, max(0, c.Owed-s.debt))
	s.debt += more
	s.level -= there + more
}

// flow adds the tokens that came in until now. If the clock went back, no time has passed. A bucket that was blocked has no more than it had
// or one token afterwards, whatever was given back: a server that has refused a request gets the next ones one by one.
func (s *bucketState) flow(c *Call, now int64) {
	ticks := now / s.tick
	if held := min(ticks, s.hold/s.tick) - s.at; held > 0 {
		came := min(mulSat(held, s.n), max(0, s.per-s.level))
		s.level, s.debt, s.at = s.level+came, max(0, s.debt-came), s.at+held
	}
	if until := c.after(now, s.tick); until < s.at {
		s.at = until
	}
	if past := ticks - s.at; past > 0 {
		if missing := s.full - s.level; missing > 0 && past < ceilDiv(missing, s.n) {
			s.level += past * s.n
			s.debt = max(0, s.debt-past*s.n)
			s.at = ticks
		} else {
			s.level = max(s.level, s.full)
			s.at = c.after(now, s.tick)
		}
	}
}

// after returns the first tick that is no earlier than the call: a full bucket gets the next token a whole interval after one that is used
// now.
func (c *Call) after(now, tick int64) int64 {
	if c.ns > 0 {
		now++
	}
	return ceilDiv(now, tick)
}

// retune changes the rate and the burst to those of c. Earlier leases can give nothing back from then on.
func (s *bucketState) retune(c *Call, now int64) {
	s.seq = s.when(0)
	s.level, s.debt = rescale(s.level, s.per, c.Per), rescale(s.debt, s.per, c.Per)
	s.queue = nil // in other units
	if s.tick != c.Tick {
		s.at = ceilDiv(now, c.Tick)
	}
	s.rule = c.rule()
	s.filled, s.peaks = s.seq+1, nil
}

// rescale converts a level from units of 1/from of a token to units of 1/to, rounded down. It computes with floats, and
// subtracts more than their error.
func rescale(level, from, to int64) int64 {
	whole := floorDiv(level, from)
	part := float64(level-whole*from) * float64(to) / float64(from)
	most := mostUnits / to
	return max(-most, min(whole, most))*to + int64(math.Floor(part*(1-0x1p-50)))
}

// remember records a peak before tokens are taken. If they are promised, there will be at least that much when they are due.
func (s *bucketState) remember(now, least int64) {
	s.seq = max(s.seq+1, now)
	if s.level >= s.full {
		s.filled, s.peaks = s.seq, nil
		return
	}
	room := s.full - max(s.level, min(least, s.full))
	n := len(s.peaks)
	for n > 0 && s.peaks[n-1].room >= room {
		n--
	}
	s.peaks = joined(append(s.peaks[:n], peak{s.seq, room}), maxPeaks)
}

// joined makes one of the two peaks that are closest, until there are at most that many.
func joined(peaks []peak, most int) []peak {
	for len(peaks) > most {
		at := 0
		gap := func(i int) int64 { return peaks[i+1].room - peaks[i].room }
		for i := range len(peaks) - 1 {
			if gap(i) < gap(at) {
				at = i
			}
		}
		peaks[at+1].room = min(peaks[at].room, peaks[at+1].room)
		peaks = slices.Delete(peaks, at, at+1)
	}
	return peaks
}

// giveBack undoes a part of a lease. Tokens that a full bucket would have lost without that lease are not given back.
func (s *bucketState) giveBack(leased, back int64) {
	if s.filled > leased {
		return
	}
	back = min(back, s.full-s.level)
	for _, p := range s.peaks {
		if p.seq > leased {
			back = min(back, p.room)
		}
	}
	if back <= 0 {
		return
	}
	s.level += back
	for i := range s.peaks {
		if s.peaks[i].seq > leased {
			s.peaks[i].room -= back
		}
	}
}

func (s *bucketState) short(c *Call, _ int64) int64 {
	missing := c.Due*s.per - s.level
	if c.Need == 0 || missing <= 0 {
		return 0
	}
	return max(0, ceilDiv(missing, s.n)-s.reach(c)) * s.tick
}

// reach returns for how many ticks the tokens of Need may be promised. With Queue, they are to be used soon, together with what else the
// request needs, and not before others that have places.
func (s *bucketState) reach(c *Call) int64 {
	switch {
	case !c.Queue:
		return c.Ticks
	case c.Queued == 0 && len(s.queue) > 0:
		return 0
	}
	return c.Horizon / c.N
}

func (s *bucketState) turn(c *Call, now, after int64) int64 {
	missing := s.ahead(c, 0, math.MaxInt64) + mulSat(c.Due, s.per) - s.level
	return max(after, min(mulSat(max(0, ceilDiv(max(0, missing), s.n)-c.Horizon/c.N/2), s.tick), mostTurn))
}

// most grants all tokens that are there and half of those that may still be promised, so that no process takes them all.
func (s *bucketState) most(c *Call) int64 {
	room := s.level + c.Horizon/2
	if s.level < 0 {
		room = max(0, (c.Horizon+s.level)/2)
	}
	return max(c.Need, min(c.Want, room/s.per))
}

func (s *bucketState) plenty(_ *Call, taken int64) int64 {
	return max(0, (s.level-taken*s.per)/(4*s.per))
}

func (s *bucketState) take(c *Call, tokens, now int64) LeasedPart {
	p := LeasedPart{Tokens: tokens, AtOnce: min(tokens, max(0, s.level)/s.per)}
	if p.AtOnce < tokens {
		due := s.at + ceilDiv((p.AtOnce+1)*s.per-s.level, s.n)
		p.Next = max(0, micros(due*s.tick-now)-time.Duration(c.ns)) // at the same instant for all processes
	}
	s.remember(now, mulSat(c.Due, s.per))
	s.level -= tokens * s.per
	s.leave(c)
	p.ID = s.when(min(c.Due*s.per, c.Horizon/2))
	return p
}

// when returns when the level is reached, or seq if that is later or nothing is promised.
//
// A lease has as its ID when its last token is due and the next request can be sent, or half of the horizon after it, since processes ask
// before that, and report what comes back after it. So what is given back is bounded by leases since then, as in a bucket that takes tokens
// when they are due. Until then, all of it can be given back.
func (s *bucketState) when(level int64) int64 {
	if s.level >= 0 {
		return s.seq
	}
	return max(s.seq, (s.at+ceilDiv(level-s.level, s.n))*s.tick)
}

func (s *bucketState) left(_ *Call, p *LeasedPart) {
	p.Left = float64(s.level) / float64(s.per)
	p.Processes = int(s.processes())
}

func (s *bucketState) expires() int64 {
	full := max(s.at, ceilDiv(s.hold, s.tick))
	if s.level < s.full {
		full += ceilDiv(s.full-s.level, s.n)
	}
	return max(full*s.tick, s.hold, s.last()) + linger
}
