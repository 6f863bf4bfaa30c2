package quota

import (
	"fmt"
	"math"
	"testing"

	"github.com/httpthrottle/throttle/internal/meter"

	"github.com/stretchr/testify/require"
)

func TestAccountKeepsTheQuotasThatLastLongest(t *testing.T) {
	a, g, y := newFamilies()
	for i := range maxQuotas + 8 {
		c := core(10, 0, meter.Instant(100+i)*second)
		c.Name = fmt.Sprint("q", i)
		asks(t, y, 0, c)
		y = newGate(a)
		answer(g, g.Take(0, 0, 1, false), 0, 0, true, c) // it falls under all
		require.LessOrEqual(t, len(a.quotas), maxQuotas)
	}
	require.Len(t, g.quotas, maxQuotas)
	for _, q := range a.quotas {
		require.GreaterOrEqual(t, q.reset, 108*second)
	}
}

func TestAccountDropsQuotasThatAreLongOver(t *testing.T) {
	a, x, y := newFamilies()
	asks(t, x, 0, Figures{Name: "old", Limit: 10, Left: 0, Reset: 60 * second, Counted: true})
	at := 60*second + quotaStale
	asks(t, y, at, Figures{Name: "new", Limit: 10, Left: 5, Reset: meter.Never, Counted: true})
	require.Len(t, a.quotas, 2)
	asks(t, y, at+1, Figures{Name: "newer", Limit: 10, Left: 5, Reset: meter.Never, Counted: true})
	require.Len(t, a.quotas, 2)
	require.True(t, x.Open(at+1), "a dropped quota stops no request")
	sends(t, x, at+1, 200)
	asks(t, x, at+2)
	require.Empty(t, x.quotas)

	a, x, y = newFamilies()
	asks(t, x, 0, Figures{Name: "old", Limit: 10, Left: 5, Reset: 60 * second, Counted: true})
	sends(t, x, 1, 1)
	asks(t, y, 2*at, Figures{Name: "new", Limit: 10, Left: 5, Reset: meter.Never, Counted: true})
	require.Len(t, a.quotas, 2, "something is in flight")
}

func TestAccountHoldEndsNoEarlierAndAtMostATenthLater(t *testing.T) {
	for _, d := range []int64{1, 10, second, 5 * second, 10 * second, 3600 * second} {
		ends := map[meter.Instant]bool{}
		for seed := range uint64(100) {
			a := newAccount(NewServer(1), seed)
			g := newGate(a)
			a.Hold(7, d)
			require.GreaterOrEqual(t, a.held, 7+d)
			require.Less(t, a.held, 7+d+max(1, min(second, d/10)))
			requireReady(t, g, 7, a.held)
			ends[a.held] = true

			s := NewServer(seed)
			g = newGate(newAccount(s, 1))
			s.Hold(7, d)
			require.GreaterOrEqual(t, s.held, 7+d)
			require.Less(t, s.held, 7+d+max(1, min(second, d/10)))
			requireReady(t, g, 7, s.held)
		}
		if d >= second {
			require.Greater(t, len(ends), 90)
		}
	}
}

func TestAccountHoldIsNeverShortened(t *testing.T) {
	a, g, _ := newFamilies()
	a.Hold(0, 10*second)
	held := a.held
	for _, d := range []int64{1, 0, -1, math.MinInt64, 5 * second} {
		a.Hold(second, d)
		a.server.Hold(second, d)
		require.Equal(t, held, a.held)
	}
	requireReady(t, g, second, held)
	a.server.Hold(second, 100*second)
	requireReady(t, g, second, a.server.held)
	a.Hold(second, math.MaxInt64)
	require.GreaterOrEqual(t, a.held, second+longestHold)
	require.LessOrEqual(t, a.held, second+longestHold+second, "it is asked about after a day")
	requireReady(t, g, 2*second, a.held)
}

// After a hold of a day, a server that asked for a longer one gets one request a second until it accepts one.
func TestAServerIsAskedOnceADayWhetherALongHoldHasEnded(t *testing.T) {
	for d, asks := range map[int64]bool{longestHold: false, longestHold + 1: true, 365 * longestHold: true} {
		a, _, _ := newFamilies()
		a.Hold(0, d)
		require.Equal(t, asks, a.asking)
	}
	a, g, _ := newFamilies()
	asks(t, g, 0)
	a.refused(&refusal{at: second, sent: second, wait: 365 * longestHold, kind: Refused})
	for range 3 {
		at := a.held
		requireReady(t, g, 2*second, at)
		n := sends(t, g, at, 1)
		requireReady(t, g, at, at+second)
		answer(g, n, at, at+milli, false)
		a.refused(&refusal{at: at + milli, sent: at, wait: 365 * longestHold, kind: Refused})
		require.GreaterOrEqual(t, a.held, at+milli+longestHold)
	}
	at := a.held
	asks(t, g, at)
	require.False(t, a.asking)
	require.False(t, a.held > at)
}

// A quota that is empty for more than a day is asked about once a day, whatever its unit, and its end is still shown.
func TestAnEmptyQuotaIsAskedAboutOnceADay(t *testing.T) {
	for name, counted := range map[string]bool{"requests": true, "tokens": false} {
		t.Run(name, func(t *testing.T) {
			a, g, _ := newFamilies()
			end := 30 * longestHold
			nothing := core(100, 0, end)
			nothing.Counted = counted
			asks(t, g, 0, nothing)
			for at := longestHold; at < 3*longestHold; at += longestHold {
				requireReady(t, g, at-second, at)
				n := sends(t, g, at, 1)
				require.False(t, g.Payable(at, 1), "one at a time")
				answer(g, n, at, at, true, nothing)
				require.Equal(t, end, a.quotas[0].reset)
			}
			full := nothing
			full.Left = 100
			asks(t, g, 3*longestHold, full)
			require.Less(t, g.Ready(3*longestHold, 0, 1), 3*longestHold+second)
		})
	}
}

// A refusal that names its quota stops the requests of that quota for a day at most.
func TestAHoldOfAQuotaIsAskedAboutOnceADay(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(100, 50, 3*second))
	g.apply(&Report{
		Reading: Reading{Hints: &Hints{Limited: true, Wait: year}, figures: []Figures{empty(100, 3*second)}, named: true, empty: true},
		Sent:    second, Number: sends(t, g, second, 1),
	}, second)
	require.Equal(t, second+longestHold, only(t, a).held)
}

func TestAccountHoldStopsNoOtherAccount(t *testing.T) {
	a, x, _ := newFamilies()
	other := newGate(newAccount(a.server, 3))
	a.Hold(0, second)
	require.False(t, x.Payable(1, 1))
	requireReady(t, other, 1, 1)
	a.server.Hold(0, second)
	require.False(t, other.Payable(1, 1))
}

// requireBackoff demands that a hold of d begins at now.
func requireBackoff(t *testing.T, a *Account, now meter.Instant, d int64) {
	t.Helper()
	require.GreaterOrEqual(t, a.held, now+d)
	require.Less(t, a.held, now+d+min(second, d/10))
}

func TestAccountBackoffDoublesUpTo64Seconds(t *testing.T) {
	a, _, _ := newFamilies()
	now := meter.Instant(0)
	for _, d := range []int64{1, 2, 4, 8, 16, 32, 64, 64, 64} {
		sentAt := now
		now += 100 * milli
		a.backOff(&refusal{at: now, sent: sentAt, bare: NotBare, kind: Refused})
		requireBackoff(t, a, now, d*second)
		now = a.held
	}
}

func TestAccountBackoffTakesOneStepPerEvent(t *testing.T) {
	a, g, _ := newFamilies()
	a.backOff(&refusal{at: second, sent: 0, bare: NotBare, kind: Refused})
	held := a.held
	for i := range meter.Instant(100) {
		a.backOff(&refusal{at: second + i, sent: second, bare: NotBare, kind: Refused}) // they were sent before, or at that instant
	}
	require.Equal(t, held, a.held)
	a.backOff(&refusal{at: 5 * second, sent: held - 1, bare: NotBare, kind: Refused}) // it did not wait for the end of the hold
	require.Equal(t, held, a.held)
	a.backOff(&refusal{at: 5 * second, sent: held, bare: NotBare, kind: Refused})
	requireBackoff(t, a, 5*second, 2*second)

	sends(t, g, 10*second, 1)
	sends(t, g, 11*second, 1)          // one a second, in a row
	ends(g, 5*second, 11*second, true) // sent before the hold: no sign that it was enough
	a.backOff(&refusal{at: 12 * second, sent: a.held, bare: NotBare, kind: Refused})
	requireBackoff(t, a, 12*second, 4*second)
	ends(g, 12*second+1, 20*second, false)
	a.backOff(&refusal{at: 20 * second, sent: a.held, bare: NotBare, kind: Refused})
	requireBackoff(t, a, 20*second, 8*second)
	sends(t, g, 30*second, 1)
	ends(g, 30*second, 40*second, true)
	a.backOff(&refusal{at: 40 * second, sent: 39 * second, bare: NotBare, kind: Refused})
	requireBackoff(t, a, 40*second, second)
}

func TestAccountBackoffBeginsWithTheTimeOfEightRequests(t *testing.T) {
	for accepted, d := range map[int]int64{7: second, 16: second / 2, 32: second / 4, 64: second / 8, 1000: second / 8} {
		a, g, _ := newFamilies()
		burst(t, g, second, accepted)
		a.backOff(&refusal{at: 2 * second, sent: 2 * second, bare: NotBare, kind: Refused})
		requireBackoff(t, a, 2*second, d)
		now := a.held
		d = min(max(int64(8e9/a.pace.rate), second/8), second) // the first wait is counted in
		a.backOff(&refusal{at: now, sent: now, bare: NotBare, kind: Refused})
		requireBackoff(t, a, now, 2*d)
		for range 10 {
			now = a.held
			a.backoff.Sent(now, true)
			a.backOff(&refusal{at: now, sent: now, bare: NotBare, kind: Refused})
		}
		requireBackoff(t, a, now, max(64*second, a.backoff.Wait(0, false)))
	}
}

func TestAccountLetsRequestsLeaveEvenlyAfterABareRefusalOfAKnownLimit(t *testing.T) {
	a, g, _ := newFamilies()
	a.cover(&Own{Rate: 10, Fastest: 50})
	sends(t, g, second, 1)
	ends(g, second, second+milli, false)
	a.backOff(&refusal{at: second + milli, sent: second, bare: NotBare, kind: Refused})
	require.LessOrEqual(t, a.Until(), second, "the first one sets no hold")
	requireReady(t, g, second+milli, second+20*milli)
	g.Take(second+20*milli, second+25*milli, 1, true) // late
	requireReady(t, g, second+25*milli, second+40*milli)
	sends(t, g, 20*second, 1)
	requireReady(t, g, 20*second, 20*second+20*milli)
}

func TestAccountAsksOnceASecondAfterBareRefusalsInARowAndLaterAfterAThirdOfTheTime(t *testing.T) {
	a, g, _ := newFamilies()
	a.cover(&Own{Rate: 50, Fastest: 50})
	refused := func(sentAt meter.Instant) {
		sends(t, g, sentAt, 1)
		ends(g, sentAt, sentAt+milli, false)
		a.backOff(&refusal{at: sentAt + milli, sent: sentAt, bare: Unavailable, kind: Refused})
	}
	refused(second)
	refused(second + 20*milli)
	first, now := second+20*milli, second+21*milli // the time before was a rest
	for n := range 125 {
		require.False(t, g.Open(now))
		wait := second
		if dark := now - milli - first; dark > 120*second {
			if wait = dark / 3; wait > 64*second { // which is counted from the last request
				wait -= milli
			}
		}
		requireReady(t, g, now, now+wait)
		require.Equal(t, n < 120, wait == second)
		now += wait
		pace, _ := a.State(now)
		require.Equal(t, 1.0, pace)
		g.Take(now, now, 1, true)
		requireReady(t, g, now, now+second) // even before it is refused
		ends(g, now, now+milli, false)
		a.backOff(&refusal{at: now + milli, sent: now, bare: Unavailable, kind: Refused})
		now += milli
	}
	require.Equal(t, meter.Instant(0), a.Until(), "no hold, which would reject those who do not wait for so long")
	now += second
	g.Take(now, now, 1, true)
	ends(g, now, now+milli, true)
	requireReady(t, g, now+milli, now+milli)
}

// If another client was quicker, a client that waited longer than asked would never get its turn.
func TestAccountWaitsAsLongAsAskedEachTime(t *testing.T) {
	for _, explained := range []bool{false, true} {
		a, g, _ := newFamilies()
		now := second
		for i := range 9 {
			sends(t, g, now, 1)
			ends(g, now, now, false)
			a.refused(&refusal{at: now, sent: now, wait: second, kind: kindOf(explained)})
			requireBackoff(t, a, now, second)
			require.Equal(t, i > 0, a.asking)
			now = max(a.held, a.pace.next)
		}
		a.refused(&refusal{at: now, sent: now, wait: 3600 * second, kind: kindOf(explained)})
		requireBackoff(t, a, now, 3600*second)
		now = a.held
		sends(t, g, now, 1)
		requireReady(t, g, now, now+second)
		ends(g, now, now, true)
		require.False(t, a.asking)
		a.refused(&refusal{at: now + 1, sent: now + 1, wait: second, kind: kindOf(explained)})
		requireBackoff(t, a, now+1, second)
		require.Equal(t, explained, a.pace.worked, "a refusal that is explained begins no pace")
	}
}

// A fixed window of ten seconds is used up after five seconds, and then after one.
func TestABackoffIsNoLongerThanTheServerWasClosedBefore(t *testing.T) {
	a, g, _ := newFamilies()
	opened := second
	asks(t, g, opened)
	for _, c := range []struct{ used, lasts int64 }{{5 * second, 13 * second}, {second, 13 * second}} {
		now := opened + c.used
		for now < opened+10*second {
			a.backOff(&refusal{at: now, sent: now, bare: NotBare, kind: Refused})
			now = a.held
		}
		require.Less(t, now, opened+c.lasts, "instead of 17 s: one, two, four and eight from the second on")
		g.Take(now, now, 1, true)
		ends(g, now, now, true)
		opened = now
	}
}
