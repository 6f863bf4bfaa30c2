package concurrency

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

// At the start, the latency of more requests is compared with that of half as many, and with the lowest one. A latency that rises
// by 27 % is not yet much slower than the lowest; two rises of 16 % are, although each alone says little.
func TestEitherSignAloneEndsTheStart(t *testing.T) {
	for _, c := range []struct {
		elasticity float64
		last       float64 // n of the start
		sign       string
	}{
		{0.12, math.Inf(1), "none until 100"}, {0.22, 16, "the latency"}, {0.35, 8, "the elasticity"}, {1, 8, "both"},
	} {
		m := newMachine(Config{Max: 100}, func(n int64) float64 { return 0.05 * math.Pow(max(1, float64(n)/4), c.elasticity) })
		last := 0.0
		for m.mode == starting && m.now < at(60) {
			last = m.n
			m.round(all)
		}
		if math.IsInf(c.last, 1) {
			assert.GreaterOrEqual(t, last, 64.0, c.sign)
			continue
		}
		assert.Equal(t, c.last, last, c.sign)
	}
}

// levelWith returns a level of 16 requests with that number in flight, and that logarithm of the mean latency with that variance.
func levelWith(number, ln, variance float64) level {
	const n = 16
	s := math.Exp(ln)
	return level{sent: n, done: n, flying: n * number, sum: n * math.Sqrt(s), squares: n * s * (1 + variance*n/4)}
}

// Both latencies have a standard error of 10 %, so two errors of their difference are 28 %.
func TestASignThatEndsTheStartIsBeyondItsError(t *testing.T) {
	err := startErrors * math.Sqrt(0.02)
	elastic := startE*math.Ln2 + err // of twice as many requests
	for _, c := range []struct {
		number, rise float64
		slow         bool
	}{
		{8, elastic - 0.01, false}, {8, elastic + 0.01, true},
		{4, startSlow + err - 0.01, false}, {4, startSlow + err + 0.01, true}, // as many requests have no elasticity
	} {
		m := newController(0, Config{}, noon)
		m.high, m.open, m.best, m.mean = levelWith(4, 0, 0.01), levelWith(c.number, c.rise, 0.01), 0, 1
		m.climb()
		assert.Equal(t, c.slow, m.mode == cruising, "%+v", c)
	}
}
