package metertest

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
