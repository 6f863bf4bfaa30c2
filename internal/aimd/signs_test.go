package aimd

import (
	"cmp"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter/metertest"
)

// This file has what failures and latencies say, in single steps.

// at100 returns a controller of 100/s that found its ceiling there.
func at100(cfg Config) *controller {
	cfg.Initial = 100
	c := newController(cfg, 0, 1)
	c.ceiling = 100
	return c
}

// weighs weighs n outcomes in an instant.
func (c *controller) weighs(now instant, n int, o Outcome) {
	for range n {
		c.weigh(now, now, o)
	}
}

func TestOlderResponsesWeighLess(t *testing.T) {
	c := at100(Config{})
	c.weighs(second, 4, Error)
	c.weighs(second, 60, OK)
	assert.Equal(t, 64.0, c.failures.n)
	assert.Equal(t, 1.6, c.failures.weight)
	c.weigh(second, second, OK)
	assert.Equal(t, 33.0, c.failures.n)
	assert.Equal(t, 0.8, c.failures.weight)
}

func TestSharesOfFailuresAreTriedByAHalf(t *testing.T) {
	failing := func(ok, bad int) *controller {
		c := at100(Config{})
		c.weighs(second, ok, OK)
		c.weighs(second, bad, Unavailable)
		return c
	}
	c := failing(19, 4)
	require.Equal(t, 100.0, c.current)
	c.weigh(second, second, Unavailable)
	assert.Equal(t, 50.0, c.current, "5 of 24")
	assert.Equal(t, 5./24, c.failures.trial)
	assert.Equal(t, 100.0, c.failures.before)
	assert.False(t, c.failures.again)
	assert.InDelta(t, 100*19./24, c.ceiling, 1e-9)
	assert.Equal(t, 100.0, failing(18, 5).current, "23 are too few")
	assert.Equal(t, 100.0, failing(30, 4).current, "4 failures are too few")

	assert.Equal(t, 50.0, failing(4, 3).current, "3 are enough where nearly a third failed")
	assert.Equal(t, 100.0, failing(7, 3).current)
	assert.InDelta(t, 40.0, failing(2, 3).current, 1e-9, "a half is too much if fewer passed")
	assert.Equal(t, 30.0, failing(0, 3).current, "a few failures say no more")

	c = at100(Config{})
	c.failures.notLoadUntil = never
	c.weighs(second, 18, OK)
	c.weighs(second, 5, Unavailable)
	require.Equal(t, 100.0, c.current)
	c.failures.usual = 0.2
	c.weigh(second, second, Unavailable)
	assert.Equal(t, 100.0, c.current, "8 % and one and a half times the usual share are no sign")
	c.failures.usual = 0.1
	c.weigh(second, second, Unavailable)
	assert.Less(t, c.current, 100.0)
}

// failing returns a controller with a threshold that took n responses of which one in each so many failed, the last one among them.
func failing(threshold float64, n, each int, o Outcome) (c *controller, failed int) {
	c = at100(Config{ErrorThreshold: threshold})
	for i := 1; i <= n; i++ {
		if i%each == 0 {
			failed++
			c.exceed(second, o)
		} else {
			c.exceed(second, OK)
		}
	}
	return c, failed
}

func TestAnErrorThresholdDecidesAlone(t *testing.T) {
	for _, o := range []Outcome{Error, Unavailable} {
		c, _ := failing(0.25, 10_000, 4, o)
		assert.Equal(t, 100.0, c.current, "the threshold itself, %v", o)
		c, _ = failing(0.25, 1, 1, o)
		assert.Equal(t, 100.0, c.current, "one failure may be chance, %v", o)
		c, failed := failing(0.25, 40, 2, o)
		assert.Equal(t, 50.0, c.current, "a half has failed, and no half fails at the rate that is left: %d, %v", failed, o)
		assert.InDelta(t, 50/0.75, c.ceiling, 1e-9, "at which a quarter fails, %v", o)
	}
	c, _ := failing(0.7, 200, 1, Error)
	assert.InDelta(t, 30, c.current, 1e-9, "seven tenths at most")
}

// A cut takes a second to show its effect. Until the failures beyond the threshold are made up for, the rate does not grow.
func TestAnErrorThresholdWaitsForTheEffectOfACut(t *testing.T) {
	c, _ := failing(0.25, 40, 2, Error)
	c.excess.failures = c.excess.cutAbove
	c.exceed(2*second-1, Error)
	assert.Equal(t, 50.0, c.current)
	c.excess.failures = c.excess.cutAbove + 0.5
	c.exceed(2*second, Error)
	assert.Less(t, c.current, 50.0)

	e := &c.excess
	e.failures = e.bound(0.25) / 2
	assert.True(t, e.allows(0.25))
	e.failures += 1e-9
	assert.False(t, e.allows(0.25))
	assert.True(t, e.allows(0), "there is no threshold")
	e.add(3*second, 0.25, false)
	assert.True(t, e.allows(0.25), "each success makes up for a quarter")
}

func TestA503IsARefusalWhereACutHasHelped(t *testing.T) {
	c := at100(Config{})
	c.failures.loadUntil = 2 * second
	c.weigh(2*second-1, 2*second-1, Unavailable)
	assert.InDelta(t, 90, c.current, 1e-9)
	assert.Equal(t, 2*second-1+wordFor, c.failures.loadUntil)
	c.weigh(2*second, 2*second, Unavailable)
	assert.InDelta(t, 90, c.current, 1e-9, "the same event")

	c = at100(Config{})
	c.failures.loadUntil = 2 * second
	c.weighs(2*second, 2, Unavailable)
	assert.Equal(t, 100.0, c.current, "too long ago")
	c.failures.loadUntil = 3 * second
	c.weigh(2*second, 2*second, Error)
	assert.Equal(t, 100.0, c.current, "a 500 is none")

	c = at100(Config{})
	c.failures.loadUntil, c.failures.usual = 2*second, 0.25
	c.weigh(second, second, Unavailable)
	assert.Equal(t, 100.0, c.current, "one and twice the usual share are needed")
	c.weigh(second, second, Unavailable)
	assert.Less(t, c.current, 100.0, "two of two are that")

	c = at100(Config{})
	c.failures.loadUntil, c.failures.usual = 2*second, 0.25
	c.weighs(second, 8, OK)
	c.weighs(second, 5, Unavailable)
	assert.Equal(t, 100.0, c.current, "5 of 13 are not")
}

// Cuts for 503s must help at some time: then 36 responses pass without a failure.
func TestA503IsNoLongerARefusalWhenCutsDoNotHelp(t *testing.T) {
	c := at100(Config{})
	for i := range 7 {
		c.takeWord(second)
		require.Equal(t, second+wordFor, c.failures.loadUntil)
		require.Equal(t, i+1, c.failures.words)
	}
	c.takeWord(second)
	assert.Equal(t, second, c.failures.loadUntil)
	assert.Zero(t, c.failures.words)

	c.takeWord(second)
	c.weighs(second, 35, OK)
	assert.Equal(t, 1, c.failures.words)
	c.weigh(second, second, OK)
	assert.Zero(t, c.failures.words)
	c.takeWord(second)
	c.failures.usual = 1
	c.weigh(second, second, Error)
	c.weighs(second, 40, OK)
	assert.Equal(t, 1, c.failures.words, "not without a failure")
}

func TestTheUsualShareIsLearnedWhereLoadIsNoCause(t *testing.T) {
	const now = 10 * second
	learned := func(change func(c *controller)) float64 {
		c := at100(Config{})
		c.ceiling, c.failures.n = 200, leastSeen
		change(c)
		c.learnUsual(now, 1)
		return c.failures.usual
	}
	inUse := func(c *controller) { c.used.Add(now, 1000, c.tau()) }
	assert.Equal(t, 0.005, learned(func(*controller) {}))
	assert.Equal(t, 0.005, learned(inUse), "far below the ceiling")
	assert.Equal(t, 0.005, learned(func(c *controller) { c.ceiling = 100 }), "at the ceiling, but not in use")
	for name, change := range map[string]func(c *controller){
		"a trial":        func(c *controller) { c.failures.trial = 0.1 },
		"503s are a cut": func(c *controller) { c.failures.loadUntil = now + 1 },
		"no ceiling":     func(c *controller) { c.ceiling = 0 },
		"near":           func(c *controller) { c.ceiling = 103; inUse(c) },
		"too early":      func(c *controller) { c.failures.n--; inUse(c) },
	} {
		assert.Zero(t, learned(change), name)
	}
	assert.Equal(t, 0.005, learned(func(c *controller) { c.ceiling = 104; inUse(c) }))
	assert.Equal(t, 0.005, learned(func(c *controller) { c.failures.loadUntil = now }))
	assert.Equal(t, usualAtMost, learned(func(c *controller) { c.failures.usual = 0.2 }))
	assert.Equal(t, usualAtMost, learned(func(c *controller) { c.failures.usual, c.failures.notLoadUntil = 0.2, now }))
	assert.InDelta(t, 0.204, learned(func(c *controller) { c.failures.usual, c.failures.notLoadUntil = 0.2, now+1 }), 1e-12)
}

func TestATrialShowsWhetherLoadIsTheCause(t *testing.T) {
	trial := func(share, stays float64) *controller {
		c := at100(Config{})
		c.try(second, share, c.current, false)
		c.judgeTrial(second, stays)
		return c
	}
	c := trial(0.5, 0.2)
	assert.Equal(t, 50.0, c.current)
	assert.Zero(t, c.failures.trial)
	assert.Equal(t, second+wordFor, c.failures.loadUntil, "it helped")
	assert.Zero(t, trial(0.51, 0.5).failures.trial, "more than half failed: the rate was far too high")

	c = trial(0.5, 0.21)
	assert.Equal(t, 25.0, c.current, "a second cut")
	assert.True(t, c.failures.again)
	assert.Equal(t, 100.0, c.failures.before)
	assert.Equal(t, 0.21, c.failures.trial)
	c.judgeTrial(2*second, 0.19)
	assert.Equal(t, 100.0, c.current, "neither helped")
	assert.Equal(t, 100.0, c.ceiling)
	assert.Zero(t, c.failures.trial)
	assert.Equal(t, 0.2, c.failures.usual)
	assert.Equal(t, 2*second+doubtFor, c.failures.notLoadUntil)

	c = at100(Config{})
	c.try(second, 0.2, 100, false)
	c.weighs(second, 47, OK)
	require.Equal(t, 0.2, c.failures.trial)
	c.weigh(second, second, OK)
	assert.Zero(t, c.failures.trial, "48 decide")
}

// answers measures n latencies of requests that are sent and answered in an instant.
func (c *controller) answers(now instant, n int, latency float64) {
	for range n {
		c.seq++
		c.measure(now, ticket{seq: c.seq}, latency)
	}
}

func TestLatenciesAreSmoothed(t *testing.T) {
	c := at100(Config{})
	c.answers(0, 1, 1)
	assert.Equal(t, 1.0, c.latency.smooth)
	c.answers(0, 1, 17)
	assert.Equal(t, 2.0, c.latency.smooth)
	assert.Equal(t, 9.0, c.latency.mean)
	c.answers(0, 70, 9)
	assert.Equal(t, 64, c.latency.count)
	before := c.latency.mean
	c.answers(0, 1, before+64)
	assert.InDelta(t, before+1, c.latency.mean, 1e-9, "of 64 responses or so")
}

func TestARoundHasSixteenOfItsOwnResponses(t *testing.T) {
	c := at100(Config{})
	old := c.send(0, 1)
	c.latency.fromSeq = c.seq
	c.measure(second, old, 0.1)
	assert.Equal(t, 1, c.latency.done)
	assert.Zero(t, c.latency.n, "sent before the round began")
	c.answers(second, 15, 0.1)
	assert.Equal(t, 15, c.latency.n)
	c.answers(second, 1, 0.1)
	assert.Zero(t, c.latency.n)
	assert.Zero(t, c.latency.done)
	assert.Equal(t, second, c.latency.from)
	assert.Equal(t, c.seq, c.latency.fromSeq)

	c.answers(3*second/2-1, 16, 0.1)
	assert.Equal(t, 16, c.latency.n, "half a second at least")
	c.answers(3*second/2, 1, 0.1)
	assert.Zero(t, c.latency.n)
	c.ceiling = 0
	c.answers(7*second/4-1, 16, 0.1)
	assert.Equal(t, 16, c.latency.n)
	c.answers(7*second/4, 1, 0.1)
	assert.Zero(t, c.latency.n, "a quarter, while the rate doubles")
	c.latency.smooth = 2
	c.answers(7*second/4+4*second-1, 16, 2)
	assert.Equal(t, 16, c.latency.n, "two round trips at least")
	c.answers(7*second/4+4*second, 1, 2)
	assert.Zero(t, c.latency.n)
}

// The rate is tokens, so what was completed is counted in tokens too.
// A round that began before a pause of 8 s would show a tenth of what the server completes.
func TestARoundBeginsAgainAfterAPause(t *testing.T) {
	c := at100(Config{})
	c.answers(second, 15, 0.1)
	c.pause(second, 8*second)
	end := c.pausedUntil
	assert.Zero(t, c.latency.n)
	assert.Equal(t, end, c.latency.from)
	c.latency.medians.now, c.latency.full = 0.1, true
	c.answers(end+2*second, 16, 1)
	assert.InDelta(t, 8, c.ceiling, 1e-9, "16 in two seconds")
}

// A queue may be full before the second round ends, so the first round counts alone. Later, one that is quick by chance does not.
func TestTheLowestLatencyIsOfTwoRoundsButForTheFirst(t *testing.T) {
	l := newLatency(0)
	for i, c := range []struct{ median, lowest float64 }{{0.25, 0.25}, {1, 0.25}, {0.125, 0.25}, {1, 0.25}, {0.125, 0.25}, {0.125, 0.125}} {
		for j := range leastRound {
			l.sample[j] = float32(c.median)
		}
		l.n = leastRound
		l.endRound(0)
		require.Equal(t, c.lowest, l.medians.value(), i)
	}
}

func TestARoundHasTheTokensThatWereCompleted(t *testing.T) {
	c := at100(Config{})
	c.cost, c.latency.medians.now, c.latency.full = 4, 0.1, true
	c.answers(2*second, 16, 1)
	assert.InDelta(t, 32, c.ceiling, 1e-9, "64 in two seconds")
}

func TestARoundHasItsMedianAndItsSpread(t *testing.T) {
	l := newLatency(0)
	l.n, l.mean, l.count = 4, 7, 63
	copy(l.sample[:], []float32{8, 1, 4, 2})
	median, n := l.endRound(0)
	assert.Equal(t, 4.0, median)
	assert.Equal(t, 4.0, n)
	assert.InDelta(t, math.Ln2*(2+1+0+1)/4, l.spread, 1e-9)
	assert.Equal(t, 4.0, l.medians.value(), "there is none before the first round")
	assert.True(t, math.IsInf(l.means.value(), 1), "64 responses are a mean")
	l.count = 64
	copy(l.sample[:], []float32{1, 1, 1, 1})
	l.endRound(0)
	assert.Equal(t, 4.0, l.medians.value())
	assert.InDelta(t, 0.9*math.Ln2, l.spread, 1e-9)
	assert.Equal(t, 7.0, l.idleMean())
}

// Of more than 64 responses, each is as likely to be in the sample.
func TestTheSampleOfALongRoundIsFair(t *testing.T) {
	inFirst, rounds := 0, 200
	for seed := range rounds {
		c := newController(Config{}, 0, uint64(seed))
		for i := range 256 {
			c.seq++
			c.measure(0, ticket{seq: c.seq}, float64(1+i/128))
		}
		for _, x := range c.latency.sample {
			if x == 1 {
				inFirst++
			}
		}
	}
	assert.InDelta(t, 0.5, float64(inFirst)/float64(64*rounds), 0.02)
}

func TestAQueueShowsInTwoRounds(t *testing.T) {
	judged := func(spread, median, n float64, cfg Config) *controller {
		c := at100(cfg)
		c.latency.spread, c.latency.medians.now = spread, 0.1
		c.judge(second, median, n, 80)
		require.Equal(t, 100.0, c.current, "one round may be slow")
		c.judge(2*second, median, n, 80)
		return c
	}
	assert.Equal(t, 100.0, judged(0, 0.113, 16, Config{}).current)
	c := judged(0, 0.1131, 16, Config{})
	assert.InDelta(t, 0.85*80, c.current, 1e-9)
	assert.InDelta(t, 80, c.ceiling, 1e-9)
	assert.InDelta(t, 0.97*80, c.latency.goal, 1e-9)
	assert.InDelta(t, 2+0.0131/0.15, seconds(c.latency.clear), 1e-8)
	assert.Equal(t, c.latency.clear, c.heldUntil)
	assert.Equal(t, 2.0, c.toll)

	lowest := 0.1 // a variable, because constants have more digits
	most := 1.03*lowest*math.Exp(3*1.57*0.5/4) + 0.01
	assert.Equal(t, 100.0, judged(0.5, most, 16, Config{}).current, "three standard errors of the median")
	assert.Less(t, judged(0.5, most+1e-9, 16, Config{}).current, 100.0)

	assert.InDelta(t, 0.85*80, judged(0, 3*lowest, 16, Config{}).current, 1e-9)
	c = judged(0, 0.31, 16, Config{})
	assert.InDelta(t, 0.7*80, c.current, 1e-9, "more than three times as slow")
	assert.InDelta(t, 2+0.21/0.15, seconds(c.latency.clear), 1e-8)
	assert.Equal(t, 7*second, judged(0, 9, 16, Config{}).latency.clear, "5 s at most")

	user := Config{LatencyThreshold: 200 * time.Millisecond}
	assert.Equal(t, 100.0, judged(0, 0.2, 16, user).current)
	c = judged(0, 0.23, 16, user)
	assert.InDelta(t, 0.85*80, c.current, 1e-9)
	assert.InDelta(t, 2+0.03/0.15, seconds(c.latency.clear), 1e-8)

	c.judge(c.latency.clear-1, 0.23, 16, 60)
	assert.InDelta(t, 0.85*80, c.current, 1e-9, "it drains")
	c.judge(c.latency.clear, 0.23, 16, 60)
	assert.InDelta(t, 0.85*60, c.current, 1e-9)
	c.latency.row = 3
	c.judge(c.latency.clear, 0.1, 16, 60)
	assert.Zero(t, c.latency.row)
	assert.False(t, c.latency.full)
}

// A service that never queues: no chance of some rounds, among the hundreds of minutes, is a sign of a queue.
func TestLatenciesThatVaryShowNoQueue(t *testing.T) {
	const every, requests = second / 25, 60 * 60 * 25
	r := metertest.Seeded(t, 1)
	c := newController(Config{Initial: 50}, 0, 1)
	var flying []flight
	for i := range instant(requests) {
		now := i * every
		for ; len(flying) > 0 && flying[0].back <= now; flying = flying[1:] {
			f := flying[0]
			c.result(f.back, f.ticket, OK, time.Duration(f.back-f.at), 0)
		}
		back := now + int64(0.32*(0.8+0.4*r.Float64())*1e9)
		flying = append(flying, flight{c.send(now, 1), back})
		slices.SortFunc(flying, func(a, b flight) int { return cmp.Compare(a.back, b.back) })
		require.Zero(t, c.ceiling, "after %d s", now/second)
	}
}

// A flight is a request whose response arrives at that instant.
type flight struct {
	ticket
	back instant
}

func TestALatencyThatFourCutsDoNotLowerIsTheServersOwn(t *testing.T) {
	c := at100(Config{})
	for i := range 4 {
		c.queued(second, 1, 0.1, 80)
		require.Equal(t, i+1, c.latency.row)
	}
	c.queued(second, 0.9, 0.1, 80)
	assert.Equal(t, 100.0, c.current)
	assert.Equal(t, 100.0, c.ceiling)
	assert.Equal(t, second, c.heldUntil)
	assert.Equal(t, 0.9, c.latency.medians.value())
	assert.Zero(t, c.latency.row)
	assert.Zero(t, c.latency.goal)

	c = at100(Config{})
	for range 4 {
		c.queued(second, 1, 0.1, 80)
	}
	c.queued(second, 0.89, 0.1, 80)
	assert.Equal(t, 1, c.latency.row, "the cuts help")
	assert.Equal(t, 0.89, c.latency.worst)
	assert.Equal(t, 100.0, c.latency.before)

	c = at100(Config{LatencyThreshold: time.Millisecond})
	for range 9 {
		c.queued(second, 1, 0.1, 80)
	}
	assert.Less(t, c.current, 100.0, "a user's threshold")
}

func TestADrainedQueueReturnsToWhatWasCompleted(t *testing.T) {
	c := at100(Config{})
	c.latency.goal, c.latency.clear, c.current = 77, second, 50
	c.drained(second - 1)
	assert.Equal(t, 50.0, c.current)
	c.drained(second)
	assert.Equal(t, 77.0, c.current)
	assert.Equal(t, 11*second, c.heldUntil)
	assert.Zero(t, c.latency.goal)
	c.latency.goal, c.current = 60, 80
	c.drained(second)
	assert.Equal(t, 80.0, c.current)
}

func TestTheLowestIsOfTheLastHalfToWholeMinute(t *testing.T) {
	l := lowest{math.Inf(1), math.Inf(1), 0}
	l.add(0, 1)
	l.add(30*second, 5)
	assert.Equal(t, 1.0, l.value())
	l.add(30*second+1, 4)
	assert.Equal(t, 1.0, l.value(), "of the half minute before")
	l.add(60*second+1, 6)
	assert.Equal(t, 1.0, l.value())
	l.add(60*second+2, 6)
	assert.Equal(t, 4.0, l.value())
}
