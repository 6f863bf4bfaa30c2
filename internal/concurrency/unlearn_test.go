package concurrency

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/internal/aimd"
)

func TestANumberForgetsRefusalsByChance(t *testing.T) {
	m := New(0, Config{Initial: 20}, nil)
	now := instant(0)
	for range 10 {
		now += second
		var all []int64
		for m.Payable(now, 1) {
			all = append(all, m.Take(now, now, 1, true))
		}
		for i, charged := range all {
			o := aimd.OK
			if i == len(all)/2 {
				o = aimd.Throttled
			}
			m.GiveBack(m.Answered(now+second/2, charged, now, 1, o, 0), now+second/2, 1)
		}
	}
	was, ceiling, _, _ := m.Bounds(now)
	assert.Less(t, was, int64(20))
	assert.Positive(t, ceiling)
	m.Unlearn(now)
	n, ceiling, _, _ := m.Bounds(now)
	assert.Greater(t, n, was)
	assert.Zero(t, ceiling)
	m.Relearn(now)
	again, _, _, _ := m.Bounds(now)
	assert.Equal(t, n, again, "the next refusals lower it")
}
