package meter

// A Count is a counting semaphore: n slots, each taken until it is given back. If n was reduced, more may be taken than there
// are.
type Count struct{ n, used int64 }

// Slots is a Count that times for how long slots are taken.
type Slots struct {
	Count
	held  float32 // for how many ns one was taken, in the mean of the last ones
	timed uint8   // of how many, up to slotsTimed; 0: none was given back yet
}

const slotsTimed = 64 // the mean is of about that many slots

var (
	_ Planner = (*Count)(nil)
	_ Planner = (*Slots)(nil)
	_ Player  = (*Slots)(nil)
)

// NewSlots returns n free slots.
func NewSlots(n int64) *Slots { return &Slots{Count: Count{n: n}} }

func (s *Slots) Spend(now Instant, cost int64) (int64, bool) { return SpendIf(s, now, cost) }

// Take returns now.
func (s *Slots) Take(due, now Instant, cost int64, waited bool) int64 {
	s.Count.Take(due, now, cost, waited)
	return now
}

// GiveBack takes what Take returned.
func (s *Slots) GiveBack(taken int64, now Instant, cost int64) {
	s.Count.GiveBack(0, now, cost)
	s.timed = min(s.timed+1, slotsTimed)
	s.held += (float32(now-taken) - s.held) / float32(s.timed)
}

// InFlight returns how many slots are taken.
func (s *Count) InFlight() int64 { return s.used }

func (s *Count) Payable(_ Instant, cost int64) bool { return cost <= s.n-s.used }

func (s *Count) Spend(now Instant, cost int64) (int64, bool) { return SpendIf(s, now, cost) }

// Ready returns Never if a slot must become free first.
func (s *Count) Ready(from Instant, _, cost int64) Instant {
	if cost > s.n-s.used {
		return Never
	}
	return from
}

func (s *Count) Plan(from Instant, _, cost int64) Instant {
	if cost > s.n {
		return Never
	}
	return from
}

func (s *Count) Take(_, _ Instant, cost int64, _ bool) int64 {
	s.used += cost
	return 0
}

func (s *Count) GiveBack(_ int64, _ Instant, cost int64) {
	if s.used -= cost; s.used < 0 {
		panic("throttle: bug: more slots given back than taken")
	}
}

func (s *Count) Settle(int64, Instant, int64, int64) { panic("throttle: bug: a slot has no cost") }

func (s *Count) Most() int64 { return s.n }

func (s *Count) Matters(Instant) (must, full Instant) {
	if s.used > 0 {
		return Never, Never
	}
	return 0, 0
}

func (s *Count) PerSecond(Instant) float64 { return 0 }
func (s *Count) Tokens(Instant) float64    { return float64(s.n - s.used) }
func (s *Count) Retune(Instant, Rate)      {}

// Resize sets the number of slots. Those that are taken stay so.
func (s *Count) Resize(_ Instant, n int64) { s.n = n }

// PausedSlots are Slots that rest for a while after each request, before another one may take them.
type PausedSlots struct {
	Slots
	resting SlidingWindow // counts a slot from the end of its request until the pause is over
}

var (
	_ Planner = (*PausedSlots)(nil)
	_ Player  = (*PausedSlots)(nil)
	_ Rester  = (*PausedSlots)(nil)
)

// NewPausedSlots returns n free slots with a pause of r.Per.
func NewPausedSlots(n int64, r Rate) *PausedSlots {
	return &PausedSlots{*NewSlots(n), *NewSlidingWindow(Rate{Per: r.Per})}
}

// Rest lets slots that are about to be given back rest.
func (s *PausedSlots) Rest(now Instant, cost int64) { s.resting.Take(now, now, cost, false) }

func (s *PausedSlots) free() int64 { return s.n - s.used - s.resting.used() }

func (s *PausedSlots) Payable(now Instant, cost int64) bool {
	s.resting.expire(now)
	return cost <= s.free()
}

func (s *PausedSlots) Spend(now Instant, cost int64) (int64, bool) { return SpendIf(s, now, cost) }

// Ready returns Never if a request must end first.
func (s *PausedSlots) Ready(from Instant, _, cost int64) Instant {
	switch missing := cost - s.free(); {
	case cost > s.n, missing > s.resting.used():
		return Never
	case missing > 0:
		return max(from, s.resting.frees(missing))
	}
	return from
}

// Plan assumes that every request ends immediately. Its slots rest nevertheless, so each is taken once in a pause.
func (s *PausedSlots) Plan(from Instant, ahead, cost int64) Instant {
	if cost > s.n {
		return Never
	}
	before := AddCount(ahead, cost) - 1
	generation, place := before/s.n, before%s.n+1
	switch missing := place - s.free(); {
	case missing > s.resting.used():
		from = AddInstant(from, s.resting.per)
	case missing > 0:
		from = max(from, s.resting.frees(missing))
	}
	return AddInstant(from, MulCount(generation, s.resting.per))
}

func (s *PausedSlots) Matters(now Instant) (must, full Instant) {
	if s.used > 0 {
		return Never, Never
	}
	_, full = s.resting.Matters(now)
	return 0, full // as of a window, a pause may be forgotten to make room
}

func (s *PausedSlots) Tokens(now Instant) float64 { return s.Slots.Tokens(now) + s.resting.Tokens(now) }

// Retune sets the pause, for slots that rest already as well.
func (s *PausedSlots) Retune(now Instant, r Rate) { s.resting.Retune(now, Rate{Per: r.Per}) }
