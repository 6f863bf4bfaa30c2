package aimd

import (
	"math"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var _ interface {
	meter.Meter
	meter.Planner
} = (*Meter)(nil)

func TestAMeterOwesAMinuteAtMost(t *testing.T) {
	m := New(0, Config{Initial: 10}, 1)
	charged := m.Take(0, 0, 3, false)
	before := m.Tokens(0)
	m.Settle(charged, 0, 3, 5)
	require.InDelta(t, before-2, m.Tokens(0), 1e-6)
	m.Settle(charged, 0, 3, meter.MaxCount)
	require.InDelta(t, -600, m.Tokens(0), 1e-6)
	m.Settle(charged, 10*second, 3, 0)
	require.GreaterOrEqual(t, m.control.used.Value, 0.0)
}

// The bucket has the rate of the controller, and 50 ms of it at once.
func TestABucketFollowsItsController(t *testing.T) {
	m := New(0, Config{Initial: 100}, 1)
	require.Equal(t, 5.0, m.Tokens(0))
	require.True(t, m.Payable(0, 5))
	m.Take(0, 0, 5, false)
	require.Equal(t, 10*second/1000, m.Ready(0, 0, 1))
	require.Equal(t, 50*second/1000, m.Ready(0, 0, 5))
	require.Equal(t, 50*second/1000, m.Ready(0, 0, 1000), "a cost of more than a full bucket leaves a debt")
	require.LessOrEqual(t, m.Plan(0, 0, 1), instant(1), "the rate may grow until then")
	require.False(t, m.Payable(10*second/1000-1, 1))
	require.True(t, m.Payable(10*second/1000, 1))

	m = New(0, Config{Initial: 100, Max: 100}, 1)
	m.Take(0, 0, 5, false)
	require.Equal(t, 10*second/1000, m.Plan(0, 0, 1))
	require.Equal(t, 30*second/1000, m.Plan(0, 2, 1))
	require.Equal(t, 10*second/1000, m.Interval())
	m.control.pausedUntil = second
	require.Equal(t, 30*second/1000, m.Plan(0, 2, 1), "the account waits")
	require.True(t, m.Payable(second/2, 1))
}

// Tokens come back only as far as the bucket was never full since they were taken.
func TestWhatWasTakenBeforeTheBucketWasFullDoesNotComeBack(t *testing.T) {
	for name, back := range map[string]func(m *Meter, charged int64){
		"never sent": func(m *Meter, charged int64) { m.GiveBack(charged, second, 3) },
		"refunded":   func(m *Meter, charged int64) { m.Refund(charged, second, 3) },
		"corrected":  func(m *Meter, charged int64) { m.Settle(charged, second, 3, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			m := New(0, Config{Initial: 100, Max: 100}, 1)
			before := m.Take(0, 0, 3, false)
			after := m.Take(second, second, 3, false)
			require.Equal(t, 2.0, m.Tokens(second))
			back(m, before)
			assert.Equal(t, 2.0, m.Tokens(second))
			back(m, after)
			assert.Equal(t, 5.0, m.Tokens(second))
		})
	}
}

func TestAnAnswerIsThatOfItsRequest(t *testing.T) {
	m := New(0, Config{Initial: 100}, 1)
	old, late := m.Take(0, 0, 1, false), m.Take(0, 0, 1, false)
	m.Answered(second, old, second/4, 1, OK, 0)
	require.Equal(t, 0.75, m.control.latency.smooth)
	m.Answered(2*second, m.Take(2*second, 2*second, 1, false), 2*second, 1, Throttled, 0)
	rate := m.control.current
	m.Answered(3*second, late, 0, 1, Throttled, 0)
	require.Equal(t, rate, m.control.current, "it was sent before the cut")

	now, requests := 3*second, []int64{m.Take(3*second, 3*second, 1, false)}
	for range rowOfDead {
		m.Answered(now, m.Take(now, now, 1, false), now, 1, Unavailable, 0)
	}
	require.True(t, m.control.silence.on)
	now = m.control.gate(now)
	require.True(t, m.Payable(now, 1))
	probe := m.Take(now, now, 1, false)
	require.Equal(t, m.control.seq, uint64(probe))
	require.Equal(t, never, m.Ready(now, 0, 1))
	require.False(t, m.Payable(now, 1))
	m.Answered(now, requests[0], 3*second, 1, OK, 0)
	require.True(t, m.control.silence.on, "no probe")
	m.Answered(now, probe, now, 1, OK, 0)
	require.False(t, m.control.silence.on)
}

// The mean cost and the use of the rate follow what requests came to.
func TestACorrectedCostCorrectsTheMean(t *testing.T) {
	m := New(0, Config{Initial: 100}, 1)
	charged := m.Take(0, 0, 2, false)
	m.control.seq, m.control.cost = 4, 2
	m.control.settled(0, 8)
	require.Equal(t, 4.0, m.control.cost)
	m.control.settled(0, -800)
	require.Equal(t, 1.0, m.control.cost, "1 at least")
	require.Zero(t, m.control.used.Value)
	m.Settle(charged, 0, 2, 5)
	require.Equal(t, 3.0, m.control.used.Value*m.control.tau()/1e9)
}

func TestNoMoreThanTheBoundIsInFlight(t *testing.T) {
	m := New(0, Config{}, 1)
	m.control.inFlight = m.control.inFlightBound(0)
	assert.Equal(t, never, m.Ready(6*second, 0, 1))
}

// While a server reports that it allows more, the rate doubles in a quarter of a second, two round trips or four requests; below what was
// refused, it does so even where growth would wait.
func TestARateGrowsFastWhileThereIsRoom(t *testing.T) {
	for name, c := range map[string]struct {
		rate, room, ceiling, smooth float64
		grows                       float64 // in a quarter of a second, times
	}{
		"plenty":                    {100, 1000, 0, 0, 2},
		"a quarter more":            {100, 125, 0, 0, math.Exp2(0.25)},
		"a little more than that":   {100, 125.1, 0, 0, 2},
		"nothing reported":          {100, 0, 0, 0, math.Exp2(0.25)},
		"long round trips":          {100, 1000, 0, 0.25, math.Sqrt2},
		"few requests":              {8, 1000, 0, 0, math.Sqrt2},
		"well below what failed":    {100, 1000, 126, 0, 2},
		"close to what was refused": {100, 1000, 125, 0, 0},
	} {
		m := New(0, Config{Initial: c.rate}, 1)
		k := &m.control
		k.off.use, k.ceiling, k.latency.smooth, k.heldUntil, k.okAt = true, c.ceiling, c.smooth, 0, second/4
		if c.ceiling > 0 {
			k.heldUntil, m.explained = second, true
		}
		m.Room(0, c.room)
		k.grow(second / 4)
		want := c.grows
		if want == 0 {
			want = 1
		}
		assert.InEpsilon(t, want, k.current/c.rate, 1e-9, name)
	}
}

// Refusals before the server has reported that there is room were of windows that other clients had used up.
func TestTheFirstReportOfRoomExplainsRefusalsBefore(t *testing.T) {
	m := New(0, Config{Initial: 100}, 1)
	m.control.cut(0, CauseThrottled, 50, 40)
	m.Room(0, 0)
	require.Equal(t, 50., m.control.ceiling, "nothing was reported")
	m.Room(0, 1)
	require.Zero(t, m.control.ceiling)
	m.control.cut(second, CauseThrottled, 30, 20)
	m.Room(second, 1000)
	require.Equal(t, 30., m.control.ceiling)

	m = New(0, Config{Initial: 100}, 1)
	require.True(t, m.Learn(0, Learned{Rate: 40, Ceiling: 50}))
	m.Room(0, 1000)
	require.Positive(t, m.control.ceiling, "what was learned before counts")
}

// Of windows that others use up soon a client uses its rate at the beginning only.
func TestATenthOfARateIsUseEnoughWhileThereIsRoom(t *testing.T) {
	for _, c := range []struct {
		used  float64
		roomy bool
		grows bool
	}{{10, true, true}, {9.9, true, false}, {50, false, true}, {49.9, false, false}} {
		k := newController(Config{Initial: 100}, 0, 1)
		k.used.Value, k.used.At, k.roomy, k.okAt = c.used, second, c.roomy, second
		k.grownAt = second - second/100
		k.grow(second)
		assert.Equal(t, c.grows, k.current > 100, "%v", c)
	}
}

// A cut ends it, and a server that is silent or an unlimited rate has none.
func TestRoomEndsWithACut(t *testing.T) {
	m := New(0, Config{Initial: 100}, 1)
	m.Room(0, 1000)
	require.True(t, m.control.roomy)
	m.control.cut(0, CauseThrottled, 200, 50)
	require.False(t, m.control.roomy)
	m.control.silence.on = true
	m.Room(0, 1000)
	require.False(t, m.control.roomy)
}

func TestBucketAndControllerNumberRequestsAlike(t *testing.T) {
	m := New(0, Config{Initial: 10}, 1)
	charged := m.Take(0, 0, 1, false)
	m.Settle(charged, second, 1, 2)
	charged = m.Take(3*second, 3*second, 1, false)
	require.Equal(t, m.control.seq, uint64(charged))
}

// A meter is kept for as long as what it knows matters.
func TestAMeterSaysUntilWhenItMatters(t *testing.T) {
	now := instant(0)
	m := New(now, Config{}, 1)
	assert.Equal(t, now, fullAt(m), "a new one")
	for range handful {
		m.Answered(now, m.Take(now, now, 1, false), now, 1, OK, 0)
	}
	charged := m.Take(now, now, 1, false)
	assert.Equal(t, never, fullAt(m), "a request in flight")
	assert.True(t, needed(m, now))
	m.Answered(now, charged, now, 1, Throttled, time.Minute)
	assert.False(t, needed(m, second), "the account keeps the pause")
	assert.GreaterOrEqual(t, fullAt(m), keepLearned, "a learned rate")
	now = 70 * second
	for range rowOfDead + 3 {
		now = max(now, m.control.gate(now)) + second
		charged := m.Take(now, now, 1, false)
		m.Answered(now, charged, now, 1, Unavailable, 0)
	}
	require.True(t, m.control.silence.on)
	assert.True(t, needed(m, now), "a silence")
	assert.Greater(t, fullAt(m), m.control.silence.probeAt+60*second)
}

// needed reports whether a meter may not be forgotten now.
func needed(m *Meter, now instant) bool {
	must, _ := m.Matters(now)
	return must > now
}

// fullAt returns the instant from which a meter is as good as new.
func fullAt(m *Meter) instant {
	_, full := m.Matters(0)
	return full
}

// Beside a limit in flight, the rate has no bound until the first sign of overload. Then it is what was used.
func TestTheRateBesideANumberHasNoBoundAtFirst(t *testing.T) {
	for _, o := range []Outcome{Throttled, Error} {
		m := New(0, Config{}, 1).Beside(0)
		now, per := at(0), second/200
		send := func(o Outcome, retryAfter time.Duration) {
			now += per
			m.Answered(now, m.Take(now, now, 1, false), now-second, 1, o, retryAfter)
		}
		for range 400 {
			send(OK, 0)
			send(ClientError, 0)
		}
		if r := m.PerSecond(now); r < 1e15 {
			t.Fatalf("%v/s, although nothing was refused", r)
		}
		if o == Throttled {
			send(o, 0)
			if r := m.PerSecond(now); r < 150 || r > 250 {
				t.Fatalf("%v/s, and 200/s were used", r)
			}
			if _, _, mode := m.Bounds(now); mode != "start" {
				t.Fatal(mode)
			}
		}
		for range 20 { // one shows little
			send(o, 0)
		}
		if r := m.PerSecond(now); o == Error && (r < 50 || r > 150) {
			t.Fatalf("%v/s: a half of what was used shows whether the errors become fewer", r)
		}
		send(Throttled, time.Second)
		if m.control.pausedUntil != now+second {
			t.Fatal("Retry-After is heeded")
		}
	}
}

// Errors that a lower rate does not reduce leave no bound.
func TestErrorsThatAreNotLoadLeaveTheRateWithoutABound(t *testing.T) {
	m := New(0, Config{}, 1).Beside(0)
	now, bounded := at(0), false
	for i := range 2000 {
		now += second / 100
		o := OK
		if i%2 == 0 {
			o = Error
		}
		m.Answered(now, m.Take(now, now, 1, false), now, 1, o, 0)
		bounded = bounded || m.PerSecond(now) < 1e15
	}
	if r := m.PerSecond(now); !bounded || r < 1e15 {
		t.Fatalf("%v/s, bounded: %v", r, bounded)
	}
}

// What holds requests may end later than the server has asked for. One request is sent then, and not what was saved up in between.
func TestOneRequestIsSentAfterAPauseHoweverLateItIs(t *testing.T) {
	m := New(0, Config{Initial: 100}, 1)
	m.Answered(0, m.Take(0, 0, 1, false), 0, 1, Throttled, time.Second)
	now := 2 * second
	m.Take(now, now, 1, true)
	if m.Payable(now, 1) {
		t.Fatal("a second request at the same instant")
	}
	if at := m.Ready(now, 0, 1); at > now+second/50 {
		t.Fatal(at - now)
	}
}

// Beside a limit in flight, the rate of the first refusal is the one that was used, which has not just been doubled. So a Retry-After costs
// what it asks for. What was used for less than a second is no rate: after the pause, it doubles.
func TestTheFirstRetryAfterBesideALimitInFlightCostsItsPause(t *testing.T) {
	m := New(0, Config{}, 1).Beside(0)
	now := at(0)
	work := func(n int) {
		for range n {
			now += second / 40
			m.Answered(now+second/20, m.Take(now, now, 1, false), now, 1, OK, 0)
		}
	}
	refuse := func() {
		now += second / 40
		m.Answered(now, m.Take(now, now, 1, false), now, 1, Throttled, time.Second)
		now = m.control.pausedUntil
	}
	work(400)
	refuse()
	if r, c := m.PerSecond(now), m.control; r < 30 || r > 42 || c.heldUntil > now {
		t.Fatalf("%v/s until %v, and 40/s were used", r, time.Duration(c.heldUntil-now))
	}

	m = New(0, Config{}, 1).Beside(0)
	work(400)
	now += 3600 * second
	work(4)
	refuse()
	if _, _, mode := m.Bounds(now); mode != "start" {
		t.Fatalf("%s after a tenth of a second", mode)
	}
}

// Until the first refusal, as many requests are in flight as another limit allows. That the server refuses all of these says how
// fast is too fast, and neither that it is down nor that what is sent a moment later is too fast as well.
func TestRefusalsOfARateWithoutABoundAreOneEvent(t *testing.T) {
	m := New(0, Config{}, 1).Beside(0)
	now := at(0)
	var charged []int64
	for range 200 {
		now += second / 100
		m.Answered(now, m.Take(now, now, 1, false), now, 1, OK, 0)
	}
	for range 64 {
		charged = append(charged, m.Take(now, now, 1, false))
	}
	for _, c := range charged {
		m.Answered(now+second/20, c, now, 1, Throttled, 0)
	}
	now += second / 20
	r := m.PerSecond(now)
	if _, _, mode := m.Bounds(now); mode != "start" || r < 80 || r > 200 {
		t.Fatalf("%s, %v/s", mode, r)
	}
	for range 11 { // the twelfth in a row would be a silence
		m.Answered(now, m.Take(now, now, 1, false), now, 1, Throttled, 0)
	}
	if got := m.PerSecond(now); got != r {
		t.Fatalf("%v/s, and it was %v", got, r)
	}
	m.Answered(now, m.Take(now, now, 1, false), now, 1, Throttled, 0)
	if _, _, mode := m.Bounds(now); mode == "start" {
		t.Fatal("a row of twelve is a silence")
	}
}

// A client that has its share of a window at once, and then waits for the next window, uses its rate, unless its bucket still had tokens.
func TestTimeInWhichOthersHaveTheTokensIsNoLackOfUse(t *testing.T) {
	play := func(halted, waited bool) float64 {
		m, now := New(0, Config{Initial: 3}, 1), instant(0)
		for range 300 {
			if next := now + second; halted {
				m.Halted(now, next)
			}
			now += second
			m.Answered(now+second/50, m.Take(now, now, 1, waited), now, 1, OK, 0)
		}
		return m.PerSecond(now)
	}
	require.Equal(t, 3.0, play(false, true), "one request a second does not use three")
	require.Equal(t, 3.0, play(true, false), "a request that did not wait may have been the only one")
	require.Greater(t, play(true, true), 10.0)
	require.Less(t, play(true, true), 60.0, "from 40 a second on, the bucket has two tokens, so one is left")

	m := New(0, Config{Initial: 4}, 1)
	m.Take(0, 0, 1, true)
	use := m.control.used.Of(second/4, m.control.tau())
	m.Halted(0, second/4)
	require.Equal(t, use, m.control.used.Of(second/4, m.control.tau()), "until then, the bucket could not pay")
	m.Take(second/4, second/4, 1, true)
	use = m.control.used.Of(second/2, m.control.tau())
	m.Halted(0, second)
	require.InDelta(t, use, m.control.used.Of(second, m.control.tau()), 1e-6)
	m.Halted(0, 2*second)
	require.Less(t, m.control.used.Of(2*second, m.control.tau()), use, "the first one of several counts")
}
