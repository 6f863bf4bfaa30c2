package quota

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/server"
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
	rep, now := refusedEach(g, Own{}, now, 5, 11)
	require.Equal(t, server.TooFast, rep.Verdict)
	held := a.Held()
	rep, now = refusedEach(g, Own{}, now, 5, 1)
	require.Equal(t, server.IsTried, rep.Chance)
	assert.Equal(t, server.TooFast, rep.Verdict, "it is not known yet")
	require.Equal(t, held, a.Held(), "nothing holds the trial")
	sends(t, g, now, server.Together)
	require.Equal(t, a.rate == nil, g.Payable(now+1, 1), "one by one again, if a rate is known")
	for i := range int64(server.Together) {
		ends(g, now, now+i, true)
	}
	for trials := 1; rep.Chance != server.IsChance; trials++ {
		require.Less(t, trials, 5)
		rep, now = refusedEach(g, Own{}, now, 5, 1)
	}
	require.Equal(t, server.ByChance, rep.Verdict)
	if a.rate != nil {
		ceiling, _, _ := a.rate.Bounds(now)
		assert.Zero(t, ceiling, "what refusals have taught is wrong")
	}
	now = max(now, a.Until())
	rep, now = refusedEach(g, Own{}, now, 10, 2)
	require.Equal(t, server.ByChance, rep.Verdict)
	assert.LessOrEqual(t, a.Until(), now, "it holds nothing")

	rep = &Report{Sent: now, Number: g.Take(now, now, 1, true)}
	rep.Hints = &Hints{Limited: true, Wait: 10 * time.Second}
	g.apply(rep, now)
	require.Equal(t, server.ByChance, rep.Verdict)
	requireHeld(t, now, 10*time.Second, a.Held())
}

// Neighbours whose rates rise and fall in turns look like chance, so a learned rate is tested by requests that are sent at once.
func TestALearnedRateIsTestedByATrial(t *testing.T) {
	a, g, _ := newFamilies()
	own := Own{Adaptive: true}
	_, now := refusedEach(g, own, 0, 10, 4)
	rep, now := refusedEach(g, own, now, 5, 12)
	require.Equal(t, server.IsTried, rep.Chance)
	assert.Equal(t, server.TooFast, rep.Verdict, "it is not known yet")
	all := make([]*Report, server.Together)
	for i := range all {
		all[i] = &Report{Sent: now, Number: g.Take(now, now, 1, true), Own: own}
	}
	var found server.Finding
	for _, rep := range all {
		now += second / 100
		rep.Hints = &Hints{Limited: true}
		g.apply(rep, now)
		assert.Equal(t, server.TooFast, rep.Verdict)
		if found == server.NoFinding {
			found = rep.Chance
		}
	}
	assert.Equal(t, server.IsNone, found, "the server is full")
	assert.Zero(t, a.Held())
}

// While a client waits because it was asked to, it cannot send several requests at once.
func TestALearnedRateIsNotTestedByRefusalsThatAskForAWait(t *testing.T) {
	_, g, _ := newFamilies()
	now := meter.Instant(0)
	for range 100 {
		now += 10 * second
		rep := &Report{Sent: now, Number: g.Take(now, now, 1, true), Own: Own{Adaptive: true}}
		rep.Hints = &Hints{Limited: true, Wait: time.Second}
		g.apply(rep, now)
		assert.Equal(t, server.NoFinding, rep.Chance)
	}
	assert.Nil(t, g.Account.shown)
}

// Refusals that ask for a wait show that others were not by chance, too.
func TestALimitThatAsksForWaitsIsFoundAfterRefusalsByChance(t *testing.T) {
	_, g, _ := newFamilies()
	own := Own{Adaptive: true}
	_, now := refusedEach(g, own, 0, 10, 4)
	rep, now := refusedEach(g, own, now, 5, 12)
	for trials := 1; rep.Chance == server.IsTried; trials++ {
		require.Less(t, trials, 5)
		rep, now = refusedEach(g, own, now, 5, 1)
	}
	require.Equal(t, server.IsChance, rep.Chance)
	for n := 0; rep.Chance != server.IsNone; n++ {
		require.Less(t, n, 10)
		now += 2 * second
		rep = &Report{Sent: now, Number: g.Take(now, now, 1, true), Own: own}
		rep.Hints = &Hints{Limited: true, Wait: time.Second}
		g.apply(rep, now)
	}
	assert.Equal(t, server.TooFast, rep.Verdict)
}
