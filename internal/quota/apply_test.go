package quota

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/record"
	"github.com/httpthrottle/throttle/internal/server"
)

// refusal returns hints of a refusal that wants to be left alone for d.
func refusing(d time.Duration, quotas ...QuotaHint) *Hints {
	return &Hints{Limited: true, Wait: d, Quotas: quotas}
}

// until returns a hint about a quota.
func until(name string, left int64, reset time.Duration) QuotaHint {
	return QuotaHint{Name: name, Limit: 100, Left: left, Known: true, Ends: true, Reset: reset}
}

// sent returns a gate at which n requests were granted then.
func sent(r *Registry, k *Key, now meter.Instant, n int) *Gate {
	g := r.Gate(k, now)
	for range n {
		g.Take(now, now, 1, false)
	}
	return g
}

// requireHeld demands that something is held until then, or a little later for the sake of other clients.
func requireHeld(t *testing.T, from meter.Instant, d time.Duration, until meter.Instant) {
	t.Helper()
	require.GreaterOrEqual(t, until, from+int64(d))
	require.LessOrEqual(t, until, from+int64(d)+min(int64(d)/10, second))
}

func TestWhatARefusalHolds(t *testing.T) {
	const now = 100 * second
	empty := until("q", 0, time.Minute)
	for name, c := range map[string]struct {
		hints         *Hints
		own           Own
		account, host time.Duration // that are held
		quota         time.Duration // for which its quota is held
		unheard       bool          // no accepted response has named its quota, so that it explains nothing
		late          Scope
	}{
		"for a wait":                        {hints: refusing(10 * time.Second), account: 10 * time.Second, late: OfAccount},
		"for no known wait":                 {hints: refusing(0), account: time.Second, late: OfAccount},
		"for a wait that a limit learns of": {hints: refusing(10 * time.Second), own: Own{Adaptive: true}, account: 10 * time.Second, late: OfAccount},
		"for no known wait, with slots":     {hints: refusing(0), own: Own{Slots: true}},
		"for a wait, with slots":            {hints: refusing(10 * time.Second), own: Own{Slots: true}, account: 10 * time.Second, late: OfAccount},
		"with an empty quota":               {hints: refusing(0, empty), account: time.Second, unheard: true, late: OfAccount},
		"with an empty quota and a wait":    {hints: refusing(10*time.Second, empty), quota: 10 * time.Second, late: OfAccount},
		"with an empty quota, for a learner": { // it may be no window
			hints: refusing(10*time.Second, empty), own: Own{Adaptive: true}, account: 10 * time.Second, unheard: true, late: OfAccount,
		},
		"with an empty quota that it does not name, for a learner": {
			hints: refusing(10*time.Second, until(Unnamed, 0, time.Minute)), own: Own{Adaptive: true}, account: 10 * time.Second, unheard: true, late: OfAccount,
		},
		"with an empty quota that it does not name": {
			hints: refusing(10*time.Second, until(Unnamed, 0, time.Minute)), account: 10 * time.Second, unheard: true, late: OfAccount,
		},
		"of a wider limit": {
			hints:   &Hints{Limited: true, Global: true, Wait: 10 * time.Second, Quotas: []QuotaHint{empty}},
			account: 10 * time.Second, late: OfAccount,
		},
		"of the host": {hints: &Hints{Limited: true, Host: true, Wait: 10 * time.Second}, account: 10 * time.Second, host: 10 * time.Second, late: OfHost},
		"of the host, because of an empty quota of the account": {
			hints:   &Hints{Limited: true, Host: true, Global: true, Wait: 10 * time.Second, Quotas: []QuotaHint{empty}},
			account: 10 * time.Second, late: OfHost,
		},
		"of the host, for long": {
			hints: &Hints{Limited: true, Host: true, Wait: time.Hour}, account: time.Hour, host: time.Minute, late: OfHost,
		},
		"of the host, for a learner": {
			hints: &Hints{Limited: true, Host: true, Wait: 10 * time.Second}, own: Own{Adaptive: true},
			account: 10 * time.Second, host: 10 * time.Second, late: OfHost,
		},
		"of the host without a wait, for a learner": {hints: &Hints{Limited: true, Host: true}, own: Own{Adaptive: true}},
		"of the host without a wait":                {hints: &Hints{Limited: true, Host: true}, account: time.Second, late: OfHost},
		"that is none":                              {hints: &Hints{Wait: 10 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewRegistry(10, 1)
			g := sent(r, at("h", 1), now, 1)
			for range 2 {
				g.Account.lately.Add(now, 1, 0)
			}
			waits := r.Gate(at("h", 2), now)
			waits.SetWaiting(true) // so that there is something to plan again
			g.SetWaiting(true)
			other := r.Gate(at("h", 1, "other"), now)
			g.Account.cover(&c.own)
			c0 := c.hints.Read(now)
			change := r.Apply(g, &Report{Reading: c0, Sent: now, Own: c.own}, now)
			require.Equal(t, c.late, change.Late)
			require.False(t, change.Lifted)
			a := g.Account
			if c.account > 0 {
				requireHeld(t, now, c.account, a.Held())
				require.Equal(t, a.Until(), change.Until)
			} else {
				require.Zero(t, a.Held())
				require.Zero(t, change.Until)
			}
			if c.host > 0 {
				requireHeld(t, now, c.host, other.Account.Until())
			} else {
				require.Zero(t, other.Account.Until())
			}
			require.Equal(t, len(c.hints.Quotas), len(a.quotas))
			if c.quota > 0 {
				requireReady(t, g, now, now+int64(c.quota))
			} else {
				requireReady(t, g, now, max(now, a.Held()))
			}
			require.Equal(t, c.account > 0 && (!c0.empty || c.unheard) && !c.own.Adaptive && !c.own.trusted(), a.first.known, "a rate is learned where nothing else figures it")
			require.EqualValues(t, map[bool]int{true: 1}[c.hints.Limited], a.Limited)
			require.Zero(t, g.InFlight())
		})
	}
}

func TestAChangeIsOnlyWhereRequestsWait(t *testing.T) {
	for _, waiting := range []bool{false, true} {
		r := NewRegistry(10, 1)
		g := sent(r, at("h", 1), 0, 3)
		if waiting {
			g.SetWaiting(true)
		}
		empty := (&Hints{Quotas: []QuotaHint{until("q", 0, time.Minute)}}).Read(0)
		c := r.Apply(g, &Report{Reading: empty, Accepted: true}, 0)
		require.Equal(t, map[bool]Scope{true: OfAccount}[waiting], c.Late, "the quota stops them from now on")
		require.Zero(t, c.Until, "it is no hold")
		require.Equal(t, Change{Verdict: server.Declined}, r.Apply(g, &Report{Reading: empty, Accepted: true}, 0), "nothing is new")
		require.Equal(t, Change{Verdict: server.Nothing}, r.Apply(g, &Report{}, 0), "no response came")
	}
}

func TestAHoldThatIsNoLongerIsNoChange(t *testing.T) {
	r := NewRegistry(10, 1)
	g := sent(r, at("h", 1), 0, 2)
	c := r.Apply(g, &Report{Reading: refusing(time.Minute).Read(0)}, 0)
	require.Equal(t, g.Account.Until(), c.Until)
	c = r.Apply(g, &Report{Reading: refusing(time.Second).Read(second)}, second)
	require.Zero(t, c.Until)
	require.EqualValues(t, 2, g.Account.Limited)
}

// The body of a response names the quota that was exceeded: the hold that its headers asked for becomes one of that quota alone.
func TestABodyThatNamesTheQuotaTakesTheHoldBack(t *testing.T) {
	for name, c := range map[string]struct {
		before, between, global, lifted bool
	}{
		"nothing came between": {lifted: true}, "a longer hold came between": {between: true, lifted: true}, "of a wider limit": {global: true},
		"a shorter hold came before": {before: true, lifted: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewRegistry(10, 1)
			g := sent(r, at("h", 1), 0, 1)
			if c.before {
				g.Account.Hold(0, 5*second)
			}
			before := g.Account.Held()
			first := refusing(10 * time.Second)
			r.Apply(g, &Report{Reading: first.Read(0)}, 0)
			held := g.Account.Held()
			require.Positive(t, held)
			if c.between {
				g.Account.Hold(0, 20*second)
				held = g.Account.Held()
			}
			more := refusing(10*time.Second, until("q", 0, time.Minute))
			more.After, more.Global = first, c.global
			met, change := r.ApplyUngated(at("h", 1), &Report{Reading: more.Read(0)}, Unseen{}, 0)
			require.Same(t, g, met)
			require.Equal(t, c.lifted, change.Lifted)
			if c.lifted && !c.between {
				require.Equal(t, before, g.Account.Held())
			} else {
				require.GreaterOrEqual(t, g.Account.Held(), held)
			}
			require.EqualValues(t, 1, g.Account.Limited, "it is one refusal")
			require.Zero(t, g.InFlight())
			require.Equal(t, map[bool]meter.Instant{true: 10 * second}[c.lifted], g.Account.quotas[0].held)
			requireReady(t, g, 5*second, max(g.Account.Held(), g.Account.quotas[0].held))
			require.Zero(t, max(0, r.Gate(at("h", 2), 0).Ready(0, 0, 1)-g.Account.Held()), "the quota stops nothing else")
		})
	}
}

// A body without a refusal says what headers would have said, of the same instant.
func TestABodyThatNamesNoQuotaThatWasExceededIsNoLater(t *testing.T) {
	r := NewRegistry(10, 1)
	g := sent(r, at("h", 1), second, 1)
	r.Apply(g, &Report{Reading: (&Hints{Quotas: []QuotaHint{until("q", 5, time.Minute)}}).Read(2 * second), Sent: second, Accepted: true}, 2*second)
	body := &Hints{After: &Hints{}, Quotas: []QuotaHint{until("q", 50, 58*time.Second), until("new", 0, time.Minute)}}
	r.ApplyUngated(at("h", 1), &Report{Reading: body.Read(2 * second), Sent: 0}, Unseen{}, 2*second)
	require.EqualValues(t, 5, g.Account.quotas[0].left, "a later request has found less")
	require.True(t, g.Account.knows("new"))
}

func TestARefusalThatOnlyTheBodyKnowsCounts(t *testing.T) {
	r := NewRegistry(10, 1)
	body := refusing(time.Second)
	body.After = &Hints{}
	g, _ := r.ApplyUngated(at("h", 1), &Report{Reading: body.Read(0)}, Unseen{}, 0)
	require.EqualValues(t, 1, g.Account.Limited)
}

// An account may be forgotten because of what another one reports.
func TestAChangeNamesTheAccountThatWasForgotten(t *testing.T) {
	for spare, forgot := range map[int]string{0: "", 1: "other"} {
		r := NewRegistry(10, 1)
		r.Gate(at("other", 1), 0)
		g := sent(r, at("h", 1), 0, 2)
		r.Apply(g, &Report{}, 0)
		r.size = maxTotal + spare
		require.Equal(t, forgot, r.Apply(g, &Report{}, 0).Forgot)
	}
}

// Headers that allow more are contradicted by the body.
func TestABodyThatNamesTheQuotaIsLaterThanOtherResponses(t *testing.T) {
	r := NewRegistry(10, 1)
	g := sent(r, at("h", 1), 0, 2)
	left := (&Hints{Quotas: []QuotaHint{until("q", 50, time.Minute)}}).Read(second)
	r.Apply(g, &Report{Reading: left, Sent: 0, Accepted: true}, second)
	first := refusing(0)
	r.Apply(g, &Report{Reading: first.Read(second), Sent: 0, Own: Own{Slots: true}}, second)
	require.Equal(t, 2*second, g.Ready(2*second, 0, 1))
	more := refusing(0, until("q", 0, time.Minute))
	more.After = first
	r.ApplyUngated(at("h", 1), &Report{Reading: more.Read(second), Sent: -1}, Unseen{}, second)
	require.Equal(t, 61*second, g.Ready(2*second, 0, 1))
}

func TestWhatLimitsRequestsBesidesIsThatOfTheLastResponse(t *testing.T) {
	r := NewRegistry(10, 1)
	g := sent(r, at("h", 1), 0, 3)
	r.Apply(g, &Report{Own: Own{Rate: 5}}, 0)
	require.Equal(t, Own{Rate: 5}, g.Account.own)
	require.True(t, g.Account.own.Covered())
	first := &Hints{}
	r.Apply(g, &Report{Reading: first.Read(0), Own: Own{Adaptive: true}}, 0)
	require.Equal(t, Own{Adaptive: true}, g.Account.own)
	require.True(t, g.Account.own.Covered())
	r.ApplyUngated(at("h", 1), &Report{Reading: (&Hints{After: first}).Read(0)}, Unseen{}, 0)
	require.True(t, g.Account.own.Covered(), "a body has no charges")
	r.Apply(g, &Report{}, 0)
	require.False(t, g.Account.own.Covered())
}

// A quota without a name is one of all requests of the account.
func TestAllGatesFallUnderTheFirstQuotaWithoutAName(t *testing.T) {
	r := NewRegistry(10, 1)
	g, other := sent(r, at("h", 1), 0, 1), r.Gate(at("h", 2), 0)
	r.Apply(g, &Report{Reading: (&Hints{Quotas: []QuotaHint{until(Unnamed, 0, time.Minute)}}).Read(0), Accepted: true}, 0)
	require.Equal(t, 60*second, other.Ready(0, 1, 1), "besides one request that asks whether the quota concerns it")
	r.ApplyUngated(at("x", 1), &Report{Reading: (&Hints{Quotas: []QuotaHint{until("q", 0, time.Minute)}}).Read(0), Accepted: true}, Unseen{}, 0)
	require.Zero(t, r.Gate(at("x", 2), 0).Ready(0, 0, 1), "one that has a name is of those requests that it was reported for")
}

// Requests that passed no gate may use up what the first response says is left: they are not counted.
func TestTheFirstResponseHoldsForTheRequestsThatLeftUncounted(t *testing.T) {
	for name, c := range map[string]struct {
		left, since int64
		reserve     int64
		took, held  time.Duration
	}{
		"none left since":           {left: 0, since: 0, took: time.Second},
		"few left since":            {left: 100, since: 25, took: 100 * time.Millisecond},
		"a quarter of what is left": {left: 99, since: 25, took: 100 * time.Millisecond, held: 100 * time.Millisecond},
		"a slow response":           {left: 3, since: 1, took: 30 * time.Second, held: time.Second},
		"more than can be":          {left: 99, since: 1 << 62, took: time.Second, held: time.Second},
		"it went back":              {left: 3, since: -5, took: time.Second},
		"others may have it":        {left: 3, reserve: 5, took: time.Second},
	} {
		r := NewRegistry(10, 1)
		const now = 100 * second
		h := &Hints{Quotas: []QuotaHint{until("q", c.left, time.Minute)}}
		h.Quotas[0].Reserve = c.reserve
		rep := &Report{Reading: h.Read(now), Sent: now - int64(c.took), Accepted: true}
		g, change := r.ApplyUngated(at("h", 1), rep, Unseen{Since: c.since}, now)
		require.Zero(t, change.Until, "%s: users get no event", name)
		if c.held == 0 {
			require.Zero(t, g.Account.Until(), name)
			continue
		}
		requireHeld(t, now, c.held, g.Account.Until())
		held := g.Account.Until()
		r.ApplyUngated(at("h", 1), rep, Unseen{Since: c.since}, now+2*second)
		require.Equal(t, held, g.Account.Until(), "%s: the second response is no news", name)
	}
}

func TestTheFirstResponseKnowsHowManyWereAcceptedBefore(t *testing.T) {
	for before, rate := range map[int64]float64{0: 4, 600: 600} {
		r := NewRegistry(10, 1)
		var unseen Unseen
		for range before + 1 { // with the one that is refused
			unseen.Before.Add(0, 1, 0)
		}
		g, _ := r.ApplyUngated(at("h", 1), &Report{Reading: refusing(10 * time.Second).Read(2 * second)}, unseen, 2*second)
		got, _ := g.Account.Pace(2 * second)
		require.InDelta(t, rate, got, 1e-9, "the rate after the hold")
	}
	r := NewRegistry(10, 1)
	var before record.Record
	for range 601 {
		before.Add(0, 1, 0)
	}
	g, _ := r.ApplyUngated(at("h", 1), &Report{Reading: (&Hints{}).Read(2 * second)}, Unseen{Before: before}, 2*second)
	r.ApplyUngated(at("h", 1), &Report{Reading: refusing(10 * time.Second).Read(2 * second)}, Unseen{}, 2*second)
	rate, _ := g.Account.Pace(2 * second)
	require.InDelta(t, 600, rate, 1e-9, "after another response that comes before a request has passed a gate")
	r = NewRegistry(10, 1)
	g = sent(r, at("h", 1), 0, 600)
	for range 600 {
		r.Apply(g, &Report{Accepted: true}, 0)
	}
	r.ApplyUngated(at("h", 1), &Report{Reading: refusing(10 * time.Second).Read(0)}, Unseen{}, 0)
	rate, _ = g.Account.Pace(0)
	require.InDelta(t, 600, rate, 1e-9, "what the account was accepted counts")
}

func TestARequestThatPassedNoGateIsNotInFlight(t *testing.T) {
	r := NewRegistry(10, 1)
	g := sent(r, at("h", 1), 0, 2)
	r.ApplyUngated(at("h", 1), &Report{Reading: refusing(time.Second).Read(0)}, Unseen{}, 0)
	require.EqualValues(t, 2, g.InFlight())
}
