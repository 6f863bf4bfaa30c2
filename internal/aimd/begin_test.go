package aimd

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/internal/record"
)

// After a pause, the first request may be refused and later ones accepted. The user's limit is cut; a rate that a refusal has begun is not,
// unless only requests from before the pause were accepted.
func TestTheFirstRequestAfterAPauseMayBeRefusedByChance(t *testing.T) {
	const now = 1000 * second
	for _, c := range []struct {
		manner manner
		worked float64
		cut    bool
	}{{chosen, 10, true}, {begun, 10, false}, {chosen, 0, true}, {begun, 0, true}} {
		k := newController(Config{Initial: 100}, 0, 1)
		k.manner, k.ceiling, k.workedFrom, k.paused, k.asked, k.spared, k.firstSeq = c.manner, 200, now-second, second, true, true, 7
		k.okAt, k.worked = now, c.worked
		k.throttled(now, ticket{seq: 7, at: now - second/2}, second)
		assert.Equal(t, c.cut, k.current < 100, "%+v", c)
	}
}

// A lone refusal may be by chance, so a rate that is not known is found sooner.
func TestARateThatIsNotKnownIsFoundSoonerAfterALoneRefusal(t *testing.T) {
	for _, s := range []Start{
		{Lone: true, Sent: 2 * second, Given: record.Sum{N: 100, From: second + 1}},
		{Lone: true, Sent: 2 * second, Given: record.Sum{N: 100, From: second}},
		{Sent: 2 * second, Given: record.Sum{N: 100, From: second + 1}},
	} {
		m, known := Begin(2*second, &s, 1)
		doubles := begun.doubles
		if s.Lone && !known {
			doubles = soonest
		}
		assert.Equal(t, s.Given.From == second, known)
		assert.Equal(t, doubles, m.control.manner.doubles)
		rate := m.PerSecond(2 * second)
		m.control.okAt, m.control.off.use = 2*second+nanos(doubles), true
		assert.InEpsilon(t, 2*rate, m.PerSecond(2*second+nanos(doubles)), 0.01)
	}
}
