package throttle

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

func TestAIMDReportsEveryProblemOfItsConfiguration(t *testing.T) {
	for _, ok := range []AIMD{
		{}, {Initial: 5}, {Min: 1}, {Max: 1}, {Initial: 0.01}, {Max: 0.01}, {Initial: 2, Min: 1, Max: 3}, {Min: 20},
		{Initial: math.MaxFloat64}, {ErrorThreshold: 1, LatencyThreshold: time.Second},
	} {
		require.NoError(t, ok.validate(), "%+v", ok)
		d := ok.withDefaults()
		require.True(t, 0 < d.Min && d.Min <= d.Initial && d.Initial <= d.Max && d.Max <= maxRate || ok.Initial > maxRate, "%+v", d)
	}
	for _, bad := range []struct {
		cfg  AIMD
		want []string
	}{
		{AIMD{Initial: math.NaN()}, []string{"AIMD.Initial is NaN"}},
		{AIMD{Min: math.Inf(1)}, []string{"AIMD.Min is +Inf"}},
		{AIMD{Max: -1}, []string{"AIMD.Max is -1"}},
		{AIMD{ErrorThreshold: 1.5}, []string{"AIMD.ErrorThreshold is 1.5"}},
		{AIMD{LatencyThreshold: -1}, []string{"AIMD.LatencyThreshold is -1ns"}},
		{AIMD{Min: 3, Max: 2}, []string{"AIMD.Min is 3", "Max, which is 2"}},
		{AIMD{Initial: 1, Min: 2}, []string{"AIMD.Initial is 1"}},
		{AIMD{Initial: 4, Max: 2}, []string{"AIMD.Initial is 4"}},
		{AIMD{Initial: -1, Min: math.NaN(), ErrorThreshold: -1}, []string{"Initial is -1", "Min is NaN", "ErrorThreshold is -1"}},
	} {
		err := bad.cfg.validate()
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

func newBench(t *testing.T, cfg AIMD) *bench {
	require.NoError(t, cfg.validate())
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

func TestAIMDDoublesAboutOnceASecondUntilTheFirstSign(t *testing.T) {
	b := newBench(t, AIMD{Initial: 4})
	for b.now < 10*second && b.current < 16 {
		b.work(1, OutcomeOK)
	}
	assert.InDelta(t, 16, b.current, 2)
	assert.InDelta(t, 7, seconds(b.now), 2.5, "ten requests at 4/s are 2.5 s")
	b.result(b.now, b.send(b.now, 1), OutcomeThrottled, 0, 0)
	assert.Equal(t, modeAvoid, b.mode)
	assert.InDelta(t, beta*b.ceiling, b.current, 1e-9)
}

func TestAIMDCutsOncePerRound(t *testing.T) {
	b := newBench(t, AIMD{Initial: 100})
	var sent []ticket
	for range 20 {
		sent = append(sent, b.send(b.now, 1))
	}
	for _, s := range sent[:5] {
		b.result(b.now+second/20, s, OutcomeThrottled, 0, 0)
	}
	assert.InDelta(t, 90, b.current, 1)
	b.result(b.now+second/20, b.send(b.now, 1), OutcomeThrottled, 0, 0)
	assert.InDelta(t, 81, b.current, 1)
}

func TestAIMDDoesNotGrowWhileItsRateIsNotUsed(t *testing.T) {
	b := newBench(t, AIMD{Initial: 10})
	for range 1000 {
		b.result(b.now, b.send(b.now, 1), OutcomeOK, time.Millisecond, 0)
		b.now += second // a tenth of the rate
		assert.False(t, b.growing(b.now))
	}
	assert.Equal(t, 10.0, b.current)
}

func TestAIMDPausesForRetryAfter(t *testing.T) {
	b := newBench(t, AIMD{Initial: 100})
	b.work(50, OutcomeOK)
	b.result(b.now, b.send(b.now, 1), OutcomeThrottled, 0, 10*time.Second)
	at := b.gate(b.now)
	assert.GreaterOrEqual(t, at, b.now+10*second, "never earlier")
	assert.LessOrEqual(t, at, b.now+11*second)
	b.result(b.now, b.send(b.now, 1), OutcomeThrottled, 0, time.Second)
	assert.Equal(t, at, b.gate(b.now), "a shorter one does not shorten it")
	rate := b.current
	assert.Equal(t, rate, b.rate(at), "a pause is no time to grow in")

	b.result(b.now, b.send(b.now, 1), OutcomeThrottled, 0, math.MaxInt64)
	assert.Greater(t, b.gate(b.now), b.now+50*365*24*3600*second, "absurd values wait longer, not shorter")
}

func TestAIMDSendsOneProbeAtATimeIntoAnOutage(t *testing.T) {
	b := newBench(t, AIMD{Initial: 100})
	b.work(100, OutcomeOK)
	b.work(rowOfDead, OutcomeUnavailable)
	require.Equal(t, modeQuiet, b.mode)
	before, gap := b.threshold, int64(0)
	for range 10 {
		at := b.gate(b.now)
		require.Greater(t, at, b.now)
		require.LessOrEqual(t, at-b.now, outageGap*12/10)
		gap = at - b.now
		b.now = at
		probe := b.send(b.now, 1)
		require.Equal(t, instant(never), b.gate(b.now), "until it is answered")
		b.result(b.now, probe, OutcomeUnavailable, 0, 0)
	}
	assert.Greater(t, gap, 2*second)

	b.now = b.gate(b.now)
	b.result(b.now, b.send(b.now, 1), OutcomeIgnore, 0, 0)
	require.Equal(t, modeQuiet, b.mode, "nobody knows what became of it")
	b.now = b.gate(b.now)
	b.result(b.now, b.send(b.now, 1), OutcomeClientError, 0, 0)
	assert.Equal(t, modeStart, b.mode, "a 404 is an answer")
	assert.InDelta(t, resumeAt*before, b.current, 1)
	assert.LessOrEqual(t, b.gate(b.now), b.now)
}

func TestAIMDLeavesAServerAloneThatRefusesForMinutes(t *testing.T) {
	b := newBench(t, AIMD{})
	b.work(rowOfDead, OutcomeThrottled)
	longest, began, probes := int64(0), b.now, 0
	for b.now < began+3600*second {
		at := b.gate(b.now)
		longest = max(longest, at-b.now)
		b.now = at
		b.result(b.now, b.send(b.now, 1), OutcomeThrottled, 0, 0)
		probes++
	}
	assert.Greater(t, longest, 200*second)
	assert.LessOrEqual(t, longest, windowGap*12/10)
	assert.Less(t, probes, 60)
}

func TestAIMDHoldsLongerAfterEachDearTouch(t *testing.T) {
	b := newBench(t, AIMD{Initial: 10})
	held := int64(0)
	for range 5 {
		b.work(100, OutcomeOK)
		b.result(b.now, b.send(b.now, 1), OutcomeThrottled, 0, 50*time.Second)
		require.GreaterOrEqual(t, b.heldUntil-b.now, held*19/10)
		held = b.heldUntil - b.now
		b.now = b.gate(b.now)
	}
	assert.Greater(t, held, 1000*second)
}

func TestAIMDBoundsWhatIsInFlight(t *testing.T) {
	b := newBench(t, AIMD{Initial: 100})
	b.work(200, OutcomeOK)
	for b.gate(b.now) <= b.now {
		b.send(b.now, 1)
	}
	assert.Equal(t, b.inFlight, b.inFlightBound())
	assert.InDelta(t, 2*b.current*0.05, b.inFlight, 2)
	assert.Equal(t, instant(never), b.gate(b.now))
}

func TestAIMDHeedsTheUsersThresholds(t *testing.T) {
	b := newBench(t, AIMD{Initial: 100, LatencyThreshold: 20 * time.Millisecond})
	for range 20 {
		b.work(100, OutcomeOK)
	}
	assert.Less(t, b.current, 10.0, "it gives no rate back for a latency that stays")

	b = newBench(t, AIMD{Initial: 100, ErrorThreshold: 0.5})
	for range 200 {
		b.work(2, OutcomeOK)
		b.work(1, OutcomeUnavailable)
	}
	assert.GreaterOrEqual(t, b.current, 100.0)
	b = newBench(t, AIMD{Initial: 100, ErrorThreshold: 0.2})
	for range 200 {
		b.work(2, OutcomeOK)
		b.work(1, OutcomeUnavailable)
	}
	assert.Less(t, b.current, 20.0)
}

func TestAIMDTellsEachRetuneOnce(t *testing.T) {
	b := newBench(t, AIMD{Initial: 100})
	_, ok := b.retuned()
	require.False(t, ok)
	b.work(100, OutcomeOK)
	r, ok := b.retuned()
	require.True(t, ok)
	assert.Equal(t, retune{causeGrowth, 100, b.current}, r)
	from := b.current
	b.result(b.now, b.send(b.now, 1), OutcomeThrottled, 0, 0)
	r, ok = b.retuned()
	require.True(t, ok)
	assert.Equal(t, causeThrottled, r.cause)
	assert.InDelta(t, from, r.from, 1)
	assert.Equal(t, b.current, r.to)
	_, ok = b.retuned()
	require.False(t, ok)
}

func TestAIMDGoesOnCautiouslyWithWhatItLearned(t *testing.T) {
	b := newBench(t, AIMD{Initial: 100})
	b.work(200, OutcomeOK)
	b.work(1, OutcomeThrottled)
	text, err := json.Marshal(b.snapshot(b.now))
	require.NoError(t, err)
	var l Learned
	require.NoError(t, json.Unmarshal(text, &l))
	assert.Equal(t, b.snapshot(b.now), l)
	assert.InDelta(t, 0.05, l.Latency, 1e-6)

	next := newBench(t, AIMD{Max: 500})
	require.True(t, next.restore(0, l))
	assert.Equal(t, l.Rate/2, next.current)
	next.work(1000, OutcomeOK)
	assert.Greater(t, next.current, l.Rate*0.99)

	l.DearHold = 100
	next = newBench(t, AIMD{})
	require.True(t, next.restore(0, l))
	assert.Equal(t, beta*l.Rate, next.current)
	assert.Equal(t, 100*second, next.heldUntil)

	for _, bad := range []Learned{{}, {Rate: -1}, {Rate: math.NaN()}, {Rate: 1, Ceiling: math.Inf(1)}, {Rate: 1, DearHold: -1}} {
		next := newBench(t, AIMD{})
		assert.False(t, next.restore(0, bad))
		assert.Equal(t, defaultInitial, next.current)
	}
}

// A rate is tokens: ten times the tokens per request are ten times the rate, and all else is the same.
func TestAIMDCountsInTokensAndJudgesInRequests(t *testing.T) {
	one, ten := newController(AIMD{Initial: 20}, 0, 1), newController(AIMD{Initial: 200}, 0, 1)
	now := instant(0)
	ten.cost = 10
	for i := range 2000 {
		a, b := one.send(now, 1), ten.send(now, 10)
		now += second / 40
		o := OutcomeOK
		if i%200 == 199 {
			o = OutcomeThrottled
		}
		one.result(now, a, o, 25*time.Millisecond, 0)
		ten.result(now, b, o, 25*time.Millisecond, 0)
		require.InEpsilon(t, 10*one.rate(now), ten.rate(now), 1e-6)
		require.Equal(t, one.inFlightBound(), ten.inFlightBound())
	}
}

func TestAIMDHoldsItsInvariantsWhateverHappens(t *testing.T) {
	for seed := range uint64(6) {
		r := metertest.Seeded(t, seed)
		cfg := AIMD{Initial: 10, Min: 0.5, Max: 1000}
		switch seed % 3 {
		case 1:
			cfg.LatencyThreshold, cfg.ErrorThreshold = 100*time.Millisecond, 0.1
		case 2:
			cfg = AIMD{}
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
			require.False(t, math.IsNaN(c.ceiling) || math.IsNaN(c.stretch) || math.IsNaN(c.latency.spread) || math.IsNaN(c.failures.usual))
			require.LessOrEqual(t, c.heldUntil, now+2*nanos(longestHold)+int64(time.Hour))
		}
		for range 10_000 {
			switch {
			case r.IntN(2) == 0 && c.gate(now) <= now:
				flying = append(flying, c.send(now, 1+r.Int64N(1+r.Int64N(20))))
			case len(flying) > 0:
				i := r.IntN(len(flying))
				o := OutcomeOK
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
			c.result(now, f, OutcomeOK, 0, 0)
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

func TestAIMDIsSmallAndTheSameForTheSameSeed(t *testing.T) {
	assert.Less(t, unsafe.Sizeof(controller{}), uintptr(1024))
	a, b := newController(AIMD{}, 0, 7), newController(AIMD{}, 0, 7)
	for range 100 {
		x := a.dice.Chance()
		require.Equal(t, x, b.dice.Chance())
		require.True(t, x >= 0 && x < 1)
	}
	assert.NotEqual(t, a.dice.Chance(), newController(AIMD{}, 0, 8).dice.Chance())
}

func BenchmarkAIMD(b *testing.B) {
	c := newController(AIMD{Initial: 1000, Max: 1000}, 0, 1)
	now := instant(0)
	for b.Loop() {
		now += second / 1000
		c.gate(now)
		c.result(now, c.send(now, 1), OutcomeOK, time.Millisecond, 0)
	}
}
