package concurrency

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/aimd"
)

// cruisingAt returns a controller that is past its start, with a ceiling above n.
func cruisingAt(n int64, ceiling float64) *controller {
	c := newController(0, Config{Initial: n}, noon)
	c.mode, c.seq = cruising, 1000
	c.refusals.ceiling = ceiling
	return c
}

// refusedAt refuses a request that was sent when inFlight were in flight.
func (c *controller) refusedAt(now instant, inFlight int64) {
	c.seq++
	c.refuse(now, ticket{c.seq, inFlight}, false)
}

// A refusal after so many successes is a sign of too much, or is ignored because such refusals are rare.
func TestWhetherARefusalCutsDependsOnTheSuccessesBefore(t *testing.T) {
	unknown := math.Inf(1)
	for _, x := range []struct {
		since         float64
		ceiling, then float64
		good          float64 // of 10 before
	}{
		{soon - 1, 10, 8, 9}, {soon, 10, 8, 10},
		{isolated - 1, unknown, 8, 10}, {isolated, unknown, unknown, 10},
		{rare - 1, 10, 8, 10}, {rare, 10, 10, 10},
	} {
		c := cruisingAt(10, x.ceiling)
		c.refusals.since, c.refusals.good = x.since, 10
		c.refusedAt(second, 9)
		require.Equal(t, x.then, c.refusals.ceiling, "after %d", x.since)
		require.Equal(t, x.good, c.refusals.good, "after %d", x.since)
	}
	c := cruisingAt(1, 10)
	c.refusals.since, c.refusals.good = soon-1, 10
	c.refusedAt(second, 9)
	require.Equal(t, 10.0, c.refusals.good, "one request alone shows nothing about many")
}

func TestARefusalThatIsIgnoredBringsTheNextTryForward(t *testing.T) {
	for wait, then := range map[instant]instant{16 * second: 8 * second, 3 * second / 2: second, second / 2: second / 2} {
		c := cruisingAt(10, 10)
		c.refusals.since, c.refusals.wait = rare, wait
		c.refusedAt(second, 9)
		require.Equal(t, then, c.refusals.wait)
	}
}

// A refusal soon after a try, of more requests than before it, means that the try failed.
func TestARefusalSoonAfterATryEndsIt(t *testing.T) {
	for _, x := range []struct {
		ago      uint64
		inFlight int64
		failed   bool
	}{{soon - 1, 9, true}, {soon, 9, false}, {soon - 1, 8, false}} {
		c := cruisingAt(10, 10)
		r := &c.refusals
		r.since, r.step, r.raised = rare, 2, c.seq+1-x.ago
		c.refusedAt(second, x.inFlight)
		require.Equal(t, x.failed, r.ceiling < 10, "%+v", x)
		require.Equal(t, 10.0, c.n, "it stays at what has held so far")
	}
}

// Fewer requests than a number that was fine cannot be too many.
func TestRefusalsOfFewRequestsAreDoubted(t *testing.T) {
	for inFlight, doubts := range map[int64]int{8: 1, 9: 0} {
		c := cruisingAt(10, 10)
		c.refusals.since, c.refusals.good = soon, 10
		c.refusedAt(second, inFlight)
		require.EqualValues(t, doubts, c.refusals.doubts)
	}
	for doubts, isNoise := range map[int]bool{doubtsMost - 1: false, doubtsMost: true} {
		c := cruisingAt(10, 10)
		r := &c.refusals
		r.since, r.good, r.doubts, r.share, r.before = soon, 10, int32(doubts), 0.09, 20
		c.refusedAt(second, 8)
		require.Equal(t, isNoise, math.IsInf(r.ceiling, 1))
		if isNoise {
			require.InDelta(t, 2*(0.09+0.91/100), r.noise, 1e-9)
			require.Equal(t, second+noiseFor, r.noiseEnd)
			require.Equal(t, 20.0, c.n, "the cuts are undone")
		}
	}
}

// The n before the first cut of an episode is what a doubt returns to.
func TestAnEpisodeRemembersWhatWasBeforeIt(t *testing.T) {
	for _, m := range []mode{starting, cruising} {
		c := cruisingAt(10, math.Inf(1))
		c.mode = m
		r := &c.refusals
		r.since = 0
		c.refusedAt(second, 10)
		require.Equal(t, []any{true, 10.0, m == starting}, []any{r.episode, r.before, r.start})
		require.Equal(t, 9.0, c.n)
		c.refusedAt(2*second, 9)
		require.Equal(t, []any{true, 10.0, m == starting}, []any{r.episode, r.before, r.start})
		require.Equal(t, 8.0, c.n)
	}
}

// A ceiling is tried again after a wait, or after enough successes; to return to it takes fewer.
func TestWhenACeilingIsTried(t *testing.T) {
	for _, x := range []struct {
		n, ceiling   float64
		cut          float64
		enough       float64
		then, raised float64
	}{
		{9, 10, 9, rare, 10, 10},           // n returns to the ceiling
		{10, 10, 9, longPassed, 11, 11},    // a try
		{2, 2, 1, 2 * slotPassed, 3, 3},    // with few slots, after fewer successes
		{9.5, 10, 9, longPassed, 11, 11},   // as good as at the ceiling
		{9.5, 10, 9.5, longPassed, 11, 11}, // also if it was cut to that
		{9, 10, 8, longPassed, 9, 10},      // latencies do not allow more
	} {
		for _, short := range []float64{1, 0} {
			c := cruisingAt(10, x.ceiling)
			r := &c.refusals
			c.n, c.inFlight = x.n, 100
			r.cutTo, r.tryAt, r.passed, r.wait = x.cut, 100*second, x.enough-short, second
			r.advance(c, 50*second)
			if short > 0 || x.then == x.n {
				require.Equal(t, []float64{x.n, x.ceiling}, []float64{c.n, r.ceiling}, "%+v", x)
				continue
			}
			require.Equal(t, []float64{x.then, x.raised}, []float64{c.n, r.ceiling}, "%+v", x)
			require.Equal(t, 51*second, r.tryAt)
			require.Zero(t, r.passed)
		}
	}
	c := cruisingAt(10, 10)
	r := &c.refusals
	c.inFlight, r.wait, r.step, r.tried = 100, 2*second, 2, true
	r.advance(c, second)
	require.Equal(t, []any{4.0, second, 14.0}, []any{r.step, r.wait, r.ceiling}, "a try that was not refused doubles the next step")
	c.inFlight, r.wait, r.passed, r.tryAt = 100, firstWait, 0, 0
	r.advance(c, 2*second)
	require.Equal(t, firstWait, r.wait, "no try waits for less")
}

func TestMergedLevelsAreOneLevel(t *testing.T) {
	add := func(l *level, latencies ...float64) {
		for _, s := range latencies {
			l.send(second, int64(10*s))
			l.add(s)
		}
		l.send(second, 7) // without a response
	}
	var one, other, both level
	add(&one, 1, 4)
	add(&other, 9, 16, 25)
	add(&both, 1, 4, 9, 16, 25)
	both.send(second, 7)
	one.merge(&other)
	both.from, both.to, both.last = one.from, one.to, one.last
	require.Equal(t, both, one)
}

// Half of the responses are enough. Each of the others counts as four mean latencies.
func TestMissingResponsesCountAsFourMeans(t *testing.T) {
	l := level{sent: 4, done: 2, sum: 2, squares: 2}
	require.True(t, l.finish(0.25))
	require.Equal(t, level{sent: 4, done: 4, sum: 4, squares: 4}, l)
	l = level{sent: 4, done: 2, sum: 2, squares: 2}
	require.True(t, l.finish(2.25))
	require.Equal(t, level{sent: 4, done: 4, sum: 8, squares: 20}, l)
	l = level{sent: 5, done: 2, sum: 2, squares: 2}
	require.False(t, l.finish(1))
}

func TestAChangeIsReportedByItsSizeOrItsCause(t *testing.T) {
	for _, x := range []struct {
		before, why aimd.Cause
		n           float64
		reported    aimd.Cause
	}{
		{0, aimd.CauseGrowth, 12.9, 0}, {0, aimd.CauseGrowth, 13, aimd.CauseGrowth}, {0, aimd.CauseLatency, 7.1, 0}, {0, aimd.CauseLatency, 7, aimd.CauseLatency},
		{aimd.CauseGrowth, aimd.CauseLatency, 5, aimd.CauseLatency}, {aimd.CauseLatency, aimd.CauseGrowth, 15, aimd.CauseGrowth},
		{aimd.CauseThrottled, aimd.CauseGrowth, 15, aimd.CauseThrottled}, {aimd.CauseThrottled, aimd.CauseLatency, 5, aimd.CauseThrottled},
		{0, aimd.CauseThrottled, 9, aimd.CauseThrottled}, {aimd.CauseGrowth, aimd.CauseNotLoad, 11, aimd.CauseNotLoad},
	} {
		c := cruisingAt(10, math.Inf(1))
		c.reports.why = x.before
		c.change(x.why, x.n)
		require.Equal(t, x.reported, c.reports.why, "%+v", x)
	}
}
