package quota

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

const milli = second / 1000

// newFamilies returns two gates of one account, of which nothing is known.
func newFamilies() (a *Account, x, y *Gate) {
	a = newAccount(NewServer(1), 2)
	return a, newGate(a), newGate(a)
}

// core is what a response reports of a quota of that name.
func core(limit, left int64, reset meter.Instant) Figures {
	return Figures{Name: "core", Limit: limit, Left: left, Reset: reset, Counted: true}
}

// empty is what a refusal reports of it.
func empty(limit int64, reset meter.Instant) Figures {
	c := core(limit, 0, reset)
	c.Refused = true
	return c
}

// sends has n requests leave at now, none of which anything may stop. It returns the number of the last.
func sends(t testing.TB, g *Gate, now meter.Instant, n int) (last int64) {
	t.Helper()
	for i := range n {
		require.True(t, g.Payable(now, 1), "request %d", i)
		require.LessOrEqual(t, g.Plan(now, 0, 1), now)
		last = g.Take(now, now, 1, false)
	}
	return last
}

// answer has the response to a request come: with what it reports, or, if it is neither accepted nor reports anything, no response.
func answer(g *Gate, n int64, sent, now meter.Instant, accepted bool, figures ...Figures) Change {
	a := g.Account
	rep := &Report{Sent: sent, Number: n, Accepted: accepted, Own: a.own}
	if len(figures) > 0 || accepted {
		rep.Hints = &Hints{Limited: !accepted}
		rep.figures = figures
		rep.empty = slices.ContainsFunc(figures, func(c Figures) bool { return c.Refused })
	}
	return g.apply(rep, now)
}

// ends has a request end that left at sent and of which nothing is known but whether it was accepted.
func ends(g *Gate, sent, now meter.Instant, accepted bool) {
	answer(g, g.Account.sent, sent, now, accepted)
}

// denies has a request refused without a word about a quota, because too many are in flight.
func denies(g *Gate, n int64, sent, now meter.Instant) {
	g.apply(&Report{Reading: Reading{Hints: &Hints{Limited: true}}, Sent: sent, Number: n, Own: Own{Slots: true}}, now)
}

// denied has a request refused that no quota explains, with a wait if there is one.
func denied(g *Gate, n int64, sent, now meter.Instant, wait int64, bare Bare) Change {
	h := &Hints{Limited: bare == NotBare, Bare: bare, Wait: time.Duration(wait), Asked: wait > 0, Status: 429}
	return g.apply(&Report{Reading: Reading{Hints: h}, Sent: sent, Number: n, Own: g.Account.own}, now)
}

// burst has n requests leave at now and be accepted.
func burst(t *testing.T, g *Gate, now meter.Instant, n int) {
	t.Helper()
	for range n {
		asks(t, g, now)
	}
}

// asks sends a request that is accepted immediately.
func asks(t testing.TB, g *Gate, now meter.Instant, figures ...Figures) {
	t.Helper()
	answer(g, sends(t, g, now, 1), now, now, true, figures...)
}

// refuses sends a request that is refused immediately.
func refuses(t testing.TB, g *Gate, now meter.Instant, figures ...Figures) {
	t.Helper()
	answer(g, sends(t, g, now, 1), now, now, false, figures...)
}

// passes has a request leave at now, whatever stops it, and be accepted immediately.
func passes(g *Gate, now meter.Instant, figures ...Figures) {
	answer(g, g.Take(now, now, 1, false), now, now, true, figures...)
}

// only returns the quota of an account that has one.
func only(t testing.TB, a *Account) *quota {
	t.Helper()
	require.Len(t, a.quotas, 1)
	return a.quotas[0]
}

// requireReady demands that g is shut until at, and open from then on.
func requireReady(t testing.TB, g *Gate, from, at meter.Instant) {
	t.Helper()
	require.Equal(t, at, g.Ready(from, 0, 1))
	require.Equal(t, at, g.Plan(from, 0, 1))
	if at > from {
		require.False(t, g.Payable(at-1, 1))
	}
	require.True(t, g.Payable(at, 1))
}

// requireRetry demands that g is shut until a backoff after from, less a random part of up to half of it or a second, and returns when.
func requireRetry(t testing.TB, g *Gate, q *quota, from meter.Instant, backoff int64) meter.Instant {
	t.Helper()
	require.Equal(t, backoff, q.backoff)
	require.Greater(t, q.try, from+backoff-min(backoff/2, second))
	require.LessOrEqual(t, q.try, from+backoff)
	requireReady(t, g, from, q.try)
	return q.try
}

// requireWaits demands that nothing leaves before a response has come, and that a plan does not take that for never.
func requireWaits(t testing.TB, g *Gate, now meter.Instant) {
	t.Helper()
	require.Equal(t, meter.Never, g.Ready(now, 0, 1))
	require.Less(t, g.Plan(now, 0, 1), meter.Never)
	require.False(t, g.Payable(now, 1))
}
