package aimd

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/httpthrottle/throttle/internal/meter/metertest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestConfigReportsEveryProblem(t *testing.T) {
	for _, ok := range []Config{
		{}, {Initial: 5}, {Min: 1}, {Max: 1}, {Initial: 0.01}, {Max: 0.01}, {Initial: 2, Min: 1, Max: 3}, {Min: 20},
		{Initial: math.MaxFloat64}, {ErrorThreshold: 1, LatencyThreshold: time.Second},
	} {
		require.NoError(t, ok.Validate(), "%+v", ok)
		d := ok.withDefaults()
		require.True(t, 0 < d.Min && d.Min <= d.Initial && d.Initial <= d.Max && d.Max <= maxRate || ok.Initial > maxRate, "%+v", d)
	}
	for _, bad := range []struct {
		cfg  Config
		want []string
	}{
		{Config{Initial: math.NaN()}, []string{"AIMD.Initial is NaN"}},
		{Config{Min: math.Inf(1)}, []string{"AIMD.Min is +Inf"}},
		{Config{Max: -1}, []string{"AIMD.Max is -1"}},
		{Config{ErrorThreshold: 1.5}, []string{"AIMD.ErrorThreshold is 1.5"}},
		{Config{LatencyThreshold: -1}, []string{"AIMD.LatencyThreshold is -1ns"}},
		{Config{Min: 3, Max: 2}, []string{"AIMD.Min is 3", "Max, which is 2"}},
		{Config{Initial: 1, Min: 2}, []string{"AIMD.Initial is 1"}},
		{Config{Initial: 4, Max: 2}, []string{"AIMD.Initial is 4"}},
		{Config{Initial: -1, Min: math.NaN(), ErrorThreshold: -1}, []string{"Initial is -1", "Min is NaN", "ErrorThreshold is -1"}},
	} {
		err := bad.cfg.Validate()
		for _, w := range bad.want {
			require.ErrorContains(t, err, w)
		}
	}
}

// A bench is a controller that is driven by hand.
type bench struct {
	*controller
	t   *testing.T
	now instant
}

func newBench(t *testing.T, cfg Config) *bench {
	require.NoError(t, cfg.Validate())
	return &bench{controller: newController(cfg, 0, 1), t: t}
}

// work sends n requests at the rate, each answered before the next, though as if after 50 ms.
func (b *bench) work(n int, o Outcome) {
	for range n {
		sent := b.send(b.now, 1)
		b.now += second / 1000
		b.result(b.now, sent, o, 50*time.Millisecond, 0)
		b.now += max(0, nanos(1/b.current)-second/1000)
	}
}

func TestControllerDoublesAboutOnceASecondUntilTheFirstSign(t *testing.T) {
	b := newBench(t, Config{Initial: 4})
	for b.now < 10*second && b.current < 16 {
		b.work(1, OK)
	}
	assert.InDelta(t, 16, b.current, 2)
	assert.InDelta(t, 7, seconds(b.now), 2.5, "ten requests at 4/s are 2.5 s")
	b.result(b.now, b.send(b.now, 1), Throttled, 0, 0)
	assert.InDelta(t, beta*16, b.current, 2)
	assert.Zero(t, b.ceiling, "it was used for less than a second")
	b.now += oneEvent
	b.result(b.now, b.send(b.now, 1), Throttled, 0, 0)
	assert.Positive(t, b.ceiling)
	assert.Less(t, b.current, b.ceiling)
}

func TestControllerCutsOncePerRound(t *testing.T) {
	b := newBench(t, Config{Initial: 100})
	b.work(50, OK)
	rate := b.current
	var sent []ticket
	for range 5 {
		sent = append(sent, b.send(b.now, 1))
	}
	for _, s := range sent {
		b.now += second / 20
		b.result(b.now, s, Throttled, 0, 0)
	}
	assert.InDelta(t, beta*rate, b.current, 1)
	b.result(b.now, b.send(b.now, 1), Throttled, 0, 0)
	assert.InDelta(t, 0.8*beta*rate, b.current, 1, "the first response since the cut: what follows one is deeper")
}

func TestControllerCutsOncePerEvent(t *testing.T) {
	b := newBench(t, Config{Initial: 100})
	b.work(50, OK)
	b.result(b.now, b.send(b.now, 1), Throttled, 0, 0)
	rate := b.current
	b.now += oneEvent - 1
	b.result(b.now, b.send(b.now, 1), Throttled, 0, 0)
	assert.GreaterOrEqual(t, b.current, rate)
	b.now++
	b.result(b.now, b.send(b.now, 1), Throttled, 0, 0)
	assert.Less(t, b.current, 0.9*rate)

	rate = b.current
	b.now += stillEmpty - 1
	early := b.send(b.now, 1)
	b.now++
	sent := b.send(b.now, 1)
	b.now += oneEvent
	b.result(b.now, early, Throttled, 0, 0)
	assert.GreaterOrEqual(t, b.current, rate, "the server had given out all it had, at whatever rate")
	b.result(b.now, sent, Throttled, 0, 0)
	assert.Less(t, b.current, 0.9*rate)
}

func TestControllerDoesNotGrowWhileItsRateIsNotUsed(t *testing.T) {
	b := newBench(t, Config{Initial: 10})
	for range 1000 {
		b.result(b.now, b.send(b.now, 1), OK, time.Millisecond, 0)
		b.now += second // a tenth of the rate
		assert.False(t, b.inUse(b.now))
	}
	assert.Equal(t, 10.0, b.current)
}

func TestControllerKnowsUntilWhenAServerAskedToWait(t *testing.T) {
	b := newBench(t, Config{Initial: 100})
	b.work(50, OK)
	b.result(b.now, b.send(b.now, 1), Throttled, 0, 10*time.Second)
	at := b.now + 10*second
	assert.Equal(t, at, b.pausedUntil)
	b.result(b.now, b.send(b.now, 1), Throttled, 0, time.Second)
	assert.Equal(t, at, b.pausedUntil, "a shorter one does not shorten it")
	rate := b.current
	assert.Equal(t, rate, b.rate(at), "a pause is no time to grow in")

	b.result(b.now, b.send(b.now, 1), Throttled, 0, math.MaxInt64)
	assert.Equal(t, b.now+longestStay, b.pausedUntil, "absurd values wait longer, not shorter, but they are asked about after a day")
}

// A request that was accepted shows that what the server asked for concerns others. Of one that was sent before, or at the same instant,
// that is not known.
func TestAPauseEndsWhenARequestIsAcceptedThatWasSentInIt(t *testing.T) {
	for _, after := range []int64{0, 1, 10*second - 1, 10 * second} {
		b := newBench(t, Config{Initial: 100})
		b.work(50, OK)
		refused := b.now
		b.result(b.now, b.send(b.now, 1), Throttled, 0, 10*time.Second)
		b.now += after
		n := b.send(b.now, 1)
		b.now += second / 20
		b.result(b.now, n, OK, 50*time.Millisecond, 0)
		if after == 0 || after == 10*second {
			assert.Equal(t, refused+10*second, b.pausedUntil, after)
			continue
		}
		assert.Equal(t, min(b.now, refused+10*second), b.pausedUntil, after)
		assert.Equal(t, b.pausedUntil, b.workedFrom, after)
		assert.Zero(t, b.paused, after)
	}
}

// A meter yields a silence of a server, and nothing else.
func TestAMeterYieldsASilenceAndNothingElse(t *testing.T) {
	m := New(0, Config{Initial: 100, Max: 100}, 1)
	n := m.Take(0, 0, 1, false)
	_, ok := m.Yields(0)
	require.False(t, ok, "a request is in flight")
	m.Answered(0, n, 0, 1, Throttled, 0)
	for range rowOfDead {
		m.Answered(0, m.Take(0, 0, 1, false), 0, 1, Throttled, 0)
	}
	require.True(t, m.control.silence.on)
	until, ok := m.Yields(second)
	require.True(t, ok)
	require.GreaterOrEqual(t, until, m.control.silence.probeAt)
	m.Settle(n, second, 1, 1_000_000)
	_, ok = m.Yields(2 * second)
	require.False(t, ok, "it has debt")
}

func TestControllerSendsOneProbeAtATimeIntoAnOutage(t *testing.T) {
	b := newBench(t, Config{Initial: 100})
	b.work(100, OK)
	b.work(rowOfDead, Unavailable)
	require.True(t, b.silence.on)
	before, gap := b.ceiling, int64(0)
	for range 10 {
		at := b.gate(b.now)
		require.Greater(t, at, b.now)
		require.LessOrEqual(t, at-b.now, chosen.gap*12/10)
		gap = at - b.now
		b.now = at
		probe := b.send(b.now, 1)
		require.Equal(t, instant(never), b.gate(b.now), "until it is answered")
		b.result(b.now, probe, Unavailable, 0, 0)
	}
	assert.Greater(t, gap, 2*second)

	b.now = b.gate(b.now)
	b.result(b.now, b.send(b.now, 1), Ignore, 0, 0)
	require.True(t, b.silence.on, "what became of it is unknown")
	b.now = b.gate(b.now)
	b.result(b.now, b.send(b.now, 1), ClientError, 0, 0)
	assert.False(t, b.silence.on, "a 404 is an answer")
	assert.InDelta(t, before, b.current, 1)
	assert.LessOrEqual(t, b.gate(b.now), b.now)
}

func TestControllerLeavesAServerAloneThatRefusesForMinutes(t *testing.T) {
	b := newBench(t, Config{})
	b.work(rowOfDead, Throttled)
	longest, began, probes := int64(0), b.now, 0
	for b.now < began+3600*second {
		at := b.gate(b.now)
		longest = max(longest, at-b.now)
		b.now = at
		b.rest(b.now, true)
		b.result(b.now, b.send(b.now, 1), Throttled, 0, 0)
		probes++
	}
	assert.Greater(t, longest, 10*60*second)
	assert.LessOrEqual(t, longest, 20*60*second)
	assert.Less(t, probes, 30)
}

func TestControllerHoldsLongerAfterEachDearTouch(t *testing.T) {
	b := newBench(t, Config{Initial: 10})
	held := int64(0)
	for range 6 {
		b.work(100, OK)
		b.result(b.now, b.send(b.now, 1), Throttled, 0, 50*time.Second)
		require.GreaterOrEqual(t, b.heldUntil-b.now, held*19/10)
		held = b.heldUntil - b.now
		b.now = b.pausedUntil
	}
	assert.Greater(t, held, 800*second)
}

func TestControllerBoundsWhatIsInFlight(t *testing.T) {
	b := newBench(t, Config{Initial: 100})
	b.work(200, OK)
	for b.gate(b.now) <= b.now {
		b.send(b.now, 1)
	}
	assert.Equal(t, b.inFlight, b.inFlightBound(b.now))
	assert.Less(t, b.inFlight, 20, "about twice what the rate needs")
	assert.Equal(t, instant(never), b.gate(b.now))
}

func TestControllerHeedsTheUsersThresholds(t *testing.T) {
	b := newBench(t, Config{Initial: 100, LatencyThreshold: 20 * time.Millisecond})
	for range 20 {
		b.work(100, OK)
	}
	assert.Equal(t, 1, b.inFlightBound(b.now), "a latency that stays is above the threshold, too")

	b = newBench(t, Config{Initial: 100, ErrorThreshold: 0.5})
	for range 200 {
		b.work(2, OK)
		b.work(1, Unavailable)
	}
	assert.GreaterOrEqual(t, b.current, 100.0)
	b = newBench(t, Config{Initial: 100, ErrorThreshold: 0.2})
	for range 200 {
		b.work(2, OK)
		b.work(1, Unavailable)
	}
	assert.Less(t, b.current, 20.0)
}

func TestControllerReportsEachRetuneOnce(t *testing.T) {
	b := newBench(t, Config{Initial: 100})
	_, ok := b.retuned()
	require.False(t, ok)
	b.work(100, OK)
	r, ok := b.retuned()
	require.True(t, ok)
	assert.Equal(t, Retune{CauseGrowth, 100, b.current}, r)
	from := b.current
	b.result(b.now, b.send(b.now, 1), Throttled, 0, 0)
	r, ok = b.retuned()
	require.True(t, ok)
	assert.Equal(t, CauseThrottled, r.Cause)
	assert.InDelta(t, from, r.From, 1)
	assert.Equal(t, b.current, r.To)
	_, ok = b.retuned()
	require.False(t, ok)
}

func TestControllerGoesOnCautiouslyWithWhatItLearned(t *testing.T) {
	b := newBench(t, Config{Initial: 100})
	b.work(200, OK)
	b.work(1, Throttled)
	text, err := json.Marshal(b.snapshot(b.now))
	require.NoError(t, err)
	var l Learned
	require.NoError(t, json.Unmarshal(text, &l))
	assert.Equal(t, b.snapshot(b.now), l)
	assert.InDelta(t, 0.05, l.Latency, 1e-6)

	next := newBench(t, Config{Max: 500})
	require.True(t, next.restore(0, l))
	assert.Equal(t, l.Rate/2, next.current)
	next.work(1000, OK)
	assert.Greater(t, next.current, l.Rate*0.9)

	l.DearHold = 100
	next = newBench(t, Config{})
	require.True(t, next.restore(0, l))
	assert.Equal(t, beta*l.Rate, next.current)
	assert.Equal(t, 100*second, next.heldUntil)

	for _, bad := range []Learned{{}, {Rate: -1}, {Rate: math.NaN()}, {Rate: 1, Ceiling: math.Inf(1)}, {Rate: 1, DearHold: -1}} {
		next := newBench(t, Config{})
		assert.False(t, next.restore(0, bad))
		assert.Equal(t, defaultInitial, next.current)
	}
}

// A rate is tokens: ten times the tokens per request are ten times the rate, and all else is the same.
func TestControllerCountsInTokensAndJudgesInRequests(t *testing.T) {
	one, ten := newController(Config{Initial: 20}, 0, 1), newController(Config{Initial: 200}, 0, 1)
	now := instant(0)
	ten.cost, ten.latency.most = 10, one.latency.most // which is of tokens, because the cost of a request is not known at first
	for i := range 2000 {
		a, b := one.send(now, 1), ten.send(now, 10)
		now += second / 40
		o := OK
		if i%200 == 199 {
			o = Throttled
		}
		one.result(now, a, o, 25*time.Millisecond, 0)
		ten.result(now, b, o, 25*time.Millisecond, 0)
		require.InEpsilon(t, 10*one.rate(now), ten.rate(now), 1e-6)
		require.Equal(t, one.inFlightBound(now), ten.inFlightBound(now))
	}
}

func TestControllerHoldsItsInvariantsWhateverHappens(t *testing.T) {
	for seed := range uint64(6) {
		r := metertest.Seeded(t, seed)
		cfg := Config{Initial: 10, Min: 0.5, Max: 1000}
		switch seed % 3 {
		case 1:
			cfg.LatencyThreshold, cfg.ErrorThreshold = 100*time.Millisecond, 0.1
		case 2:
			cfg = Config{}
		}
		c := newController(cfg, 0, seed)
		now := instant(0)
		var flying []ticket
		checkInvariants := func() {
			rate := c.rate(now)
			require.True(t, rate >= c.cfg.Min && rate <= c.cfg.Max, "rate %v", rate)
			require.GreaterOrEqual(t, c.burst(), 1.0)
			require.Equal(t, len(flying), c.inFlight)
			require.True(t, c.gate(now) < never || len(flying) > 0, "nothing to wait for")
			require.False(t, math.IsNaN(c.ceiling) || math.IsNaN(c.latency.spread) || math.IsNaN(usualOf(c)))
			require.LessOrEqual(t, c.heldUntil, now+2*nanos(longestHold)+int64(time.Hour))
		}
		for range 10_000 {
			switch {
			case r.IntN(2) == 0 && c.gate(now) <= now:
				flying = append(flying, c.send(now, 1+r.Int64N(1+r.Int64N(20))))
			case len(flying) > 0:
				i := r.IntN(len(flying))
				o := OK
				if r.IntN(1+r.IntN(30)) == 0 {
					o = Outcome(1 + r.IntN(6))
				}
				c.result(now, flying[i], o, time.Duration(r.Int64N(int64(time.Second))), anyRetryAfter(r))
				flying = append(flying[:i], flying[i+1:]...)
			}
			now += r.Int64N(1 + r.Int64N(second/10))
			checkInvariants()
		}
		for _, f := range flying {
			c.result(now, f, OK, 0, 0)
		}
		flying = nil
		checkInvariants()
	}
}

func anyRetryAfter(r *rand.Rand) time.Duration {
	if r.IntN(50) > 0 {
		return 0
	}
	return time.Duration(r.Int64N(1 << r.IntN(36)))
}

func TestControllerIsSmallAndTheSameForTheSameSeed(t *testing.T) {
	assert.Less(t, unsafe.Sizeof(controller{}), uintptr(1024))
	a, b := newController(Config{}, 0, 7), newController(Config{}, 0, 7)
	for range 100 {
		x := a.dice.Chance()
		require.Equal(t, x, b.dice.Chance())
		require.True(t, x >= 0 && x < 1)
	}
	assert.NotEqual(t, a.dice.Chance(), newController(Config{}, 0, 8).dice.Chance())
}

func BenchmarkController(b *testing.B) {
	c := newController(Config{Initial: 1000, Max: 1000}, 0, 1)
	now := instant(0)
	for b.Loop() {
		now += second / 1000
		c.gate(now)
		c.result(now, c.send(now, 1), OK, time.Millisecond, 0)
	}
}
