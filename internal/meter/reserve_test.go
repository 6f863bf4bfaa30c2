package meter

import (
	"testing"
	"time"

	"github.com/httpthrottle/throttle/internal/meter/metertest"

	"github.com/stretchr/testify/require"
)

func TestReservedIsAPartRoundedUpThatLeavesOneToken(t *testing.T) {
	r := metertest.Seeded(t, 1)
	for range 2000 {
		capacity, percent := 1+r.Int64N(1_000_000), r.Int64N(101)
		require.Equal(t, min((capacity*percent+99)/100, capacity-1), Reserved(capacity, float64(percent)/100), "%d%% of %d", percent, capacity)
	}
	for range 2000 { // where a float64 has no digits left for the fraction, it is not rounded up
		hundredth, percent := r.Int64N(MaxCount/100), r.Int64N(100)
		got, want := Reserved(100*hundredth, float64(percent)/100), hundredth*percent
		require.LessOrEqual(t, got, want)
		require.InEpsilon(t, 1+float64(want), 1+float64(got), 1e-14)
	}
	require.Zero(t, Reserved(0, .5))
	require.Zero(t, Reserved(-1, .5))
}

// A request that leaves a part of a window goes at the first instant at which the cost and that part can be paid.
func TestWindowsLeaveAPart(t *testing.T) {
	for seed := range uint64(200) {
		r := metertest.Seeded(t, seed)
		rt := Rate{1 + r.Int64N(20), time.Duration(1 + r.Int64N(1000))}
		for _, m := range []Meter{NewSlidingWindow(rt), NewFixedWindow(0, rt, time.Time{}, new(Wall))} {
			now := Instant(0)
			for range r.IntN(30) {
				now += r.Int64N(1 + int64(rt.Per)/4)
				m.Spend(now, 1+r.Int64N(rt.N))
			}
			cost, part := 1+r.Int64N(rt.N), r.Float64()
			all := cost + Reserved(rt.N, part)
			due := ReadyLeaving(m, now, 0, 0, cost, part)
			require.Equal(t, due, PlanLeaving(m, now, 0, 0, cost, part))
			require.Equal(t, m.Ready(now, 0, all), due, "seed %d: %+v", seed, m)
			if all > rt.N {
				require.Equal(t, Never, due)
				continue
			}
			// Requests ahead that leave the same part use windows of the rest; urgent ones use whole windows.
			rest := rt.N - Reserved(rt.N, part)
			later := ReadyLeaving(m, due+2*int64(rt.Per), 0, rest-cost+3*rest, cost, part)
			require.GreaterOrEqual(t, later, due+4*int64(rt.Per), "seed %d: %+v", seed, m)
			require.LessOrEqual(t, later, due+5*int64(rt.Per), "seed %d: %+v", seed, m)
			require.Equal(t, m.Ready(now, 3*rt.N, all), ReadyLeaving(m, now, 3*rt.N, 0, cost, part))
		}
	}
	b, slots := NewTokenBucket(0, Rate{1, time.Second}, 10, 10), NewSlots(10)
	require.Equal(t, Instant(0), ReadyLeaving(b, 0, 0, 0, 5, .5))
	require.Equal(t, 3*second, ReadyLeaving(b, 0, 1, 2, 5, .5))
	require.Equal(t, Instant(0), ReadyLeaving(slots, 0, 0, 0, 5, .5))
	require.Equal(t, Never, ReadyLeaving(slots, 0, 0, 0, 6, .5))
	slots.Take(0, 0, 6, false)
	require.Equal(t, Instant(7), PlanLeaving(slots, 7, 1, 2, 5, .5), "slots may become free")
	require.Equal(t, Never, PlanLeaving(slots, 7, 0, 0, 6, .5))
}
