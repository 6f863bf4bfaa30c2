package quota

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

func TestRequestsInFlightMayBeCounted(t *testing.T) {
	_, g, _ := newFamilies()
	asks(t, g, 0, core(100, 3, meter.Never))
	first := sends(t, g, 1, 3) - 2
	requireWaits(t, g, 1)
	answer(g, first, 1, 2, true, core(100, 2, meter.Never))
	requireWaits(t, g, 2) // the other two are still on their way
	g.GiveBack(0, 3, 1)
	requireReady(t, g, 3, 3) // it was not sent, and so not counted
}

// The server may count three requests in another order than they left in, and their responses may come in any order.
func TestTheLeastThatThreeResponsesReportIsLeft(t *testing.T) {
	orders := [][3]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}
	for _, counted := range orders {
		for _, came := range orders {
			a, g, _ := newFamilies()
			asks(t, g, 0, core(100, 10, meter.Never))
			sends(t, g, 1, 3)
			for i, n := range came {
				answer(g, int64(2+n), 1, meter.Instant(10+i), true, core(100, int64(9-counted[n]), meter.Never))
			}
			require.EqualValues(t, 7, only(t, a).left, "counted in the order %v, came in the order %v", counted, came)
			require.EqualValues(t, 7, g.Tokens(20))
		}
	}
}

// A request that left at the instant of the last report may have been counted before those that it reports.
func TestWhatIsLeftRisesOnlyByARequestThatLeftAfterTheLastReport(t *testing.T) {
	for sent, left := range map[meter.Instant]int64{9: 8, 10: 8, 11: 60} {
		a, g, _ := newFamilies()
		asks(t, g, 0, core(100, 9, meter.Never))
		early := sends(t, g, 5, 1)
		late := sends(t, g, sent, 1)
		answer(g, early, 5, 10, true, core(100, 8, meter.Never))
		answer(g, late, sent, 20, true, core(100, 60, meter.Never))
		q := only(t, a)
		require.Equal(t, left, q.left, "sent at %d", sent)
		require.Equal(t, late-1, q.newest.n, "the first left before the quota was known")
		require.Equal(t, sent, q.newest.sent)
		require.Equal(t, map[bool]meter.Instant{true: 20, false: 10}[left == 60], q.leftAt, "sent at %d", sent)
		asks(t, g, 21, core(100, 59, meter.Never))
		require.EqualValues(t, 59, q.left)
	}
}

// A response to an earlier request is about the same window if its end is at most a second earlier.
func TestAResponseToAnEarlierRequestCanOnlyLowerWhatIsLeft(t *testing.T) {
	for name, c := range map[string]struct {
		left     int64
		reset    meter.Instant
		remained int64
		back     float64
	}{
		"more":                       {60, 30 * second, 50, 0},
		"the same":                   {50, 30 * second, 50, 0},
		"less":                       {40, 30 * second, 40, -10},
		"less, a rounding earlier":   {40, 29 * second, 40, -10},
		"less, of the window before": {40, 29*second - 1, 50, 0},
		"less, without an end":       {40, meter.Never, 40, -10},
	} {
		a, g, _ := newFamilies()
		asks(t, g, 0, core(100, 52, 30*second))
		early, late := sends(t, g, 5, 1), sends(t, g, 6, 1)
		answer(g, late, 6, 7, true, core(100, 50, 30*second))
		answer(g, early, 5, 8, true, core(100, c.left, c.reset))
		q := only(t, a)
		require.Equal(t, c.remained, q.left, name)
		require.Equal(t, c.back, q.flow.back, name)
		require.Equal(t, map[bool]meter.Instant{true: 8, false: 7}[c.remained < 50], q.leftAt, name)
		require.Equal(t, late-1, q.newest.n, name)
		require.Equal(t, 30*second, q.reset, name)
	}

	a, g, _ := newFamilies()
	asks(t, g, 0, core(100, 50, meter.Never))
	sends(t, g, 4, 3)
	answer(g, 2, 4, 5, true, core(100, 40, meter.Never))
	answer(g, 4, 4, 6, true, core(100, 48, meter.Never)) // the latest, but not of one that left after the report
	answer(g, 3, 4, 7, true, core(100, 45, meter.Never))
	require.EqualValues(t, 40, only(t, a).left, "this is lower than the latest reports, but not the lowest")
	require.EqualValues(t, 5, only(t, a).leftAt)
}

// Responses that overtake each other look as if requests came back, until the ones that were overtaken come.
func TestABurstWhoseResponsesComeInAnyOrderUsesUpAWindow(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		a, g, _ := newFamilies()
		asks(t, g, second, core(50, 49, 10*second))
		asks(t, g, second+milli, core(50, 48, 10*second))
		sent := second + 2*milli
		sends(t, g, sent, 48)
		requireWaits(t, g, sent)
		now := sent
		for _, i := range r.Perm(48) {
			require.False(t, g.Payable(now, 1), "seed %d", seed)
			now += 1 + r.Int64N(milli)
			answer(g, int64(3+i), sent, now, true, core(50, int64(47-i), 10*second))
		}
		require.Zero(t, only(t, a).left, "seed %d", seed)
		require.Zero(t, only(t, a).refills(), "seed %d", seed)
		requireReady(t, g, now, 10*second)
	}
}

// Requests of the account that fall under other quotas are not counted, as far as 64 requests back.
func TestTheNumberOfARequestIsThatAmongThoseOfItsQuota(t *testing.T) {
	a, x, y := newFamilies()
	sends(t, x, 0, 10) // before the quota was known
	asks(t, x, 1, core(1000, 500, meter.Never))
	q := only(t, a)
	require.Zero(t, q.newest.n)
	sends(t, x, 2, 4)
	sends(t, y, 3, 12) // they fall under another
	sends(t, x, 4, 2)
	for n, number := range map[int64]int64{8: 0, 11: 0, 12: 1, 15: 4, 16: 4, 27: 4, 28: 5, 29: 6, 30: 6} {
		require.Equal(t, number, q.before(n), "%d", n)
	}
	x.GiveBack(28, 5, 1)
	require.EqualValues(t, 5, q.sent)
	for n, number := range map[int64]int64{27: 4, 28: 4, 29: 5} {
		require.Equal(t, number, q.before(n), "%d", n)
	}
	sends(t, y, 6, 62)
	require.EqualValues(t, 4, q.before(27))
	require.EqualValues(t, 5, q.before(29))
	sends(t, x, 7, 64)
	require.EqualValues(t, 5, q.before(91), "64 requests have left since")
	require.EqualValues(t, 4, q.before(90), "as if it were one of those")
	sends(t, y, 8, 48)
	require.EqualValues(t, 69-48, q.before(a.sent-96), "others that have left since do not count")
	require.EqualValues(t, 69-64-8, q.before(a.sent-48-64-8), "all of the last 64 are, and so of those before")
}

func TestAQuotaStopsOnlyFamiliesWhoseResponsesNamedIt(t *testing.T) {
	_, search, repos := newFamilies()
	none := core(30, 0, 60*second)
	none.Name = "search"
	asks(t, search, 0, none)
	asks(t, repos, 0, core(5000, 4000, 3600*second))
	require.False(t, search.Payable(1, 1))
	requireReady(t, repos, 1, 1)
	asks(t, repos, 2, core(5000, 4000, 3600*second), none)
	require.False(t, repos.Payable(3, 1), "its requests have it from now on")
}

func TestAQuotaCountsRequestsInFlightAtAllItsGates(t *testing.T) {
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
