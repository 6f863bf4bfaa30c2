package quota

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

// refusedEach sends that many requests a second, of which each twentieth is refused, until n were refused. It returns the last refusal.
func refusedEach(g *Gate, own Own, from meter.Instant, perSecond int64, n int) (rep *Report, now meter.Instant) {
	now = from
	for i := range 20 * n {
		now += second / perSecond
		rep = &Report{Sent: now, Number: g.Take(now, now, 1, true), Own: own, Accepted: i%20 < 19, Done: i%20 < 19}
		rep.Hints = &Hints{Limited: !rep.Accepted}
		g.apply(rep, now)
	}
	return rep, now
}

func TestARefusalByChanceHoldsOnlyForTheWaitThatItAsksFor(t *testing.T) {
	a, g, _ := newFamilies()
	_, now := refusedEach(g, Own{}, 0, 10, 4)
	rep, now := refusedEach(g, Own{}, now, 5, 31)
	require.Equal(t, Refused, rep.Kind)
	require.Positive(t, a.pace.rate)
	rep, now = refusedEach(g, Own{}, now, 5, 1)
	require.Equal(t, ByChance, rep.Kind)
	assert.Zero(t, a.pace.rate, "what refusals have taught is wrong")
	now = max(now, a.Until())
	rep, now = refusedEach(g, Own{}, now, 10, 2)
	require.Equal(t, ByChance, rep.Kind)
	assert.Equal(t, now, g.Ready(now, 0, 1))

	rep = &Report{Sent: now, Number: g.Take(now, now, 1, true)}
	rep.Hints = &Hints{Limited: true, Wait: 10 * time.Second}
	g.apply(rep, now)
	require.Equal(t, ByChance, rep.Kind)
	requireHeld(t, now, 10*time.Second, a.Held())
}

// Neighbours whose rates rise and fall in turns would take each other for chance.
func TestNothingIsByChanceWhereARateIsLearned(t *testing.T) {
	_, g, _ := newFamilies()
	own := Own{Adaptive: true}
	_, now := refusedEach(g, own, 0, 10, 4)
	rep, _ := refusedEach(g, own, now, 5, 100)
	assert.Equal(t, Refused, rep.Kind)
}
