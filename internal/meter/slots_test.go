package meter

import (
	"testing"
	"time"

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
				require.Equal(t, now, charged)
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

func TestPausedSlotsAgreeWithAModel(t *testing.T) {
	r := metertest.Seeded(t, 1)
	for range 60 {
		n, pause := 1+r.Int64N(5), 1+r.Int64N(20)
		s, m := NewPausedSlots(n, Rate{Per: time.Duration(pause)}), &metertest.PausedSlots{N: n, Pause: pause}
		var taken []int64
		for now := range Instant(300) {
			cost := 1 + r.Int64N(n+1)
			ready := m.Ready(now, cost)
			require.Equal(t, ready, s.Ready(now, r.Int64N(9), cost))
			require.Equal(t, ready == now, s.Payable(now, cost))
			ahead := r.Int64N(9)
			require.Equal(t, m.Plan(now, ahead, cost), s.Plan(now, ahead, cost))
			switch r.IntN(6) {
			case 0, 1:
				if _, ok := s.Spend(now, cost); ok {
					m.Used, taken = m.Used+cost, append(taken, cost)
				}
			case 2, 3, 4:
				if len(taken) > 0 {
					if r.IntN(3) > 0 { // else it was never sent
						s.Rest(now, taken[0])
						m.Rest(now, taken[0])
					}
					s.GiveBack(0, now, taken[0])
					m.Used, taken = m.Used-taken[0], taken[1:]
				}
			case 5:
				if r.IntN(20) == 0 {
					m.Retune(now, 1+r.Int64N(20))
					s.Retune(now, Rate{N: 9, Per: time.Duration(m.Pause)})
				}
			}
			require.Equal(t, m.Used, s.InFlight())
			require.Equal(t, float64(m.N-m.Used-m.Resting(now)), s.Tokens(now))
			must, full := s.Matters(now)
			if m.Used > 0 {
				require.Equal(t, []Instant{Never, Never}, []Instant{must, full})
			} else {
				require.Zero(t, must)
				require.Equal(t, m.Ready(now, m.N), max(now, full))
			}
		}
	}
}

func TestManySlotsThatRestTakeBoundedMemory(t *testing.T) {
	s := NewPausedSlots(1_000_000, Rate{Per: time.Second})
	for now := range Instant(100_000) {
		s.Take(now, now*1000, 1, false)
		s.Rest(now*1000, 1)
		s.GiveBack(0, now*1000, 1)
	}
	require.LessOrEqual(t, cap(s.resting.log), 2048)
	require.Equal(t, Instant(99_999_000+time.Second), s.Ready(99_999_000, 0, 1_000_000))
}
