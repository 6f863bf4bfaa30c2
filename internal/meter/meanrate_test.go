package meter

import (
	"math"
	"testing"

	"github.com/httpthrottle/throttle/internal/meter/metertest"

	"github.com/stretchr/testify/require"
)

// A mean rate is the sum over all events of x/tau·exp(-age/tau), per second. An event that is removed leaves it, and one
// that is reported late counts as if it were of now.
func TestMeanRateIsAnExponentialMean(t *testing.T) {
	for seed := range uint64(100) {
		r := metertest.Seeded(t, seed)
		tau, now := float64(int64(1)<<r.IntN(40)), r.Int64N(1<<40)
		m, sums := MeanRate{At: now}, map[Instant]float64{}
		sum := func(now Instant) (sum float64) {
			for at, x := range sums {
				sum += x / tau * 1e9 * math.Exp(-float64(now-at)/tau)
			}
			return sum
		}
		var last Instant
		for range 50 {
			now += r.Int64N(1 + int64(tau*r.Float64()*2))
			switch x := 1 + r.Float64(); {
			case r.IntN(4) > 0:
				m.Add(now, x, tau)
				sums[now] += x
				last = now
			case sums[last] > 0:
				m.Remove(now, last, sums[last], tau)
				delete(sums, last)
			}
			require.InDelta(t, sum(now), m.Of(now, tau), sum(now)*1e-5+1e9/tau*1e-5, "seed %d", seed)
		}
		value := m.Of(now, tau)
		m.At = now
		m.Value = value
		m.Add(now-1000, 1, tau)
		require.Equal(t, now, m.At, "time never runs backwards")
		require.InEpsilon(t, value+1e9/tau, m.Value, 1e-9)
		m.Remove(now-1000, now, 1e9, tau)
		require.Equal(t, now, m.At)
		require.Zero(t, m.Value, "never less than nothing")
	}
}

func TestDecayIsExponential(t *testing.T) {
	for i := range 1000 {
		d := int64(i) * 1e6
		require.InDelta(t, math.Exp(-float64(d)/1e9), decay(d, 1e9), 2e-8, "%d ns", d)
	}
	require.Equal(t, 1.0, decay(-5, 1))
}
