package quota

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/meter/metertest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const milli = second / 1000

// newFamilies returns gates of one account, whose requests went at that rate so far.
func newFamilies() (a *Account, x, y *Gate) {
	a = NewAccount(NewServer(1), 2)
	return a, NewGate(a), NewGate(a)
}

// core is what an answer tells of a quota of that name.
func core(limit, left int64, reset meter.Instant) Tell {
	return Tell{"core", limit, left, reset, true, 0, false, ""}
}

// sends takes n at now, each of which must be payable.
func sends(t testing.TB, g *Gate, now meter.Instant, n int) {
	t.Helper()
	for i := range n {
		require.True(t, g.Payable(now, 1), "request %d", i)
		require.LessOrEqual(t, g.Plan(now, 0, 1), now)
		g.Take(now, now, 1, false)
	}
}

// asks sends one and has it answered at once.
func asks(t testing.TB, g *Gate, now meter.Instant, tells ...Tell) {
	t.Helper()
	sends(t, g, now, 1)
	g.Answered(now, now, true, tells)
}

// requireReady demands that g is shut until at, and open from then on.
func requireReady(t testing.TB, g *Gate, from, at meter.Instant) {
	t.Helper()
	require.Equal(t, at, g.Ready(from, 0, 1))
	require.Equal(t, at, g.Plan(from, 0, 1))
	if at > from {
		require.False(t, g.Payable(at-1, 1))
	}
	require.True(t, g.Payable(at, 1))
}

// requireWaits demands that nothing goes before an answer has come, and that planning does not take that for never.
func requireWaits(t testing.TB, g *Gate, now meter.Instant) {
	t.Helper()
	require.Equal(t, meter.Never, g.Ready(now, 0, 1))
	require.Equal(t, now, g.Plan(now, 0, 1))
	require.False(t, g.Payable(now, 1))
}

func TestQuotaPaysWhatIsLeftLessWhatIsInFlight(t *testing.T) {
	_, g, _ := newFamilies()
	asks(t, g, 0, core(100, 3, meter.Never))
	sends(t, g, 1, 3)
	requireWaits(t, g, 1)
	g.Answered(2, 1, true, []Tell{core(100, 2, meter.Never)})
	requireWaits(t, g, 2) // the other two are on their way yet
}

func TestQuotaOpensAtItsResetAndNotBefore(t *testing.T) {
	_, g, _ := newFamilies()
	asks(t, g, 0, core(100, 1, 60*second))
	sends(t, g, 1, 1)
	requireReady(t, g, 2, 60*second)
	g.GiveBack(0, 3, 1)
	requireReady(t, g, 3, 3) // it was not sent, and so not counted
	requireReady(t, g, 60*second, 60*second)
}

func TestQuotaResetIsSeenFromBeforeIt(t *testing.T) {
	_, g, _ := newFamilies()
	asks(t, g, 0, core(3, 2, 60*second))
	sends(t, g, 59*second, 2)
	require.Equal(t, 60*second, g.Ready(0, 0, 1)) // what a line is due at does not depend on when it is asked
	require.Equal(t, meter.Never, g.Ready(0, 1, 1), "both that are on their way may be counted after the reset")
	require.Equal(t, 60*second, g.Plan(0, 1, 1))
	sends(t, g, 60*second, 1)
	require.Equal(t, meter.Never, g.Ready(0, 0, 1))
}

func TestQuotaStopsOnlyFamiliesWhoseAnswersNamedIt(t *testing.T) {
	_, search, repos := newFamilies()
	empty := core(30, 0, 60*second)
	empty.Name = "search"
	asks(t, search, 0, empty)
	asks(t, repos, 0, core(5000, 4000, 3600*second))
	require.False(t, search.Payable(1, 1))
	requireReady(t, repos, 1, 1)

	asks(t, repos, 2, core(5000, 4000, 3600*second), empty) // all have it from now on
	require.False(t, repos.Payable(3, 1))
}

func TestQuotaCountsWhatIsInFlightAtAllItsGates(t *testing.T) {
	_, x, y := newFamilies()
	sends(t, y, 0, 3)
	asks(t, x, 1, core(100, 4, meter.Never))
	asks(t, y, 2, core(100, 4, meter.Never)) // it falls under the quota from now on, with what was on its way
	sends(t, x, 3, 1)
	requireWaits(t, x, 3)
	requireWaits(t, y, 3)
	y.GiveBack(0, 4, 1)
	requireReady(t, x, 4, 4)
}

func TestQuotaOutOfOrderTheLowestWordCounts(t *testing.T) {
	for _, order := range [][]int64{{7, 8, 9}, {9, 8, 7}, {8, 7, 9}, {9, 7, 8}, {7, 9, 8}} {
		a, g, _ := newFamilies()
		asks(t, g, 0, core(100, 10, meter.Never))
		sends(t, g, 1, 3)
		for i, left := range order {
			g.Answered(meter.Instant(10+i), 1, true, []Tell{core(100, left, meter.Never)})
		}
		require.EqualValues(t, 7, a.quotas[0].told, "%v", order)
		require.EqualValues(t, 7, g.Tokens(20), "%v", order) // nothing in flight: no pessimism stays
	}
}

func TestQuotaNewsOfARequestSentLaterReplaces(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(100, 5, meter.Never))
	sends(t, g, 10, 2)
	g.Answered(20, 10, true, []Tell{core(100, 3, meter.Never)}) // 10 > 0: the news
	g.Answered(30, 10, true, []Tell{core(100, 90, meter.Never)})
	require.EqualValues(t, 3, a.quotas[0].told, "10 ≤ 20: out of order")
	sends(t, g, 20, 1)
	g.Answered(40, 20, true, []Tell{core(100, 90, meter.Never)})
	require.EqualValues(t, 3, a.quotas[0].told, "sent at the instant of the word: perhaps before")
	sends(t, g, 21, 1)
	g.Answered(50, 21, true, []Tell{core(100, 90, meter.Never)})
	require.EqualValues(t, 90, a.quotas[0].told)
}

func TestQuotaLoweredByALateWordIsNotRaisedByAnOlderOne(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(100, 50, meter.Never))
	sends(t, g, 5, 1)
	sends(t, g, 6, 1)
	sends(t, g, 10, 1)
	g.Answered(20, 5, true, []Tell{core(100, 49, meter.Never)})
	g.Answered(21, 6, true, []Tell{core(100, 40, meter.Never)}) // out of order, and lower
	g.Answered(22, 10, true, []Tell{core(100, 48, meter.Never)})
	require.EqualValues(t, 40, a.quotas[0].told)

	sends(t, g, 23, 1)
	g.Answered(26, 23, true, []Tell{core(100, 60, meter.Never)}) // the news, but the last word may have been counted after it
	require.EqualValues(t, 48, a.quotas[0].told)
	asks(t, g, 27, core(100, 59, meter.Never))
	require.EqualValues(t, 59, a.quotas[0].told)
}

func TestQuotaWordOfAWindowThatIsOverIsNoNews(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(10, 5, 60*second))
	sends(t, g, 59*second, 3)
	for range 2 {
		g.Answered(60*second, 59*second, true, []Tell{core(10, 0, 60*second)})
	}
	require.EqualValues(t, 10, a.quotas[0].told)
	require.EqualValues(t, 9, g.Tokens(60*second))
	g.Answered(60*second, 59*second, true, []Tell{core(10, 9, 120*second)})
	require.EqualValues(t, 9, g.Tokens(60*second))

	_, fresh, _ := newFamilies()
	asks(t, fresh, 5, core(10, 0, 5))
	requireReady(t, fresh, 5, 5)
}

// A server's clock may be ahead, and its window begin before ours: then late words of the window before come after
// the first of the new one.
func TestQuotaLateWordOfTheWindowBeforeDoesNotEndTheNew(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(100, 50, 60*second))
	sends(t, g, 58*second, 2)
	asks(t, g, 59*second, core(100, 90, 120*second))
	g.Answered(59*second+1, 58*second, true, []Tell{core(100, 1, 60*second)})
	require.EqualValues(t, 90, a.quotas[0].told)
	require.Equal(t, 120*second, a.quotas[0].reset)
	// But resets that differ by a rounding are of one window.
	g.Answered(59*second+2, 58*second, true, []Tell{core(100, 80, 119*second)})
	require.EqualValues(t, 80, a.quotas[0].told)
}

func TestQuotaResetIsLearnedFromAnyWord(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(100, 5, meter.Never))
	sends(t, g, 0, 1)
	g.Answered(1, 0, true, []Tell{core(100, 9, 60*second)}) // out of order, but it has one
	sends(t, g, 1, 1)
	g.Answered(1, 0, true, []Tell{core(100, 9, 61*second)}) // but the news or the lowest word knows better
	require.Equal(t, 60*second, a.quotas[0].reset)
	asks(t, g, 2, core(-1, 4, meter.Never)) // and one that has none does not undo it
	require.Equal(t, 60*second, a.quotas[0].reset)
	require.EqualValues(t, 100, a.quotas[0].limit)
	asks(t, g, 3, core(100, 3, 30*second)) // news is right
	require.Equal(t, 30*second, a.quotas[0].reset)
}

func TestQuotaAnswerThatDoesNotNameItMayHaveBeenCounted(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(100, 10, meter.Never))
	sends(t, g, 1, 2)
	g.Answered(10, 1, false, nil)
	require.EqualValues(t, 9, a.quotas[0].told)
	g.Answered(11, 1, true, []Tell{core(100, 99, meter.Never)})
	require.EqualValues(t, 9, a.quotas[0].told, "known at 10: the other is no news")
	sends(t, g, 12, 1)
	g.GiveBack(0, 13, 1)
	require.EqualValues(t, 9, g.Tokens(13), "never sent: nothing of it stays")
}

func TestQuotaAtAResetNoMoreGoThanTheLimitBeforeAnAnswer(t *testing.T) {
	_, g, _ := newFamilies()
	asks(t, g, 0, core(50, 50, 60*second))
	sends(t, g, 59*second, 10) // on their way across the reset
	sends(t, g, 60*second, 40)
	requireWaits(t, g, 60*second)
	requireWaits(t, g, 3600*second)
	for range 49 {
		g.Answered(3600*second, 60*second, true, nil)
		requireWaits(t, g, 3600*second)
	}
	g.Answered(3600*second, 60*second, true, []Tell{core(50, 50, 3660*second)})
	sends(t, g, 3600*second, 1)
}

func TestQuotaWithoutAKnownLimitIsForgottenAtItsReset(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(-1, 1, 60*second))
	sends(t, g, 1, 1)
	sends(t, g, 60*second, 1000)
	require.True(t, g.Open(60*second))
	require.Equal(t, math.Inf(1), g.Tokens(60*second))
	require.Equal(t, meter.MaxCount, a.quotas[0].told)
}

func TestQuotaWithoutFurtherNewsIsForgotten(t *testing.T) {
	_, g, _ := newFamilies()
	asks(t, g, 0, core(50, 0, meter.Never))
	requireReady(t, g, 1, 1)
	require.False(t, g.Open(1))
	sends(t, g, second, 1)
	requireWaits(t, g, second) // but not all at once
	g.Answered(second+1, second, true, []Tell{core(50, 0, meter.Never)})
	requireReady(t, g, second+1, second+1)
	sends(t, g, 2*second, 1)
	g.Answered(2*second+1, 2*second, true, []Tell{core(50, 3, 9*second)})
	require.EqualValues(t, 3, g.Tokens(2*second+1))
}

func TestQuotaOfAnotherUnitStopsOnlyWhileItIsEmpty(t *testing.T) {
	_, g, _ := newFamilies()
	used := Tell{Name: "tokens", Limit: 1000, Left: 1, Reset: 60 * second}
	asks(t, g, 0, used)
	sends(t, g, 1, 100) // nobody knows what each costs
	require.True(t, g.Open(1))
	for range 99 {
		g.Answered(2, 1, true, nil) // and one that tells nothing cost not one
	}
	requireReady(t, g, 2, 2)
	used.Left = 0
	g.Answered(3, 1, true, []Tell{used})
	require.False(t, g.Open(3))
	require.Zero(t, g.Tokens(3))
	require.False(t, g.Payable(60*second-1, 1))
	at := g.Ready(3, 0, 1)
	sends(t, g, at, 1)
	g.Answered(at, at, true, nil)
	used.Reset = meter.Never
	asks(t, g, g.Ready(at, 0, 1), used)
	g.Take(at+second, at+second, 1, true)
	g.Take(at+second, at+second, 1, true)
	g.Answered(at+second, at+second, true, []Tell{used})
	require.Less(t, g.Ready(at+second, 0, 1), meter.Never, "empty until nobody knows when")
}

func TestQuotaLeavesTheReserveToOthers(t *testing.T) {
	_, g, _ := newFamilies()
	c := core(100, 42, 60*second)
	c.Reserve = 40
	asks(t, g, 0, c)
	sends(t, g, 1, 2)
	require.False(t, g.Payable(2, 1))
	require.Zero(t, g.Tokens(2))
	g.Answered(3, 1, true, []Tell{{"core", 100, 41, 60 * second, true, 40, false, ""}})
	g.Answered(3, 1, true, []Tell{{"core", 100, 40, 60 * second, true, 40, false, ""}})
	requireReady(t, g, 3, 60*second)
	sends(t, g, 60*second, 1)
	requireWaits(t, g, 60*second)
	g.Answered(60*second, 60*second, true, []Tell{{"core", 100, 99, 70 * second, true, 40, false, ""}})
	at := 60 * second
	for range 59 { // evenly, since all was used of the window before
		next := g.Ready(at, 0, 1)
		require.Greater(t, next, at)
		at = next
		sends(t, g, at, 1)
	}
	require.False(t, g.Payable(at, 1), "nor after the reset")
}

func TestAccountKeepsTheQuotasThatLastLongest(t *testing.T) {
	a, g, y := newFamilies()
	for i := range maxQuotas + 8 {
		c := core(10, 0, meter.Instant(100+i)*second)
		c.Name = fmt.Sprint("q", i)
		sends(t, y, 0, 1)
		y.Answered(0, 0, true, []Tell{c})
		y = NewGate(a)
		g.Take(0, 0, 1, false)
		g.Answered(0, 0, true, []Tell{c}) // it falls under all
		require.LessOrEqual(t, len(a.quotas), maxQuotas)
	}
	require.Len(t, g.quotas, maxQuotas)
	for _, q := range a.quotas {
		require.GreaterOrEqual(t, q.reset, 108*second)
	}
}

func TestAccountDropsQuotasThatAreLongOver(t *testing.T) {
	a, x, y := newFamilies()
	asks(t, x, 0, Tell{"old", 10, 0, 60 * second, true, 0, false, ""})
	at := 60*second + quotaStale
	asks(t, y, at, Tell{"new", 10, 5, meter.Never, true, 0, false, ""})
	require.Len(t, a.quotas, 2)
	asks(t, y, at+1, Tell{"newer", 10, 5, meter.Never, true, 0, false, ""})
	require.Len(t, a.quotas, 2)
	require.True(t, x.Open(at+1), "nobody obeys what was dropped")
	sends(t, x, at+1, 200)
	asks(t, x, at+2)
	require.Empty(t, x.quotas)

	a, x, y = newFamilies()
	asks(t, x, 0, Tell{"old", 10, 5, 60 * second, true, 0, false, ""})
	sends(t, x, 1, 1)
	asks(t, y, 2*at, Tell{"new", 10, 5, meter.Never, true, 0, false, ""})
	require.Len(t, a.quotas, 2, "something is in flight")
}

func TestAccountHoldLetsNothingGoBeforeAndJitterComesAfter(t *testing.T) {
	for _, d := range []int64{1, 10, second, 5 * second, 10 * second, 3600 * second} {
		ends := map[meter.Instant]bool{}
		for seed := range uint64(100) {
			a := NewAccount(NewServer(1), seed)
			g := NewGate(a)
			a.Hold(7, d)
			require.GreaterOrEqual(t, a.held, 7+d)
			require.Less(t, a.held, 7+d+max(1, min(second, d/10)))
			requireReady(t, g, 7, a.held)
			ends[a.held] = true

			s := NewServer(seed)
			g = NewGate(NewAccount(s, 1))
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
	require.Equal(t, meter.Never, g.Ready(2*second, 0, 1))
	require.Equal(t, meter.Never, g.Plan(2*second, 0, 1), "this is no want of an answer")
}

func TestAccountHoldStopsNoOtherAccount(t *testing.T) {
	a, x, _ := newFamilies()
	other := NewGate(NewAccount(a.server, 3))
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
		a.Backoff(now, sentAt, 0)
		requireBackoff(t, a, now, d*second)
		now = a.held
	}
}

func TestAccountBackoffIsOneStepForOneEvent(t *testing.T) {
	a, g, _ := newFamilies()
	a.Backoff(second, 0, 0)
	held := a.held
	for i := range meter.Instant(100) {
		a.Backoff(second+i, second, 0) // they were sent before, or at that instant
	}
	require.Equal(t, held, a.held)
	a.Backoff(5*second, second+1, 0)
	requireBackoff(t, a, 5*second, 2*second)

	sends(t, g, 10*second, 2)
	g.Answered(11*second, 5*second, true, nil) // sent before the hold: no sign that it was enough
	a.Backoff(12*second, 5*second+1, 0)
	requireBackoff(t, a, 12*second, 4*second)
	g.Answered(20*second, 12*second+1, false, nil)
	a.Backoff(20*second, 12*second+1, 0)
	requireBackoff(t, a, 20*second, 8*second)
	sends(t, g, 30*second, 1)
	g.Answered(40*second, 30*second, true, nil)
	a.Backoff(40*second, 39*second, 0)
	requireBackoff(t, a, 40*second, second)
}

func TestRefusalsAreNoRowWhileOlderRequestsAreOnTheirWay(t *testing.T) {
	for _, c := range []struct {
		name     string
		accepted bool          // whether the older request is
		after    meter.Instant // the first refusal
		held     bool
	}{
		{"an older request is accepted", true, second - 1, false},
		{"all older requests are refused", false, 50 * milli, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, g, _ := newFamilies()
			a.Cover(50, false)
			now := 10 * second
			sends(t, g, now, 2)
			g.Answered(now+milli, now, false, nil)
			a.Backoff(now+milli, now, g.InFlight())
			require.LessOrEqual(t, a.Until(), now, "the first of a row sets no hold")

			refused := func(sentAt meter.Instant) {
				sends(t, g, sentAt, 1)
				g.Answered(sentAt+milli, sentAt, false, nil)
				a.Backoff(sentAt+milli, sentAt, g.InFlight())
			}
			refused(now + 30*milli)
			require.LessOrEqual(t, a.Until(), now, "the older request may yet be accepted")
			g.Answered(now+40*milli, now, c.accepted, nil)
			refused(now + milli + c.after)
			if c.held {
				requireBackoff(t, a, now+2*milli+c.after, second)
			} else {
				require.LessOrEqual(t, a.Until(), now)
			}
		})
	}
	a, g, _ := newFamilies()
	a.Cover(50, false)
	sends(t, g, second, 2) // one of them hangs
	g.Answered(second, second, false, nil)
	a.Backoff(second, second, g.InFlight())
	a.Backoff(2*second-1, 2*second-2, g.InFlight())
	require.Less(t, a.Until(), second)
	a.Backoff(2*second, 2*second-1, g.InFlight())
	requireBackoff(t, a, 2*second, second)
}

func TestRequestsLeaveEvenlyAfterABareRefusalOfAKnownLimit(t *testing.T) {
	a, g, _ := newFamilies()
	a.Cover(50, false)
	sends(t, g, second, 1)
	g.Answered(second+milli, second, false, nil)
	a.Backoff(second+milli, second, 0)
	requireReady(t, g, second+milli, second+20*milli)
	g.Take(second+20*milli, second+25*milli, 1, true) // late
	requireReady(t, g, second+25*milli, second+45*milli)
	sends(t, g, 20*second, 2) // a pace that is not used for a second is over
}

func TestAccountKnownWaitDoesNotRaiseTheBackoff(t *testing.T) {
	a, _, _ := newFamilies()
	for i := range meter.Instant(5) {
		a.Hold(i*second, second/2)
	}
	a.Backoff(100*second, 99*second, 0)
	requireBackoff(t, a, 100*second, second)
}

func TestGatePlansWithWhatIsAhead(t *testing.T) {
	a, g, _ := newFamilies()
	require.Equal(t, 5*second, g.Plan(5*second, 1<<50, 1))
	asks(t, g, 0, core(100, 10, 60*second))
	assert.Equal(t, second, g.Plan(second, 9, 1))
	assert.Equal(t, 60*second, g.Plan(second, 10, 1))
	assert.Equal(t, 60*second, g.Plan(second, 1000, 1), "a lower bound")
	sends(t, g, 1, 1)
	assert.Equal(t, 60*second, g.Plan(second, 9, 1))
	a.Hold(second, 100*second)
	assert.Equal(t, a.held, g.Plan(second, 1000, 1))
}

func TestGateIsOpenOnlyIfNothingBoundsIt(t *testing.T) {
	a, g, _ := newFamilies()
	require.True(t, g.Open(0))
	asks(t, g, 0)
	require.True(t, g.Open(0))
	asks(t, g, 1, core(plenty, plenty, meter.Never))
	require.True(t, g.Open(1))
	asks(t, g, 2, core(plenty, plenty-1, meter.Never))
	require.False(t, g.Open(2))
	asks(t, g, 3, core(plenty, plenty, meter.Never))
	require.True(t, g.Open(3))

	a.Hold(second, second)
	held := a.held
	require.False(t, g.Open(held-1))
	require.True(t, g.Open(held))
	a.Refused(10*second, 10*second, second, false)
	require.False(t, g.Open(a.held), "a pace is to begin")
	require.False(t, g.Open(a.held+paceIdle))
	require.True(t, g.Open(a.held+paceIdle+1))
}

func TestGateIsForgottenNoEarlierThanWhatStopsIt(t *testing.T) {
	a, g, _ := newFamilies()
	require.False(t, needed(g, 0))
	sends(t, g, 0, 1)
	require.Equal(t, meter.Never, fullAt(g))
	require.True(t, needed(g, 0))
	g.Answered(0, 0, true, []Tell{core(10, 0, 60*second)})
	require.Greater(t, fullAt(g), 60*second)
	require.True(t, needed(g, 60*second-1))
	require.False(t, needed(g, 60*second))
	a.Hold(0, 100*second)
	require.Greater(t, fullAt(g), a.held)
	require.True(t, needed(g, a.held-1))
	require.False(t, needed(g, a.held))
	a.server.Hold(0, 200*second)
	require.Greater(t, fullAt(g), a.server.held)
	require.True(t, needed(g, a.server.held-1))
	sends(t, g, a.server.held, 1)
	g.GiveBack(0, a.server.held, 1)
	require.Greater(t, fullAt(g), a.pace.next)
	require.Panics(t, func() { g.GiveBack(0, a.server.held, 1) })
}

func TestGateTellsTheLeastOfItsQuotas(t *testing.T) {
	_, g, _ := newFamilies()
	require.Equal(t, math.Inf(1), g.Tokens(0))
	asks(t, g, 0, core(100, 40, 60*second), Tell{"daily", 1000, 30, meter.Never, true, 0, false, ""}, Tell{"bytes", 1000, 20, meter.Never, false, 0, false, ""})
	require.EqualValues(t, 30, g.Tokens(0))
	sends(t, g, 1, 1)
	require.EqualValues(t, 29, g.Tokens(0))
	asks(t, g, 2, core(100, 40, 60*second), Tell{"daily", 1000, 500, meter.Never, true, 0, false, ""})
	require.EqualValues(t, 39, g.Tokens(59*second))
	require.EqualValues(t, 99, g.Tokens(60*second))
}

// Whatever servers and clocks say, nothing overflows: no instant lies before what was asked for, ready is the first
// instant that is payable, and asking changes nothing.
func TestQuotaArithmeticIsTotal(t *testing.T) {
	for seed := range uint64(300) {
		r := metertest.Seeded(t, seed)
		a := NewAccount(NewServer(seed), seed)
		gates := []*Gate{NewGate(a), NewGate(a)}
		now := meter.Instant(0)
		for range 200 {
			now = meter.AddInstant(now, r.Int64N(1<<r.IntN(38)))
			g := gates[r.IntN(2)]
			mess(r, a, g, now)
			at := g.Ready(now, 0, 1)
			require.GreaterOrEqual(t, at, now)
			require.LessOrEqual(t, g.Plan(now, 0, 1), at)
			require.Equal(t, at == now, g.Payable(now, 1))
			if at < meter.Never {
				require.True(t, g.Payable(at, 1))
				require.Equal(t, at == now, g.Payable(max(now, at-1), 1))
			}
			g.Tokens(now)
			g.Open(now)
			require.Equal(t, at, g.Ready(now, 0, 1), "asking changes nothing")
			require.GreaterOrEqual(t, g.Plan(now, math.MaxInt64, 1), now)
			require.LessOrEqual(t, len(a.quotas), maxQuotas)
			require.Less(t, len(g.quotas), 2*maxQuotas)
			for _, q := range a.quotas {
				require.LessOrEqual(t, len(q.silent), maxSilent)
			}
		}
	}
}

// mess does something at random.
func mess(r *rand.Rand, a *Account, g *Gate, now meter.Instant) {
	extremes := []int64{math.MinInt64, -1, 0, 1, 5, 1 << 40, meter.MaxCount, math.MaxInt64 - 1, math.MaxInt64}
	number := func() int64 {
		if r.IntN(3) == 0 {
			return extremes[r.IntN(len(extremes))]
		}
		return r.Int64N(20)
	}
	switch r.IntN(8) {
	case 0:
		a.Hold(now, number()*milli)
	case 1:
		a.server.Hold(now, number())
	case 2:
		a.Backoff(now, max(0, now-r.Int64N(second)), 0)
	case 3:
		if g.inFlight > 0 {
			g.GiveBack(0, now, 1)
		}
	case 4, 5:
		if at := g.Ready(now, 0, 1); at == now {
			g.Take(max(0, now-r.Int64N(20*milli)), now, 1, true)
		}
	default:
		if g.inFlight == 0 {
			return
		}
		var tells []Tell
		for range r.IntN(5) {
			tells = append(tells, Tell{fmt.Sprint(r.IntN(40)), number(), number(), number(), r.IntN(3) > 0, number(), r.IntN(4) == 0, ""})
			if r.IntN(2) == 0 {
				tells[len(tells)-1].Reset = meter.AddInstant(now, r.Int64N(10*second))
			}
		}
		g.Answered(now, max(0, now-r.Int64N(second)), r.IntN(2) == 0, slices.Clone(tells))
	}
}

// needed reports whether a gate may not be forgotten now.
func needed(g *Gate, now meter.Instant) bool {
	must, _ := g.Matters(now)
	return must > now
}

// fullAt returns the instant from which a gate is as good as new.
func fullAt(g *Gate) meter.Instant {
	_, full := g.Matters(0)
	return full
}
