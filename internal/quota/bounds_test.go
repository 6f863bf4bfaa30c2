package quota

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

// This file tests the accounts and quotas of servers at the exact bounds of their rules.

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
	a.takeBack(0, hold{from: 0, to: first})
	require.Equal(t, later, a.Until())
	a.takeBack(0, hold{from: first, to: later})
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
