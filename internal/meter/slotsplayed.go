package meter

import "sort"

// playedSlots are what PlaySlots returns.
type playedSlots struct {
	Count
	each int64     // for how long one is taken, with its pause
	ends []slotEnd // of all that are taken, in order
}

// A slotEnd is when slots are free again.
type slotEnd struct {
	at  Instant
	sum int64 // of all slots that were taken up to these
}

// playedMost is how many of the slots that are taken at first end at times of their own.
const playedMost = 256

// Play implements [Player].
func (s *Slots) Play(now Instant) (Meter, bool) { return s.play(now, s.used, 0) }

// play is Play for slots that rest for that long afterwards, and of which so many are taken or rest.
func (s *Slots) play(now Instant, used, pause int64) (Meter, bool) {
	if s.timed == 0 {
		return Unlimited{}, false
	}
	return PlaySlots(now, s.n, used, float64(s.held), pause), true
}

// PlaySlots returns n slots that are free again by themselves: each is taken for as many ns as held, and then rests. So many of them are
// taken, or rest, already.
func PlaySlots(now Instant, n, used int64, held float64, pause int64) Meter {
	p := &playedSlots{Count: Count{n, used}, each: AddInstant(max(1, int64(held)), pause)}
	for i, of := int64(0), min(used, playedMost); i < of; i++ { // they may have been taken at any time
		p.ends = append(p.ends, slotEnd{AddInstant(now, pause+int64(held*(float64(i)+0.5)/float64(of))), (i + 1) * used / of})
	}
	return p
}

// Play implements [Player]. Slots that rest are free again as soon as those that are taken.
func (s *PausedSlots) Play(now Instant) (Meter, bool) {
	s.resting.expire(now)
	return s.Slots.play(now, s.used+s.resting.used(), s.resting.per)
}

func (p *playedSlots) Payable(now Instant, cost int64) bool { return p.Ready(now, 0, cost) <= now }

func (p *playedSlots) Spend(now Instant, cost int64) (int64, bool) { return SpendIf(p, now, cost) }

// Ready implements [Meter]. Slots that are taken in turns are free again after as many of them.
func (p *playedSlots) Ready(from Instant, ahead, cost int64) Instant {
	if cost > p.n {
		return Never
	}
	over := p.used - p.n + cost // of all that were taken, so many must have ended
	if i := sort.Search(len(p.ends), func(i int) bool { return p.ends[i].sum >= over }); over > 0 && i < len(p.ends) {
		from = max(from, p.ends[i].at)
	}
	return AddInstant(from, MulCount(ahead/p.n, p.each))
}

func (p *playedSlots) Plan(from Instant, ahead, cost int64) Instant {
	return p.Ready(from, ahead, cost)
}

func (p *playedSlots) Take(_, now Instant, cost int64, _ bool) int64 {
	p.used += cost
	p.ends = append(p.ends, slotEnd{AddInstant(now, p.each), p.used})
	return 0
}

// Settle implements [Meter]: slots end by themselves.
func (p *playedSlots) Settle(int64, Instant, int64, int64) {}
