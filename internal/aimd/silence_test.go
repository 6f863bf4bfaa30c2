package aimd

import (
	"math"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestARelapseIntoSilenceResumesAtAQuarter(t *testing.T) {
	b := newBench(t, Config{Initial: 100})
	b.work(10, OK)
	resume := func(ok int) float64 {
		b.work(ok, OK)
		b.work(rowOfDead, Unavailable)
		require.True(t, b.silence.on)
		b.now = b.gate(b.now)
		b.work(1, OK)
		require.False(t, b.silence.on)
		return b.silence.resume
	}
	assert.Equal(t, 1.0, resume(5), "the first")
	assert.Equal(t, 1.0/4, resume(relapse-1))
	assert.Equal(t, 1.0/16, resume(relapse-1))
	assert.Equal(t, 1.0, resume(relapse))
}

func TestASilenceBeginsAfterARowOfFailures(t *testing.T) {
	c := newController(Config{}, 0, 1)
	c.row = rowOfDead - 0.1
	assert.False(t, c.dead(0, Unavailable))
	c.row = rowOfDead
	assert.True(t, c.dead(0, Unavailable))
	c.row, c.dearUntil = rowIfDear, second
	assert.True(t, c.dead(second-1, Throttled), "where a touch is dear")
	assert.False(t, c.dead(second-1, Unavailable))
	assert.False(t, c.dead(second, Throttled))
	c.row--
	assert.False(t, c.dead(second-1, Throttled))
}

func TestAServerIsClosedThatRefusesAllAfterTheFirstOfARow(t *testing.T) {
	c := newController(Config{}, 0, 1)
	c.manner = begun
	at := instant(0)
	sends := func() ticket { at += second; return c.send(at, 1) }
	fails := func(t ticket) bool { c.result(at, t, Throttled, 0, 0); return c.silence.on }
	c.result(at, sends(), OK, 0, 0)
	first, early := sends(), sends()
	require.False(t, fails(first))
	require.False(t, fails(early), "it was sent before that was known")
	open := sends()
	for range int(begun.shut) {
		require.False(t, fails(sends()), "one before it may still be accepted")
	}
	c.result(at, open, OK, 0, 0)
	require.False(t, fails(sends()), "a row begins")
	for range int(begun.shut) - 1 {
		require.False(t, fails(sends()))
	}
	require.True(t, fails(sends()))
}

// Refusals come sooner than the responses to requests that were accepted before. Those are no news.
func TestASuccessOfAnEarlierRequestDoesNotEndARowOfFailures(t *testing.T) {
	rows := func(slow int) *controller { // the request that is accepted is the slow-th of the row
		b := newBench(t, Config{Initial: 1000})
		b.work(10, OK)
		var tickets []ticket
		for range rowOfDead + 1 {
			tickets = append(tickets, b.send(b.now, 1))
		}
		for i, sent := range tickets {
			if i != slow {
				b.result(b.now, sent, Unavailable, 0, 0)
			}
			if i == rowOfDead/2 {
				b.result(b.now, tickets[slow], OK, time.Second, 0)
			}
		}
		return b.controller
	}
	assert.True(t, rows(0).silence.on)
	assert.False(t, rows(1).silence.on, "the server has accepted one since the first failure")
}

func TestASilenceRemembersTheRateBeforeIt(t *testing.T) {
	ends := func(c *controller) float64 {
		c.okAt = second
		c.endSilence(second)
		return c.ceiling
	}
	c := newController(Config{Initial: 100}, 0, 1)
	c.ceiling, c.latency.smooth = 50, 1
	c.beginSilence(second, Unavailable)
	assert.Equal(t, 2*second, c.silence.gap, "two round trips")
	assert.False(t, c.silence.throttled)
	assert.Equal(t, 50.0, ends(c), "an outage shows nothing of the rate")
	c.set(CauseGrowth, 80)
	c.beginSilence(second, Throttled)
	assert.Equal(t, 80.0, ends(c))

	c = newController(Config{Initial: 100}, 0, 1)
	c.failures.Try(0.5)
	c.place.rate = 200
	c.beginSilence(second, Throttled)
	assert.Equal(t, 200.0, c.ceiling, "a trial that was the beginning of the row")
	assert.Equal(t, firstGap, c.silence.gap)
	assert.True(t, c.silence.throttled)

	c = newController(Config{Initial: 100}, 0, 1)
	c.place.rate = 200
	c.beginSilence(second, Unavailable)
	assert.Zero(t, c.ceiling, "no trial")
}

func TestTheGapBetweenProbesDoublesToItsBound(t *testing.T) {
	for _, s := range []struct {
		o          Outcome
		dark, want int64
	}{
		{o: Error, dark: 500 * second, want: chosen.gap},
		{o: Unavailable, dark: 120 * second, want: chosen.gap},
		{o: Unavailable, dark: 120*second + 1, want: 40 * second},
		{o: Throttled, dark: 3 * chosen.gap, want: chosen.gap},
		{o: Throttled, dark: 3*chosen.gap + 3, want: chosen.gap + 1},
		{o: Throttled, dark: 3600 * second, want: 1200 * second},
	} {
		c := newController(Config{}, 0, 1)
		c.backoff.Sent(second, true)
		c.backoff.Sent(second+s.dark, true)
		c.silence = silence{on: true, from: second, gap: chosen.gap}
		c.probeFailed(second+s.dark, ticket{at: second + s.dark}, s.o)
		assert.Equal(t, s.want, c.silence.gap, "%v after %v", s.o, s.dark)
		assert.Equal(t, s.o == Throttled, c.silence.throttled)
	}
	c := newController(Config{}, 0, 1)
	c.silence = silence{on: true, gap: second}
	c.probeFailed(second, ticket{}, Error)
	assert.Equal(t, 2*second, c.silence.gap)
}

func TestTheNextProbeFollowsTheLastByAGap(t *testing.T) {
	c := newController(Config{}, 0, 1)
	c.silence = silence{on: true, gap: 10 * second, probe: 1}
	earliest, latest := never, instant(0)
	for range 1000 {
		c.probeAgain(5*second, 2*second)
		earliest, latest = min(earliest, c.silence.probeAt), max(latest, c.silence.probeAt)
	}
	assert.False(t, c.silence.probe > 0)
	assert.InDelta(t, 12, seconds(earliest), 0.02)
	assert.InDelta(t, 14, seconds(latest), 0.02)
	c.probeAgain(60*second, 2*second)
	assert.Equal(t, 60*second, c.silence.probeAt, "the gap passed while the probe was in flight")
}

func TestASilenceEndsAtWhatTheServerGave(t *testing.T) {
	type state struct {
		throttled, again, dear bool
		worked                 float64
		active, dark           int64
	}
	end := func(s state) *controller {
		c := newController(Config{Initial: 100}, 0, 1)
		from := 1000 * second
		c.ceiling, c.worked, c.workedFrom = 200, s.worked, from-s.active
		c.silence = silence{on: true, from: from, gap: 2 * second, throttled: s.throttled, again: s.again, resume: 0.97, okSince: 9, probe: 1}
		if s.dear {
			c.dearUntil, c.dearHold = never, 7
		}
		c.endSilence(from + s.dark)
		assert.Equal(t, silence{from: from, throttled: s.throttled, again: true, resume: 0.97}, c.silence)
		assert.Equal(t, from+s.dark, c.workedFrom)
		assert.Equal(t, s.dark, c.paused)
		assert.Zero(t, c.worked)
		assert.Equal(t, meter.MeanRate{At: from + s.dark}, c.used)
		return c
	}
	c := end(state{worked: 900, active: 10 * second, dark: 20 * second})
	assert.InDelta(t, 0.97*200, c.current, 1e-9, "it was down")
	assert.Equal(t, 1020*second, c.heldUntil)
	assert.Zero(t, c.toll)

	c = end(state{again: true, worked: 900, active: 10 * second, dark: 20 * second})
	assert.InDelta(t, 900./29, c.current, 1e-9, "it was down again: a window, perhaps")
	assert.Equal(t, 200.0, c.ceiling, "or not")
	assert.Equal(t, 1020*second, c.heldUntil)
	assert.Zero(t, c.toll)

	c = end(state{throttled: true, worked: 900, active: 10 * second, dark: 2 * second})
	assert.InDelta(t, 900./(10+2-1), c.current, 1e-9, "it refused for a short time")
	assert.Equal(t, 5.0, c.toll)
	assert.Equal(t, 1002*second, c.heldUntil)
	c = end(state{throttled: true, worked: 9000, active: 10 * second, dark: second})
	assert.InDelta(t, 0.97*200, c.current, 1e-9)
	assert.Equal(t, 4.0, c.toll)
	c = end(state{throttled: true, active: 10 * second, dark: 2 * second})
	assert.InDelta(t, 0.97*200, c.current, 1e-9, "it is unknown what it gave")

	c = end(state{throttled: true, worked: 900, active: 10 * second, dark: 20 * second})
	assert.InDelta(t, math.Sqrt(900./29*200), c.current, 1e-9, "a quota")
	assert.Equal(t, c.current, c.ceiling)
	assert.Equal(t, 30.0, c.dearHold)
	assert.Equal(t, 1050*second, c.heldUntil)
	c = end(state{throttled: true, worked: 90_000, active: 10 * second, dark: 20 * second})
	assert.Equal(t, 200.0, c.current)
	assert.Equal(t, 200.0, c.ceiling)

	assert.Positive(t, end(state{throttled: true, worked: 900, active: second, dark: 3*second + 1}).dearHold)
	assert.Zero(t, end(state{throttled: true, worked: 900, active: second, dark: 3 * second}).dearHold)
	assert.Positive(t, end(state{throttled: true, worked: 900, active: 10 * second, dark: 5*second + 1}).dearHold)
	assert.Zero(t, end(state{throttled: true, worked: 900, active: 10 * second, dark: 5 * second}).dearHold)
	assert.Equal(t, 14.0, end(state{throttled: true, dear: true, worked: 900, active: 10 * second, dark: second}).dearHold)
	assert.Zero(t, end(state{throttled: true, worked: 15, active: second, dark: 5 * second}).dearHold, "too little to know")
}
