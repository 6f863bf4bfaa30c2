package aimd

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/meter/metertest"
	"github.com/httpthrottle/throttle/internal/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// This file has how the rate moves, in single steps.

func TestEveryCauseHasANameOfItsOwn(t *testing.T) {
	seen := map[string]bool{}
	for c := Cause(1); c < Causes; c++ {
		assert.NotEmpty(t, c.String())
		assert.False(t, seen[c.String()], c.String())
		seen[c.String()] = true
	}
	assert.Equal(t, "Cause(0)", Cause(0).String())
	assert.Equal(t, "Cause(11)", Causes.String())
}

func TestAConfigMayBeASingleRate(t *testing.T) {
	c := Config{Initial: 2, Min: 2, Max: 2, ErrorThreshold: 1}
	require.NoError(t, c.Validate())
	assert.Equal(t, c, c.withDefaults())
}

func TestModeSaysHowTheRateMoves(t *testing.T) {
	c := newController(Config{Initial: 10}, 0, 1)
	assert.Equal(t, "start", c.mode(0))
	c.ceiling = 10
	assert.Equal(t, "above", c.mode(0), "at the ceiling, the rate leaves it")
	c.ceiling = 11
	assert.Equal(t, "below", c.mode(0))
	c.heldUntil = second
	assert.Equal(t, "steady", c.mode(second-1))
	assert.Equal(t, "below", c.mode(second))
	c.pausedUntil = 3 * second
	assert.Equal(t, "paused", c.mode(3*second-1))
	assert.Equal(t, "below", c.mode(3*second))
	c.silence.on = true
	assert.Equal(t, "silence", c.mode(0))
}

func TestAPauseThatIsEndedIsOver(t *testing.T) {
	b := newBench(t, Config{Initial: 100})
	b.work(50, OK)
	b.pause(b.now, 10*second)
	b.now += second
	b.resume(b.now)
	assert.Equal(t, b.now, b.workedFrom)
	assert.Equal(t, b.now, b.used.At)
	b.resume(b.now + second)
	assert.Equal(t, b.now, b.workedFrom, "it was over already")
}

func TestARateGrowsOnlyOnceAResponseArrived(t *testing.T) {
	c := newController(Config{Initial: 10}, 0, 1)
	now := instant(0)
	var sent []ticket
	for range 20 {
		sent = append(sent, c.send(now, 1))
		now += second / 10
	}
	require.True(t, c.inUse(now))
	assert.Equal(t, 10.0, c.rate(now))
	c.result(now, sent[0], OK, time.Second, 0)
	assert.Greater(t, c.rate(now+second/10), 10.0)
}

func TestAnEffectShowsAfterTenRequests(t *testing.T) {
	c := newController(Config{Initial: 4}, 0, 1)
	assert.Equal(t, 2.5e9, c.tau())
	c.cost = 10
	assert.Equal(t, 25e9, c.tau())
	c.current = 1000
	assert.Equal(t, 1e9, c.tau(), "a second at least")
	c.latency.smooth = 3
	assert.Equal(t, 3e9, c.tau(), "a round trip at least")
}

// What was sent before a cut says nothing of the rate after it.
func TestAResponseFromBeforeACutIsNotWeighed(t *testing.T) {
	b := newBench(t, Config{Initial: 100})
	b.work(50, OK)
	old := b.send(b.now, 1)
	b.cut(b.now, CauseErrors, 100, 50)
	b.result(b.now, old, Unavailable, 0, 0)
	assert.Zero(t, b.failures.Share())
	assert.Zero(t, b.heard)
	b.result(b.now, b.send(b.now, 1), Unavailable, 0, 0)
	assert.Equal(t, 1.0, b.failures.Share())
	assert.Equal(t, 1.0, b.heard)
	assert.Equal(t, 1.0, b.refused)
}

func TestARetuneIsFromTheRateBeforeIt(t *testing.T) {
	b := newBench(t, Config{Initial: 100})
	b.current = 109
	_, ok := b.retuned()
	require.False(t, ok, "growth by a tenth is reported")
	b.current = 110
	r, ok := b.retuned()
	require.True(t, ok)
	require.Equal(t, Retune{CauseGrowth, 100, 110}, r)

	b.current = 112
	b.cut(b.now, CauseThrottled, 112, 90)
	b.cut(b.now, CauseErrors, 90, 50)
	r, _ = b.retuned()
	assert.Equal(t, Retune{CauseErrors, 112, 50}, r, "of two cuts in one response, the first began at 112")
}

// A hold counts time in which the rate is used.
func TestAHoldStandsStillWhileTheRateIsNotUsed(t *testing.T) {
	b := newBench(t, Config{Initial: 100})
	b.work(50, OK)
	b.heldUntil = b.now + 10*second
	b.rate(b.now)
	held := b.heldUntil
	b.rate(b.now + 60*second)
	require.False(t, b.inUse(b.now+60*second))
	assert.Equal(t, held+60*second, b.heldUntil)

	b.heldUntil = b.now
	b.rate(b.now + 120*second)
	assert.Equal(t, b.now, b.heldUntil, "a hold that was over stays over")
}

// A touch is a refusal with Retry-After after so many seconds of work, of a rate of 100 with a ceiling of 200, 0: it was doubling.
type touch struct {
	ceiling, active, worked, lately float64
	paused, pause                   int64 // the last and this one; 0: there was none
	quick                           bool  // the one before was
}

func (x touch) play(now instant) *controller {
	k := newController(Config{Initial: 100}, 0, 1)
	k.ceiling, k.workedFrom, k.worked, k.paused, k.quick = x.ceiling, now-nanos(x.active), x.worked, x.paused, x.quick
	k.asked, k.accepted = x.paused > 0, meter.MeanRate{Value: x.lately, At: now}
	t := ticket{} // the first one after the pause
	if x.worked > 0 {
		k.okAt, t = now, ticket{seq: 1, at: now}
	}
	k.throttled(now, t, x.pause)
	return k
}

func TestTheFirstRefusalWithAPauseIsCheap(t *testing.T) {
	const now = 1000 * second
	for name, c := range map[string]struct {
		touch
		want float64 // the ceiling after it
	}{
		"what was accepted lately":                        {touch{ceiling: 200, active: 300, worked: 900, lately: 93, pause: 5 * second}, 93},
		"four fifths at least, however little was needed": {touch{ceiling: 200, active: 300, worked: 900, lately: 9, pause: 5 * second}, 80},
		"no more than the rate":                           {touch{ceiling: 200, active: 300, worked: 900, lately: 150, pause: 5 * second}, 100},
		"longer ago than forty pauses":                    {touch{ceiling: 200, active: 40, worked: 900, lately: 93, paused: second, pause: second}, 93},
		"a long pause at the start":                       {touch{active: 9, worked: 225, lately: 81, pause: 10 * second}, 45},
	} {
		t.Run(name, func(t *testing.T) {
			k := c.play(now)
			assert.InDelta(t, c.want, k.ceiling, 1e-9)
			assert.InDelta(t, 0.99*c.want, k.current, 1e-9)
			assert.Equal(t, now, k.heldUntil, "it grows at once")
			assert.Zero(t, k.toll)
			assert.False(t, k.dear(now))
		})
	}
}

func TestARepeatedRefusalWithAPauseLeavesWhatTheServerGave(t *testing.T) {
	const now = 1000 * second
	for name, c := range map[string]struct {
		touch
		want float64
	}{
		"between long ago and lately": {touch{ceiling: 200, active: 60, worked: 5100, lately: 96, paused: 2 * second, pause: 2 * second}, math.Sqrt(85 * 96)},
		"four fifths at least":        {touch{ceiling: 200, active: 60, worked: 600, lately: 96, paused: 2 * second, pause: 2 * second}, math.Sqrt(80 * 96)},
		"not below four fifths of it": {touch{ceiling: 200, active: 1, worked: 90, paused: 2 * second, pause: 2 * second}, 90 * 0.8},
		"not as long as this one":     {touch{ceiling: 200, active: 10, worked: 900, lately: 96, paused: 2 * second, pause: 4*second + 1}, math.Sqrt(90 * 96)},
		"the first, while it doubled": {touch{active: 60, worked: 600, pause: second}, 75},
		"half of the pause counts":    {touch{active: 1, worked: 90, pause: second}, 90 / 1.5},
		"a moment, while it doubled":  {touch{active: 0.1, worked: 8, pause: 2 * second}, 40},
		"all of a burst":              {touch{active: 0.00001, worked: 8, pause: second}, 50}, // divided by a millisecond at least
	} {
		t.Run(name, func(t *testing.T) {
			k := c.play(now)
			assert.InDelta(t, c.want, k.ceiling, 1e-9)
			assert.InDelta(t, 0.99*c.want, k.current, 1e-9)
			assert.Equal(t, now+20*c.pause, k.heldUntil)
			if c.paused > 0 {
				assert.Equal(t, min(2.5*seconds(c.pause), 5), k.toll)
			}
			assert.False(t, k.dear(now))
		})
	}
	for pause, held := range map[int64]int64{5 * second: 100 * second, 7 * second: 120 * second, 60 * second: 120 * second, 61 * second: 122 * second} {
		k := newController(Config{}, 0, 1)
		k.hold(now, pause)
		assert.Equal(t, now+held, k.heldUntil, "%v", pause)
	}
}

// A second refusal soon after a pause shows that a quota is spent too fast, but not if hardly anything was accepted in between: the next one
// in a row does.
func TestAHandfulShowsNothingOfAQuota(t *testing.T) {
	const now = 1000 * second
	for worked, dear := range map[float64]bool{handful - 1: false, handful: true} {
		k := newController(Config{Initial: 100}, 0, 1)
		k.workedFrom, k.worked, k.paused, k.asked, k.spared, k.okAt = now-second, worked, 5*second, true, true, now
		k.throttled(now, ticket{seq: 1, at: now}, 5*second)
		assert.Equal(t, dear, k.dear(now), "%v accepted", worked)
		if dear {
			continue
		}
		assert.InDelta(t, 0.99*37.5, k.current, 1e-9, "half of three quarters: what was accepted shows no rate")
		k.workedFrom, k.worked = now+9*second, worked
		k.throttled(now+10*second, ticket{seq: 2, at: now + 10*second}, 5*second)
		assert.True(t, k.dear(now+10*second), "in a row")
	}
}

// A refusal that comes when hardly anything was accepted says little of the limit until that happens again.
func TestAHandfulIsNoEvidence(t *testing.T) {
	const now = 1000 * second
	for _, pause := range []int64{0, second, 30 * second} {
		k := touch{active: 0.1, worked: 4, pause: pause}.play(now)
		assert.InDelta(t, 90, k.current, 1e-9)
		assert.Zero(t, k.ceiling, "it still doubles")
		k.worked = 4
		k.throttled(now+second, ticket{}, pause)
		assert.Positive(t, k.ceiling, "again")
	}
	assert.Positive(t, touch{active: 0.1, worked: 5, pause: second}.play(now).ceiling, "a handful")
	k := touch{active: 3, worked: 900}.play(now)
	assert.InDelta(t, 90, k.current, 1e-9)
	assert.Zero(t, k.ceiling, "a rate that doubles has been used for less than a second")
	k.throttled(now+second, ticket{}, 0)
	assert.Positive(t, k.ceiling, "again")
	k = touch{ceiling: 200, active: 0.1, worked: 1}.play(now)
	assert.Equal(t, 100.0, k.ceiling, "a bare one, later")
	k = touch{ceiling: 200, active: 0.1, paused: second, pause: second}.play(now)
	k.throttled(now+second, ticket{}, second)
	assert.Equal(t, 100.0, k.current, "nothing was accepted since the last: it is the same event")
	for seq, cut := range map[uint64]bool{7: false, 8: true} { // those before it may have been accepted
		k = newController(Config{Initial: 100}, 0, 1)
		k.ceiling, k.workedFrom, k.paused, k.asked, k.spared, k.firstSeq = 200, now-second, second, true, true, 7
		k.throttled(now, ticket{seq: seq, at: now}, second)
		assert.Equal(t, cut, k.current < 100, "request %d", seq)
	}
}

// A quota is spent in a short time, and then the server asks for a pause that is longer than half of that, again and again.
func TestAQuotaIsSpreadOverWorkAndPause(t *testing.T) {
	const now = 1000 * second
	quota := func(worked float64, active, pause int64) touch {
		return touch{ceiling: 200, active: seconds(active), worked: worked, lately: 100, paused: pause, pause: pause}
	}
	k := quota(600, 10*second, 50*second).play(now)
	assert.InDelta(t, math.Sqrt(10*100), k.current, 1e-9, "between 600 in a minute and the rate that was refused")
	assert.Equal(t, k.current, k.ceiling)
	assert.Equal(t, now+60*second, k.heldUntil)
	assert.True(t, k.dear(now+660*second-1))
	assert.False(t, k.dear(now+660*second))
	assert.Equal(t, 5.0, k.toll)

	first := quota(600, 10*second, 50*second)
	first.paused = 0
	assert.False(t, first.play(now).dear(now), "once is not again and again")
	first.paused = 25*second - 1
	assert.False(t, first.play(now).dear(now), "the last was for another reason")
	assert.True(t, quota(600, 6*second, 3*second+1).play(now).dear(now))
	assert.True(t, quota(600, 6*second-2, 3*second).play(now).dear(now))
	assert.False(t, quota(600, 6*second, 3*second).play(now).dear(now), "half of the time of work")

	short := quota(90, second, 2*second)
	assert.InDelta(t, 72, short.play(now).ceiling, 1e-9)
	short.quick = true
	k = short.play(now)
	assert.InDelta(t, math.Sqrt(30*100), k.current, 1e-9, "two in a row")
	assert.False(t, k.dear(now), "too short a pause to be dear")
	assert.Equal(t, now+40*second, k.heldUntil)
}

// After a silence, which this client began by itself, the first refusal with Retry-After is not repeated.
func TestASilenceIsNoPauseThatTheServerAskedFor(t *testing.T) {
	const now = 1000 * second
	x := touch{ceiling: 200, active: 4, worked: 400, lately: 100, paused: 5 * second, pause: 5 * second}
	assert.Greater(t, x.play(now).heldUntil, now)
	k := newController(Config{Initial: 100}, 0, 1)
	k.ceiling, k.workedFrom, k.worked, k.okAt, k.paused = 200, now-4*second, 400, now, 5*second
	k.accepted = meter.MeanRate{Value: 100, At: now}
	k.throttled(now, ticket{seq: 1, at: now}, 5*second)
	assert.Equal(t, now, k.heldUntil)
	assert.InDelta(t, 99, k.current, 1e-9)
}

func TestWhatAServerGivesIsKnownAfterAPause(t *testing.T) {
	c := newController(Config{}, 0, 1)
	c.cost, c.worked = 2, 31
	assert.False(t, c.known())
	c.worked = 32
	assert.True(t, c.known(), "16 requests")
	c.worked, c.paused = 1, second
	assert.True(t, c.known(), "after a pause, all that was accepted counts")
	c.worked = 0
	assert.False(t, c.known())
}

func TestADearHoldDoublesUpToAnHourOrACycle(t *testing.T) {
	c := newController(Config{}, 0, 1)
	now := instant(0)
	for _, want := range []float64{1000, 2000, 3600, 3600} {
		c.holdDear(now, 1000)
		assert.Equal(t, want, c.dearHold)
		assert.Equal(t, now+nanos(want), c.heldUntil)
		assert.Equal(t, c.heldUntil+dearFor, c.dearUntil)
	}
	c.holdDear(now, 5000)
	assert.Equal(t, 5000.0, c.dearHold, "a cycle of more than an hour")
	c.holdDear(c.dearUntil, 100)
	assert.Equal(t, 100.0, c.dearHold, "the first in a long time")
}

// A bare refusal costs a tenth, or what was refused if that is more.
func TestABareRefusalCutsByWhatWasRefused(t *testing.T) {
	for _, c := range []struct{ heard, refused, left float64 }{
		{0, 0, 0.9}, {1, 1, 0.8}, {6, 1, 0.9}, {16, 4, 0.8}, {16, 8, 0.6}, {16, 16, 0.6},
	} {
		k := newController(Config{Initial: 100}, 0, 1)
		k.okAt, k.heard, k.refused, k.ceiling = second, c.heard, c.refused, 500
		k.bare(second, CauseThrottled)
		assert.InDelta(t, 100*c.left, k.current, 1e-9, "%+v", c)
		assert.Equal(t, 100.0, k.ceiling)
	}
	k := newController(Config{Initial: 100}, 0, 1)
	k.ceiling, k.okAt, k.cutAt = 500, second, second+1
	k.bare(2*second, CauseThrottled)
	assert.Equal(t, 500.0, k.ceiling, "nothing was accepted since the last cut")
	k.ceiling, k.cutAt = 500, second
	k.bare(2*second, CauseThrottled)
	assert.Less(t, k.ceiling, 100.0, "accepted in the instant of the cut")
}

// A client that is alone is refused at its ceiling. Below it, others use the server, too.
func TestARefusalBelowTheCeilingShowsOtherClients(t *testing.T) {
	refused := func(at float64, wait int64, cutAt instant) *controller {
		c := newController(Config{Initial: at}, 0, 1)
		c.ceiling, c.worked, c.okAt, c.cutAt, c.crowded = 100, 100, second, cutAt, 1
		c.throttled(2*second, ticket{}, wait)
		return c
	}
	assert.Equal(t, 0, refused(96, 0, 0).crowded)
	assert.Equal(t, 2, refused(95.9, 0, 0).crowded)
	assert.Equal(t, 0, refused(95.9, 0, second+1).crowded, "nothing was accepted since the last cut, so a window may be closed")
	c := refused(50, 5*second, 0)
	assert.Equal(t, 0, c.crowded)
	assert.True(t, c.asked)
}

// The test of a slow rate that has been confirmed is far away. That of others is not, and beyond a ceiling it has been made, unless the
// server asks to wait.
func TestASlowRateIsTestedRarelyOnceItIsConfirmed(t *testing.T) {
	for _, s := range []struct {
		crowded int
		asked   bool
		ceiling float64
		seconds float64 // of a time constant
	}{
		{ceiling: 0.1, seconds: testEvery / math.Pow(0.1, 1.25)},
		{ceiling: 0.1 - 1e-12, seconds: growOver / math.Pow(0.1, 1.5)},
		{ceiling: 0.1 - 1e-12, asked: true, seconds: testEvery / math.Pow(0.1, 1.25)},
		{ceiling: 0.1, crowded: 1, seconds: growOver / math.Pow(0.1, 1.5)},
	} {
		c := newController(Config{Initial: 0.1}, 0, 1)
		c.ceiling, c.crowded, c.asked = s.ceiling, s.crowded, s.asked
		c.climb(second, 1)
		assert.InDelta(t, c.creep(0.1)/s.seconds, c.current-0.1, 1e-11, "%+v", s)
	}
}

// From 1 to 5 requests per second, growth does not depend on the rate where others use the server, too. One refusal below the ceiling does
// not show that they do.
func TestSlowClientsThatShareAServerGrowByEqualAmounts(t *testing.T) {
	c := newController(Config{}, 0, 1)
	for n, as := range map[float64]float64{0.01: 0.01, 0.04: 0.04, 0.25: 0.625, 1: 5, 2: 5, 5: 5, 6: 6, 100: 100} {
		c.crowded = 1
		faster := c.creep(as)
		assert.InDelta(t, 0.035*math.Pow(n, 0.72), c.creep(n), 1e-12, "%v per second", n)
		c.crowded = 2
		assert.InDelta(t, faster, c.creep(n), 1e-12, "%v per second", n)
	}
}

func TestAPauseIsNeverShortenedAndBeginsTheCountOfWork(t *testing.T) {
	c := newController(Config{}, 0, 1)
	c.worked = 7
	c.pause(second, 10*second)
	until := c.pausedUntil
	assert.Equal(t, 11*second, until)
	assert.Equal(t, until, c.workedFrom)
	assert.Equal(t, until, c.used.At)
	assert.Zero(t, c.worked)
	assert.Equal(t, 10*second, c.paused)
	c.worked = 3
	c.pause(2*second, second)
	assert.Equal(t, until, c.pausedUntil)
	assert.Equal(t, 3.0, c.worked)
}

func TestWhatWasLearnedIsBoundedByItsCeiling(t *testing.T) {
	restored := func(l Learned) *controller {
		c := newController(Config{}, 0, 1)
		require.True(t, c.restore(0, l))
		return c
	}
	c := restored(Learned{Rate: 100})
	assert.Equal(t, 50.0, c.current)
	assert.Equal(t, 100.0, c.ceiling)
	assert.Zero(t, c.dearHold)
	c = restored(Learned{Rate: 100, Ceiling: 60, Failures: 0.5, Latency: 2})
	assert.Equal(t, 30.0, c.current)
	assert.Equal(t, 60.0, c.ceiling)
	assert.InDelta(t, server.UsualAtMost, usualOf(c), 1e-6)
	assert.Equal(t, 2.0, c.latency.base)
	assert.False(t, math.IsInf(c.snapshot(0).Latency, 0))
}

// Cycles of work and pause, of which each second one gives three times as much as the one before, because that began where most of a window
// was used up: no refusal cuts the rate far below their mean. Without the bound some do.
func TestAPauseCutsNoRateBelowWhatWasSustained(t *testing.T) {
	below := func(r *rand.Rand, off ablation) (least float64) {
		mean, now := 5+95*r.Float64(), instant(0)
		c := newController(Config{Initial: mean * (0.5 + 1.5*r.Float64())}, now, 1)
		c.off, least = off, 1
		pause := time.Duration(longPause + r.Int64N(30*second))
		work := int64(pause) * (1 + r.Int64N(16)) / 4
		for i := range 20 {
			n := math.Ceil(mean * seconds(work+int64(pause)) * (1.5 - float64(i%2)))
			for range int(n) {
				sent := c.send(now, 1)
				now += int64(float64(work) / n)
				c.result(now, sent, OK, 20*time.Millisecond, 0)
			}
			sent, before := c.send(now, 1), c.rate(now)
			c.result(now, sent, Throttled, 20*time.Millisecond, pause)
			if i > 1 { // of the first two, it is not known that they are not alike
				least = min(least, c.current/min(before, mean))
			}
			now += int64(pause)
		}
		return least
	}
	broken := 0
	for seed := range uint64(40) {
		least := below(metertest.Seeded(t, seed), ablation{})
		require.GreaterOrEqual(t, least, 0.75, "seed %d", seed)
		if below(metertest.Seeded(t, seed), ablation{long: true}) < least-0.1 {
			broken++
		}
	}
	require.Greater(t, broken, 10)
}

// A rate without a bound was as high as what was used of it: a trial after cuts goes back to that, and not to Max.
func TestARateWithoutABoundIsWhatWasUsed(t *testing.T) {
	m := New(0, Config{}, 1).Beside(0)
	c := &m.control
	for i := range instant(200) {
		c.result(i*second/100, c.send(i*second/100, 1), OK, time.Millisecond, 0)
	}
	now := 2 * second
	require.True(t, c.free)
	c.failures.Learn(now)
	for range 20 {
		now += second / 20
		c.result(now, c.send(now, 1), Error, time.Millisecond, 0)
	}
	assert.False(t, c.free)
	assert.InDelta(t, 100, c.place.rate, 40)
}
