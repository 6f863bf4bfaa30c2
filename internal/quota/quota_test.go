package quota

import (
	"math"
	"testing"

	"github.com/httpthrottle/throttle/internal/meter"

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

func TestQuotaSubtractsRequestsInFlight(t *testing.T) {
	_, g, _ := newFamilies()
	asks(t, g, 0, core(100, 3, meter.Never))
	sends(t, g, 1, 3)
	requireWaits(t, g, 1)
	g.Answered(2, 1, true, []Tell{core(100, 2, meter.Never)})
	requireWaits(t, g, 2) // the other two are on their way yet
}

func TestQuotaOpensExactlyAtItsReset(t *testing.T) {
	_, g, _ := newFamilies()
	asks(t, g, 0, core(100, 1, 60*second))
	sends(t, g, 1, 1)
	requireReady(t, g, 2, 60*second)
	g.GiveBack(0, 3, 1)
	requireReady(t, g, 3, 3) // it was not sent, and so not counted
	requireReady(t, g, 60*second, 60*second)
}

func TestQuotaPlansAcrossItsReset(t *testing.T) {
	_, g, _ := newFamilies()
	asks(t, g, 0, core(3, 2, 60*second))
	sends(t, g, 59*second, 2)
	require.Equal(t, 60*second, g.Ready(0, 0, 1)) // what a line is due at does not depend on when it is asked
	require.Equal(t, meter.Never, g.Ready(0, 1, 1), "both that are on their way may be counted after the reset")
	require.Equal(t, 60*second, g.Plan(0, 1, 1))
	sends(t, g, 60*second, 1)
	require.Equal(t, meter.Never, g.Ready(0, 0, 1))
}

func TestQuotaStopsOnlyFamiliesWhoseResponsesNamedIt(t *testing.T) {
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

func TestQuotaCountsRequestsInFlightAtAllItsGates(t *testing.T) {
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

func TestQuotaTakesTheLowestOfResponsesOutOfOrder(t *testing.T) {
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

func TestQuotaTakesNewsOfALaterRequest(t *testing.T) {
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

	sends(t, g, 51, 2)
	asks(t, g, 52, core(100, 80, 30*second))
	sends(t, g, 53, 1)
	g.Answered(60, 51, true, []Tell{core(100, 80, 30*second)}) // the same again is the last news
	g.Answered(61, 53, true, []Tell{core(100, 90, 31*second)})
	require.EqualValues(t, 80, a.quotas[0].told)
	require.Equal(t, 30*second, a.quotas[0].reset, "no window has begun")
}

func TestQuotaLoweredByALateResponseIsNotRaisedByAnOlderOne(t *testing.T) {
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

func TestQuotaIgnoresResponsesOfAPastWindow(t *testing.T) {
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
func TestQuotaLateResponseOfThePreviousWindowDoesNotEndTheNewOne(t *testing.T) {
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

func TestQuotaLearnsItsResetFromAnyResponse(t *testing.T) {
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

func TestQuotaCountsResponsesThatDoNotNameIt(t *testing.T) {
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

func TestQuotaAllowsNoMoreThanItsLimitAfterAResetUntilAResponse(t *testing.T) {
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
	sends(t, g, 1, 100) // it is not known what each costs
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
	require.Less(t, g.Ready(at+second, 0, 1), meter.Never, "empty, and it is not known until when")
}

func TestQuotaKeepsItsReserve(t *testing.T) {
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

// The last responses of a window may come after its reset.
func TestALateResponseOfAWindowThatRanDrySaysNothingOfTheNext(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(50, 2, 10*second))
	sends(t, g, 9*second, 2)
	g.Answered(9*second+1, 9*second, true, []Tell{core(50, 0, 10*second)})
	asks(t, g, 10*second, core(50, 49, 20*second))
	g.Answered(10*second+1, 9*second, true, []Tell{core(50, 0, 10*second)})
	require.EqualValues(t, 49, a.quotas[0].told)
	require.Equal(t, 20*second, a.quotas[0].reset)
}

// Some servers count a request when it comes, and tell what is left when its response leaves. By then its window may be over,
// and the next one begins with the next request.
func TestAWindowOfWhichNothingIsUsedBeginsWithALaterRequest(t *testing.T) {
	a, g := lateWindows(t)
	q := a.quotas[0]
	asks(t, g, 43*second, core(50, 10, 48*second))
	sends(t, g, 44*second, 1)
	g.Answered(44*second+1, 44*second, true, []Tell{core(50, 50, 58*second)})
	require.True(t, q.awaited)
	require.True(t, q.scarce, "the part that was kept for the rest of the window is not plenty")
	require.Equal(t, meter.Never, q.reset)
	asks(t, g, 46*second, core(50, 49, 60*second))
	require.Equal(t, 57*second, q.reset, "it may have begun as late as its first response came")
}
