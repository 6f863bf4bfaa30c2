package throttle

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
func newFamilies(rate float64) (a *account, x, y *gate) {
	a = newAccount(0, newServer(1), 2, rate)
	return a, newGate(a), newGate(a)
}

// core is what an answer tells of a quota of that name.
func core(limit, left int64, reset instant) tell { return tell{"core", limit, left, reset, true, 0} }

// sends takes n at now, each of which must be payable.
func sends(t testing.TB, g *gate, now instant, n int) {
	t.Helper()
	for i := range n {
		require.True(t, g.Payable(now, 1), "request %d", i)
		require.LessOrEqual(t, g.Plan(now, 0, 1), now)
		g.Take(now, now, 1, false)
	}
}

// asks sends one and has it answered at once.
func asks(t testing.TB, g *gate, now instant, tells ...tell) {
	t.Helper()
	sends(t, g, now, 1)
	g.answered(now, now, true, tells)
}

// requireReady demands that g is shut until at, and open from then on.
func requireReady(t testing.TB, g *gate, from, at instant) {
	t.Helper()
	require.Equal(t, at, g.Ready(from, 0, 1))
	require.Equal(t, at, g.Plan(from, 0, 1))
	if at > from {
		require.False(t, g.Payable(at-1, 1))
	}
	require.True(t, g.Payable(at, 1))
}

// requireWaits demands that nothing goes before an answer has come, and that planning does not take that for never.
func requireWaits(t testing.TB, g *gate, now instant) {
	t.Helper()
	require.Equal(t, never, g.Ready(now, 0, 1))
	require.Equal(t, now, g.Plan(now, 0, 1))
	require.False(t, g.Payable(now, 1))
}

func TestQuotaPaysWhatIsLeftLessWhatIsInFlight(t *testing.T) {
	_, g, _ := newFamilies(0)
	asks(t, g, 0, core(100, 3, never))
	sends(t, g, 1, 3)
	requireWaits(t, g, 1)
	g.answered(2, 1, true, []tell{core(100, 2, never)})
	requireWaits(t, g, 2) // the other two are on their way yet
}

func TestQuotaOpensAtItsResetAndNotBefore(t *testing.T) {
	_, g, _ := newFamilies(0)
	asks(t, g, 0, core(100, 1, 60*second))
	sends(t, g, 1, 1)
	requireReady(t, g, 2, 60*second)
	g.GiveBack(0, 3, 1)
	requireReady(t, g, 3, 3) // it was not sent, and so not counted
	requireReady(t, g, 60*second, 60*second)
}

func TestQuotaResetIsSeenByThoseWhoAskFromBeforeIt(t *testing.T) {
	_, g, _ := newFamilies(0)
	asks(t, g, 0, core(3, 2, 60*second))
	sends(t, g, 59*second, 2)
	require.Equal(t, 60*second, g.Ready(0, 0, 1)) // what a line is due at does not depend on when it is asked
	require.Equal(t, never, g.Ready(0, 1, 1), "both that are on their way may be counted after the reset")
	require.Equal(t, 60*second, g.Plan(0, 1, 1))
	sends(t, g, 60*second, 1)
	require.Equal(t, never, g.Ready(0, 0, 1))
}

func TestQuotaStopsOnlyFamiliesWhoseAnswersNamedIt(t *testing.T) {
	_, search, repos := newFamilies(0)
	empty := core(30, 0, 60*second)
	empty.name = "search"
	asks(t, search, 0, empty)
	asks(t, repos, 0, core(5000, 4000, 3600*second))
	require.False(t, search.Payable(1, 1))
	requireReady(t, repos, 1, 1)

	asks(t, repos, 2, core(5000, 4000, 3600*second), empty) // all have it from now on
	require.False(t, repos.Payable(3, 1))
}

func TestQuotaCountsWhatIsInFlightAtAllItsGates(t *testing.T) {
	_, x, y := newFamilies(0)
	sends(t, y, 0, 3)
	asks(t, x, 1, core(100, 4, never))
	asks(t, y, 2, core(100, 4, never)) // it falls under the quota from now on, with what was on its way
	sends(t, x, 3, 1)
	requireWaits(t, x, 3)
	requireWaits(t, y, 3)
	y.GiveBack(0, 4, 1)
	requireReady(t, x, 4, 4)
}

func TestQuotaOutOfOrderTheLowestWordCounts(t *testing.T) {
	for _, order := range [][]int64{{7, 8, 9}, {9, 8, 7}, {8, 7, 9}, {9, 7, 8}, {7, 9, 8}} {
		a, g, _ := newFamilies(0)
		asks(t, g, 0, core(100, 10, never))
		sends(t, g, 1, 3)
		for i, left := range order {
			g.answered(instant(10+i), 1, true, []tell{core(100, left, never)})
		}
		require.EqualValues(t, 7, a.quotas[0].told, "%v", order)
		require.EqualValues(t, 7, g.Tokens(20), "%v", order) // nothing in flight: no pessimism stays
	}
}

func TestQuotaNewsOfARequestSentLaterReplaces(t *testing.T) {
	a, g, _ := newFamilies(0)
	asks(t, g, 0, core(100, 5, never))
	sends(t, g, 10, 2)
	g.answered(20, 10, true, []tell{core(100, 3, never)}) // 10 > 0: the news
	g.answered(30, 10, true, []tell{core(100, 90, never)})
	require.EqualValues(t, 3, a.quotas[0].told, "10 ≤ 20: out of order")
	sends(t, g, 20, 1)
	g.answered(40, 20, true, []tell{core(100, 90, never)})
	require.EqualValues(t, 3, a.quotas[0].told, "sent at the instant of the word: perhaps before")
	sends(t, g, 21, 1)
	g.answered(50, 21, true, []tell{core(100, 90, never)})
	require.EqualValues(t, 90, a.quotas[0].told)
}

func TestQuotaLoweredByALateWordIsNotRaisedByAnOlderOne(t *testing.T) {
	a, g, _ := newFamilies(0)
	asks(t, g, 0, core(100, 50, never))
	sends(t, g, 5, 1)
	sends(t, g, 6, 1)
	sends(t, g, 10, 1)
	g.answered(20, 5, true, []tell{core(100, 49, never)})
	g.answered(21, 6, true, []tell{core(100, 40, never)}) // out of order, and lower
	g.answered(22, 10, true, []tell{core(100, 48, never)})
	require.EqualValues(t, 40, a.quotas[0].told)

	sends(t, g, 23, 1)
	g.answered(26, 23, true, []tell{core(100, 60, never)}) // the news, but the last word may have been counted after it
	require.EqualValues(t, 48, a.quotas[0].told)
	asks(t, g, 27, core(100, 59, never))
	require.EqualValues(t, 59, a.quotas[0].told)
}

func TestQuotaWordOfAWindowThatIsOverIsNoNews(t *testing.T) {
	a, g, _ := newFamilies(0)
	asks(t, g, 0, core(10, 5, 60*second))
	sends(t, g, 59*second, 3)
	for range 2 {
		g.answered(60*second, 59*second, true, []tell{core(10, 0, 60*second)})
	}
	require.EqualValues(t, 10, a.quotas[0].told)
	require.EqualValues(t, 9, g.Tokens(60*second))
	g.answered(60*second, 59*second, true, []tell{core(10, 9, 120*second)})
	require.EqualValues(t, 9, g.Tokens(60*second))

	_, fresh, _ := newFamilies(0)
	asks(t, fresh, 5, core(10, 0, 5))
	requireReady(t, fresh, 5, 5)
}

// A server's clock may be ahead, and its window begin before ours: then late words of the window before come after
// the first of the new one.
func TestQuotaLateWordOfTheWindowBeforeDoesNotEndTheNew(t *testing.T) {
	a, g, _ := newFamilies(0)
	asks(t, g, 0, core(100, 50, 60*second))
	sends(t, g, 58*second, 2)
	asks(t, g, 59*second, core(100, 90, 120*second))
	g.answered(59*second+1, 58*second, true, []tell{core(100, 1, 60*second)})
	require.EqualValues(t, 90, a.quotas[0].told)
	require.Equal(t, 120*second, a.quotas[0].reset)
	// But resets that differ by a rounding are of one window.
	g.answered(59*second+2, 58*second, true, []tell{core(100, 80, 119*second)})
	require.EqualValues(t, 80, a.quotas[0].told)
}

func TestQuotaResetIsLearnedFromAnyWord(t *testing.T) {
	a, g, _ := newFamilies(0)
	asks(t, g, 0, core(100, 5, never))
	sends(t, g, 0, 1)
	g.answered(1, 0, true, []tell{core(100, 9, 60*second)}) // out of order, but it has one
	sends(t, g, 1, 1)
	g.answered(1, 0, true, []tell{core(100, 9, 61*second)}) // but the news or the lowest word knows better
	require.Equal(t, 60*second, a.quotas[0].reset)
	asks(t, g, 2, core(-1, 4, never)) // and one that has none does not undo it
	require.Equal(t, 60*second, a.quotas[0].reset)
	require.EqualValues(t, 100, a.quotas[0].limit)
	asks(t, g, 3, core(100, 3, 30*second)) // news is right
	require.Equal(t, 30*second, a.quotas[0].reset)
}

func TestQuotaAnswerThatDoesNotNameItMayHaveBeenCounted(t *testing.T) {
	a, g, _ := newFamilies(0)
	asks(t, g, 0, core(100, 10, never))
	sends(t, g, 1, 2)
	g.answered(10, 1, false, nil)
	require.EqualValues(t, 9, a.quotas[0].told)
	g.answered(11, 1, true, []tell{core(100, 99, never)})
	require.EqualValues(t, 9, a.quotas[0].told, "known at 10: the other is no news")
	sends(t, g, 12, 1)
	g.GiveBack(0, 13, 1)
	require.EqualValues(t, 9, g.Tokens(13), "never sent: nothing of it stays")
}

func TestQuotaAtAResetNoMoreGoThanTheLimitBeforeAnAnswer(t *testing.T) {
	_, g, _ := newFamilies(0)
	asks(t, g, 0, core(50, 50, 60*second))
	sends(t, g, 59*second, 10) // on their way across the reset
	sends(t, g, 60*second, 40)
	requireWaits(t, g, 60*second)
	requireWaits(t, g, 3600*second)
	for range 49 {
		g.answered(3600*second, 60*second, true, nil)
		requireWaits(t, g, 3600*second)
	}
	g.answered(3600*second, 60*second, true, []tell{core(50, 50, 3660*second)})
	sends(t, g, 3600*second, 1)
}

func TestQuotaWithoutAKnownLimitIsForgottenAtItsReset(t *testing.T) {
	a, g, _ := newFamilies(1e9)
	asks(t, g, 0, core(-1, 1, 60*second))
	sends(t, g, 1, 1)
	sends(t, g, 60*second, 1000)
	require.True(t, g.open(60*second))
	require.Equal(t, float64(math.MaxInt64), g.Tokens(60*second))
	require.Equal(t, maxCount, a.quotas[0].told)
}

func TestQuotaThatNobodyCanTellMoreOfIsForgotten(t *testing.T) {
	a, g, _ := newFamilies(0)
	asks(t, g, 0, core(50, 0, never))
	requireReady(t, g, 1, 1)
	require.False(t, g.open(1))
	sends(t, g, second, 1)
	requireReady(t, g, second, 2*second) // but not all at once
	require.Equal(t, maxCount, a.quotas[0].told)
	g.answered(second+1, second, true, []tell{core(50, 0, never)})
	requireReady(t, g, second+1, 2*second)
	sends(t, g, 2*second, 1)
	g.answered(2*second+1, 2*second, true, []tell{core(50, 3, never)})
	require.EqualValues(t, 3, g.Tokens(2*second+1))
}

func TestQuotaOfAnotherUnitStopsOnlyWhileItIsEmpty(t *testing.T) {
	_, g, _ := newFamilies(1e9)
	used := tell{name: "tokens", limit: 1000, left: 1, reset: 60 * second}
	asks(t, g, 0, used)
	sends(t, g, 1, 100) // nobody knows what each costs
	require.True(t, g.open(1))
	for range 99 {
		g.answered(2, 1, true, nil) // and one that tells nothing cost not one
	}
	requireReady(t, g, 2, 2)
	used.left = 0
	g.answered(3, 1, true, []tell{used})
	require.False(t, g.open(3))
	require.Zero(t, g.Tokens(3))
	require.False(t, g.Payable(60*second-1, 1))
	at := g.Ready(3, 0, 1)
	sends(t, g, at, 1)
	g.answered(at, at, true, nil)
	used.reset = never
	asks(t, g, g.Ready(at, 0, 1), used)
	g.Take(at+second, at+second, 1, true)
	g.Take(at+second, at+second, 1, true)
	g.answered(at+second, at+second, true, []tell{used})
	require.Less(t, g.Ready(at+second, 0, 1), never, "empty until nobody knows when")
}

func TestQuotaLeavesTheReserveToOthers(t *testing.T) {
	_, g, _ := newFamilies(1e9)
	c := core(100, 42, 60*second)
	c.reserve = 40
	asks(t, g, 0, c)
	sends(t, g, 1, 2)
	require.False(t, g.Payable(2, 1))
	require.Zero(t, g.Tokens(2))
	g.answered(3, 1, true, []tell{{"core", 100, 41, 60 * second, true, 40}})
	g.answered(3, 1, true, []tell{{"core", 100, 40, 60 * second, true, 40}})
	at := g.Ready(3, 0, 1)
	require.GreaterOrEqual(t, at, 60*second)
	sends(t, g, at, 60)
	require.False(t, g.Payable(at, 1), "nor after the reset")
}

func TestAccountKeepsTheQuotasThatLastLongest(t *testing.T) {
	a, g, y := newFamilies(0)
	for i := range maxQuotas + 8 {
		c := core(10, 0, instant(100+i)*second)
		c.name = fmt.Sprint("q", i)
		sends(t, y, 0, 1)
		y.answered(0, 0, true, []tell{c})
		y = newGate(a)
		g.Take(0, 0, 1, false)
		g.answered(0, 0, true, []tell{c}) // it falls under all
		require.LessOrEqual(t, len(a.quotas), maxQuotas)
	}
	require.Len(t, g.quotas, maxQuotas)
	for _, q := range a.quotas {
		require.GreaterOrEqual(t, q.reset, 108*second)
	}
}

func TestAccountDropsQuotasThatAreLongOver(t *testing.T) {
	a, x, y := newFamilies(0)
	asks(t, x, 0, tell{"old", 10, 0, 60 * second, true, 0})
	at := 60*second + quotaStale
	asks(t, y, at, tell{"new", 10, 5, never, true, 0})
	require.Len(t, a.quotas, 2)
	asks(t, y, at+1, tell{"newer", 10, 5, never, true, 0})
	require.Len(t, a.quotas, 2)
	require.True(t, x.open(at+1), "nobody obeys what was dropped")
	sends(t, x, at+1, 200)
	asks(t, x, at+2)
	require.Empty(t, x.quotas)

	a, x, y = newFamilies(0)
	asks(t, x, 0, tell{"old", 10, 5, 60 * second, true, 0})
	sends(t, x, 1, 1)
	asks(t, y, 2*at, tell{"new", 10, 5, never, true, 0})
	require.Len(t, a.quotas, 2, "something is in flight")
}

func TestAccountHoldLetsNothingGoBeforeAndJitterComesAfter(t *testing.T) {
	for _, d := range []int64{1, 10, second, 5 * second, 10 * second, 3600 * second} {
		ends := map[instant]bool{}
		for seed := range uint64(100) {
			a := newAccount(0, newServer(1), seed, 0)
			g := newGate(a)
			a.hold(7, d, true)
			require.GreaterOrEqual(t, a.held, 7+d)
			require.Less(t, a.held, 7+d+max(1, min(second, d/10)))
			requireReady(t, g, 7, a.held)
			ends[a.held] = true

			s := newServer(seed)
			g = newGate(newAccount(0, s, 1, 0))
			s.hold(7, d, false)
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
	a, g, _ := newFamilies(0)
	a.hold(0, 10*second, true)
	held := a.held
	for _, d := range []int64{1, 0, -1, math.MinInt64, 5 * second} {
		a.hold(second, d, true)
		a.server.hold(second, d, true)
		require.Equal(t, held, a.held)
	}
	requireReady(t, g, second, held)
	a.server.hold(second, 100*second, true)
	requireReady(t, g, second, a.server.held)
	a.hold(second, math.MaxInt64, true)
	require.Equal(t, never, g.Ready(2*second, 0, 1))
	require.Equal(t, never, g.Plan(2*second, 0, 1), "this is no want of an answer")
}

func TestAccountHoldStopsNoOtherAccount(t *testing.T) {
	a, x, _ := newFamilies(0)
	other := newGate(newAccount(0, a.server, 3, 0))
	a.hold(0, second, true)
	require.False(t, x.Payable(1, 1))
	requireReady(t, other, 1, 1)
	a.server.hold(0, second, true)
	require.False(t, other.Payable(1, 1))
}

// requireBackoff demands that a hold of d begins at now.
func requireBackoff(t *testing.T, a *account, now instant, d int64) {
	t.Helper()
	require.GreaterOrEqual(t, a.held, now+d)
	require.Less(t, a.held, now+d+min(second, d/10))
}

func TestAccountBackoffDoublesUpTo64Seconds(t *testing.T) {
	a, _, _ := newFamilies(0)
	now := instant(0)
	for _, d := range []int64{1, 2, 4, 8, 16, 32, 64, 64, 64} {
		sentAt := now
		now += 100 * milli
		a.backoff(now, sentAt, true)
		requireBackoff(t, a, now, d*second)
		now = a.held
	}
}

func TestAccountBackoffIsOneStepForOneEvent(t *testing.T) {
	a, g, _ := newFamilies(0)
	a.backoff(second, 0, true)
	held := a.held
	for i := range instant(100) {
		a.backoff(second+i, second, true) // they were sent before, or at that instant
	}
	require.Equal(t, held, a.held)
	a.backoff(5*second, second+1, true)
	requireBackoff(t, a, 5*second, 2*second)

	sends(t, g, 10*second, 2)
	g.answered(11*second, 5*second, true, nil) // sent before the hold: no sign that it was enough
	a.backoff(12*second, 5*second+1, true)
	requireBackoff(t, a, 12*second, 4*second)
	g.answered(20*second, 12*second+1, false, nil)
	a.backoff(20*second, 12*second+1, true)
	requireBackoff(t, a, 20*second, 8*second)
	sends(t, g, 30*second, 1)
	g.answered(40*second, 30*second, true, nil)
	a.backoff(40*second, 39*second, true)
	requireBackoff(t, a, 40*second, second)
}

func TestAccountKnownWaitDoesNotRaiseTheBackoff(t *testing.T) {
	a, _, _ := newFamilies(0)
	for i := range instant(5) {
		a.hold(i*second, second/2, true)
	}
	a.backoff(100*second, 99*second, true)
	requireBackoff(t, a, 100*second, second)
}

func TestGatePlansWithWhatIsAhead(t *testing.T) {
	a, g, _ := newFamilies(0)
	require.Equal(t, 5*second, g.Plan(5*second, 1<<50, 1))
	asks(t, g, 0, core(100, 10, 60*second))
	assert.Equal(t, second, g.Plan(second, 9, 1))
	assert.Equal(t, 60*second, g.Plan(second, 10, 1))
	assert.Equal(t, 60*second, g.Plan(second, 1000, 1), "a lower bound")
	sends(t, g, 1, 1)
	assert.Equal(t, 60*second, g.Plan(second, 9, 1))
	a.hold(second, 100*second, true)
	assert.Equal(t, a.held, g.Plan(second, 1000, 1))
	sends(t, g, a.held, 1)
	assert.Equal(t, a.held+second, g.Plan(a.held, 20, 1), "by the next departure alone")
}

func TestGateIsOpenOnlyIfNothingBoundsIt(t *testing.T) {
	a, g, _ := newFamilies(0)
	require.True(t, g.open(0))
	asks(t, g, 0)
	require.True(t, g.open(0))
	asks(t, g, 1, core(plenty, plenty, never))
	require.True(t, g.open(1))
	asks(t, g, 2, core(plenty, plenty-1, never))
	require.False(t, g.open(2))
	asks(t, g, 3, core(plenty, plenty, never))
	require.True(t, g.open(3))

	a.hold(second, second, true)
	held := a.held
	require.False(t, g.open(held-1))
	require.False(t, g.open(held), "a pace is to begin")
	require.False(t, g.open(held+paceIdle))
	require.True(t, g.open(held+paceIdle+1))
	a.hold(10*second, second, false)
	require.False(t, g.open(a.held-1))
	require.True(t, g.open(a.held))
}

func TestGateIsForgottenNoEarlierThanWhatStopsIt(t *testing.T) {
	a, g, _ := newFamilies(0)
	require.False(t, g.Indebted(0))
	sends(t, g, 0, 1)
	require.Equal(t, never, g.FullAt())
	require.True(t, g.Indebted(0))
	g.answered(0, 0, true, []tell{core(10, 0, 60*second)})
	require.Greater(t, g.FullAt(), a.quotas[0].resumes())
	require.True(t, g.Indebted(60*second-1))
	require.False(t, g.Indebted(60*second))
	a.hold(0, 100*second, true)
	require.Greater(t, g.FullAt(), a.held)
	require.True(t, g.Indebted(a.held-1))
	require.False(t, g.Indebted(a.held))
	a.server.hold(0, 200*second, true)
	require.Greater(t, g.FullAt(), a.server.held)
	require.True(t, g.Indebted(a.server.held-1))
	sends(t, g, a.server.held, 1)
	g.GiveBack(0, a.server.held, 1)
	require.Greater(t, g.FullAt(), a.pace.next)
	require.Panics(t, func() { g.GiveBack(0, a.server.held, 1) })
}

func TestGateTellsTheLeastOfItsQuotas(t *testing.T) {
	_, g, _ := newFamilies(0)
	require.Equal(t, float64(math.MaxInt64), g.Tokens(0))
	asks(t, g, 0, core(100, 40, 60*second), tell{"daily", 1000, 30, never, true, 0}, tell{"bytes", 1000, 20, never, false, 0})
	require.EqualValues(t, 30, g.Tokens(0))
	sends(t, g, 1, 1)
	require.EqualValues(t, 29, g.Tokens(0))
	asks(t, g, 2, core(100, 40, 60*second), tell{"daily", 1000, 500, never, true, 0})
	require.EqualValues(t, 39, g.Tokens(59*second))
	require.EqualValues(t, 99, g.Tokens(60*second))
}

// Whatever servers and clocks say, nothing overflows: no instant lies before what was asked for, ready is the first
// instant that is payable, and asking changes nothing.
func TestQuotaArithmeticIsTotal(t *testing.T) {
	for seed := range uint64(300) {
		r := metertest.Seeded(t, seed)
		rates := []float64{0, 1, 1e300, math.Inf(1), math.NaN(), math.Inf(-1)}
		a := newAccount(0, newServer(seed), seed, rates[r.IntN(len(rates))])
		gates := []*gate{newGate(a), newGate(a)}
		now := instant(0)
		for range 200 {
			now = meter.AddInstant(now, r.Int64N(1<<r.IntN(38)))
			g := gates[r.IntN(2)]
			mess(r, a, g, now)
			at := g.Ready(now, 0, 1)
			require.GreaterOrEqual(t, at, now)
			require.LessOrEqual(t, g.Plan(now, 0, 1), at)
			require.Equal(t, at == now, g.Payable(now, 1))
			if at < never {
				require.True(t, g.Payable(at, 1))
				require.Equal(t, at == now, g.Payable(max(now, at-1), 1))
			}
			g.Tokens(now)
			g.open(now)
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
func mess(r *rand.Rand, a *account, g *gate, now instant) {
	extremes := []int64{math.MinInt64, -1, 0, 1, 5, 1 << 40, maxCount, math.MaxInt64 - 1, math.MaxInt64}
	number := func() int64 {
		if r.IntN(3) == 0 {
			return extremes[r.IntN(len(extremes))]
		}
		return r.Int64N(20)
	}
	switch r.IntN(8) {
	case 0:
		a.hold(now, number()*milli, r.IntN(2) == 0)
	case 1:
		a.server.hold(now, number(), r.IntN(2) == 0)
	case 2:
		a.backoff(now, max(0, now-r.Int64N(second)), true)
	case 3:
		if g.inFlight > 0 {
			g.GiveBack(0, now, 1)
		}
	case 4, 5:
		if at := g.Ready(now, 0, 1); at == now {
			g.Take(max(0, now-r.Int64N(slack)), now, 1, true)
		}
	default:
		if g.inFlight == 0 {
			return
		}
		var tells []tell
		for range r.IntN(5) {
			tells = append(tells, tell{fmt.Sprint(r.IntN(40)), number(), number(), number(), r.IntN(3) > 0, number()})
			if r.IntN(2) == 0 {
				tells[len(tells)-1].reset = meter.AddInstant(now, r.Int64N(10*second))
			}
		}
		g.answered(now, max(0, now-r.Int64N(second)), r.IntN(2) == 0, slices.Clone(tells))
	}
}
