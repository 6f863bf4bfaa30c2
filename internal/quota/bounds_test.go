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
		"a hold of the server":  func(a *Account, _ *Gate) { a.Refused(0, -1, 1, true) },
		"a pace":                func(a *Account, _ *Gate) { a.Cover(10, false); a.Backoff(0, 0, 0) },
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
	a.Cover(50, false)
	a.Backoff(10*second, 9*second, 0)
	a.answered(10*second, true)
	require.Equal(t, 1, a.refusals, "it left before the row began")
	a.answered(10*second+1, false)
	require.Equal(t, 1, a.refusals)
	a.answered(10*second+1, true)
	require.Zero(t, a.refusals)

	a.Backoff(20*second, 19*second, 2)
	a.answered(20*second, false)
	require.EqualValues(t, 1, a.older)
	a.answered(20*second, true) // it was on its way when the row began
	require.Zero(t, a.refusals)
	require.Zero(t, a.older)

	a.Backoff(30*second, 29*second, 1)
	a.answered(30*second, false)
	a.answered(30*second, false)
	require.Zero(t, a.older)
	a.answered(30*second, true)
	require.Equal(t, 1, a.refusals, "all that were on their way were refused")
}

func TestASecondRefusalMakesARowAfterASecond(t *testing.T) {
	for _, c := range []struct {
		after    meter.Instant
		refusals int
	}{{second - 1, 1}, {second, 2}} {
		a, _, _ := newFamilies()
		a.Cover(50, false)
		a.Backoff(10*second, 9*second, 1)
		a.Backoff(10*second+c.after, 10*second+1, 1)
		require.Equal(t, c.refusals, a.refusals, c.after)
	}
}

func TestOnlyNewsBeginsAPace(t *testing.T) {
	a, g, _ := newFamilies()
	refuse(t, a, g, 0) // the first instant there is
	require.NotZero(t, a.pace.rate)
	before := a.pace.rate
	a.Refused(second, a.set, second, false)
	require.Equal(t, before, a.pace.rate, "the request left when the hold was set, not later")
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
}

// A server that tells a reset of now has begun a window, or tells its resets wrongly.
func TestAnEmptyQuotaThatResetsNowWaitsASecond(t *testing.T) {
	_, g, _ := newFamilies()
	asks(t, g, second, core(50, 0, 10*second))
	g.Take(second+1, second+1, 1, true) // as one that left before it was known
	g.Answered(2*second, second+1, true, []Tell{core(50, 0, 2*second)})
	requireReady(t, g, 2*second, 3*second)

	_, g, _ = newFamilies()
	asks(t, g, second, core(50, 40, 10*second))
	asks(t, g, 2*second, core(50, 0, 2*second))
	requireReady(t, g, 2*second, 2*second) // no window ran dry: the next response tells
}

func TestALimitOfZeroLeavesNothing(t *testing.T) {
	_, g, _ := newFamilies()
	asks(t, g, 0, core(0, 5, 10*second))
	requireReady(t, g, 0, 10*second)
}

func TestAPartOfAQuotaIsReservedIfItsLimitIsKnown(t *testing.T) {
	_, g, _ := newFamilies()
	asks(t, g, 0, core(100, 60, 60*second))
	require.Equal(t, second, g.PlanLeaving(second, 0, 0, 10, .5))
	require.Equal(t, 60*second, g.PlanLeaving(second, 0, 0, 11, .5))
	require.Equal(t, second, g.PlanLeaving(second, 0, 0, 60, 0))
	_, g, _ = newFamilies()
	asks(t, g, 0, core(-1, 60, 60*second))
	require.Equal(t, second, g.PlanLeaving(second, 0, 0, 60, .5))
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
	refuse(t, a, g, 102*second)
	require.InDelta(t, 5, a.pace.rate, 1e-9, "10 in two seconds")
}

func TestAnAdaptiveLimitNeedsNoPace(t *testing.T) {
	a, g, _ := newFamilies()
	a.Cover(0, true)
	burst(t, g, second, 10)
	refuse(t, a, g, 2*second)
	require.Zero(t, a.pace.rate)
}
