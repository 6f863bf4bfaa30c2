package lease

import (
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// alone is the part of a [Leased] for the time in which the store is unreachable.
type alone struct {
	local meter.Meter // pays instead of leases; nil: leases pay
	owing bool        // what it pays is charged to the store later
	spent *uint64     // counts the tokens that local meters have paid
}

// localCharge identifies the charges of local meters. Leases have positive numbers.
const localCharge = -1

// Alone makes another meter pay until the next response of the store is booked. If owing, the store is then charged for what it
// paid, up to the bound of a debt. The tokens are added to spent.
func (m *Leased) Alone(now meter.Instant, local meter.Meter, owing bool, spent *uint64) {
	m.advance(now)
	m.alone = alone{local, owing, spent}
	m.schedule()
}

// IsAlone reports whether another meter pays.
func (a *alone) IsAlone() bool { return a.local != nil }

// drawLocal charges the local meter.
func (m *Leased) drawLocal(due, now meter.Instant, cost int64, waited bool) int64 {
	m.local.Take(due, now, cost, waited)
	m.drawn += cost
	*m.spent += uint64(cost)
	if m.owing {
		m.owesUpTo(m.mostOwedAlone(), cost, now)
	}
	return localCharge
}

// settleLocal corrects a charge of a local meter. The meter itself keeps the charge: it may be another one by now.
func (m *Leased) settleLocal(now meter.Instant, paid, cost int64) {
	switch {
	case cost < paid:
		m.owe = max(0, m.owe-(paid-cost))
	case m.owing || m.local == nil:
		m.owesUpTo(m.mostOwedAlone(), cost-paid, now)
	}
}

// Local returns the meter of a process's even share of the budget. It has no burst, and begins without tokens.
func (m *Leased) Local(now meter.Instant, processes int) meter.Meter {
	per := min(mulSat(int64(m.rate.Per), int64(processes)), meter.MaxPer)
	local := meter.NewPace(now, meter.Rate{N: m.rate.N, Per: time.Duration(per)})
	local.Take(now, now, 1, false)
	return local
}
