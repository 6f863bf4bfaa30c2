package quota

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/server"
)

// requireBackoff demands that a hold of d begins at now.
func requireBackoff(t *testing.T, a *Account, now meter.Instant, d int64) {
	t.Helper()
	require.GreaterOrEqual(t, a.held, now+d)
	require.LessOrEqual(t, a.held, now+d+min(second, d/10))
}

// turnsAway sends a request that is refused a moment later.
func turnsAway(t *testing.T, g *Gate, at meter.Instant, wait int64, bare Bare) (now meter.Instant) {
	t.Helper()
	require.True(t, g.Payable(at, 1))
	denied(g, g.Take(at, at, 1, true), at, at+milli, wait, bare)
	return at + milli
}

// A first refusal without a wait holds requests for as long as eight of them take at the rate that was accepted.
func TestTheFirstBareRefusalHoldsForTheTimeOfEightRequests(t *testing.T) {
	for accepted, d := range map[int]int64{7: second, 16: second / 2, 32: second / 4, 64: second / 8, 1000: second / 8} {
		a, g, _ := newFamilies()
		burst(t, g, second, accepted)
		sends(t, g, 2*second, 3)
		denied(g, a.sent, 2*second, 2*second, 0, NotBare)
		requireBackoff(t, a, 2*second, d)
		held := a.held
		denied(g, a.sent-1, 2*second, 2*second+1, 0, NotBare)
		denied(g, a.sent-2, 2*second, 2*second+2, 0, NotBare)
		require.Equal(t, held, a.held, "others of the event change nothing")
		rate, why := a.Pace(held)
		assert.InDelta(t, float64(accepted), rate, 1e-6)
		assert.Equal(t, AsBefore, why)
		asks(t, g, held)
		assert.Greater(t, g.Ready(held, 0, 1), held, "one by one")
	}
}

// Each further refusal shows that the server is closed. Until it accepts a request, one at a time asks.
func TestRefusalsInARowHoldForLongerEachTime(t *testing.T) {
	a, g, _ := newFamilies()
	now, dark := turnsAway(t, g, second, 0, NotBare), second
	for n := range 40 {
		wait := a.held - now
		switch {
		case n == 0:
			require.InDelta(t, second, wait, float64(second/10))
		default:
			require.GreaterOrEqual(t, wait, max(2*second, (now-dark)/4)-milli)
			require.LessOrEqual(t, wait, max(64*second, (now-dark)/2))
		}
		require.False(t, g.Payable(a.held-1, 1))
		at := a.held
		require.True(t, g.Payable(at, 1))
		number := g.Take(at, at, 1, true)
		if n > 0 {
			require.Equal(t, meter.Never, g.Ready(at, 0, 1), "it depends on the response")
			require.LessOrEqual(t, g.Plan(at, 0, 1), at)
		}
		denied(g, number, at, at+milli, 0, NotBare)
		now = at + milli
	}
	at := a.held
	require.True(t, g.Payable(at, 1))
	answer(g, g.Take(at, at, 1, true), at, at+milli, true)
	require.Less(t, g.Ready(at+milli, 0, 1), at+2*second)
}

// A server that may be down is asked once a second, for two minutes.
func TestBareStatusesInARowAskOnceASecond(t *testing.T) {
	a, g, _ := newFamilies()
	burst(t, g, 0, 10)
	now := second
	for range 20 {
		denied(g, g.Take(now, now, 1, true), now, now, 0, Unavailable)
	}
	first := a.held
	require.Greater(t, first, now, "eight more than were accepted count")
	for n := 0; a.held < first+100*second; n++ {
		at := a.held
		require.True(t, g.Payable(at, 1))
		denied(g, g.Take(at, at, 1, true), at, at+milli, 0, Unavailable)
		if n > 0 { // the first wait is twice the hold
			require.InDelta(t, 1.1, float64(a.held-at)/1e9, .11)
		}
	}
}

// If another client was quicker, a client that waited longer than asked would never get its turn.
func TestAccountWaitsAsLongAsAskedEachTime(t *testing.T) {
	a, g, _ := newFamilies()
	now := second
	for range 20 {
		now = turnsAway(t, g, now, second, NotBare)
		requireBackoff(t, a, now, second)
		now = g.Ready(now, 0, 1)
		require.Equal(t, a.held, now, "and no longer")
	}
	now = turnsAway(t, g, now, 3600*second, NotBare)
	requireBackoff(t, a, now, a.backoff.Asked(3600*second))
}

// A client with limits of its own is right about the rate more often than about how many requests may come together.
func TestAClientWithLimitsIsTrustedUntilRequestsAreRefusedThatWereSentEvenly(t *testing.T) {
	a, g, _ := newFamilies()
	a.cover(&Own{Rate: 10, Fastest: 50})
	now := turnsAway(t, g, second, 0, NotBare)
	require.LessOrEqual(t, a.Until(), second, "the first one sets no hold")
	requireReady(t, g, now, second+20*milli)
	n := g.Take(second+20*milli, second+25*milli, 1, true) // late
	requireReady(t, g, second+25*milli, second+40*milli)
	answer(g, n, second+20*milli, second+25*milli, true)
	rate, why := a.Pace(now)
	require.Equal(t, 50.0, rate)
	require.Equal(t, OwnLimit, why)
	require.Equal(t, a.even.until+second, fullAt(g), "until then it is not forgotten for nothing")
	require.False(t, a.first.known)
	now = turnsAway(t, g, second+40*milli, 0, NotBare)
	require.False(t, a.first.known, "one of them may be by chance")
	for range evenDoubt {
		now += 20 * milli
		answer(g, g.Take(now, now, 1, true), now, now, true)
	}
	now = turnsAway(t, g, now+20*milli, 0, NotBare)
	require.False(t, a.first.known, "twenty requests later")
	now += 20 * milli
	turnsAway(t, g, now, 0, NotBare)
	require.True(t, a.first.known)
	require.Greater(t, a.Until(), now+100*milli)
}

// A wait costs what could have been sent in it.
func TestAWaitMakesARefusalOfARequestThatWasSentEvenlyCountForLonger(t *testing.T) {
	for wait, requests := range map[int64]int64{0: evenDoubt, 19 * milli: evenDoubt, 20 * milli: 2 * evenDoubt, second: 51 * evenDoubt} {
		for more, wrong := range map[int64]bool{-1: true, 0: false} {
			e := evenly{most: 50}
			require.False(t, e.refused(second, second, 0, 0), "it was not sent evenly")
			require.False(t, e.refused(2*second, 2*second, 2*second+wait, 0), "one may be by chance")
			for i := range requests + more {
				e.take(3*second + i*20*milli)
			}
			require.Equal(t, wrong, e.refused(100*second, 100*second, 101*second, 0), "%d requests after a wait of %d", requests+more, wait)
		}
	}
}

// A limit may be so high that there is no time between two requests.
func TestALimitMayBeHigherThanARequestANanosecond(t *testing.T) {
	e := evenly{most: 1e12}
	e.begin(second, 0)
	require.False(t, e.refused(2*second, 2*second, meter.Never, 0))
	require.Positive(t, e.doubt)
	e.take(3 * second)
	require.Greater(t, e.next, 3*second)
}

// A rate that doubles is used less than it allows, because what was used is a mean. It is not forgotten while requests wait for it.
func TestARateIsKeptWhileRequestsWaitForIt(t *testing.T) {
	a, g, _ := newFamilies()
	now := second
	for range 12 {
		answer(g, g.Take(now, now, 1, false), now, now, true)
		now += 400 * milli
	}
	now = turnsAway(t, g, now, 0, NotBare)
	for i := range 60 {
		now = g.Ready(now, 0, 1)
		n := g.Take(now, now, 1, true)
		require.NotNil(t, a.rate, "request %d", i)
		answer(g, n, now, now+milli, true)
	}
}

// While one request at a time asks, the rate is that of these.
func TestTheRateOfASilenceIsThatOfItsProbes(t *testing.T) {
	a, g, _ := newFamilies()
	burst(t, g, second, 30)
	now := 2 * second
	for range 8 {
		now = turnsAway(t, g, max(now, a.held), 0, NotBare)
	}
	rate, why := a.Pace(now)
	require.Equal(t, Asking, why)
	require.InDelta(t, 1e9/float64(a.held-now), rate, rate/4)
}

// A rate that began with what was accepted stays one, although a rest moves when that was.
func TestTheReasonForARateIsThatOfItsBeginning(t *testing.T) {
	a, g, _ := newFamilies()
	now := second
	for range 20 {
		answer(g, g.Take(now, now, 1, false), now, now, true)
		now += 100 * milli
	}
	turnsAway(t, g, now, second, NotBare)
	now = a.Until() + 3*second
	for range 3 {
		n := g.Take(now, now, 1, true)
		_, why := a.Pace(now)
		require.Equal(t, AsBefore, why)
		answer(g, n, now, now+milli, true)
		now = g.Ready(now+milli, 0, 1)
	}
}

// For ten minutes after each refusal, of which the first half minute is strict.
func TestRequestsOfAKnownLimitLeaveEvenlyAfterEachRefusal(t *testing.T) {
	e := evenly{most: 50}
	e.begin(second, 0)
	require.Equal(t, 601*second, e.until)
	e.begin(500*second, 0)
	require.Equal(t, 1100*second, e.until)
	require.True(t, e.includes(second))
	require.False(t, e.includes(second-1))
	for now, together := range map[meter.Instant]int{530*second - 1: 1, 530 * second: 3, 1100*second - 1: 3} {
		e := e
		e.take(520 * second)
		n := 0
		for e.next <= now {
			e.take(now)
			n++
		}
		require.Equal(t, together, n, now)
	}
	e = evenly{}
	e.cover(&Own{Rate: 0.01, Fastest: 0.01})
	require.Equal(t, evenLeast, e.most, "at most a second apart")
	e.cover(&Own{Rate: 5, Fastest: 50})
	e.cover(&Own{})
	require.Equal(t, 50.0, e.most, "requests without limits of their own fall under the same account")
}

// A limit that learns decides about a refusal, and one that something explains is none of the rate.
func TestNothingIsLearnedWhereSomethingElseDecides(t *testing.T) {
	for name, rep := range map[string]Report{
		"adaptive":      {Own: Own{Adaptive: true}},
		"in flight":     {Own: Own{Slots: true}},
		"explained":     {Verdict: server.Exhausted},
		"by chance":     {Verdict: server.ByChance},
		"final":         {Verdict: server.Final},
		"no response":   {Verdict: server.Nothing},
		"not a refusal": {Verdict: server.Declined},
	} {
		a, g, _ := newFamilies()
		if rep.Verdict == server.NoVerdict {
			rep.Verdict = server.TooFast
		}
		rep.Hints = new(Hints)
		a.learn(g, &rep, second)
		assert.False(t, a.first.known, name)
	}
}

// Where requests could have been sent for a second, and none was, the next refusal is a first one again. After a refusal, it is not.
func TestARateIsForgottenOnceRequestsCouldHaveBeenSent(t *testing.T) {
	for _, rest := range []int64{second / 50, 3 * second} {
		for _, refused := range []bool{false, true} {
			a, g, _ := newFamilies()
			for i := range int64(100) {
				asks(t, g, i*second/10)
			}
			now := turnsAway(t, g, 10*second, second, NotBare)
			now = g.Ready(now, 0, 1)
			for range 10 {
				answer(g, g.Take(now, now, 1, true), now, now, !refused)
				now = g.Ready(now, 0, 1)
			}
			require.NotNil(t, a.rate)
			now += rest
			g.Take(now, now, 1, false)
			require.Equal(t, rest < second || refused, a.rate != nil)
		}
	}
}

// A body may say that a refusal is none.
func TestARefusalThatWasNoneBeginsNoLearner(t *testing.T) {
	a, g, _ := newFamilies()
	burst(t, g, second, 10)
	n := sends(t, g, 2*second, 1)
	c := g.apply(&Report{Reading: Reading{Hints: &Hints{Limited: true}}, Sent: 2 * second, Number: n, Doubtful: true}, 2*second)
	require.True(t, a.first.known)
	n = g.Take(a.held, a.held, 1, true)
	require.NotNil(t, a.rate)
	require.True(t, c.Doubt(a.held, aimd.ClientError))
	require.False(t, a.first.known)
	require.Nil(t, a.rate)
	require.Equal(t, 2*second, max(a.held, 2*second))
	answer(g, n, 3*second, 3*second, true)
}

// The probe of a silent account may be of a gate that leaves it.
func TestAGateThatLeavesTakesItsProbe(t *testing.T) {
	r := NewRegistry(10, 1)
	g, other := r.Gate(at("h", 1), 0), r.Gate(at("h", 2), 0)
	a := g.Account
	require.Same(t, a, other.Account)
	for range 3 {
		now := max(second, a.held)
		denied(g, g.Take(now, now, 1, true), now, now, 0, NotBare)
	}
	now := a.held
	other.Take(now, now, 1, true)
	require.Equal(t, meter.Never, a.rate.Ready(now, 0, 1))
	r.move(other, r.split(other, new(belonging), now), now)
	require.Less(t, a.rate.Ready(now, 0, 1), now+10*second)
	require.Zero(t, a.rate.InFlight())
}

// Units, counts and chance count by the numbers of requests, so a rate that is learned numbers them without gaps, whatever its burst.
func TestRequestsAreNumberedWithoutGaps(t *testing.T) {
	a, g, _ := newFamilies()
	turnsAway(t, g, 0, 0, NotBare)
	now := a.Until()
	for i := range int64(2000) {
		now = g.Ready(now, 0, 1)
		require.Equal(t, 2+i, g.Take(now, now, 1, true))
		answer(g, 2+i, now, now+milli, true)
		now += milli
	}
	require.NotNil(t, a.rate)
	require.Greater(t, a.rate.PerSecond(now), 100.0, "its burst has changed")
	require.Equal(t, int64(2001), a.sent)
}
