package quota

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/record"
)

// refuse has a request leave at sent and be refused immediately with a wait of a second. It returns the end of the hold.
func refuse(t *testing.T, a *Account, g *Gate, sent meter.Instant) (end meter.Instant) {
	t.Helper()
	sends(t, g, sent, 1)
	ends(g, sent, sent, false)
	a.refused(&refusal{at: sent, sent: sent, wait: second, kind: Refused})
	return a.Until()
}

// burst has n requests leave at now and be accepted.
func burst(t *testing.T, g *Gate, now meter.Instant, n int) {
	t.Helper()
	for range n {
		asks(t, g, now)
	}
}

func TestPaceBeginsAtWhatWasAcceptedAndGrowsWhileRequestsAre(t *testing.T) {
	a, g, _ := newFamilies()
	burst(t, g, second, 30)
	end := refuse(t, a, g, 4*second)
	p := &a.pace
	require.InDelta(t, 10, p.at(end), 1e-9, "the wait is no part of it")
	require.InDelta(t, 10, p.at(end+60*second), 1e-9, "nothing has been accepted since")
	p.accepted(end)
	require.InDelta(t, 10, p.at(end+60*second), 1e-9)
	p.accepted(end + 2*second)
	require.InDelta(t, 20, p.at(end+60*second), 1e-9)
	require.InDelta(t, 10*math.Sqrt2, p.at(end+second), 1e-9)
}

// Nothing is known of a client of which nothing was accepted, and a burst of less than a second is no rate.
func TestNothingUnknownIsARate(t *testing.T) {
	a, g, _ := newFamilies()
	end := refuse(t, a, g, 2*second)
	require.InDelta(t, paceFew, a.pace.rate, 1e-9)
	sends(t, g, end, 1) // of all that wait
	requireReady(t, g, end, end+second/4)
	ends(g, end, end, true)
	asks(t, g, end+second)
	require.InDelta(t, 2*paceFew, a.pace.at(end+second), 1e-6, "it is not known whether the server accepts any")

	a, g, _ = newFamilies()
	burst(t, g, second, 50)
	end = refuse(t, a, g, second+second/2)
	require.InDelta(t, 50, a.pace.rate, 1e-9, "at least a second counts")
	sends(t, g, end, 1)

	a, g, _ = newFamilies()
	burst(t, g, second, 64)
	a.backOff(&refusal{at: second + 30*milli, sent: second + milli, bare: NotBare, kind: Refused})
	require.Less(t, a.Until(), second+second/5)
	require.InDelta(t, 64, a.pace.rate, 1e-9, "in the shortest wait, too, a second")

	a, g, _ = newFamilies()
	burst(t, g, second, 1)
	end = refuse(t, a, g, second+second/2)
	sends(t, g, end, 1)
	requireReady(t, g, end, end+second/4)
	require.InDelta(t, paceFew, a.pace.rate, 1e-9, "the least that it begins at")
	ends(g, end, end, true)
	asks(t, g, end+second)
	require.InDelta(t, paceFew*math.Exp2(1/.4), a.pace.at(end+second), 1e-6)
}

// The refusals of a burst ask for different waits. After the longest, requests are sent one at a time, as fast as after the first.
func TestAPaceIsPutOffToTheEndOfTheLongestWait(t *testing.T) {
	for name, c := range map[string]struct {
		later     int64 // when another refusal of the event arrives
		waits     int64 // and its wait
		explained bool
		paced     bool
	}{
		"longer":              {0, 60 * second, false, true},
		"shorter":             {0, second / 2, false, true},
		"a quota explains it": {0, 60 * second, true, false},
		"in a late response":  {10 * second, second, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			a, g, _ := newFamilies()
			burst(t, g, second, 10)
			sends(t, g, 2*second, 1)
			first := refuse(t, a, g, 2*second)
			rate, grows := a.pace.rate, a.pace.steady-first
			ends(g, 2*second, 2*second+c.later, false)
			a.refused(&refusal{at: 2*second + c.later, sent: 2 * second, wait: c.waits, kind: kindOf(c.explained)})
			end := a.Until()
			require.Equal(t, !c.paced, a.pace.over(end+1))
			if c.paced {
				require.Equal(t, rate, a.pace.at(end+grows))
				a.pace.accepted(end)
				a.pace.accepted(end + grows + 2*second)
				require.InDelta(t, 2*rate, a.pace.at(end+grows+2*second), 1e-9)
				require.Equal(t, end, a.pace.waited)
				if end > first {
					require.Equal(t, end-2*second-c.later, a.pace.wait, "that of the later refusal")
				}
				sends(t, g, end, 1)
				require.Equal(t, end+int64(1e9/rate), g.Ready(end, 0, 1))
			}
		})
	}
}

func TestPaceOfAKnownLimitIsItsOwnUntilRefusalsComeClose(t *testing.T) {
	a, g, _ := newFamilies()
	a.cover(&Own{Rate: 50, Fastest: 50})
	burst(t, g, second, 50)
	end := refuse(t, a, g, 2*second)
	require.Equal(t, 50.0, a.pace.at(end))
	burst(t, g, end, 1)
	requireReady(t, g, end, end+20*milli)
	end2 := refuse(t, a, g, end+21*second)
	require.Equal(t, 50.0, a.pace.at(end2), "it is more than twenty waits later")
	burst(t, g, end2, 1)
	end3 := refuse(t, a, g, end2+2*second)
	require.InDelta(t, math.Sqrt(50*a.pace.sustained(end3)), a.pace.at(end3), 1e-9)
	require.Equal(t, a.pace.at(end3), a.pace.at(end3+20*second))
	a.pace.accepted(end3)
	a.pace.accepted(end3 + 40*second)
	require.Equal(t, 50.0, a.pace.at(end3+40*second), "and no more than its own")
}

// A pace ends when it is not used for a second, or is faster than any that matters. Of what is longer than ten seconds between two
// requests, ten seconds count.
func TestPaceEndsAndRests(t *testing.T) {
	const s = second
	fast := pace{rate: paceMost / 2, steady: 10 * s, next: 12 * s, given: 1, fed: 13 * s}
	spaced := pace{rate: 5, steady: 90 * s, next: 10 * s, given: 1, most: 4, evenly: 600 * s}
	for name, c := range map[string]struct {
		p    pace
		last meter.Instant
		due  meter.Instant
		from meter.Instant
		rate float64
		next meter.Instant
	}{
		"the first request":            {pace{}, -1, 7 * s, 0, 0, 0},
		"ten seconds are no rest":      {pace{from: 4 * s, given: 1}, 10 * s, 20 * s, 4 * s, 0, 0},
		"a rest":                       {pace{from: 4 * s, given: 1}, 10 * s, 20*s + 1, 4*s + 1, 0, 0},
		"a wait is no rest":            {pace{next: 60 * s, from: 4 * s, given: 1}, 10 * s, 70 * s, 4 * s, 0, 60 * s},
		"used within a second":         {pace{rate: 5, steady: 90 * s, next: 10 * s, given: 1}, 10 * s, 11 * s, 0, 5, 11*s + s/5},
		"while a response came":        {pace{rate: 5, steady: 90 * s, next: 10 * s, heard: 19 * s, given: 1}, 10 * s, 20 * s, 0, 5, 20*s + s/5},
		"unused for longer":            {pace{rate: 5, steady: 90 * s, next: 10 * s, given: 1}, 10 * s, 11*s + 1, 0, 0, 10 * s},
		"unused, of a known limit":     {spaced, 10 * s, 19 * s, 0, 5, 19*s + s/4},
		"of a known limit, for a time": {spaced, 10 * s, 600 * s, 580 * s, 0, 10 * s},
		"as fast as a pace can be":     {fast, 12 * s, 12 * s, 0, paceMost / 2, 12*s + s/10_000},
		"faster":                       {fast, 12 * s, 12*s + 100, 0, 0, 12 * s},
	} {
		p := c.p
		p.take(c.due, c.last)
		require.Equal(t, c.from, p.from, name)
		require.Equal(t, c.rate, p.rate, name)
		require.Equal(t, c.next, p.next, name)
	}
}

// The next rate is between what was accepted and what was refused. Of a server that accepts nothing nothing is learned.
func TestPaceAfterARefusal(t *testing.T) {
	for name, c := range map[string]struct {
		p      pace
		own    float64
		wait   int64
		rate   float64 // at the end of the wait
		steady meter.Instant
	}{
		"no limit of its own":            {pace{from: 12 * second, given: 40, worked: true}, 0, second, 40.0 / 9, 22 * second},
		"none accepted":                  {pace{from: 12 * second}, 0, second, paceFew, 22 * second},
		"before it grows":                {pace{rate: 9, wait: second, steady: 22 * second, next: 21 * second, from: 12 * second, given: 40, worked: true}, 0, second, 6, 42 * second},
		"when it has doubled":            {pace{rate: 9, wait: second, steady: 19 * second, next: 21 * second, from: 12 * second, given: 80, worked: true}, 0, second, 12, 42 * second},
		"a server that is closed":        {pace{rate: 9, wait: second, steady: 20 * second, next: 21 * second, waited: second, from: 12 * second, given: 40}, 0, second, 9, 22 * second},
		"closed, but steady for longer":  {pace{rate: 9, wait: second, steady: 30 * second, next: 21 * second, waited: second, from: 12 * second, given: 40}, 0, second, 9, 30 * second},
		"closed for longer than it said": {pace{rate: 9, wait: second, why: Between, steady: 20 * second, next: 21 * second, waited: second, from: 12 * second, given: 40}, 0, second, 9, 42 * second},
		"a wait of 10 s says no more":    {pace{rate: 9, wait: 60 * second, steady: 22 * second, next: 21 * second, from: 12 * second, given: 40, worked: true}, 0, 60 * second, 6, 52 * second},
		"a longer wait than before":      {pace{rate: 9, wait: second / 4, steady: 22 * second, next: 21 * second, from: 12 * second, given: 40, worked: true}, 0, 60 * second, 6, 27 * second},
		"a pace that is over":            {pace{rate: 9, wait: second, steady: 90 * second, next: 20*second - 1, from: 12 * second, given: 40, worked: true}, 0, second, 40.0 / 9, 22*second + second/2},
		"a pace that is not over yet":    {pace{rate: 9, wait: second, steady: 90 * second, next: 20 * second, from: 12 * second, given: 40, worked: true}, 0, second, 6, 42 * second},
		"found after several refusals":   {pace{rate: 9, wait: second, finds: true, found: paceEnough, steady: 20 * second, next: 21 * second, from: 12 * second, given: 80, worked: true}, 0, second, 12, 42 * second},
		"while it finds the rate":        {pace{rate: 9, wait: second, finds: true, found: paceEnough, lone: true, steady: 21*second - 800*milli, next: 21 * second, from: 12 * second, given: 40, worked: true}, 0, second, 12, 42 * second},
		"found by a handful":             {pace{rate: 9, wait: second, finds: true, found: paceEnough - 1, steady: 20 * second, next: 21 * second, from: 12 * second, given: 80, worked: true}, 0, second, 8, 22 * second},
		"by a handful, and few before":   {pace{rate: 9, wait: second, finds: true, found: paceEnough - 1, steady: 20 * second, next: 21 * second, from: 12 * second, given: 10, worked: true}, 0, second, paceFew, 22 * second},
		"its own limit":                  {pace{from: 12 * second, given: 40, worked: true}, 50, second, 50, 22 * second},
		"its own limit, isolated":        {pace{rate: 9, wait: second, steady: 90 * second, next: 21 * second, waited: second - 1, from: 12 * second, given: 40, worked: true}, 50, second, 50, 22 * second},
		"its own limit, not isolated":    {pace{spaced: true, rate: 9, wait: second, steady: 90 * second, next: 21 * second, waited: second, from: 12 * second, given: 40, worked: true}, 50, second, 6, 42 * second},
		"its own limit, after a burst":   {pace{rate: 9, wait: second, steady: 90 * second, next: 21 * second, waited: second, from: 12 * second, given: 40, worked: true}, 50, second, 50, 22 * second},
		"not isolated, and over":         {pace{spaced: true, waited: second, wait: second, from: 12 * second, given: 40, worked: true}, 50, second, 4, 22*second + second/2},
		"far below what was accepted":    {pace{spaced: true, waited: second, wait: second, from: 12 * second, given: 1000, worked: true}, 50, second, 50, 22*second + second/2},
	} {
		p := c.p
		p.most = c.own
		p.fed = 22 * second
		r := &refusal{at: 22 * second, sent: 21 * second, kind: Refused}
		p.refused(r, c.wait, 22*second, record.Sum{N: p.given, From: p.from}, &Own{Rate: c.own}, 0)
		require.InDelta(t, c.rate, p.at(22*second), 1e-9, name)
		require.Equal(t, c.steady, p.steady, name)
		require.Equal(t, 22*second, p.next, name)
		require.False(t, p.worked, name)
		if c.p.worked {
			require.Equal(t, c.p.given/2, p.given, name)
			require.Equal(t, 17*second, p.from, name)
		} else {
			require.Equal(t, c.p.given, p.given, name)
		}
	}
}

// A server may ask for a wait that has nothing to do with its rate. Two such waits in a row have.
func TestOneLongWaitDoesNotLowerTheRate(t *testing.T) {
	for waits, sustained := range map[[2]int64]float64{ // in seconds
		{1, 1}: 1500.0 / 32, {30, 1}: 1500.0 / 41, {1, 30}: 1500.0 / 32, {30, 30}: 1500.0 / 70,
	} {
		p := pace{most: 50}
		own := &Own{Rate: 50, Fastest: 50}
		sent, end := 10*second, (10+waits[0])*second
		p.refused(&refusal{at: sent, sent: sent, kind: Refused}, waits[0]*second, end, record.Sum{N: 500}, own, 0)
		p.spaced = true
		for i := range int64(1000) {
			p.accepted(end + i*20*milli)
		}
		sent = end + 20*second
		end = sent + waits[1]*second
		p.refused(&refusal{at: sent, sent: sent, kind: Refused}, waits[1]*second, end, record.Sum{}, own, 0)
		require.InDelta(t, math.Sqrt(50*sustained), p.at(end), 1e-9, "%v", waits)
	}
}

// A lone refusal may be by chance. Several show that the server is full, so a rate is kept for a second before it grows.
func TestAFullServerIsExploredMoreSlowlyThanOneThatRefusedOnce(t *testing.T) {
	for refusals, rate := range map[int]float64{1: 8 * math.Exp2(2.5), 2: 8, 9: 8} {
		a, g, _ := newFamilies()
		burst(t, g, 2*second, 8)
		sends(t, g, 2*second, refusals)
		for range refusals {
			ends(g, 2*second, 2*second, false)
			a.refused(&refusal{at: 2 * second, sent: 2 * second, wait: second, kind: Refused})
		}
		a.pace.rate, a.pace.fed = 8, meter.Never
		require.InDelta(t, rate, a.pace.at(a.Until()+second), 1e-6)
		require.Equal(t, refusals == 1, a.pace.lone)
	}
}

// Responses to requests that were sent before a wait show no rate after it.
func TestARateIsFoundWhenAHandfulOfRequestsWasAcceptedAfterAWait(t *testing.T) {
	a, g, _ := newFamilies()
	burst(t, g, second, 20)
	sends(t, g, second, paceEnough)
	end := refuse(t, a, g, second+second/10)
	for range paceEnough {
		ends(g, second, end, true)
	}
	asks(t, g, end)
	require.EqualValues(t, 1, a.pace.found)
	end = refuse(t, a, g, end+second/2)
	require.Equal(t, Finding, a.pace.why)
	require.Equal(t, end, a.pace.steady, "it grows immediately")
	for range paceEnough {
		asks(t, g, a.pace.next)
	}
	refuse(t, a, g, a.pace.next)
	require.Equal(t, Between, a.pace.why)
}

// The response to a request that was sent before a wait does not show that the server accepts requests after it.
func TestARateIsNotLoweredBeforeARequestIsAcceptedAfterAWait(t *testing.T) {
	a, g, _ := newFamilies()
	burst(t, g, second, 10)
	sends(t, g, 2*second-1, 1) // it takes its time
	end := refuse(t, a, g, 2*second)
	r := a.pace.rate
	ends(g, 2*second-1, end, true)
	end = refuse(t, a, g, end)
	require.Equal(t, r, a.pace.rate)
	require.GreaterOrEqual(t, a.pace.steady, end, "it does not grow before")
	asks(t, g, end)
	refuse(t, a, g, end+2*second)
	require.NotEqual(t, r, a.pace.rate)
}

// A limit that learns spreads its requests itself.
func TestOnlyRequestsOfAKnownLimitLeaveEvenly(t *testing.T) {
	for _, adaptive := range []bool{false, true} {
		a, g, _ := newFamilies()
		a.cover(&Own{Rate: 50, Fastest: 50, Adaptive: adaptive})
		burst(t, g, second, 1)
		end := refuse(t, a, g, 2*second)
		require.Equal(t, !adaptive, a.pace.evenly > end)
		if asks(t, g, end); !adaptive { // the row is over
			require.Equal(t, a.pace.evenly+paceIdle, fullAt(g), "until then it is not forgotten for nothing")
		}
	}
}

// For ten minutes after each refusal, of which the first half minute is strict.
func TestRequestsOfAKnownLimitLeaveEvenlyAfterEachRefusal(t *testing.T) {
	p := pace{most: 50}
	p.space(second, 0)
	require.Equal(t, 601*second, p.evenly)
	p.space(500*second, 0)
	require.Equal(t, 1100*second, p.evenly)
	for now, together := range map[meter.Instant]int{530*second - 1: 1, 530 * second: 3, 1100*second - 1: 3} {
		p := p
		p.take(520*second, 0)
		p.heard = now
		n := 0
		for p.next <= now {
			p.take(now, 520*second)
			n++
		}
		require.Equal(t, together, n, now)
	}
	a, _, _ := newFamilies()
	a.cover(&Own{Rate: 0.01, Fastest: 0.01})
	require.Equal(t, paceLeast, a.pace.most, "at most a second apart")
	a.cover(&Own{Rate: 5, Fastest: 50})
	a.cover(&Own{})
	require.Equal(t, 50.0, a.pace.most, "requests without limits of their own fall under the same account")
}
