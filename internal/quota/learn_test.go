package quota

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
)

// ask sends a request as soon as it may be sent, from now on, and has it answered a ms later: refused if the server asks to wait, or
// does not say for how long. It returns when the response came.
func ask(t *testing.T, g *Gate, now meter.Instant, accepted bool, wait int64) meter.Instant {
	t.Helper()
	now = g.Ready(now, 0, 1)
	require.True(t, g.Payable(now, 1))
	ticket := g.Take(now, now, 1, true)
	return respond(g, now, now+milli, ticket, accepted, wait)
}

func respond(g *Gate, sentAt, now meter.Instant, ticket int64, accepted bool, wait int64) meter.Instant {
	o := aimd.OK
	if !accepted {
		o = aimd.Throttled
	}
	g.Answered(now, sentAt, accepted, nil)
	g.Account.answered(now, ticket, sentAt, o, 0)
	if !accepted {
		g.Account.Refused(now, sentAt, wait, false)
	}
	return now
}

func TestAfterARefusalWithoutAWaitOneRequestAsks(t *testing.T) {
	a, g, other := newFamilies()
	now := 10 * second
	for range 20 {
		now = ask(t, g, now, true, 0)
	}
	now = ask(t, g, now, false, 0)
	require.GreaterOrEqual(t, a.Until(), now+second)
	require.Less(t, a.Until(), now+second+second/10)
	require.False(t, g.Open(now))
	for _, gap := range []int64{1000, 2000, 2250, 2250} {
		at := other.Ready(now, 0, 1)
		require.GreaterOrEqual(t, at, now+gap*milli-milli, "counted from when the last one was sent")
		require.LessOrEqual(t, at, now+gap*milli*13/10)
		ticket := other.Take(at, at, 1, true)
		require.Equal(t, meter.Never, g.Ready(at, 0, 1), "the others wait for its response")
		require.LessOrEqual(t, g.Plan(at, 0, 1), at, "which may come at any time")
		require.False(t, g.Payable(at+second, 1))
		now = respond(other, at, at+milli, ticket, false, 0)
	}
	dark := now
	now = ask(t, g, now, true, 0)
	require.True(t, g.Payable(now, 1))
	pace, _ := a.State(now)
	require.Greater(t, pace, 20/float64(now-10*second)*1e9)
	require.Less(t, pace, 20/float64(dark-10*second)*1e9, "what was accepted in all that time, but not the last half of a gap")
}

// Requests that were on their way with the one that was refused are refused for the same reason.
func TestOnlyNewsIsLearnedFrom(t *testing.T) {
	a, g, _ := newFamilies()
	sends(t, g, second, 3)
	respond(g, second, 2*second, 0, false, 0)
	until := a.Until()
	respond(g, second, 2*second+milli, 0, false, 0)
	require.Equal(t, until, a.Until())
	require.Equal(t, 2*second, a.refused)
	now := ask(t, g, until, true, 0)
	rate := a.meter.PerSecond(now)
	respond(g, second, now, 0, false, 0)
	require.Equal(t, rate, a.meter.PerSecond(now))
	require.Zero(t, a.meter.InFlight())
}

func TestARateIsLearnedFromWhatWasAcceptedBeforeAWait(t *testing.T) {
	a, g, _ := newFamilies()
	now := 100 * second
	for range 10 {
		now = ask(t, g, now, true, 0)
	}
	now = ask(t, g, 101*second, false, 4*second)
	require.GreaterOrEqual(t, g.Ready(now, 0, 1), now+4*second)
	sends(t, g, a.Until(), 1)
	pace, _ := a.State(a.Until())
	require.InDelta(t, 10./4, pace, 1e-9, "10 in a wait of 4 s")
	require.False(t, g.Payable(a.Until()+390*milli, 1), "the others do not follow at once")
}

func TestAClientWithALimitOfItsOwnSpacesItsRequestsAfterARefusal(t *testing.T) {
	a, g, _ := newFamilies()
	a.Cover(0, 50, false)
	now := second
	for range 20 {
		now = ask(t, g, now, true, 0)
	}
	now = ask(t, g, now, false, 0)
	require.LessOrEqual(t, a.Until(), now, "it is trusted")
	ask(t, g, now, true, 0)
	at := g.Ready(now, 0, 1)
	for range 100 {
		ticket := g.Take(at, at, 1, true)
		requireReady(t, g, at, at+20*milli)
		respond(g, at, at+milli, ticket, true, 0)
		at += 20 * milli
	}
	ask(t, g, at, false, 0)
	pace, _ := a.State(at + milli)
	require.Less(t, pace, 46.0, "a second refusal slows it")
	require.Greater(t, pace, 44.0)

	a.Cover(at+milli, 200, false) // its limit was raised
	for range 3000 {
		at = ask(t, g, at, true, 0)
	}
	pace, _ = a.State(at)
	require.InDelta(t, 200, pace, 1e-9)
	a.Cover(at, 10, false)
	pace, _ = a.State(at)
	require.InDelta(t, 200, pace, 1e-9, "requests of a higher cost are limited by the limit itself")
}

func TestAnAdaptiveLimitLearnsInstead(t *testing.T) {
	a, g, _ := newFamilies()
	a.Cover(0, 0, true)
	ask(t, g, second, false, second)
	require.Nil(t, a.meter)
	require.True(t, g.Open(a.Until()))
}

func TestTicketsOfAForgottenRateCountForNoOther(t *testing.T) {
	a, g, _ := newFamilies()
	now := ask(t, g, second, false, second)
	take := func() int64 {
		now = max(now, a.Until())
		return g.Take(now, now, 1, true)
	}
	first := take()
	require.EqualValues(t, 1, a.meter.InFlight())
	a.Forget(now)
	unlimited := take()
	require.Zero(t, unlimited)
	now = ask(t, g, now+milli, false, second)
	later := take()
	require.Greater(t, later, first)
	respond(g, now, now, first, true, 0)
	respond(g, now, now, unlimited, true, 0)
	require.EqualValues(t, 1, a.meter.InFlight())
	g.GiveBack(later, now, 1)
	require.Zero(t, a.meter.InFlight())
}

func TestALearnedRateIsForgottenAMinuteAfterTheLastRefusal(t *testing.T) {
	a, g, _ := newFamilies()
	refused := ask(t, g, second, false, second)
	now := ask(t, g, refused, true, 0)
	end := refused + second + recent
	require.False(t, g.Open(end))
	require.True(t, g.Open(end+1))
	ticket := g.Take(end+1, end+1, 1, true)
	require.False(t, g.Open(end+10*second), "a request is on its way, whose response may be a refusal")
	require.NotNil(t, a.meter)
	respond(g, end+1, end+10*second, ticket, true, 0)
	require.Nil(t, a.meter)

	a.Forget(end)
	refused = ask(t, g, now+1000*second, false, second)
	require.False(t, g.Open(refused+second+recent))
	require.True(t, g.Open(refused+second+recent+1))
	sends(t, g, refused+second+recent+1, 100)
	require.Nil(t, a.meter, "the refusal is too long ago")
}

// What is accepted counts from a rest of more than a second.
func TestAStretchEndsWithARest(t *testing.T) {
	for name, c := range map[string]struct {
		s, want stretch
		due     meter.Instant
	}{
		"a second is no rest": {stretch{last: 10 * second, since: 4 * second, done: 70}, stretch{11 * second, 4 * second, 70, 0}, 11 * second},
		"a rest":              {stretch{last: 10 * second, since: 5 * second, done: 70}, stretch{12 * second, 12 * second, 0, 10}, 12 * second},
		"after a short time":  {stretch{last: 10 * second, since: 10 * second, done: 2}, stretch{12 * second, 12 * second, 0, 1}, 12 * second},
	} {
		c.s.take(c.due)
		require.Equal(t, c.want, c.s, name)
	}
	s := stretch{since: second}
	s.accepted(second - 1)
	require.Zero(t, s.done, "it was sent before")
	s.accepted(second)
	require.EqualValues(t, 1, s.done)
}

// Bare refusals between accepted requests show that the client's own limit is too high; in a row, that the server is down.
func TestBareRefusalsSlowAClientThatIsAcceptedInBetween(t *testing.T) {
	for _, between := range []bool{true, false} {
		r := NewRegistry(10, 1)
		g := sent(r, at("h", 1), 0, 0)
		now, least := second, 100.0
		for i := range 400 {
			now = max(now+second/100, g.Ready(now, 0, 1))
			rep := &Report{Sent: now, Ticket: g.Take(now, now, 1, true), Own: Own{Rate: 100}}
			if between && i%3 == 0 && i > 40 || i < 20 {
				rep.Reading, rep.Accepted = new(Hints).Read(now), true
			} else {
				rep.Reading = (&Hints{Bare: Unavailable}).Read(now)
			}
			if r.Apply(g, rep, now+milli); g.Account.meter != nil {
				least = min(least, g.Account.meter.PerSecond(now+milli))
			}
		}
		if between {
			require.Less(t, least, 1.0)
		} else {
			require.Greater(t, now, 300*second, "about one a second")
			require.Greater(t, least, 80.0, "it was cut once")
		}
	}
}
