package concurrency

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/internal/aimd"
)

func TestANumberForgetsRefusalsByChance(t *testing.T) {
	m := New(0, Config{Initial: 20}, nil)
	now := instant(0)
	for range 2 {
		now += second
		var all []int64
		for m.Payable(now, 1) {
			all = append(all, m.Take(now, now, 1, true))
		}
		for i, charged := range all {
			o := aimd.OK
			if i%5 == 2 {
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

// A trial of a rate has found that failures are by chance: a number believes that, and undoes its cuts.
func TestANumberAgreesWithTheTrialOfARate(t *testing.T) {
	m := New(0, Config{Initial: 20}, nil)
	m.control.brink(second)
	m.control.refusedAt(second, 20)
	n, ceiling, _, _ := m.Bounds(second)
	assert.Less(t, n, int64(20))
	assert.Positive(t, ceiling)
	m.Agree(second, byChance(t, 0.25))
	n, ceiling, _, _ = m.Bounds(second)
	assert.Equal(t, int64(20), n)
	assert.Zero(t, ceiling)
	for range 4 {
		m.control.refusedAt(2*second, 20)
	}
	_, ceiling, _, _ = m.Bounds(2 * second)
	assert.Zero(t, ceiling, "a fourth is usual")
	assert.False(t, m.Failures().News(), "it was not its own trial")
}
