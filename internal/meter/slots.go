package meter

// Slots is a counting semaphore: n slots, each taken until it is given back. If n was reduced, more may be taken than there
// are.
type Slots struct{ n, used int64 }

var _ Planner = (*Slots)(nil)

// NewSlots returns n free slots.
func NewSlots(n int64) *Slots { return &Slots{n: n} }

// InFlight returns how many slots are taken.
func (s *Slots) InFlight() int64 { return s.used }

func (s *Slots) Payable(_ Instant, cost int64) bool { return cost <= s.n-s.used }

func (s *Slots) Spend(now Instant, cost int64) (int64, bool) { return SpendIf(s, now, cost) }

// Ready returns Never if a slot must become free first.
func (s *Slots) Ready(from Instant, _, cost int64) Instant {
	if cost > s.n-s.used {
		return Never
	}
	return from
}

func (s *Slots) Plan(from Instant, _, cost int64) Instant {
	if cost > s.n {
		return Never
	}
	return from
}

func (s *Slots) Take(_, _ Instant, cost int64, _ bool) int64 {
	s.used += cost
	return 0
}

func (s *Slots) GiveBack(_ int64, _ Instant, cost int64) {
	if s.used -= cost; s.used < 0 {
		panic("throttle: bug: more slots given back than taken")
	}
}

func (s *Slots) Settle(int64, Instant, int64, int64) { panic("throttle: bug: a slot has no cost") }

func (s *Slots) Most() int64 { return s.n }

func (s *Slots) Matters(Instant) (must, full Instant) {
	if s.used > 0 {
		return Never, Never
	}
	return 0, 0
}

func (s *Slots) PerSecond(Instant) float64 { return 0 }
func (s *Slots) Tokens(Instant) float64    { return float64(s.n - s.used) }
func (s *Slots) Retune(Instant, Rate)      {}

// Resize sets the number of slots. Those that are taken stay so.
func (s *Slots) Resize(_ Instant, n int64) { s.n = n }
