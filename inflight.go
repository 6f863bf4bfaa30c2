package throttle

// A semaphore is the meter of an [InFlight] limit, counting.
type semaphore struct{ n, used int64 }

var _ planner = (*semaphore)(nil)

func (s *semaphore) payable(_ instant, cost int64) bool { return cost <= s.n-s.used }

func (s *semaphore) spend(now instant, cost int64) (int64, bool) { return spendIf(s, now, cost) }

// ready is never where a slot must become free first.
func (s *semaphore) ready(from instant, _, cost int64) instant {
	if cost > s.n-s.used {
		return never
	}
	return from
}

func (s *semaphore) plan(from instant, _, cost int64) instant {
	if cost > s.n {
		return never
	}
	return from
}

func (s *semaphore) take(_, _ instant, cost int64, _ bool) int64 {
	s.used += cost
	return 0
}

func (s *semaphore) giveBack(_ int64, _ instant, cost int64) {
	if s.used -= cost; s.used < 0 {
		panic("throttle: bug: more slots given back than taken")
	}
}

func (s *semaphore) settle(int64, instant, int64, int64) { panic("throttle: bug: a slot has no cost") }

func (s *semaphore) most() int64 { return s.n }

func (s *semaphore) fullAt() instant {
	if s.used > 0 {
		return never
	}
	return 0
}

func (s *semaphore) tokens(instant) float64 { return float64(s.n - s.used) }
func (s *semaphore) indebted(instant) bool  { return s.used > 0 }
func (s *semaphore) retune(instant, rate)   {}
func (s *semaphore) resize(instant, int64)  {}

// UntilHeaders gives the slots of an [InFlight] limit back when the headers of the answer have come, in place of when its
// body was read or closed.
func UntilHeaders() LimitOption {
	return limitOption(func(l *Limit) {
		l.untilHeaders = true
		l.onlyFor(kindInFlight, "UntilHeaders", "")
	})
}
