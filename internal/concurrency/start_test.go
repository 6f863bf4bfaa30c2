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
