package quota

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

func TestAFlowGivesLessWeightToEarlierResponses(t *testing.T) {
	var f flow
	require.Zero(t, f.rate())
	f.add(4, 8)
	require.Equal(t, flow{4, 8, 1}, f)
	f.add(-1, 16)
	require.Equal(t, flow{2.5, 23, 1.875}, f)
	require.InDelta(t, 2.5/23, f.rate(), 1e-15)
}

func TestAFlowNeedsTwoRequestsAndSomeForEachResponse(t *testing.T) {
	for _, c := range []struct {
		f    flow
		rate float64
	}{
		{flow{2, 4, 1}, 0.5}, {flow{1.999, 4, 1}, 0}, {flow{3, 4, 20}, 0.75}, {flow{2.999, 4, 20}, 0}, {flow{3, 0, 1}, 0}, {flow{3, -1, 1}, 0},
	} {
		require.Equal(t, c.rate, c.f.rate(), "%+v", c.f)
	}
}

// bucketed returns an account of which a bucket of 20 gave back a request with each that left, one in half a second, until none was left.
func bucketed(t *testing.T) (*Account, *Gate, meter.Instant) {
	a, g, _ := newFamilies()
	now := second
	asks(t, g, now, core(20, 5, 60*second))
	for range 30 {
		now += second / 2
		asks(t, g, now, core(20, 5, 60*second))
	}
	require.Zero(t, only(t, a).refills(), "it has not run dry")
	require.InDelta(t, 2e-9, only(t, a).flow.rate(), 1e-12)
	now += second / 2
	asks(t, g, now, core(20, 0, 60*second))
	return a, g, now
}

func TestAFlowIsUsedOnceTheQuotaRanDry(t *testing.T) {
	a, g, now := bucketed(t)
	q := only(t, a)
	back, span := q.flow.back, q.flow.span
	require.Equal(t, back/span, q.refills())
	require.False(t, q.ended(60*second), "it goes on after the end")

	at := now + int64(1e9/(flowUsed*1e9*back/span))
	require.Equal(t, at, g.Ready(now, 0, 1), "a little slower than requests come back")
	require.True(t, g.Payable(at, 1))
}

// What is left besides is used until the end, over ten seconds at most and one at least.
func TestARefillingQuotaUsesWhatIsLeftBesides(t *testing.T) {
	for name, c := range map[string]struct {
		left, reserve, inFlight int64
		since                   int64 // the newest response's request, until now
		need                    int64
		end                     meter.Instant
		level                   float64
		over                    int64
	}{
		"nothing left":            {0, 0, 0, 0, 1, meter.Never, -1, second},
		"five left":               {5, 0, 0, 0, 1, meter.Never, 4, second},
		"with a reserve":          {5, 2, 0, 0, 1, meter.Never, 2, second},
		"some in flight":          {5, 0, 3, 0, 1, meter.Never, 1, second},
		"others ahead":            {5, 0, 0, 0, 3, meter.Never, 2, second},
		"an end":                  {5, 0, 0, 0, 1, 104 * second, 4, 4 * second},
		"an end soon":             {5, 0, 0, 0, 1, 100*second + 1, 4, second},
		"a far end":               {5, 0, 0, 0, 1, 600 * second, 4, 10 * second},
		"an end that is over":     {5, 0, 0, 0, 1, 100 * second, 4, second},
		"with what came back":     {5, 0, 0, 2 * second, 1, meter.Never, 6, second},
		"no more than the limit":  {15, 0, 0, 60 * second, 1, meter.Never, 19, second},
		"and less in flight then": {15, 0, 4, 60 * second, 1, meter.Never, 19, second},
	} {
		a, g, _ := newFamilies()
		asks(t, g, 0, core(20, c.left, meter.Never))
		q := only(t, a)
		q.scarce, q.flow, q.last, q.reserve, q.inFlight, q.reset = true, flow{10, 10e9, 10}, 100*second, c.reserve, c.inFlight, c.end
		now := 100 * second
		a.backoff.Sent(now, true)
		q.newest.sent, q.lates, q.seen = now-c.since, [3]int64{}, 3
		at, sure := q.next(now, c.need)
		require.True(t, sure, name)
		require.Equal(t, now+int64(1/(0.95e-9+max(0, c.level)/float64(c.over))), at, name)
	}
}

// A flow is an estimate: two seconds after the last request, or as long as the backoff after refusals, the next one tries.
// A flow is waited for as long as it takes, but no longer than twice the time between the responses that show it, two seconds at least.
func TestASlowFlowIsTriedAfterTwiceTheTimeOfResponses(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(20, 0, meter.Never))
	q := only(t, a)
	q.last, q.newest.sent = 100*second, 100*second
	a.backoff.Sent(100*second, true)
	a.backoff.Learn(60 * second) // as the responses of these flows came
	for _, c := range []struct {
		flow          flow
		backoff, wait int64
	}{
		{flow{2, 600e9, 10}, 0, 120 * second},
		{flow{2, 600e9, 10}, 150 * second, 150 * second},
		{flow{2, 6e9, 10}, 0, 2 * second},
		{flow{2, 6e9, 10}, 5 * second / 2, 5 * second / 2},
	} {
		q.flow, q.backoff = c.flow, c.backoff
		requireReady(t, g, 100*second, 100*second+c.wait)
		require.Equal(t, 300*second, g.Ready(300*second, 0, 1))
	}
	q.flow, q.backoff = flow{10, 600e9, 10}, 0
	require.Equal(t, int64(163_157_894_736), g.Ready(100*second, 0, 1))
}

func TestARefusalHalvesAFlow(t *testing.T) {
	a, g, now := bucketed(t)
	q := only(t, a)
	q.flow = flow{64, 32e9, 8}
	for i, backoff := range []int64{firstRetry, 2 * firstRetry, 4 * firstRetry} {
		last := q.newest.sent
		now = g.Ready(now, 0, 1)
		n, f := sends(t, g, now, 1), q.flow
		answer(g, n, now, now, false, empty(20, 60*second))
		f.add(0, now-last)
		f.back /= 2
		require.Equal(t, f, q.flow, "refusal %d", i)
		require.Zero(t, q.left)
		require.Equal(t, backoff, q.backoff, "refusal %d", i)
	}
	require.Positive(t, q.refills())
	now = g.Ready(now, 0, 1)
	asks(t, g, now, core(20, 0, 60*second))
	require.Equal(t, firstRetry, q.backoff, "a quarter")
}

// One refusal shows that what comes back was used too fast, and only a second one in a row that nothing may come back. Otherwise each request
// but one to a slow bucket is refused.
func TestASlowFlowIsKnownAfterARefusal(t *testing.T) {
	for _, back := range []float64{flowKnown + 1e-9, 3} {
		f := flow{back, 150e9, 8}
		for range 2 {
			require.Positive(t, f.rate())
			f.add(0, 10*second)
			require.True(t, f.refused())
			require.Equal(t, flowKnown, f.back)
			require.Positive(t, f.rate())
			f.add(1, 60*second) // one is accepted
		}
		f.add(0, 10*second)
		require.True(t, f.refused())
		f.add(0, 10*second)
		require.False(t, f.refused())
		require.Zero(t, f.rate())
	}
	f := flow{20, 150e9, 8}
	require.True(t, f.refused())
	require.EqualValues(t, 10, f.back)
}

func TestALimitThatChangesIsThatOfAnotherQuota(t *testing.T) {
	for _, limit := range []int64{20, -1, 21, 19} {
		a, g, now := bucketed(t)
		q := only(t, a)
		now += 10 * second
		passes(g, now, core(limit, 5, 60*second))
		same := limit == 20 || limit < 0
		require.Equal(t, same, q.flow.n > 2, "%d", limit)
		require.Equal(t, map[bool]int64{true: 20, false: limit}[same], q.limit)
		require.Equal(t, q.limit, q.most)
	}
}

func TestOfAnUnknownLimitTheMostThatWasLeftCounts(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(-1, 5, meter.Never))
	asks(t, g, 1, core(-1, 9, meter.Never))
	asks(t, g, 2, core(-1, 8, meter.Never))
	q := only(t, a)
	require.EqualValues(t, 9, q.most)
	require.EqualValues(t, -1, q.limit)
	asks(t, g, 3, core(6, 8, meter.Never))
	require.Equal(t, []int64{6, 6, 6}, []int64{q.limit, q.most, q.left}, "no more than the limit is left")
	asks(t, g, 4, core(math.MaxInt64, math.MaxInt64, meter.Never))
	require.Equal(t, []int64{meter.MaxCount, meter.MaxCount, meter.MaxCount}, []int64{q.limit, q.most, q.left})
	asks(t, g, 5, core(0, 8, meter.Never))
	require.Equal(t, []int64{0, 0, 0}, []int64{q.limit, q.most, q.left})
	asks(t, g, 10*second, core(9, -5, meter.Never))
	require.Zero(t, q.left)
}

// An exact bucket, asked at once by responses in order, is seen to refill at its rate.
func TestARateIsThatOfTheServersBucket(t *testing.T) {
	a, g, _ := newFamilies()
	s := &bucket{rate: 7, burst: 20, level: 20}
	used, refused := drain(g, s, second, 60*second, milli)
	require.InDelta(t, 7e-9, only(t, a).refills(), 1e-9)
	require.GreaterOrEqual(t, used, 0.9*60*7)
	require.LessOrEqual(t, refused, 0.05*used)
}

// The end that a refusal reports holds also for a quota that refills, unless something came back before such an end.
func TestAReportedEndHoldsUnlessSomethingCameBackBefore(t *testing.T) {
	for name, c := range map[string]struct {
		sent, answered meter.Instant // 0: no request is sent before the refusal
		early          bool
	}{
		"nothing is known":                         {},
		"accepted before the end":                  {sent: 30 * second, answered: 30 * second, early: true},
		"a second before, when the end is rounded": {sent: 59 * second, answered: 59 * second},
		"just earlier":                             {sent: 59*second - 1, answered: 59*second - 1, early: true},
		"as late as the report may have been":      {sent: 57 * second, answered: 58 * second},
		"just less late":                           {sent: 57 * second, answered: 58*second - 1, early: true},
	} {
		t.Run(name, func(t *testing.T) {
			a, g, _ := bucketed(t)
			q := only(t, a)
			if c.sent > 0 {
				answer(g, g.Take(c.sent, c.sent, 1, false), c.sent, c.answered, true, core(20, 0, 60*second))
			}
			require.Equal(t, c.early, q.early)
			require.Positive(t, q.refills())
			const now, end = 59 * second, 200 * second
			n := g.Take(now, now, 1, false)
			g.apply(&Report{
				Reading: Reading{Hints: &Hints{Limited: true, Wait: time.Duration(end - now)}, figures: []Figures{empty(20, end)}, named: true, empty: true},
				Sent:    now, Number: n, Own: a.own,
			}, now)
			require.Positive(t, q.refills())
			if c.early {
				require.Zero(t, q.held, "the end is when all is back")
				require.Less(t, g.Ready(now, 0, 1), end)
				return
			}
			requireReady(t, g, now, end)
		})
	}
}

func TestAResetThatHasPassedIsNotShown(t *testing.T) {
	a, g, _ := newFamilies()
	q := g.under(0, "default")
	q.counted, q.served, q.scarce, q.limit, q.most, q.left, q.reset = true, true, true, 20, 20, 5, 5*second
	q.flow = flow{back: 10, span: float64(10 * second), n: 10}
	require.Positive(t, q.refills())
	_, quotas := a.State(5*second - 1)
	require.Equal(t, 5*second, quotas[0].Reset)
	_, quotas = a.State(5 * second)
	require.Equal(t, meter.Never, quotas[0].Reset, "it refills, and is not full all the same")
}

// A quota of one request that is full again before each request shows no rate: requests leave when it is reported to end.
func TestAQuotaOfOneRequestIsUsedAtEachEnd(t *testing.T) {
	_, g, _ := newFamilies()
	one := func(now meter.Instant) Figures { return core(1, 0, now+second) }
	now := second
	asks(t, g, now, one(now))
	passes(g, now+second/2, one(now+second/2))
	refused := one(now + second/2)
	refused.Refused = true
	answer(g, g.Take(now+second/2, now+second/2, 1, false), now+second/2, now+second/2, false, refused)
	for n := range 200 {
		at := g.Ready(now, 0, 1)
		require.LessOrEqual(t, at, now+2*second, "request %d", n)
		if n > 2 {
			require.Equal(t, now+second, at, "request %d", n)
		}
		now = at
		asks(t, g, now, one(now))
	}
}

// A bucket that is full again before each request may refill faster than they were sent, so they become more.
func TestAFullBucketIsTriedTwiceAsFast(t *testing.T) {
	a, g, now := bucketed(t)
	q := only(t, a)
	q.flow = flow{4, 16e9, 1} // one in four seconds
	for range 20 {
		now += 4 * second
		passes(g, now, core(20, 19, now+second))
	}
	require.InDelta(t, 0.5e-9, q.flow.rate(), 0.02e-9)
	now += 4 * second
	passes(g, now, core(20, 18, now+second)) // it was not full, and nothing came back
	require.Less(t, q.flow.rate(), 0.46e-9)
}
