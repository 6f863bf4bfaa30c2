package quota

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

// This file tests the accounts and quotas of servers at the exact bounds of their rules.

func TestAnAccountIsSilentUntilItsServerTellsSomething(t *testing.T) {
	for name, tell := range map[string]func(*Account, *Gate){
		"a hold of the account": func(a *Account, _ *Gate) { a.Hold(0, 1) },
		"a hold of the server":  func(a *Account, _ *Gate) { a.Refused(0, -1, 1, true, false) },
		"a pace":                func(a *Account, _ *Gate) { a.Cover(&Own{Rate: 10, Fastest: 10}); a.Backoff(0, 0, NotBare) },
		"a quota":               func(a *Account, g *Gate) { asks(t, g, 0, core(10, 5, second)) },
	} {
		a, g, _ := newFamilies()
		asks(t, g, 0)
		a.Hold(5, 0) // no hold
		require.True(t, a.Silent(), name)
		tell(a, g)
		require.False(t, a.Silent(), name)
	}
}

func TestARowOfRefusalsEndsWithAResponseToALaterRequest(t *testing.T) {
	a, _, _ := newFamilies()
	a.Cover(&Own{Rate: 50, Fastest: 50})
	a.Backoff(10*second, 9*second, NotBare)
	a.answered(10*second, true)
	require.EqualValues(t, 1, a.refusals, "it left before the row began")
	a.answered(10*second+1, false)
	require.EqualValues(t, 1, a.refusals)
	a.answered(10*second+1, true)
	require.Zero(t, a.refusals)
}

func TestOnlyNewsBeginsAPace(t *testing.T) {
	a, g, _ := newFamilies()
	refuse(t, a, g, 0) // the first instant there is
	require.NotZero(t, a.pace.rate)
	before := a.pace.rate
	a.Refused(second, a.set, second, false, false)
	require.Equal(t, before, a.pace.rate, "the request left when the hold was set, not later")

	a, g, _ = newFamilies()
	burst(t, g, second, 10)
	end := refuse(t, a, g, 2*second)
	a.Refused(2*second, 2*second, second, false, false)
	require.InDelta(t, 10e9/float64(end-second), a.pace.rate, 1e-9, "one refusal of two that left together")
}

func TestSavedQuotasAreThoseOfWindowsThatGoOn(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(100, 40, 60*second))
	sends(t, g, 1, 3)
	saved, ok := a.Saved(60*second-1, "core")
	require.True(t, ok)
	require.EqualValues(t, 37, saved.Left)
	_, ok = a.Saved(60*second, "core")
	require.False(t, ok, "its window is over")
	_, ok = a.Saved(0, "other")
	require.False(t, ok)

	a, g, _ = newFamilies()
	asks(t, g, 0, core(100, 40, meter.Never))
	_, ok = a.Saved(0, "core")
	require.False(t, ok, "its window has no known end")
	a, g, _ = newFamilies()
	asks(t, g, 0, core(-1, meter.MaxCount, 60*second))
	_, ok = a.Saved(0, "core")
	require.False(t, ok, "it bounds nothing")
}

// Servers that round times down report 0 s for the last second of a window.
func TestAnEmptyQuotaThatResetsNowIsShutForASecond(t *testing.T) {
	_, g, _ := newFamilies()
	asks(t, g, second, core(50, 0, 10*second))
	g.Take(second+1, second+1, 1, true) // as one that left before it was known
	g.Answered(2*second, second+1, true, []Tell{core(50, 0, 2*second)})
	requireReady(t, g, 2*second, 3*second)

	_, g, _ = newFamilies()
	asks(t, g, second, core(50, 40, 10*second))
	asks(t, g, 2*second, core(50, 0, 2*second))
	requireReady(t, g, 2*second, 3*second)

	_, g, _ = newFamilies()
	asks(t, g, second, core(50, 40, 1500*second/1000))
	asks(t, g, second+1, core(50, 0, second+1))
	requireReady(t, g, second+1, 1500*second/1000) // the earliest time that was reported

	_, g, _ = newFamilies()
	asks(t, g, 0, core(50, 0, 10*second))
	asks(t, g, 10*second, core(50, 0, 10*second)) // perhaps of the window that is over now
	requireReady(t, g, 10*second, 10*second)

	_, g, _ = newFamilies()
	for range 10 { // a bucket, from which nothing can be learned about a time
		asks(t, g, second, core(50, 40, 10*second))
	}
	asks(t, g, 2*second, core(50, 0, 2*second))
	requireReady(t, g, 2*second, 2*second)
}

// A server that reports the time until a bucket is full, or has room, reports 0 s again and again when little is missing. What is left
// counts then, as long as nobody knows until when.
func TestAQuotaThatWasEmptyIsOpenWhenMuchIsLeft(t *testing.T) {
	a, g, _ := newFamilies()
	for range 10 {
		asks(t, g, second, core(50, 40, 2*second))
	}
	asks(t, g, second, core(50, 0, 2*second))
	requireReady(t, g, second, 2*second)
	asks(t, g, 2*second, core(50, 48, 2*second))
	require.False(t, a.quotas[0].awaited)
	sends(t, g, 2*second, 48) // more than one at a time
	requireWaits(t, g, 2*second)
}

func TestALimitOfZeroLeavesNothing(t *testing.T) {
	_, g, _ := newFamilies()
	asks(t, g, 0, core(0, 5, 10*second))
	requireReady(t, g, 0, 10*second)
	sends(t, g, 10*second, 1)
	requireWaits(t, g, 10*second) // one request asks
	require.Zero(t, g.Tokens(10*second))
}

func TestWhatIsLeftHasJumpedIfItRoseByAQuarterToSevenEighths(t *testing.T) {
	for _, c := range []struct {
		from, left, limit int64
		jumped            bool
	}{
		{0, 88, 100, true}, {0, 87, 100, false}, {63, 88, 100, true}, {64, 88, 100, false},
		{0, 50, 100, false}, {0, 1, 1, true}, {1, 1, 1, false}, {0, 1, 0, false},
	} {
		require.Equal(t, c.jumped, jumped(c.from, c.left, c.limit), "%+v", c)
	}
}

func TestALengthIsThatBetweenTwoWindowsThatBegan(t *testing.T) {
	l := newLength()
	l.hear(0, 0, 0, 50)
	require.EqualValues(t, -1, l.opened)
	l.hear(5, 5, 49, 50) // the first window began after 0
	require.Zero(t, l.opened)
	require.Equal(t, meter.MaxCount, l.most)
	l.hear(8, 8, 0, 50)
	l.hear(8, 8, 49, 50) // the request left when the response before came: it was counted later
	require.EqualValues(t, 8, l.most)
	require.EqualValues(t, 8, l.opened)
	first := newLength()
	first.hear(5, 5, 49, 50)
	require.EqualValues(t, -1, first.opened, "nothing was told before")
}

func TestAPaceCountsFromWhenRequestsBegan(t *testing.T) {
	a, g, _ := newFamilies()
	burst(t, g, 100*second, 10)
	end := refuse(t, a, g, 102*second)
	require.InDelta(t, 10e9/float64(end-100*second), a.pace.rate, 1e-9, "the wait counts, the time before does not")
}

func TestAnAdaptiveLimitNeedsNoPace(t *testing.T) {
	a, g, _ := newFamilies()
	a.Cover(&Own{Rate: 0, Fastest: 0, Adaptive: true})
	burst(t, g, second, 10)
	refuse(t, a, g, 2*second)
	require.Zero(t, a.pace.rate)
}

// After a window that ran dry, one request asks what is left, although others hang.
func TestARequestAsksAtTheResetThoughAnotherHangs(t *testing.T) {
	_, g, _ := newFamilies()
	asks(t, g, 0, core(10, 2, 60*second))
	sends(t, g, 1, 2)
	g.Answered(2, 1, true, []Tell{core(10, 0, 60*second)})
	requireReady(t, g, 2, 60*second)
	sends(t, g, 60*second, 1)
	requireWaits(t, g, 60*second)

	_, g, _ = newFamilies()
	for range 2 {
		g.Take(0, 0, 1, false)
	}
	none := core(10, 0, 60*second)
	none.Reserve = 10
	g.Answered(0, 0, true, []Tell{none})
	requireWaits(t, g, 60*second) // all of the next window is reserved, too
}

// The rest of a quota that ran dry before is spread, less what is reserved or on its way: over half of the time until the
// reset, because that may be told late, but over a second if there is as much, and over ten seconds at most.
func TestARestIsSpreadUntilTheReset(t *testing.T) {
	for left, over := range map[int64]int64{second / 2: second / 2, second: second, 3 * second / 2: second, 6 * second: 3 * second,
		20 * second: 10 * second, 3600 * second: 10 * second} {
		_, g, _ := newFamilies()
		asks(t, g, 0, core(10, 0, 60*second))
		tell := core(10, 9, 60*second+left)
		tell.Reserve = 3
		asks(t, g, 60*second, tell)
		requireReady(t, g, 60*second, 60*second+over/7)
		sends(t, g, 60*second+over/7, 1)
		rest := left - over/7
		requireReady(t, g, 60*second+over/7, 60*second+over/7+min(10*second, max(rest/2, min(rest, second)))/6)
	}
}

func TestAResponseOfThePreviousWindowIsToldByItsReset(t *testing.T) {
	for name, c := range map[string]struct {
		sentAt  meter.Instant
		left    int64
		reset   meter.Instant
		refused bool
		told    int64
	}{
		"of the previous window":      {59 * second, 5, 64 * second, false, 10},
		"lower":                       {59 * second, 4, 64 * second, false, 10},
		"more than it had":            {59 * second, 6, 64 * second, false, 6},
		"a later reset":               {59 * second, 5, 64*second + 1, false, 5},
		"a refusal":                   {59 * second, 5, 64 * second, true, 5},
		"to a request after it began": {60 * second, 5, 63 * second, false, 5},
	} {
		a, g, _ := newFamilies()
		asks(t, g, 0, core(10, 5, 60*second))
		sends(t, g, c.sentAt, 1)
		require.EqualValues(t, 9, g.Tokens(60*second), "its window is over")
		tell := core(10, c.left, c.reset)
		tell.Refused = c.refused
		g.Answered(62*second, c.sentAt, true, []Tell{tell})
		require.Equal(t, c.told, a.quotas[0].told, name)
	}
}

func TestNewsOfTheSameBalanceBeginsNoWindow(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(100, 5, 30*second))
	asks(t, g, 1, core(100, 5, 31*second))
	require.Equal(t, 30*second, a.quotas[0].reset)
	asks(t, g, 2, core(100, 6, 31*second))
	require.Equal(t, 31*second, a.quotas[0].reset)
}

func TestAQuotaWithoutAResetIsForgottenAfterAnHour(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, second, core(100, 5, meter.Never))
	a.quota(second+quotaStale, "other")
	require.True(t, a.Knows("core"))
	a.quota(second+quotaStale+1, "another")
	require.False(t, a.Knows("core"))
}

func TestAStateNamesTheUnitOfAQuota(t *testing.T) {
	a, g, _ := newFamilies()
	points := core(100, 40, 60*second)
	points.Unit = "points"
	asks(t, g, 0, points)
	sends(t, g, second, 3)
	_, quotas := a.State(second)
	require.Equal(t, []State{{Name: "core", Unit: "points", Limit: 100, Left: 40, InFlight: 3, Reset: 60 * second}}, quotas)
	asks(t, g, 2*second, core(-1, 40, 60*second))
	_, quotas = a.State(2 * second)
	require.Empty(t, quotas[0].Unit)
	a, g, _ = newFamilies()
	asks(t, g, 0, core(-1, 40, 60*second))
	_, quotas = a.State(60 * second)
	require.Equal(t, []State{{Name: "core", Limit: -1, Left: -1, Reset: meter.Never}}, quotas, "nothing is known of the next window")
}

// A request that asks although nothing is left brings news, even if it leaves at the instant of the last response.
func TestARequestThatAsksBringsNews(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 1, core(50, 0, meter.Never))
	sends(t, g, 1, 1)
	require.Zero(t, g.Tokens(1))
	requireWaits(t, g, 1)
	g.Answered(2, 1, true, []Tell{core(50, 3, 9*second)})
	require.EqualValues(t, 3, a.quotas[0].told)

	a, g, _ = newFamilies()
	asks(t, g, 1, core(50, 0, meter.Never))
	sends(t, g, 1, 1)
	g.Take(1, 1, 1, true) // does not wait for the response, and so asks nothing
	require.EqualValues(t, 1, a.quotas[0].told)
	g.Take(1, 1, 1, true)
	require.EqualValues(t, -2, g.Tokens(1))
}

func TestALengthIsForgottenIfTheOldWindowGoesOn(t *testing.T) {
	for left, reset := range map[int64]meter.Instant{5: 18 * second, 6: 15 * second} {
		a, g, _ := newFamilies()
		asks(t, g, 0, core(10, 5, 10*second))
		a.quotas[0].length.most = 5 * second
		asks(t, g, 10*second, core(10, left, 18*second))
		require.Equal(t, reset, a.quotas[0].reset, "%d left", left)
	}
}

// A window ran dry unless an eighth of the limit was left at its end; an idle window says nothing about the next.
func TestAWindowThatRanDryCountsForTheNextOne(t *testing.T) {
	for at, scarce := range map[meter.Instant]bool{121 * second: true, 121*second + 1: false} {
		a, g, _ := newFamilies()
		asks(t, g, 0, core(10, 0, 60*second))
		asks(t, g, 60*second, core(10, 0, 120*second))
		g.Tokens(at)
		require.Equal(t, scarce, a.quotas[0].scarce, "used last at 60 s, in a window of 60 s, and now it is %d", at)
	}
	a, g, _ := newFamilies()
	asks(t, g, 0, core(100, 0, meter.Never))
	asks(t, g, 1, core(100, 50, meter.Never))
	require.True(t, a.quotas[0].scarce)
	asks(t, g, 2, core(100, 100, meter.Never))
	require.False(t, a.quotas[0].scarce)
}

// Requests that a limit of the client's own covers are stopped by an empty quota only; others by those on their way, too.
func TestOnlyALimitOfTheClientCovers(t *testing.T) {
	for _, c := range []struct {
		own               float64
		adaptive, covered bool
	}{{0, false, false}, {1e-9, false, true}, {0, true, true}} {
		a, g, _ := newFamilies()
		a.Cover(&Own{Rate: c.own, Fastest: c.own, Adaptive: c.adaptive})
		asks(t, g, 0, core(10, 1, 60*second))
		sends(t, g, second, 1)
		require.Equal(t, c.covered, g.Payable(second, 1))
	}
}

func TestAHoldIsTakenBackUnlessAnotherHasCome(t *testing.T) {
	a, _, _ := newFamilies()
	a.Hold(0, second)
	first := a.Until()
	a.Hold(0, 10*second)
	later := a.Until()
	a.TakeBack(0, first)
	require.Equal(t, later, a.Until())
	a.TakeBack(first, later)
	require.Equal(t, first, a.Until())
}

func TestForgettingEndsAHoldThatLasts(t *testing.T) {
	a, _, _ := newFamilies()
	a.Hold(0, second)
	end := a.Until()
	a.Forget(end)
	require.Zero(t, a.set, "nothing was lifted: a refusal of a request that left during the hold is news")
	require.Equal(t, end, a.Until())
	a.Hold(end, second)
	a.Forget(end + 1)
	require.Equal(t, end+1, a.Until())
	require.Equal(t, end+1, a.set)
}
