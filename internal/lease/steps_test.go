package lease

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// This file has the single steps of a meter that is filled by leases.

const now = 1000 * second

func leasedOf(b store.Budget) *Leased { return newLeased(b, Config{Ahead: 10 * time.Millisecond}) }

func kindOf(k store.Kind, n int64) store.Budget {
	return store.Budget{Kind: k, Limit: "l", N: n, Per: time.Second}
}

func bucket(n int64, per time.Duration, burst int64) store.Budget {
	return store.Budget{Kind: store.Bucket, Limit: "l", Key: "k", N: n, Per: per, Burst: burst, Initial: burst}
}

func runOf(n, id int64, start meter.Instant, rate int64) run {
	return run{lot: lot{n, id, meter.Never, start + second}, start: start, rate: meter.Rate{N: rate, Per: time.Second}}
}

// give makes tokens available and promised tokens, as responses do.
func (m *Leased) give(lots []lot, runs ...run) *Leased {
	for _, l := range lots {
		m.add(l)
	}
	m.runs = runs
	m.schedule()
	return m
}

func TestEachKindHasItsMeter(t *testing.T) {
	assert.IsType(t, (*LeasedSlots)(nil), New(store.Budget{Kind: store.Slots, N: 1}, Config{}))
	assert.IsType(t, (*Leased)(nil), New(bucket(1, time.Second, 1), Config{}))
}

func TestLocalCorrectionsAreOwedWhereLocalChargesAre(t *testing.T) {
	m := leasedOf(bucket(100, time.Second, 100))
	m.settleLocal(now, 2, 5)
	assert.EqualValues(t, 3, m.owe, "the store is back")
	m.settleLocal(now, 5, 3)
	assert.EqualValues(t, 1, m.owe)
	m.settleLocal(now, 5, 3)
	assert.Zero(t, m.owe)
	m.local = meter.Unlimited{}
	m.settleLocal(now, 2, 5)
	assert.Zero(t, m.owe, "what passes is not owed")
	m.owing = true
	m.settleLocal(now, 2, 5)
	assert.EqualValues(t, 3, m.owe)
}

func TestReturnsAreJoinedByLease(t *testing.T) {
	m := leasedOf(bucket(100, time.Second, 100))
	m.returns(store.Return{Tokens: 1, Lease: 20}, now)
	m.returns(store.Return{Tokens: 2, Lease: 30}, now+1)
	m.returns(store.Return{Tokens: 4, Lease: 20}, now+2)
	assert.Equal(t, []store.Return{{Tokens: 5, Lease: 20}, {Tokens: 2, Lease: 30}}, m.back)
	assert.Equal(t, now, m.since, "the first one waits the longest")
	for i := range int64(14) {
		m.returns(store.Return{Tokens: 1, Lease: 50 - i}, now)
	}
	require.Len(t, m.back, maxReturns)
	m.returns(store.Return{Tokens: 8, Lease: 10}, now)
	require.Len(t, m.back, maxReturns)
	assert.Equal(t, []store.Return{{Tokens: 13, Lease: 10}, {Tokens: 2, Lease: 30}, {Tokens: 1, Lease: 37}}, m.back[:3], "the two earliest")
}

func TestDebtsAreBounded(t *testing.T) {
	for b, most := range map[store.Budget]int64{
		bucket(10, time.Second, 5):                            600,
		bucket(10, time.Hour, 5):                              5,
		kindOf(store.Sliding, 7):                              28,
		kindOf(store.Pace, 10):                                600,
		{Kind: store.Pace, Limit: "l", N: 10, Per: time.Hour}: 10,
	} {
		m := leasedOf(b)
		m.owes(0, now)
		assert.Equal(t, meter.Never, m.since, "nothing to report")
		m.owes(meter.MaxCount, now)
		assert.Equal(t, most, m.owe, "%v", b)
	}
}

func TestAnAskComesWhenItIsOfUse(t *testing.T) {
	m := leasedOf(bucket(1000, time.Second, 1000))
	m.use, m.spare, m.again = 10./float64(10*ms), now+3, now+2
	require.EqualValues(t, 10, m.target())
	m.give([]lot{{4, 1, meter.Never, now + second}})
	assert.Equal(t, now+second, m.AskAt(now, Demand{}), "no token was used since the latest ask")
	m.drawn = 1
	assert.Equal(t, now+3, m.AskAt(now, Demand{}), "less than half of what is leased ahead")
	m.give([]lot{{1, 1, meter.Never, now + second}})
	assert.Equal(t, now+second, m.AskAt(now, Demand{}), "half of it")
	assert.False(t, m.Low())
	m.draw(4)
	m.give(nil, runOf(4, 1, now+second, 1))
	assert.False(t, m.Low(), "1 available and 4 promised")

	m = leasedOf(bucket(1000, time.Second, 1000))
	m.local = meter.Unlimited{}
	assert.Equal(t, meter.Never, m.AskAt(now, Demand{}))
	m.drawn = 1
	assert.Equal(t, now, m.AskAt(now, Demand{}), "what a local meter paid is reported")
}

// A promise for a time far away may be outdated by then: others gave tokens back, or have set a hold.
func TestAFarPromiseIsCheckedAgain(t *testing.T) {
	m := leasedOf(bucket(1, time.Second, 10))
	due := now + 400*second
	m.lead = 10 * time.Millisecond
	m.give([]lot{{2, 1, meter.Never, meter.Never}}, run{lot: lot{2, 1, meter.Never, meter.Never}, start: due - second, rate: meter.Rate{N: 1, Per: time.Second}})
	asks := func(asked meter.Instant) meter.Instant {
		m.asked = asked
		return m.AskAt(asked, Demand{First: 4, All: 4, Until: meter.Never})
	}
	m.news = now
	at := asks(now)
	assert.Equal(t, now+int64(m.recheck()), at)
	assert.Equal(t, now+17*5*second, asks(now+5*second), "the longer it has waited, the later")
	assert.Equal(t, due-10*ms, asks(now+85*second), "before it uses them")
	m.news = now + 100*second
	at = asks(now + 100*second)
	assert.Equal(t, now+100*second+int64(m.recheck()), at, "it got others")
	assert.Equal(t, due-10*ms, asks(due-10*second-1))
	assert.Equal(t, meter.Never, asks(due-10*second))
	assert.Equal(t, meter.Never, m.AskAt(now, Demand{First: 2, All: 2, Until: meter.Never}), "they are there")
	m.news = now
	m.asked = now
	p := m.Ask(now+5*second, Demand{First: 4, All: 9, Until: meter.Never})
	assert.Zero(t, p.Need+p.Want, "it only asks")
}

func TestAnAskSaysWhatIsMissing(t *testing.T) {
	m := leasedOf(bucket(1000, time.Second, 1000))
	m.use = 1
	p := m.Ask(now, waiting(1))
	assert.Equal(t, store.MaxSince, p.Since, "of the first ask")
	assert.Zero(t, p.Ahead)

	ask := func(have, drawn int64, d Demand) (store.Part, *Leased) {
		m := leasedOf(bucket(1000, time.Second, 1000))
		m.asked, m.use, m.drawn = now-10*ms, 100./float64(10*ms), drawn
		m.give([]lot{{have, 1, meter.Never, meter.Never}})
		return m.Ask(now, d), m
	}
	p, _ = ask(3, 0, Demand{})
	assert.Equal(t, store.Part{Budget: p.Budget, Horizon: p.Horizon, Since: 10 * time.Millisecond}, p, "no request waits, and none was granted")
	p, m = ask(3, 5, Demand{})
	assert.Equal(t, m.target()-3, p.Ahead)
	p, m = ask(3, 0, waiting(1))
	assert.Equal(t, m.target()-2, p.Ahead)
	p, m = ask(3, 0, waiting(7))
	assert.Equal(t, m.target(), p.Ahead)
	assert.EqualValues(t, 4, p.Want)
	assert.EqualValues(t, 1, p.Need)
	p, _ = ask(3, 0, waitingOf(3, 1))
	assert.Zero(t, p.Want)
	assert.Zero(t, p.Need, "all is available")
	p, _ = ask(3, 0, Demand{First: 3, All: 5})
	assert.EqualValues(t, 1, p.Need, "of those behind the first")
	p, _ = ask(3, 0, Demand{First: 5, All: 9})
	assert.EqualValues(t, 2, p.Need)
	assert.Zero(t, p.Within)
	p, _ = ask(3, 0, Demand{First: 5, All: 9, Until: now + 7})
	assert.EqualValues(t, 7, p.Within)
}

func TestTheRateOfUseIsAMean(t *testing.T) {
	m := leasedOf(bucket(1000, time.Second, 1000))
	m.use, m.drawn = 8, int64(meanOver)
	m.measure(meanOver)
	assert.Equal(t, 4.5, m.use)
	m.measure(0)
	assert.Equal(t, 4.5, m.use)
}

func TestPromisesThatAreNotUsedInTimeGoBack(t *testing.T) {
	m := leasedOf(bucket(1000, time.Second, 1000))
	m.give(nil, run{lot: lot{2, 1, meter.Never, now}, start: now + 9, rate: meter.Rate{N: 1, Per: 1}},
		run{lot: lot{3, 2, meter.Never, now + 1}, start: now + 9, rate: meter.Rate{N: 1, Per: 1}})
	m.drop(now)
	assert.Equal(t, []store.Return{{Tokens: 2, Lease: 1}}, m.back)
	require.Len(t, m.runs, 1)
	assert.EqualValues(t, 2, m.runs[0].id)
}

func TestAResponseSetsWhenToAskAgain(t *testing.T) {
	booked := func(p store.LeasedPart) *Leased {
		m := leasedOf(bucket(1000, time.Second, 1000))
		m.Booked(now-ms, now, store.Part{Budget: m.budget, Need: 2, Want: 4}, p)
		return m
	}
	m := booked(store.LeasedPart{Tokens: 2, AtOnce: 2})
	assert.Equal(t, now, m.again)
	assert.Equal(t, now+10*ms, m.spare, "there are no more")
	assert.Equal(t, 7*time.Millisecond, m.lead)
	assert.Empty(t, m.runs)
	assert.Equal(t, now, booked(store.LeasedPart{Tokens: 4, AtOnce: 4}).again)
	assert.Equal(t, now+10*ms, booked(store.LeasedPart{Tokens: 4, AtOnce: 4}).spare)
	assert.Zero(t, booked(store.LeasedPart{Tokens: 5, AtOnce: 5}).spare)
	assert.Equal(t, now+7*ms, booked(store.LeasedPart{Wait: 7 * time.Millisecond}).again)
	assert.Equal(t, now+ms, booked(store.LeasedPart{Wait: 1}).again, "a millisecond at least")
	m = booked(store.LeasedPart{Wait: time.Hour})
	assert.Equal(t, now+int64(m.recheck()), m.again)

	m = booked(store.LeasedPart{Tokens: 2, Next: 5})
	assert.Empty(t, m.lots)
	require.Len(t, m.runs, 1)
	assert.Equal(t, now+5, m.runs[0].start)
	assert.Empty(t, m.back)
}

// Promised tokens are traded for those that others gave back, if that is worth it.
func TestFarPromisesAreTraded(t *testing.T) {
	horizon := leasedOf(bucket(1, time.Second, 9)).config.Horizon
	traded := func(tokens int64, next time.Duration, left float64) bool {
		m := leasedOf(bucket(1, time.Second, 9))
		m.Booked(now, now, store.Part{Budget: m.budget, Need: 1, Want: tokens}, store.LeasedPart{Tokens: tokens, Next: next, Left: left})
		return len(m.back) > 0
	}
	assert.True(t, traded(2, horizon+1, -1))
	assert.False(t, traded(2, horizon, -1), "within the horizon")
	assert.False(t, traded(2, horizon+1, -1.1), "not one token is left")
	assert.False(t, traded(0, horizon+1, 5), "nothing is promised")
}

func TestTheStoreIsAskedAgainAboutEveryFiveSeconds(t *testing.T) {
	for processes, mean := range map[int]time.Duration{0: 5 * time.Second, 10: 5 * time.Second, 20: 10 * time.Second} {
		m := leasedOf(bucket(1, time.Second, 9))
		m.latest.processes = processes
		least, most := time.Duration(meter.Never), time.Duration(0)
		for m.asked = 0; m.asked < 1000; m.asked++ {
			least, most = min(least, m.recheck()), max(most, m.recheck())
		}
		assert.GreaterOrEqual(t, least, mean*3/4)
		assert.Less(t, most, mean*5/4)
		assert.Less(t, least, mean*4/5)
		assert.Greater(t, most, mean*6/5)
	}
}

func TestAFleetAsksAtDifferentInstantsAfterAWindow(t *testing.T) {
	after := func(p store.LeasedPart) *Leased {
		m := leasedOf(kindOf(store.Fixed, 10))
		m.again = now
		m.ends(now-ms, now, p)
		return m
	}
	m := after(store.LeasedPart{Until: time.Second, Wait: time.Hour})
	assert.Equal(t, now-ms+second, m.latest.ends)
	assert.Equal(t, now, m.again)
	assert.Equal(t, now, after(store.LeasedPart{}).latest.ends)
	assert.Equal(t, now, after(store.LeasedPart{}).again)
	m = after(store.LeasedPart{Wait: time.Second + time.Millisecond})
	assert.Equal(t, now+second, m.latest.ends)
	assert.GreaterOrEqual(t, m.again, now+second)
	assert.Less(t, m.again, now+second+spreadOver)
	later := leasedOf(kindOf(store.Fixed, 10))
	later.ends(now, now+5*ms, store.LeasedPart{Wait: time.Second})
	assert.Equal(t, m.again, later.again, "whatever the latency")
	m.trip, m.least = 20*time.Millisecond, 18*time.Millisecond
	assert.Equal(t, later.again+4*ms, m.opens(now+second), "an ask does not come before the window if latencies differ")
	m = after(store.LeasedPart{Wait: time.Hour, Hold: time.Hour})
	assert.Equal(t, now, m.again, "see Booked")
	m.latest.ends = now + second
	m.ends(now, now, store.LeasedPart{})
	assert.Equal(t, now+second, m.latest.ends, "what is known of the window stays")
}

func TestAHoldWithoutAResponseIsReportedAgainWhileItCounts(t *testing.T) {
	for _, c := range []struct{ before, want holds }{
		{holds{sent: -1}, holds{lifted: true}},
		{holds{sent: -1, hold: now + 5}, holds{lifted: true, hold: now + 5}},
		{holds{}, holds{}},
		{holds{sent: now}, holds{}},
		{holds{sent: now + 1}, holds{hold: now + 1}},
		{holds{sent: now + 1, lifted: true}, holds{lifted: true}},
		{holds{sent: now + 1, hold: now + 5}, holds{hold: now + 5}},
		{holds{sent: now + 5, hold: now + 1}, holds{hold: now + 5}},
	} {
		h := c.before
		assert.Equal(t, c.want != holds{}, h.failed(now), "%+v", c)
		h.sent = 0
		assert.Equal(t, c.want, h, "%+v", c)
	}
	var h holds
	h.booked(now, 0)
	assert.Zero(t, h.HeldUntil())
	h.booked(now, 3)
	assert.Equal(t, now+3, h.HeldUntil())
}

func TestAResponseMayHaveEachNumberThatWasAskedFor(t *testing.T) {
	asked := store.Part{Need: 1, Want: 5, Ahead: 2}
	for _, p := range []store.LeasedPart{{}, {Tokens: 7, AtOnce: 7}, {Tokens: 7}, {Left: -3}} {
		assert.NoError(t, Check(&p, &asked), "%+v", p)
	}
}

func TestRunsThatOverflowAreDueAtTheEnds(t *testing.T) {
	r := run{lot: lot{n: 5}, rate: meter.Rate{N: 1 << 60, Per: 1}}
	assert.EqualValues(t, 5, r.due(16), "2^64 tokens")
	r = run{lot: lot{n: 5}, taken: 1 << 32, rate: meter.Rate{N: 1, Per: 1 << 32}}
	assert.Equal(t, meter.Never, r.dueAt(1), "2^64 ns")
}

func TestLotsOfOneLeaseAreOne(t *testing.T) {
	m := leasedOf(bucket(1, time.Second, 9))
	m.add(lot{1, 7, now + 9, now + 5})
	m.add(lot{2, 7, now + 9, now + 3})
	assert.Equal(t, []lot{{3, 7, now + 9, now + 5}}, m.lots)
	m.add(lot{1, 8, now, now})
	m.add(lot{1, 8, now + 1, now})
	assert.Len(t, m.lots, 3)
	assert.EqualValues(t, 5, m.have)
}

func TestTokensAreVoidAtTheirInstant(t *testing.T) {
	m := leasedOf(kindOf(store.Fixed, 9))
	m.give([]lot{{1, 7, now, now}, {2, 8, now + 1, now}}, run{lot: lot{1, 7, now, now}, start: now + 5, rate: meter.Rate{N: 1, Per: 1}})
	m.advance(now - 1)
	assert.EqualValues(t, 3, m.have)
	assert.Len(t, m.runs, 1)
	m.advance(now)
	assert.EqualValues(t, 2, m.have)
	assert.Len(t, m.lots, 1)
	assert.Empty(t, m.runs)
	m.GiveBack(8, now, 1)
	assert.EqualValues(t, 3, m.have)
}

func TestOnlyTokensThatAreDueBecomeALot(t *testing.T) {
	m := leasedOf(bucket(1, time.Second, 9))
	m.give(nil, runOf(2, 1, now, 1), runOf(2, 2, now+5, 1))
	_, ok := m.Spend(now-1, 1)
	assert.False(t, ok)
	id, ok := m.Spend(now, 1)
	assert.True(t, ok, "at the instant")
	assert.EqualValues(t, 1, id)
	assert.Empty(t, m.lots)
	assert.Equal(t, now+5, m.next)
	m.advance(now + 5)
	assert.Len(t, m.lots, 1)
}

func TestAHeldBudgetPaysNothing(t *testing.T) {
	m := leasedOf(bucket(1, time.Second, 9)).give([]lot{{5, 1, meter.Never, meter.Never}})
	m.set(now, now+2)
	_, ok := m.Spend(now+1, 1)
	assert.False(t, ok)
	_, ok = m.Spend(now+2, 1)
	assert.True(t, ok)
}

func TestTokensAreDrawnInOrder(t *testing.T) {
	m := leasedOf(bucket(1, time.Second, 9)).give([]lot{{2, 5, meter.Never, meter.Never}, {3, 4, meter.Never, meter.Never}})
	assert.EqualValues(t, 5, m.draw(1))
	assert.EqualValues(t, 4, m.draw(2), "the earlier of two leases")
	assert.Equal(t, []lot{{2, 4, meter.Never, meter.Never}}, m.lots)
	assert.EqualValues(t, 4, m.draw(2))
	assert.Empty(t, m.lots)
	assert.Zero(t, m.have)
	assert.EqualValues(t, 5, m.drawn)

	m = leasedOf(kindOf(store.Pace, 1)).give([]lot{{1, 9, meter.Never, meter.Never}}, runOf(2, 8, now+3, 1), runOf(3, 7, now+2, 1))
	assert.EqualValues(t, 7, m.draw(3), "of a pace, promised tokens too")
	require.Len(t, m.runs, 2)
	assert.EqualValues(t, 1, m.runs[1].n)
	assert.EqualValues(t, 2, m.runs[1].taken)
	assert.EqualValues(t, 8, m.draw(2), "the next that is due is of lease 8")
	require.Len(t, m.runs, 1)
	assert.EqualValues(t, 7, m.runs[0].id)
}

func TestReadyIsTheInstantOfTheLastToken(t *testing.T) {
	m := leasedOf(bucket(1, time.Second, 9)).give([]lot{{2, 5, meter.Never, meter.Never}}, runOf(2, 5, now+3*second, 1))
	assert.Equal(t, now, m.Ready(now, 0, 2))
	assert.Equal(t, now, m.Ready(now, 1, 1))
	assert.Equal(t, now+3*second, m.Ready(now, 2, 1))
	assert.Equal(t, now+4*second, m.Ready(now, 2, 2))
	assert.Equal(t, meter.Never, m.Ready(now, 2, 3))
	m.local = meter.Unlimited{}
	assert.Equal(t, now, m.Ready(now, 0, 9))
	assert.Equal(t, meter.Never, m.Ready(now, 0, 10))
}

func TestPlansCountWhatTheStoreHasLeft(t *testing.T) {
	const per = second
	planned := func(k store.Kind, left float64, owe, ahead, cost int64) meter.Instant {
		m := leasedOf(kindOf(k, 10))
		m.latest = response{known: true, sent: now - second, left: left, ends: now + 7}
		m.give([]lot{{1, 1, meter.Never, meter.Never}}, runOf(1, 1, now+9*second, 1))
		m.owe = owe
		return m.Plan(now, ahead, cost)
	}
	// 2 tokens are available or promised, 4 are left, so 5 to 14 wait for the first period.
	assert.Equal(t, now, planned(store.Sliding, 3.2, 0, 5, 1))
	assert.Equal(t, now+7, planned(store.Sliding, 3.2, 0, 15, 1))
	assert.Equal(t, now+7+per, planned(store.Sliding, 3.2, 0, 16, 1))
	assert.Equal(t, now+7+per, planned(store.Sliding, 3.2, 1, 15, 1), "what is owed comes first")
	assert.Equal(t, now, planned(store.Fixed, 3.2, 0, 4, 1))
	assert.Equal(t, now+7, planned(store.Fixed, 3.2, 0, 5, 1))
	assert.Equal(t, now+7, planned(store.Fixed, 3.2, 0, 14, 1))
	assert.Equal(t, now+7+per, planned(store.Fixed, 3.2, 0, 15, 1))
	m := leasedOf(kindOf(store.Fixed, 10))
	m.latest = response{known: true, left: 5, ends: now}
	assert.Equal(t, now, m.Plan(now, 9, 1))
	assert.Equal(t, now+per, m.Plan(now, 10, 1), "what was left of a window that is over is void")
	assert.Equal(t, now, m.Plan(now-1, 14, 1), "and before its end it is not")

	b := leasedOf(bucket(10, time.Second, 5))
	b.latest = response{known: true, sent: now, left: -3}
	assert.InDelta(t, float64(now+4*second/10), float64(b.Plan(now, 0, 1)), 2)
	b.owe = 2
	assert.InDelta(t, float64(now+6*second/10), float64(b.Plan(now, 0, 1)), 2)
	p := leasedOf(kindOf(store.Pace, 10))
	p.latest = response{known: true, sent: now, left: -3}
	assert.InDelta(t, float64(now+6*second/10), float64(p.Plan(now, 2, 7)), 2, "a cost goes with its first token")
}

func TestGivingBackGoesToTheStoreWhereTheLeaseIsOver(t *testing.T) {
	m := leasedOf(kindOf(store.Fixed, 9))
	m.last, m.void = store.LeasedPart{ID: 7}, now
	m.GiveBack(7, now-1, 0)
	assert.Equal(t, meter.Never, m.since, "nothing to report")
	m.GiveBack(7, now-1, 2)
	assert.EqualValues(t, 2, m.have)
	m.draw(2)
	m.GiveBack(7, now, 2)
	assert.Zero(t, m.have)
	assert.Equal(t, []store.Return{{Tokens: 2, Lease: 7}}, m.back)
}

func TestANewMeterNeedNotBeKept(t *testing.T) {
	m := leasedOf(bucket(10, time.Second, 5))
	must, full := m.Matters(now)
	assert.Zero(t, must)
	assert.Zero(t, full)
	m.asked, m.again = now, now+1
	_, full = m.Matters(now)
	assert.Equal(t, now+int64(store.MaxSince), full)
	m.again = now + 20*second
	_, full = m.Matters(now)
	assert.Equal(t, now+20*second, full)
	m.give(nil, runOf(1, 1, now, 1))
	_, full = m.Matters(now)
	assert.Equal(t, meter.Never, full)
}

func TestTokensAreThoseAtHandAndInTheStore(t *testing.T) {
	tokens := func(b store.Budget, w response) float64 {
		m := leasedOf(b)
		m.latest, m.have, m.owe = w, 5, 2
		return m.Tokens(now) - 3
	}
	half := response{known: true, sent: now - second/2, left: 1.5, ends: now + 1}
	b := bucket(10, time.Second, 9)
	b.Initial = 4
	assert.Equal(t, 4.0, tokens(b, response{}))
	assert.Equal(t, 6.5, tokens(b, half))
	assert.Equal(t, 9.0, tokens(b, response{known: true, sent: now - second, left: 1}))
	assert.Equal(t, 1.0, tokens(kindOf(store.Pace, 10), response{}))
	assert.Equal(t, 1.0, tokens(kindOf(store.Pace, 10), half))
	assert.Equal(t, -4.0, tokens(kindOf(store.Pace, 10), response{known: true, sent: now - second/2, left: -9}))
	assert.Equal(t, 10.0, tokens(kindOf(store.Sliding, 10), response{}))
	assert.Equal(t, 1.5, tokens(kindOf(store.Sliding, 10), half))
	assert.Equal(t, 1.5, tokens(kindOf(store.Fixed, 10), half))
	half.ends = now
	assert.Equal(t, 10.0, tokens(kindOf(store.Fixed, 10), half), "the next window has begun")
	assert.Equal(t, 1.5, tokens(kindOf(store.Sliding, 10), half))
}

func TestManyProcessesAskLessOftenForASlidingWindow(t *testing.T) {
	pause := func(per time.Duration, processes int) time.Duration {
		m := leasedOf(store.Budget{Kind: store.Sliding, N: 5, Per: per})
		m.latest.processes = processes
		return m.pause(now, 5)
	}
	assert.Zero(t, pause(6400*time.Millisecond, 1), "alone, it asks when a token comes in")
	for _, processes := range []int{2, 64} {
		assert.Equal(t, 100*time.Millisecond, pause(6400*time.Millisecond, processes))
		assert.Equal(t, 10*time.Second/64, pause(time.Hour, processes), "shares count for 10 s")
	}
	assert.Equal(t, 200*time.Millisecond, pause(6400*time.Millisecond, 128))
	assert.Equal(t, 2*time.Second, pause(64*time.Second, 128))
	assert.Equal(t, 64*time.Second, pause(64*time.Second, 1e6), "the period at most")
}
