package quota

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

// shared returns a gate under a quota of 80 requests until a minute later, of which others take as many for each of the client's. Of it,
// left are left.
func shared(t testing.TB, others, left int64) (g *Gate, q *quota, now meter.Instant) {
	t.Helper()
	a, g, _ := newFamilies()
	asks(t, g, 0, core(80, left+8*(1+others), 60*second))
	for i := range int64(8) {
		now += milli
		passes(g, now, core(80, left+(7-i)*(1+others), 60*second))
	}
	return g, only(t, a), now
}

func TestRequestsOfOthersAreWhatTheClientDidNotSend(t *testing.T) {
	for others, want := range []int64{0, 1, 1, 2, 3, 3} { // the sum of eight responses gives less and less weight to earlier ones
		_, q, _ := shared(t, int64(others), 10)
		require.Equal(t, want, q.others(), "%d", others)
	}
	for back, want := range map[float64]int64{8: 0, 0: 0, -3.9: 0, -4: 1, -11.9: 1, -12: 2} {
		require.Equal(t, want, (&flow{back: back}).others(), "%v", back)
	}
}

// Several clients that each see one left send several.
func TestTheLastRequestsAreLeftToOthers(t *testing.T) {
	for _, c := range []struct{ others, left, reserve, free int64 }{
		{0, 10, 0, 10}, {2, 10, 0, 8}, {2, 3, 0, 1}, {2, 2, 0, 0}, {2, 1, 0, -1}, {100, 12, 0, 2}, {2, 10, 5, 3},
	} {
		g, q, now := shared(t, 0, c.left)
		q.flow.back, q.reserve = float64(-8*c.others), c.reserve
		q.dry(now)
		require.Equal(t, c.free, q.free(), "%+v", c)
		require.Equal(t, c.free > 0, g.Payable(now, 1), "%+v", c)
		require.Equal(t, c.free <= 0, q.empty(), "%+v", c)
	}
}

// If less is left than is sent between two requests of the client, its next one is sent in the next window.
func TestAClientSendsSlowerWhereOthersUseAQuota(t *testing.T) {
	for _, c := range []struct {
		others, left int64
		slower       float64
		wait         int64 // after the last request
	}{
		{0, 40, 1, 10 * second / 40},
		{15, 50, 4, second}, // of these, ten are for others: an eighth at most
		{15, 14, 4, 10 * second},
		{15, 13, 4, 10*second + second/8},
		{15, 12, 4, 10*second + second/4},
		{15, 11, 4, 10*second + 3*second/8},
		{3, 43, 2, second / 2},
	} {
		a, g, _ := newFamilies()
		asks(t, g, 0, core(80, 0, 10*second))
		passes(g, 10*second, core(80, c.left, 20*second))
		q := only(t, a)
		q.scarce, q.flow.back = true, float64(-8*c.others)
		if c.others == 0 { // else the end may be a second early
			q.seen, q.lates = 3, [3]int64{}
			q.left--
		}
		require.Equal(t, c.slower, q.slower(), "%+v", c)
		require.Equal(t, 10*second+c.wait, g.Ready(10*second, 0, 1), "%+v", c)
	}
}

// A clock that is wrong reports an end that is past. Windows end up to a second later than reported, so this one has not ended.
func TestNoRequestIsDueBeforeItCanBeSentWhereAnEndIsReportedThatIsPast(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(4, 0, 10*second))
	q := only(t, a)
	q.seen, q.lates = 3, [3]int64{second, second, second}
	const now = 20 * second
	passes(g, now, core(4, 1, now-9*second/10))
	q.scarce, q.flow.back = true, -8*4
	g.Take(now, now, 1, false)
	require.Equal(t, now+second/10, q.end())
	at, _ := q.next(now, 0)
	require.Equal(t, q.end(), at)
}

// A quarter of a request for each of the client's may be by chance.
func TestFewRequestsOfOthersAreNone(t *testing.T) {
	q := new(quota)
	for back, want := range map[float64]float64{0: 1, 8: 1, -2: 1, -8 * 0.44: 1.2} {
		q.flow.back = back
		require.InDelta(t, want, q.slower(), 1e-9, "%v", back)
		require.Equal(t, want > 1, q.shared(), "%v", back)
	}
}

// The next window is used by others, too, also before a response has shown it.
func TestRequestsAfterTheEndOfASharedWindowAreSentOneByOne(t *testing.T) {
	for others, wait := range map[int64]int64{0: 0, 15: second / 2} {
		a, g, _ := newFamilies()
		asks(t, g, 0, core(80, 0, 10*second))
		passes(g, 10*second, core(80, 40, 20*second))
		q := only(t, a)
		q.scarce, q.flow.back = true, float64(-8*others)
		g.Take(20*second, 20*second, 1, false)
		require.Equal(t, 20*second+wait, g.Ready(20*second, 0, 1), "%d", others)
	}
}

// A request that is refused shows that others have used what was left.
func TestARefusalShowsWhatOthersHaveUsed(t *testing.T) {
	for others, want := range []int64{0, 3} {
		a, g, _ := newFamilies()
		asks(t, g, 0, core(80, 0, 60*second))
		passes(g, 60*second, core(80, 16, 120*second))
		q := only(t, a)
		q.flow = flow{back: float64(-8 * others)}
		answer(g, g.Take(61*second, 61*second, 1, false), 61*second, 61*second, false, empty(80, 120*second))
		require.Equal(t, want, q.others())
	}
}

// The first response of a window shows what others have used of it. Without others, it shows nothing of them.
func TestTheFirstResponseOfAWindowShowsWhatOthersHaveUsed(t *testing.T) {
	for others, want := range []int64{0, 3} {
		a, g, _ := newFamilies()
		asks(t, g, 0, core(80, 0, 60*second))
		q := only(t, a)
		q.flow = flow{back: float64(-8 * others)}
		passes(g, 60*second, core(80, 60, 120*second))
		require.Equal(t, want, q.others())
	}
}

// Others may have used up the next window, so the client asks again within the time of one.
func TestTheBackoffAtASharedWindowIsNoLongerThanIt(t *testing.T) {
	for others, longest := range map[int64]int64{0: 64 * second, 2: 10 * second} {
		a, g, _ := newFamilies()
		asks(t, g, 0, core(80, 0, 10*second))
		passes(g, 10*second, core(80, 79, 20*second))
		q, waited := only(t, a), int64(0)
		for now := 20 * second; now < 900*second; now = q.try {
			q.flow.back = float64(-8 * others)
			answer(g, g.Take(now, now, 1, false), now, now, false, empty(80, now))
			require.Greater(t, q.try, now)
			waited = max(waited, q.try-now)
		}
		require.LessOrEqual(t, waited, longest)
		require.Greater(t, waited, longest-second)
	}
}

// No client is always the first in the next window.
func TestWhereOthersUseAQuotaTheNextWindowBeginsAtARandomTime(t *testing.T) {
	var last meter.Instant
	for range 20 {
		g, q, now := shared(t, 2, 1)
		q.account.dice = meter.Dice(last)
		passes(g, now, core(80, 0, 60*second))
		at := g.Ready(now, 0, 1)
		require.NotEqual(t, last, at)
		require.GreaterOrEqual(t, at, 60*second)
		require.Less(t, at, 61*second)
		last = at
	}
}

// In a short window, a time in whole seconds does not show that others began it before.
func TestAShortWindowThatOthersUsedBeganBefore(t *testing.T) {
	for name, c := range map[string]struct {
		others, left int64
		span         int64
		early        int64
	}{
		"it was not used":       {2, 79, 2 * second, 0},
		"half is used":          {2, 39, 2 * second, second / 4},
		"nearly all":            {2, 1, 2 * second, 2 * second / 4 * 78 / 80},
		"half of a short one":   {2, 39, second, second / 8},
		"half of a longer one":  {2, 39, 2*second + 1, 0},
		"no others":             {0, 39, 2 * second, 0},
		"more than the limit":   {2, 80, 2 * second, 0},
		"of a second, and some": {2, 59, second, second / 16},
	} {
		g, q, _ := shared(t, 0, 0)
		q.flow.back = float64(-8 * c.others)
		const now = 61 * second
		passes(g, now, core(80, c.left, now+c.span))
		if c.left == 80 { // it was counted in the window before
			require.Equal(t, meter.Never, q.reset, name)
			continue
		}
		require.Equal(t, now+c.span-c.early, q.reset, name)
	}
}

// Others may have used up a window before the client noticed that it had begun.
func TestHowLateASharedWindowSeemsToEndIsNotLearned(t *testing.T) {
	for _, c := range []struct {
		others, late int64
		seen         int8 // windows of which it is learned, beside one before: one whose turn lies within more than a second counts only if it is shared
	}{{0, 3 * second / 4, 2}, {1, 0, 3}} {
		g, q, _ := shared(t, 0, 0)
		q.flow.back = float64(-8 * c.others)
		q.lates, q.seen = [3]int64{0, 0, second / 2}, 1
		passes(g, 60*second-second/4, core(80, 0, 60*second))
		q.more = int32(second / 4)
		passes(g, 60*second+3*second/4, core(80, 79, 120*second))
		require.Equal(t, c.late, q.lates[0])
		require.Equal(t, c.late, q.late())
		passes(g, 119*second, core(80, 0, 120*second))
		q.flow.back = float64(-8 * c.others)
		passes(g, 120*second+second/4, core(80, 79, 180*second))
		require.Equal(t, c.late, q.late())
		require.Equal(t, c.seen, q.seen)
	}
}
