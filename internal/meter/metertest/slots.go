package metertest

import "slices"

// Slots counts what is in flight.
type Slots struct{ N, Used int64 }

func (m *Slots) Ready(from instant, cost int64) instant {
	if m.Used+cost > m.N {
		return never
	}
	return from
}

func (m *Slots) Pay(_, _ instant, cost int64, _ bool) { m.Used += cost }
func (m *Slots) Retune(instant, Rate)                 {}

// Clone returns slots for plans, in which any slot may become free at any time.
func (m *Slots) Clone() Meter { return plannedSlots(m.N) }

type plannedSlots int64

func (n plannedSlots) Ready(from instant, cost int64) instant {
	if cost > int64(n) {
		return never
	}
	return from
}

func (plannedSlots) Pay(instant, instant, int64, bool) {}
func (plannedSlots) Retune(instant, Rate)              {}
func (n plannedSlots) Clone() Meter                    { return n }

// PausedSlots counts what is in flight, and remembers each slot that rests.
type PausedSlots struct {
	N, Pause, Used int64
	rests          []rest
}

type rest struct{ since, cost int64 }

// Rest notes that slots rest from now on.
func (m *PausedSlots) Rest(now instant, cost int64) { m.rests = append(m.rests, rest{now, cost}) }

// Resting returns how many slots rest.
func (m *PausedSlots) Resting(now instant) (n int64) {
	for _, r := range m.rests {
		if r.since+m.Pause > now {
			n += r.cost
		}
	}
	return n
}

// Retune sets the pause. A slot that has ended its pause does not begin another.
func (m *PausedSlots) Retune(now instant, pause int64) {
	m.rests = slices.DeleteFunc(m.rests, func(r rest) bool { return r.since+m.Pause <= now })
	m.Pause = pause
}

// Ready tries each instant until all slots that rest are free.
func (m *PausedSlots) Ready(from instant, cost int64) instant {
	for at := from; at <= from+m.Pause; at++ {
		if m.Used+m.Resting(at)+cost <= m.N {
			return at
		}
	}
	return never
}

// Plan lets requests of one slot go one after the other, each of which ends immediately and rests.
func (m *PausedSlots) Plan(from instant, ahead, cost int64) instant {
	if cost > m.N {
		return never
	}
	free := make([]instant, 0, m.N) // when each slot is free
	for _, r := range m.rests {
		if r.since+m.Pause > from {
			for range r.cost {
				free = append(free, r.since+m.Pause)
			}
		}
	}
	for range m.Used {
		free = append(free, from+m.Pause)
	}
	for int64(len(free)) < m.N {
		free = append(free, from)
	}
	slices.Sort(free)
	at := from
	for range ahead + cost {
		at = max(at, free[0])
		free = append(free[1:], free[0]+m.Pause)
	}
	return at
}
