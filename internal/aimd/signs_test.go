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
	"github.com/httpthrottle/throttle/internal/server"
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

// usualOf returns the share of failures that load does not cause.
func usualOf(c *controller) float64 {
	share, _ := c.failures.Usual()
	return share
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
	assert.True(t, c.failures.Trying())
	assert.Equal(t, place{rate: 100, ceiling: 100}, c.place)
	assert.InDelta(t, 100*19./24, c.ceiling, 1e-4)
	assert.Equal(t, 100.0, failing(18, 5).current, "23 are too few")
	assert.Equal(t, 100.0, failing(30, 4).current, "4 failures are too few")

	assert.Equal(t, 50.0, failing(4, 3).current, "3 are enough where nearly a third failed")
	assert.Equal(t, 100.0, failing(7, 3).current)
	assert.InDelta(t, 40.0, failing(2, 3).current, 1e-4, "a half is too much if fewer passed")
	assert.Equal(t, 30.0, failing(0, 3).current, "a few failures say no more")
}

// failing returns a controller with a threshold that took n responses of which one in each so many failed, the last one among them.
func failing(threshold float64, n, each int, o Outcome) (c *controller, failed int) {
	c = at100(Config{ErrorThreshold: threshold})
	for i := 1; i <= n; i++ {
		if i%each == 0 {
			failed++
			c.weigh(second, second, o)
		} else {
			c.weigh(second, second, OK)
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
	c.weighs(2*second-1, 100, Error)
	assert.Equal(t, 50.0, c.current)
	c.weigh(2*second, 2*second, Error)
	assert.Less(t, c.current, 50.0)
	c.okAt = 2 * second
	assert.False(t, c.mayGrow(2*second))
	c.weighs(2*second, 1000, OK)
	assert.True(t, c.mayGrow(2*second))
}

func TestA503IsARefusalWhereACutHasHelped(t *testing.T) {
	c := at100(Config{})
	c.failures.Learn(0)
	c.weigh(second, second, Unavailable)
	assert.InDelta(t, 90, c.current, 1e-9)
	c.weigh(second+1, second+1, Unavailable)
	assert.InDelta(t, 90, c.current, 1e-9, "the same event")
	c.weigh(server.KnownFor, server.KnownFor, Unavailable)
	assert.InDelta(t, 81, c.current, 1e-9, "it is known again")

	c = at100(Config{})
	c.failures.Learn(0)
	c.weighs(server.KnownFor, 2, Unavailable)
	assert.Equal(t, 100.0, c.current, "too long ago")
	c.failures.Learn(server.KnownFor)
	c.weigh(server.KnownFor, server.KnownFor, Error)
	assert.Equal(t, 100.0, c.current, "a 500 is none")

	c = tried(0.25, 0.25)
	c.weighs(second, 8, Unavailable)
	assert.Equal(t, 100.0, c.current, "a fourth is usual")
	c.weighs(3*second, 22, Unavailable)
	assert.Less(t, c.current, 100.0, "30 of 30 are not")
}

func TestFailuresWhereLoadIsNoCauseAreUsual(t *testing.T) {
	near := func(change func(c *controller)) bool {
		c := at100(Config{})
		change(c)
		return c.near(10 * second)
	}
	inUse := func(c *controller) { c.used.Add(10*second, 1000, c.tau()) }
	assert.True(t, near(inUse))
	assert.False(t, near(func(*controller) {}), "it is not in use")
	assert.False(t, near(func(c *controller) { c.ceiling = 104; inUse(c) }), "below the ceiling")
	assert.True(t, near(func(c *controller) { c.ceiling = 103; inUse(c) }))
	assert.True(t, near(func(c *controller) { c.ceiling = 0 }), "no ceiling is known")
	assert.False(t, tried(0.2, 0.2).near(second), "a trial has shown that load is not the cause")

	c := at100(Config{})
	c.ceiling = 200
	c.weighMixed(second, 1000, 20)
	assert.InDelta(t, 0.4/20, usualOf(c), 0.005, "as long as nothing is known, a 500 is less than a failure")
}

// tried returns a controller that has begun a trial at 100, and of whose responses at each rate since that share has failed.
func tried(shares ...float64) *controller {
	c := at100(Config{})
	c.weighs(second, 4, OK)
	c.weighs(second, 3, Unavailable)
	for _, share := range shares {
		c.cutAt = -100 * second
		was := *c
		for i := 0.0; c.current == was.current && c.failures.Trying(); i++ {
			o := OK
			if math.Floor((i+1)*share) > math.Floor(i*share) {
				o = Unavailable
			}
			c.weigh(second, second, o)
		}
	}
	return c
}

func TestATrialGoesToTheRatesOfItsVerdicts(t *testing.T) {
	assert.Equal(t, 50.0, tried().current)
	c := tried(0)
	assert.Equal(t, 50.0, c.current, "it helped")
	assert.InDelta(t, math.Sqrt(50*100), c.ceiling, 1e-9, "the limit lies between the two rates")
	assert.False(t, c.failures.Trying())
	assert.Zero(t, c.place)

	c = tried(0.2)
	assert.Equal(t, 100.0, c.current, "the higher rate is tried again")
	assert.True(t, c.failures.Higher())
	c = tried(0.2, 0.3)
	assert.False(t, c.failures.Trying())
	assert.Equal(t, 100.0, c.current, "the lower one does not help")
	assert.Equal(t, 100.0, c.ceiling, "as before")
	assert.True(t, (&Meter{control: *c}).CountsAll())
	assert.False(t, (&Meter{control: *tried(0)}).CountsAll())
	assert.False(t, (&Meter{control: *at100(Config{})}).CountsAll())
	assert.True(t, (&Meter{control: *at100(Config{ErrorThreshold: 0.5})}).CountsAll())

	c = tried(0.1, 0.5)
	assert.Equal(t, 25.0, c.current, "the lower one helps: half of it is a still lower one")
	assert.Equal(t, place{rate: 50, ceiling: 100}, c.place)
	c = tried(0.1, 0.5, 0.1)
	assert.False(t, c.failures.Trying())
	assert.Equal(t, 25.0, c.current, "as usual: load causes what is beyond that")
	assert.InDelta(t, 50, c.ceiling, 1e-9)

	assert.InDelta(t, 25, tried(0.4).current, 1e-9, "too many to try the higher one again")
	assert.Equal(t, 100.0, tried(0.4, 0.35).current, "the lower ones do not help")
	assert.Equal(t, 100.0, tried(0.4, 0.1).current, "this one does: the higher one is tried again")
}

// A trial of a number in flight has found that failures are by chance: a rate believes that, and undoes its cuts.
func TestARateAgreesWithTheTrialOfANumber(t *testing.T) {
	found := tried(0.2, 0.3)
	assert.True(t, found.failures.News())
	assert.False(t, found.failures.News(), "once")
	m := &Meter{control: *at100(Config{})}
	c := &m.control
	c.failures.Learn(0)
	c.weigh(second, second, Unavailable)
	require.InDelta(t, 90, c.current, 1e-9)
	m.Agree(second, &found.failures)
	assert.Equal(t, 100.0, c.current)
	assert.True(t, m.CountsAll())
	c.weighs(2*second, 4, Unavailable)
	assert.Equal(t, 100.0, c.current, "a fourth is usual")
	assert.False(t, c.failures.News(), "it was not its own trial")
	assert.Zero(t, c.place)
}

// What was sent before the effect of a cut can be seen says nothing.
func TestATrialWaitsForItsEffect(t *testing.T) {
	c := tried()
	seen := second + int64(c.tau())
	for range 200 {
		c.weigh(seen, seen-1, Unavailable)
	}
	assert.True(t, c.failures.Trying())
	assert.Zero(t, c.failures.Share())
	c.latency.smooth = 0.5
	c.weigh(seen+second/2-1, seen, Unavailable)
	assert.Zero(t, c.failures.Share(), "nor a quick failure, before successes can come")
	c.weigh(seen+second/2, seen, Unavailable)
	assert.Equal(t, 1.0, c.failures.Share())
}

// knowing returns a controller that has found that load causes failures.
func knowing() *controller {
	c := tried(0)
	c.current, c.ceiling, c.cutAt = 100, 100, 0
	return c
}

// weighMixed weighs n responses, of which each so many is an Error.
func (c *controller) weighMixed(now instant, n, each int) {
	for i := range n {
		o := OK
		if i%each == each-1 {
			o = Error
		}
		c.weigh(now, now, o)
	}
}

func TestFailuresThatLoadCausesCountFully(t *testing.T) {
	c := knowing()
	now := 10 * second
	assert.Equal(t, 0.04, c.threshold(now))
	c.weighMixed(now, 1000, 26)
	assert.Equal(t, 100.0, c.current, "one in 26")
	c.weighMixed(now, 100, 10)
	assert.InDelta(t, 90, c.current, 0.1, "one in ten")
	assert.False(t, c.mayGrow(now))
	assert.Zero(t, c.threshold(now+server.KnownFor), "it is forgotten if nothing fails")
}

func TestFailuresThatStayAtHalfOfTheRateAreNotCausedByLoad(t *testing.T) {
	c := knowing()
	now := 10 * second
	for !c.failures.Trying() {
		require.Greater(t, c.current, 40.0)
		c.weighMixed(now, 60, 5)
		now += int64(c.tau())
	}
	assert.LessOrEqual(t, c.current, 50.0)
	for c.failures.Trying() {
		now += int64(c.tau())
		c.weighMixed(now, 32, 5)
	}
	assert.Equal(t, 100.0, c.current, "the cuts are undone")
	assert.InDelta(t, 0.04+1.25*0.2, c.threshold(now), 0.03)
	c.weighMixed(now, 1000, 5)
	assert.Equal(t, 100.0, c.current)
	c.weighMixed(now, 100, 2)
	assert.Less(t, c.current, 100.0, "half is not usual")
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

// A round that began before a pause of 8 s would show a tenth of what the server completes.
func TestARoundBeginsAgainAfterAPause(t *testing.T) {
	c := at100(Config{})
	c.answers(second, 15, 0.1)
	c.pause(second, 8*second)
	assert.Zero(t, c.latency.n)
	assert.Equal(t, c.pausedUntil, c.latency.from)
}

// A queue may be full before the second round ends, so the first round counts alone. Later, one that is quick by chance does not.
func TestTheLowestLatencyIsOfTwoRoundsButForTheFirst(t *testing.T) {
	l := newLatency(0, Config{})
	for i, c := range []struct{ median, lowest float64 }{
		{0.25, 0.25}, {1, 0.25}, {0.125, 0.25}, {1, 0.25}, {0.125, 0.25}, {0.125, 0.125},
		{0.109375, 0.125}, {0.109375, 0.12109375}, // little less may be chance
	} {
		for j := range leastRound {
			l.sample[j] = float32(c.median)
		}
		l.n = leastRound
		l.endRound()
		require.Equal(t, c.lowest, l.base, i)
	}
}

func TestARoundHasItsMedianAndItsSpread(t *testing.T) {
	l := newLatency(0, Config{})
	l.n = 4
	copy(l.sample[:], []float32{8, 1, 4, 2})
	median, n := l.endRound()
	assert.Equal(t, 4.0, median)
	assert.Equal(t, 4.0, n)
	assert.InDelta(t, math.Ln2*(2+1+0+1)/4, l.spread, 1e-9)
	assert.Equal(t, 4.0, l.base, "there is none before the first round")
	copy(l.sample[:], []float32{1, 1, 1, 1})
	l.endRound()
	assert.InDelta(t, 0.9*math.Ln2, l.spread, 1e-9)
}

func TestALatencyThatVariesNeedsMoreResponses(t *testing.T) {
	for spread, n := range map[float64]int{0: 16, 0.25: 16, 0.3: 22, 0.5: 61, 0.6: 64, 5: 64} {
		assert.Equal(t, n, (&latency{spread: spread}).enough(), spread)
	}
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

// with returns a controller at the end of a round with 10 requests in flight, which is as many as may be.
func with(cfg Config, base float64) *controller {
	c := at100(cfg)
	c.latency.base, c.latency.sure, c.latency.most, c.latency.step = base, true, 10, firstStep
	c.inRound(10)
	return c
}

// inRound makes all requests of a round have that many in flight.
func (c *controller) inRound(flying float64) {
	c.latency.sent, c.latency.flying, c.latency.hits = 100, 100*flying, 100
}

func TestAQueueShowsInTwoRounds(t *testing.T) {
	lowest := 0.1 // a variable, because constants have more digits
	most := 1.03*lowest*math.Exp(3*medianError*0.5/4) + 0.01
	for _, more := range []float64{0, 1e-9} {
		c := with(Config{}, lowest)
		c.latency.spread = 0.5
		for range 2 {
			c.judge(second, most+more, 16, 80)
		}
		assert.Equal(t, more > 0, c.latency.tried > 0, "three standard errors of the median")
	}

	c := with(Config{}, 0.1)
	c.judge(second, 0.3, 16, 60)
	assert.Equal(t, 10.0, c.latency.most, "one round may be slow")
	c.judge(2*second, 0.3, 16, 60)
	assert.Equal(t, 4.0, c.latency.most, "10 in flight at .3 s are 3.55 at .1065, which is between the lowest and the most")
	assert.InDelta(t, 75, c.current, 1e-9, "a quarter more than what was completed")
	assert.Equal(t, 10.0, c.latency.tried)
	assert.Equal(t, 100.0, c.ceiling, "a queue shows no limit of a rate")

	c.inRound(4)
	c.judge(3*second, 0.12, 16, 60)
	assert.Zero(t, c.latency.tried)
	assert.Equal(t, 4.0, c.latency.most, "the latency fell as the number did")
	assert.Equal(t, 0.1, c.latency.base)
}

// A latency that fewer requests in flight do not lower is the server's own, however few they are.
func TestALatencyThatFewerRequestsDoNotLowerIsTheServersOwn(t *testing.T) {
	c := with(Config{}, 0.1)
	c.judge(second, 0.3, 16, 80)
	c.judge(2*second, 0.3, 16, 80)
	c.inRound(4)
	c.judge(3*second, 0.29, 16, 80)
	assert.Equal(t, 10.0, c.latency.most)
	assert.Equal(t, 0.29, c.latency.base)

	c = with(Config{}, 0.1)
	c.inRound(1)
	c.judge(second, 0.3, 16, 80)
	c.judge(2*second, 0.3, 16, 80)
	assert.Equal(t, 0.3, c.latency.base, "a request alone waits for no other")
}

// A lowest latency that was that of a queue is found out, because fewer requests are quicker still.
func TestALowestLatencyOfAQueueIsFoundOut(t *testing.T) {
	c := with(Config{}, 0.5)
	c.latency.sure = false
	c.judge(second, 1, 16, 80)
	c.judge(2*second, 1, 16, 80)
	c.inRound(5)
	c.judge(3*second, 0.39, 16, 80)
	assert.Equal(t, 0.39, c.latency.base)
	assert.Equal(t, 5.0, c.latency.tried, "and still fewer are tried")
	assert.Equal(t, 4.0, c.latency.most)
	c.inRound(4)
	c.judge(4*second, 0.38, 16, 80)
	assert.Equal(t, 5.0, c.latency.most, "4 were not quicker than 5")
	assert.True(t, c.latency.sure)
	assert.Zero(t, c.latency.tried)
}

func TestALatencyThresholdIsANumberInFlight(t *testing.T) {
	user := Config{LatencyThreshold: 200 * time.Millisecond}
	c := with(user, 0.01)
	c.judge(second, 0.2, 16, 80)
	assert.Equal(t, 10.0, c.latency.most, "the threshold itself")
	c.judge(second, 0.19, 16, 80)
	assert.Equal(t, 10.3125, c.latency.most)
	c.judge(second, 0.095, 16, 80)
	assert.Equal(t, (10.3125+20)/2, c.latency.most, "halfway to twice as many in flight, which take at most twice as long")
	c.inRound(15)
	c.judge(second, 0.3, 16, 80)
	assert.InDelta(t, 9.5, c.latency.most, 1e-9)
	c.inRound(4)
	c.latency.hits = 10
	c.judge(second, 0.1, 16, 80)
	assert.InDelta(t, 9.5, c.latency.most, 1e-9, "more are not used")
}

func TestAThresholdBelowTheLatencyOfOneRequestIsSaidOnce(t *testing.T) {
	c := with(Config{LatencyThreshold: 200 * time.Millisecond}, 0)
	c.latency.most = 1
	said := 0
	for range 3 {
		c.inRound(1)
		c.judge(second, 0.3, 16, 80)
		if r, ok := c.retuned(); ok {
			said++
			assert.Equal(t, Retune{CauseAlone, 100, 100}, r)
		}
		assert.Equal(t, 1, c.inFlightBound(second))
	}
	assert.Equal(t, 1, said)
}

// A service that never queues: of the thousands of rounds of an hour, few look like a queue by chance, and none lowers the number for long.
func TestLatenciesThatVaryShowNoQueue(t *testing.T) {
	const every, requests = second / 25, 60 * 60 * 25
	r := metertest.Seeded(t, 1)
	c := newController(Config{Initial: 50}, 0, 1)
	var flying []flight
	tried := 0
	for i := range instant(requests) {
		now := i * every
		for ; len(flying) > 0 && flying[0].back <= now; flying = flying[1:] {
			f := flying[0]
			c.result(f.back, f.ticket, OK, time.Duration(f.back-f.at), 0)
		}
		back := now + int64(0.32*(0.8+0.4*r.Float64())*1e9)
		flying = append(flying, flight{c.send(now, 1), back})
		slices.SortFunc(flying, func(a, b flight) int { return cmp.Compare(a.back, b.back) })
		if c.latency.tried > 0 {
			tried++
		}
	}
	assert.Less(t, tried, requests/200)
}

// A flight is a request whose response arrives at that instant.
type flight struct {
	ticket
	back instant
}
