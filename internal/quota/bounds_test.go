package quota

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

// This file tests the accounts and quotas of servers at the exact bounds of their rules.

func TestARowOfRefusalsEndsWithAResponseToALaterRequest(t *testing.T) {
	a, _, _ := newFamilies()
	a.cover(&Own{Rate: 50, Fastest: 50})
	a.backOff(&refusal{at: 10 * second, sent: 9 * second, bare: NotBare, kind: Refused})
	a.answered(11*second, 10*second, Done)
	require.EqualValues(t, 1, a.refusals, "it left before the row began")
	a.answered(11*second, 10*second+1, Nothing)
	require.EqualValues(t, 1, a.refusals)
	a.answered(11*second, 10*second+1, Done)
	require.Zero(t, a.refusals)
}

func TestOnlyNewsBeginsAPace(t *testing.T) {
	a, g, _ := newFamilies()
	burst(t, g, 0, 10)
	refuse(t, a, g, 0) // the first instant there is
	require.NotZero(t, a.pace.rate)
	before := a.pace.rate
	a.refused(&refusal{at: second, sent: a.set, wait: second, kind: Refused})
	require.Equal(t, before, a.pace.rate, "the request left when the hold was set, not later")

	a, g, _ = newFamilies()
	burst(t, g, second, 10)
	refuse(t, a, g, 2*second)
	a.refused(&refusal{at: 2 * second, sent: 2 * second, wait: second, kind: Refused})
	require.InDelta(t, 10, a.pace.rate, 1e-9, "one refusal of two that left together")
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

func TestAPaceCountsFromWhenRequestsBegan(t *testing.T) {
	a, g, _ := newFamilies()
	burst(t, g, 100*second, 10)
	refuse(t, a, g, 102*second)
	require.InDelta(t, 5, a.pace.rate, 1e-9, "neither the time before nor the wait counts")
}

func TestAnAdaptiveLimitNeedsNoPace(t *testing.T) {
	a, g, _ := newFamilies()
	a.cover(&Own{Rate: 0, Fastest: 0, Adaptive: true})
	burst(t, g, second, 10)
	refuse(t, a, g, 2*second)
	require.Zero(t, a.pace.rate)
}

func TestAQuotaWithoutAResetIsForgottenAfterAnHour(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, second, core(100, 5, meter.Never))
	a.quota(second+quotaStale, "other")
	require.True(t, a.knows("core"))
	a.quota(second+quotaStale+1, "another")
	require.False(t, a.knows("core"))
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

func TestAHoldIsTakenBackUnlessAnotherHasCome(t *testing.T) {
	a, _, _ := newFamilies()
	a.Hold(0, second)
	first := a.Until()
	a.Hold(0, 10*second)
	later := a.Until()
	a.takeBack(hold{0, first})
	require.Equal(t, later, a.Until())
	a.takeBack(hold{first, later})
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
