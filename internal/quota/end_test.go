package quota

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

// While nothing is left, requests wait for the end.
func TestWhenTheNextRequestLeavesAfterTheLastOfAWindow(t *testing.T) {
	const now = 10*second + 100*milli
	for name, c := range map[string]struct {
		end, at meter.Instant
	}{
		"a far end":           {600 * second, 600 * second},
		"a near one":          {11*second + 500*milli, 11*second + 500*milli},
		"no known end":        {meter.Never, now + firstRetry},
		"an end that is over": {now, now + firstRetry},
		"an end in no time":   {now + 1, now + 1},
	} {
		t.Run(name, func(t *testing.T) {
			a, g, _ := newFamilies()
			asks(t, g, 9*second+500*milli, core(50, 1, c.end))
			q := only(t, a)
			n := sends(t, g, 10*second, 1)
			answer(g, n, 10*second, now, true, core(50, 0, c.end))
			requireReady(t, g, now, c.at)
			sends(t, g, c.at, 1)
			requireWaits(t, g, c.at) // the others wait for its response
			require.True(t, q.scarce)
			require.Zero(t, q.backoff)
		})
	}
}

// The first after the end may be too early, which the next windows are, too.
func TestAfterTheEndOneRequestAsksLessAndLessOften(t *testing.T) {
	a, g, _ := newFamilies()
	for range 100_000 {
		a.lately.Add(0, 1, 0)
	} // fast enough not to delay one that asks
	asks(t, g, 0, core(50, 0, 10*second))
	q := only(t, a)
	now := 10 * second
	for i, c := range []struct {
		backoff, late int64
		ends          bool // the next request leaves at the end
	}{
		{firstRetry, second / 2, false},
		{firstRetry, second / 2, true}, // the window ends later now
		{2 * firstRetry, second, false},
		{2 * firstRetry, second, true},
		{4 * firstRetry, second, false},
		{8 * firstRetry, second, false},
		{16 * firstRetry, second, false},
		{second, second, false},
		{2 * second, second, false},
	} {
		refuses(t, g, now, empty(50, 10*second))
		require.Equal(t, c.backoff, q.backoff, "refusal %d", i)
		require.EqualValues(t, c.late, q.more, "refusal %d", i)
		require.Equal(t, 10*second+c.late, q.end())
		if c.ends {
			requireReady(t, g, now, q.end())
			now = q.end()
		} else {
			now = requireRetry(t, g, q, now, c.backoff)
		}
	}
	asks(t, g, now, core(50, 0, 10*second))
	require.Equal(t, second/2, q.backoff, "a quarter")
	requireReady(t, g, now, now+second/2)
	now += second / 2
	asks(t, g, now, core(50, 20, now+10*second))
	require.Equal(t, second/8, q.backoff)
}

func TestWithoutAnEndOneRequestAsksLessAndLessOften(t *testing.T) {
	a, g, _ := newFamilies()
	for range 100_000 {
		a.lately.Add(0, 1, 0)
	} // fast enough not to delay one that asks
	asks(t, g, 0, core(50, 0, meter.Never))
	requireReady(t, g, 0, firstRetry)
	now := firstRetry
	parts := make(map[int64]bool)
	for wait := firstRetry; wait <= 64*second; wait *= 2 {
		refuses(t, g, now, empty(50, meter.Never))
		at := requireRetry(t, g, only(t, a), now, wait)
		parts[4*(at-now)/wait] = true
		now = at
	}
	require.Len(t, parts, 2, "quarters of the backoff, at random")
}

// Even a trusted client keeps its reserve for other clients.
func TestTheReserveIsKeptUntilTheEnd(t *testing.T) {
	_, g, _ := newFamilies()
	kept := func(left int64, reset meter.Instant) Figures {
		c := core(100, left, reset)
		c.Reserve = 40
		return c
	}
	asks(t, g, 0, kept(42, 60*second))
	sends(t, g, 1, 2)
	require.False(t, g.Payable(2, 1))
	require.Zero(t, g.Tokens(2))
	answer(g, 2, 1, 3, true, kept(41, 60*second))
	answer(g, 3, 1, 3, true, kept(40, 60*second))
	requireReady(t, g, 3, 60*second)
	sends(t, g, 60*second, 1)
	requireWaits(t, g, 60*second)
	answer(g, 4, 60*second, 60*second, true, kept(99, 70*second))
	require.EqualValues(t, 59, g.Tokens(60*second))

	_, g, _ = newFamilies()
	asks(t, g, 0, kept(40, 2*second))
	requireReady(t, g, 0, 2*second) // as if it were nothing

	a, g, _ := newFamilies()
	a.cover(&Own{Rate: 10, Fastest: 10})
	asks(t, g, 0, kept(40, 60*second))
	requireReady(t, g, 3, 60*second)
	a, g, _ = newFamilies()
	a.cover(&Own{Rate: 10, Fastest: 10})
	asks(t, g, 0, core(100, 0, 60*second))
	requireReady(t, g, 3, 3) // it is trusted

	_, g, _ = newFamilies()
	c := core(100, 5, meter.Never)
	c.Reserve = -7
	asks(t, g, 0, c)
	require.EqualValues(t, 5, g.Tokens(0))
}

// After a window that ran dry, what is left is spread over the time until the end, ten seconds at most.
func TestWhatIsLeftIsSpreadAfterAWindowRanDry(t *testing.T) {
	for name, c := range map[string]struct {
		left, reserve, inFlight int64
		end                     meter.Instant
		at                      meter.Instant
	}{
		"over five seconds":       {9, 0, 0, 65 * second, 60*second + second/2},
		"over ten":                {9, 0, 0, 70 * second, 61 * second},
		"over ten at most":        {9, 0, 0, 70*second + 1000, 61 * second},
		"less a reserve":          {9, 5, 0, 65 * second, 61 * second},
		"less what is on its way": {9, 0, 5, 65 * second, 61 * second},
		"without an end":          {9, 0, 0, meter.Never, 60 * second},
		"nearly at the end":       {9, 0, 0, 60*second + 10, 60*second + 1},
	} {
		a, g, _ := newFamilies()
		asks(t, g, 0, core(10, 0, 60*second))
		next := core(10, c.left, c.end)
		next.Reserve = c.reserve
		asks(t, g, 60*second, next)
		only(t, a).inFlight, only(t, a).lates, only(t, a).seen = c.inFlight, [3]int64{}, 3
		at, sure := g.next(60*second, 1)
		require.Equal(t, c.at, at, name)
		require.True(t, sure, name)
		only(t, a).scarce = false
		at, _ = g.next(60*second, 1)
		require.Equal(t, 60*second, at, name)
	}
	_, g, _ := newFamilies()
	asks(t, g, 0, core(10, 0, 60*second))
	asks(t, g, 60*second, core(10, 9, 65*second))
	require.Equal(t, 65*second, g.Ready(65*second, 0, 1), "the window has ended")
	require.Equal(t, 65*second-1, g.Ready(65*second-1, 0, 1))
	require.Equal(t, 64*second, g.Ready(64*second, 0, 1))
}

// Until three windows have shown how late ends are reported, what is left is spread over a second less, or over half of the time.
func TestWhatIsLeftIsSpreadOverASecondLessAtFirst(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(10, 0, 60*second))
	asks(t, g, 60*second, core(10, 9, 65*second))
	q := only(t, a)
	q.lates = [3]int64{}
	for q.seen = range int8(4) {
		gap := 4 * second / 9 // so the last one leaves after 4 s, which may be the end
		if q.seen == 3 {
			gap = 5 * second / 10
		}
		require.Equal(t, 60*second+gap, g.Ready(60*second, 0, 1))
	}
	q.seen, q.reset = 0, 61*second+second/2
	require.Equal(t, 60*second+3*second/4/9, g.Ready(60*second, 0, 1), "half of the time")
}

// A response to an older request can be the one that reports that nothing is left, and one that does not name the quota can use it up.
func TestWhateverUsesUpAQuotaStopsRequests(t *testing.T) {
	_, g, _ := newFamilies()
	asks(t, g, 0, core(50, 2, 60*second))
	sends(t, g, second, 2)
	answer(g, 3, second, second+1, true, core(50, 1, 60*second))
	answer(g, 2, second, second+2, true, core(50, 0, 60*second))
	requireReady(t, g, second+2, 60*second)

	_, g, _ = newFamilies()
	asks(t, g, 0, core(50, 1, 60*second))
	n := sends(t, g, second, 1)
	denies(g, n, second, second)
	require.True(t, g.Payable(second, 1)) // one is left
	asks(t, g, second)
	requireReady(t, g, second, 60*second)
	denies(g, g.Take(3*second, 3*second, 1, false), 3*second, 3*second)
	requireReady(t, g, 3*second, 60*second)
}

// Refusals of requests that left together double the wait once, and no wait is longer than 64 s.
func TestABurstOfRefusalsIsOneEvent(t *testing.T) {
	for name, reset := range map[string]meter.Instant{"without an end": meter.Never, "at the end": second} {
		a, g, _ := newFamilies()
		asks(t, g, 0, core(50, 40, reset))
		sends(t, g, second, 30)
		for i := range int64(30) {
			answer(g, 2+i, second, second+milli, false, empty(50, reset))
		}
		q := only(t, a)
		requireRetry(t, g, q, second+milli, firstRetry)
		require.LessOrEqual(t, int64(q.more), second/2, name)
		for now := g.Ready(2*second, 0, 1); q.backoff < 64*second; now = g.Ready(now, 0, 1) {
			refuses(t, g, now, empty(50, meter.Never))
		}
		now := g.Ready(q.try, 0, 1)
		refuses(t, g, now, empty(50, meter.Never))
		requireRetry(t, g, q, now, 64*second)
	}
}

// A refusal that asks for a wait is followed by that, and by the backoff.
func TestTheBackoffBeginsAfterTheWaitThatARefusalAsksFor(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(50, 0, second))
	q, now := only(t, a), second
	for _, backoff := range []int64{firstRetry, 2 * firstRetry, 4 * firstRetry} {
		n := g.Take(now, now, 1, false)
		h := Hints{Limited: true, Asked: true, Wait: time.Duration(5 * second)}
		g.apply(&Report{Reading: Reading{Hints: &h, empty: true, named: true, figures: []Figures{empty(50, now)}}, Sent: now, Number: n}, now)
		require.Equal(t, now+5*second, q.held)
		require.Equal(t, backoff, q.backoff)
		require.Greater(t, q.try, q.held+backoff/2)
		require.LessOrEqual(t, q.try, q.held+backoff)
		requireReady(t, g, now, q.try)
		now = q.try
	}
}

// What a refusal past the end adds is for that window. Whether it was right, others may hide: they use up the next one.
func TestARefusalPastTheEndIsNoNewsOfTheNextWindow(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(50, 0, 10*second))
	refuses(t, g, 10*second, empty(50, 20*second))
	require.Equal(t, 10*second+second/2, only(t, a).end())
	asks(t, g, 12*second, core(50, 5, 20*second))
	require.Equal(t, 20*second, only(t, a).end())
	require.Zero(t, only(t, a).seen)
	q := only(t, a)
	q.lates[0], q.seen, q.more = second, 1, int32(second)
	require.Equal(t, 21*second, only(t, a).end(), "a second, at most")
}

// An end that is reported to be earlier is earlier for the request that waits, too.
func TestARequestWaitsNoLongerThanUntilTheEarliestEnd(t *testing.T) {
	_, g, _ := newFamilies()
	asks(t, g, 0, core(50, 3, 200*second))
	sends(t, g, 0, 3)
	answer(g, 2, 0, 1, false, empty(50, 200*second))
	require.Equal(t, 200*second, g.Plan(1, 0, 1))
	answer(g, 3, 0, 2, false, core(50, 1, 60*second))
	answer(g, 4, 0, 3, false, empty(50, 200*second))
	requireReady(t, g, 3, 60*second)
}

// A quota whose unit is not requests bounds them only while it is empty.
func TestAnotherUnitShowsOnlyWhenNothingIsLeft(t *testing.T) {
	_, g, _ := newFamilies()
	c := core(1000, 20, 60*second)
	c.Unit, c.Counted = "tokens", false
	asks(t, g, 0, c)
	require.True(t, g.Open(0))
	require.Equal(t, math.Inf(1), g.Tokens(0))
	c.Left = 0
	asks(t, g, second, c)
	require.False(t, g.Open(second))
	require.Zero(t, g.Tokens(second))
}

// What a response says of the client's own limits counts for it already.
func TestTheFirstRefusalOfAnAdaptiveLimitIsItsOwn(t *testing.T) {
	a, g, _ := newFamilies()
	n := sends(t, g, 0, 1)
	rep := &Report{Number: n, Own: Own{Adaptive: true}}
	rep.Hints, rep.empty, rep.named = &Hints{Limited: true, Wait: 10 * time.Second}, true, true
	rep.figures = []Figures{empty(50, 10*second)}
	g.apply(rep, 0)
	require.Zero(t, only(t, a).held)
}

// A client with limits of its own is trusted until a request is refused, unless one of its limits learns.
func TestATrustedClientIsStoppedOnlyAfterARefusal(t *testing.T) {
	for name, c := range map[string]struct {
		own     Own
		trusted bool
	}{
		"limits of its own": {Own{Rate: 10, Fastest: 10}, true}, "one that learns": {Own{Rate: 10, Fastest: 10, Adaptive: true}, false},
		"none": {Own{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			a, g, _ := newFamilies()
			a.cover(&c.own)
			asks(t, g, 0, core(50, 1, 60*second))
			sends(t, g, second, 1)
			require.Equal(t, c.trusted, g.Payable(second, 1))
			answer(g, 2, second, second, true, core(50, 0, 60*second))
			q := only(t, a)
			require.Equal(t, !c.trusted, q.scarce)
			if !c.trusted {
				requireReady(t, g, second, 60*second)
				return
			}
			requireReady(t, g, second, second)
			asks(t, g, 60*second, core(50, 49, 120*second))
			requireReady(t, g, 60*second, 60*second) // nothing is spread
			passes(g, 61*second, core(50, 48, 120*second))
			refuses(t, g, 62*second, empty(50, 120*second))
			require.True(t, q.scarce)
			requireReady(t, g, 62*second, 120*second)
		})
	}
}

// Two accepted responses in a row after each of which nothing is left contradict a server before the end.
func TestTwoContradictionsInARowEndTheBeliefInAQuota(t *testing.T) {
	for name, c := range map[string]struct {
		sent          meter.Instant
		first, second int64 // what is left
		refused       bool
		own           float64
		stopped       bool
	}{
		"a contradiction":        {20 * second, 0, 0, false, 10, false},
		"something was left":     {20 * second, 1, 0, false, 10, true},
		"something is left":      {20 * second, 0, 1, false, 10, true},
		"refused":                {20 * second, 0, 0, true, 10, true},
		"just before the end":    {60*second - 1, 0, 0, false, 10, false},
		"at the end":             {60 * second, 0, 0, false, 10, true},
		"one without own limits": {20 * second, 0, 0, false, 0, false},
	} {
		a, g, _ := newFamilies()
		a.cover(&Own{Rate: c.own, Fastest: c.own})
		asks(t, g, 0, core(50, 3, 60*second))
		refuses(t, g, second, empty(50, 60*second))
		q := only(t, a)
		require.True(t, q.scarce)
		passes(g, c.sent-milli, core(50, c.first, 60*second))
		figures := core(50, c.second, 60*second)
		figures.Refused = c.refused
		answer(g, g.Take(c.sent, c.sent, 1, false), c.sent, c.sent, !c.refused, figures)
		require.Equal(t, c.stopped, q.believed(), name)
		require.Equal(t, c.stopped, !g.Open(c.sent+1), name)
	}
}

// A response that does not name a quota may have been counted by it.
func TestAResponseThatDoesNotNameAQuota(t *testing.T) {
	const now = 5 * second
	tokens := Figures{Name: "core", Limit: 100, Left: 10, Reset: 60 * second, Unit: "tokens"}
	for name, c := range map[string]struct {
		figures  Figures
		sent     meter.Instant
		accepted bool
		left     int64
		reset    meter.Instant
	}{
		"leaves one less":                  {core(100, 10, 60*second), second, true, 9, 60 * second},
		"leaves nothing":                   {core(100, 1, 60*second), second, true, 0, 60 * second},
		"leaves no less than nothing":      {core(100, 0, 60*second), second, true, 0, 60 * second},
		"is refused, by something else":    {core(100, 10, 60*second), second, false, 10, 60 * second},
		"is refused, although one is left": {core(100, 1, 60*second), second, false, 1, 60 * second},
		"of a new window":                  {core(100, 10, 3*second), 3 * second, true, 100, meter.Never},
		"just before a new window":         {core(100, 10, 3*second), 3*second - 1, true, 9, 3 * second},
		"after nothing was left":           {core(100, 0, meter.Never), firstRetry, true, 100, meter.Never},
		"before the end":                   {core(100, 0, 60*second), 2 * second, true, 0, 60 * second},
		"of another unit":                  {tokens, second, true, 10, 60 * second},
		"of an unknown limit":              {core(-1, 10, 3*second), 3 * second, true, 10, meter.Never},
		"of one that is not known yet":     {core(-1, meter.MaxCount, 60*second), second, true, meter.MaxCount, 60 * second},
	} {
		a, g, _ := newFamilies()
		asks(t, g, 0, c.figures)
		q := only(t, a)
		q.backoff = 5
		n := g.Take(c.sent, c.sent, 1, false)
		if c.accepted {
			answer(g, n, c.sent, now, true)
		} else {
			denies(g, n, c.sent, now)
		}
		require.Equal(t, c.left, q.left, name)
		require.Equal(t, c.reset, q.reset, name)
		if turned := c.reset == meter.Never; turned {
			require.Equal(t, []int64{1, c.sent}, []int64{q.newest.n, q.newest.sent}, name)
			require.Zero(t, q.backoff, name)
		}
		require.Zero(t, q.inFlight, name)
	}

	a, g, _ := newFamilies()
	asks(t, g, 0, core(100, 10, 60*second))
	asks(t, g, 1)
	asks(t, g, 2, core(100, 8, 60*second))
	require.Zero(t, only(t, a).flow.back, "it has counted as one")

	_, g, _ = newFamilies()
	asks(t, g, 0, core(100, 0, 60*second))
	denies(g, g.Take(2*second, 2*second, 1, false), 2*second, 2*second)
	requireReady(t, g, 2*second, 60*second) // the empty one has probably refused it
	a, g, _ = newFamilies()
	kept := core(100, 2, 60*second)
	kept.Reserve = 2
	asks(t, g, 0, kept)
	denies(g, g.Take(1, 1, 1, false), 1, 1)
	require.Zero(t, only(t, a).left, "nor is there anything for others")
	a, g, _ = newFamilies()
	asks(t, g, 0, core(100, 10, 60*second))
	sends(t, g, 1, 1)
	ends(g, 1, 2, false) // no response came
	require.EqualValues(t, 10, only(t, a).left)
}

// How much a request costs is not known of other units. Responses show it.
func TestWhatRequestsCostInAnotherUnitIsLearned(t *testing.T) {
	a, g, _ := newFamilies()
	used := Figures{Name: "tokens", Unit: "tokens", Limit: 1000, Left: 990, Reset: 60 * second}
	asks(t, g, 0, used)
	for i := range int64(8) {
		used.Left -= 100
		asks(t, g, (i+1)*second, used)
	}
	require.True(t, g.Payable(10*second, 1))
	sends(t, g, 10*second, 1)
	requireReady(t, g, 11*second, 60*second) // as it has probably used what is left
	require.EqualValues(t, 190, only(t, a).left)
}

// After a restart it is not known what requests cost, but that nothing is left.
func TestAnEmptyQuotaOfAnotherUnitIsRestored(t *testing.T) {
	for _, left := range []int64{0, 1} {
		a, g, _ := newFamilies()
		a.Restore(0, &Figures{Name: Unnamed, Unit: "tokens", Limit: 1000, Left: left, Reset: 60 * second})
		requireReady(t, g, second, map[int64]meter.Instant{0: 60 * second, 1: second}[left])
	}
}

// A client with limits of its own is right about what requests cost, until it is refused.
func TestOwnLimitsAreTrustedAboutAnotherUnit(t *testing.T) {
	for _, refused := range []bool{false, true} {
		a, g, _ := newFamilies()
		own := Own{Rate: 1, Fastest: 1}
		report := func(now meter.Instant, c Figures, accepted bool) {
			n := g.Take(now, now, 1, false)
			h := &Hints{Limited: !accepted}
			g.apply(&Report{Reading: Reading{Hints: h, figures: []Figures{c}, empty: c.Refused}, Sent: now, Number: n, Accepted: accepted, Done: accepted, Own: own}, now)
		}
		nothing := Figures{Name: "tokens", Unit: "tokens", Limit: 1000, Left: 0, Reset: 60 * second}
		report(0, nothing, true)
		report(1, nothing, true)
		require.True(t, g.Payable(2, 1))
		if nothing.Refused = refused; refused {
			report(2, nothing, false)
			require.Equal(t, 60*second, g.Ready(3, 0, 1))
			require.True(t, a.units.refused)
		}
	}
}

func TestAnEndThatIsReportedWithARefusalOnlyStopsNothing(t *testing.T) {
	a, g, _ := newFamilies()
	refuses(t, g, second, empty(50, 60*second))
	q := only(t, a)
	require.False(t, q.served)
	at, sure := q.next(2*second, 1)
	require.Equal(t, 2*second, at)
	require.True(t, sure)
	require.False(t, q.bounds(1))
	require.False(t, q.stops(2*second))
	asks(t, g, a.Until(), core(50, 0, 60*second))
	require.True(t, q.stops(60*second-1))
	require.False(t, q.stops(60*second))
}
