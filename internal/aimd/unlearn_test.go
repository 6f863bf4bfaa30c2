package aimd

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Where refusals were by chance, the rate grows again as at the start; where that was wrong, it is what it was.
func TestARateForgetsRefusalsByChance(t *testing.T) {
	m := New(0, Config{Initial: 10}, 1)
	now := instant(0)
	for range 20 { // a refusal each second
		now += second
		m.Answered(now, m.Take(now, now, 1, false), now, 1, OK, 0)
		m.Answered(now, m.Take(now, now, 1, false), now+second/10, 1, Throttled, 0)
	}
	ceiling, _, _ := m.Bounds(now)
	was := m.PerSecond(now)
	assert.Less(t, was, 9.0)
	m.Unlearn(now)
	unbound, _, _ := m.Bounds(now)
	assert.Zero(t, unbound)
	assert.Equal(t, 10.0, m.PerSecond(now))
	m.Relearn(now)
	again, _, _ := m.Bounds(now)
	assert.Equal(t, ceiling, again)
	assert.Equal(t, was, m.PerSecond(now))
}
