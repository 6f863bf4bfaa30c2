package lease

import (
	"slices"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A best is a copy of a [Leased] that grants what that one would if no other process asked: what is leased, and then what its Plan says.
type best struct {
	*Leased
	now   meter.Instant // when it was copied
	spent int64         // since then
}

// Best implements [meter.Bounder]. Before the first response, a budget without windows is taken to be full.
func (m *Leased) Best(now meter.Instant) meter.Meter {
	other := *m
	other.lots, other.runs = slices.Clone(m.lots), slices.Clone(m.runs)
	if c, ok := m.local.(meter.Copier); ok {
		other.local = c.Copy()
	}
	if !m.latest.known && m.promises() {
		other.latest = response{known: true, sent: now, left: float64(m.Most())}
	}
	return &best{Leased: &other, now: now}
}

func (b *best) Ready(from meter.Instant, ahead, cost int64) meter.Instant {
	return max(from, b.Plan(b.now, meter.AddCount(ahead, b.spent), cost))
}

func (b *best) Take(_, _ meter.Instant, cost int64, _ bool) int64 {
	b.spent = meter.AddCount(b.spent, cost)
	return 0
}
