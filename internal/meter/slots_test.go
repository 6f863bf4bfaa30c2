package meter

import (
	"testing"

	"github.com/httpthrottle/throttle/internal/meter/metertest"

	"github.com/stretchr/testify/require"
)

func TestSlotsAgreeWithACount(t *testing.T) {
	r := metertest.Seeded(t, 1)
	s, m, taken := NewSlots(3), &metertest.Slots{N: 3}, []int64(nil)
	for now := range Instant(1000) {
		cost := 1 + r.Int64N(m.N+1)
		ready := m.Ready(now, cost)
		require.Equal(t, ready, s.Ready(now, r.Int64N(9), cost))
		require.Equal(t, m.Clone().Ready(now, cost), s.Plan(now, r.Int64N(9), cost))
		require.Equal(t, ready == now, s.Payable(now, cost))
		switch r.IntN(3) {
		case 0:
			if charged, ok := s.Spend(now, cost); ok {
				require.Zero(t, charged)
				m.Pay(now, now, cost, false)
				taken = append(taken, cost)
			}
			require.Equal(t, m.Used, s.InFlight())
		case 1:
			if len(taken) > 0 {
				s.GiveBack(0, now, taken[0])
				m.Used, taken = m.Used-taken[0], taken[1:]
			}
		case 2:
			m.N = 1 + r.Int64N(6)
			s.Resize(now, m.N)
		}
		require.Equal(t, m.N, s.Most())
		require.Equal(t, float64(m.N-m.Used), s.Tokens(now))
		must, full := s.Matters(now)
		if m.Used > 0 {
			require.Equal(t, []Instant{Never, Never}, []Instant{must, full})
		} else {
			require.Equal(t, []Instant{0, 0}, []Instant{must, full})
		}
	}
	require.Panics(t, func() { s.GiveBack(0, 0, s.InFlight()+1) })
}
