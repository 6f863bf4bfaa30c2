package concurrency

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/server"
)

// cruisingAt returns a controller that is past its start, with a ceiling above n.
func cruisingAt(n int64, ceiling float64) *controller {
	c := newController(0, Config{Initial: n}, noon)
	c.mode, c.seq = cruising, 1000
	c.refusals.ceiling = ceiling
	return c
}

// brink makes the next refusal one too many.
func (c *controller) brink(now instant) {
	c.refusals.failures.Learn(now)
	c.refusals.failures.Add(now, rare, true)
}

// refusedAt refuses a request that was sent when inFlight were in flight.
func (c *controller) refusedAt(now instant, inFlight int64) {
	c.seq++
	c.refuse(now, ticket{c.seq, inFlight}, false)
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
		c.brink(second)
		r.step, r.raised = 2, c.seq+1-x.ago
		c.refusedAt(second, x.inFlight)
		require.Equal(t, x.failed, c.n == 10, "after a try that failed, it stays at what has held so far: %+v", x)
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
		{9, 10, 9, backPassed, 10, 10},     // n returns to the ceiling
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
			r.cutTo, r.tryAt, r.passed, r.wait = x.cut, 100*second, float32(x.enough-short), second
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

// Cuts of a number that was not as high again since count together: at a half of it, there is a trial.
func TestATrialBeginsWhereCutsHaveLoweredTheNumberToAHalf(t *testing.T) {
	c := cruisingAt(10, math.Inf(1))
	r := &c.refusals
	now := second
	for _, x := range []struct {
		n   float64
		try bool
	}{{9, false}, {8, false}, {7, false}, {6, false}, {5, true}} {
		c.brink(now)
		c.refusedAt(now, int64(c.n))
		require.Equal(t, []any{x.n, 10.0, x.try}, []any{c.n, r.place, r.failures.Trying()})
		now += second
	}
	r.failures.Moved(server.NoStep)
	r.ceiling, c.n = 20, 20
	c.brink(now)
	c.refusedAt(now, 20)
	require.Equal(t, 20.0, r.place, "it was higher again")
}

// After a row of refusals while the higher number was tried, load is the cause, and half of it may be too much, too.
func TestAPauseEndsATrial(t *testing.T) {
	c := cruisingAt(10, math.Inf(1))
	r := &c.refusals
	r.place = 10
	r.failures.Moved(server.TryHigher)
	for range rowAtMost {
		c.refusedAt(second, 10)
	}
	require.Positive(t, r.until)
	require.False(t, r.failures.Trying())
	require.Equal(t, []float64{5, 0}, []float64{r.ceiling, r.place})
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
