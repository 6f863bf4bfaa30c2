package meter

import "math"

// A Reserver is a meter for which leaving a part of its capacity is more than paying a higher cost.
type Reserver interface {
	// ReadyLeaving is Ready for a request that may go only if that part of the capacity, from 0 to 1, remains afterwards.
	// urgent and ahead are paid before it: urgent by requests that need not leave anything.
	ReadyLeaving(from Instant, urgent, ahead, cost int64, part float64) Instant
}

// A ReservePlanner is a [Planner] whose Plan for such a request is not that of a higher cost.
type ReservePlanner interface {
	// PlanLeaving returns a lower bound of what ReadyLeaving will return, whatever responses arrive.
	PlanLeaving(from Instant, urgent, ahead, cost int64, part float64) Instant
}

// Reserved returns that part of a capacity, rounded up, but always leaves one token to others.
func Reserved(capacity int64, part float64) int64 {
	return max(0, min(int64(math.Ceil(float64(capacity)*part*(1-1e-15)-1e-9)), capacity-1))
}

// ReadyLeaving returns what the method of that name would, for any meter.
func ReadyLeaving(m Meter, from Instant, urgent, ahead, cost int64, part float64) Instant {
	if r, ok := m.(Reserver); ok {
		return r.ReadyLeaving(from, urgent, ahead, cost, part)
	}
	return m.Ready(from, AddCount(urgent, ahead), AddCount(cost, Reserved(m.Most(), part)))
}

// PlanLeaving returns what the method of that name would, for any meter.
func PlanLeaving(m Meter, from Instant, urgent, ahead, cost int64, part float64) Instant {
	switch p := m.(type) {
	case ReservePlanner:
		return p.PlanLeaving(from, urgent, ahead, cost, part)
	case Planner:
		return p.Plan(from, AddCount(urgent, ahead), AddCount(cost, Reserved(m.Most(), part)))
	}
	return ReadyLeaving(m, from, urgent, ahead, cost, part)
}

// ReadyLeaving implements [Reserver]. Requests that leave a part of the window share the rest of it, so that it is exact
// without urgent ones, and else a lower bound.
func (w *SlidingWindow) ReadyLeaving(from Instant, urgent, ahead, cost int64, part float64) Instant {
	reserved, rest := Reserved(w.n, part), *w
	rest.n -= reserved
	return max(rest.Ready(from, ahead, cost), w.Ready(from, AddCount(urgent, ahead), AddCount(cost, reserved)))
}

// ReadyLeaving implements [Reserver], as that of a [SlidingWindow] does.
func (w *FixedWindow) ReadyLeaving(from Instant, urgent, ahead, cost int64, part float64) Instant {
	reserved, rest := Reserved(w.n, part), *w
	rest.n -= reserved
	return max(rest.Ready(from, ahead, cost), w.Ready(from, AddCount(urgent, ahead), AddCount(cost, reserved)))
}
