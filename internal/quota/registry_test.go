package quota

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/keep"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/meter/metertest"
)

// at returns the key of requests to a host.
func at(host string, family uint64, keys ...string) *Key {
	k := keyOf(host, keys...)
	k.Family = family
	return &k
}

// check returns what contradicts what always holds of a registry.
func (r *Registry) check(now meter.Instant) string {
	gates, size := 0, 0
	for name, s := range r.hosts {
		switch {
		case len(s.accounts) == 0:
			return "a host without accounts is kept"
		case s.byKey != nil && len(s.byKey) != len(s.groups):
			return "a host finds other groups than it has"
		case s.byKey == nil && len(s.groups) > fewGroups:
			return "many groups are searched one by one"
		}
		for nth, a := range s.accounts {
			if a.server != s || a.Key.Host != name || int(a.nth) != nth || a.group != s.find(&a.Key) || len(a.gates) == 0 {
				return "an account is at another host, or without gates"
			}
			if takes := a.takes(); takes < int(a.size) || isIdle(a) && takes != int(a.size) { // requests in flight are counted with their responses
				return "an account takes something else than was counted"
			}
			size += int(a.size)
			waiting := 0
			for nth, g := range a.gates {
				gates++
				if g.Account != a || g.nth != nth || !g.IsKept() || r.gates[place{a.group, g.kind}] != g {
					return "a gate is of another account, or not kept"
				}
				if g.at > 0 {
					waiting++
					if a.waiting[g.at-1] != g {
						return "a gate with waiters is not where it says"
					}
				}
			}
			if waiting != len(a.waiting) {
				return "an account lists other gates than those with waiters"
			}
		}
	}
	switch {
	case gates != len(r.gates):
		return "a gate has no account"
	case size != r.size:
		return "what accounts take is counted wrongly"
	case r.size > maxTotal+maxSize:
		return "too much is kept"
	case (r.First() == meter.Never) != (gates == 0):
		return "what is kept is not looked at"
	}
	return ""
}

// TestARegistryAgainstAModel plays requests, responses, waiters and the clock at random. The model knows which gates requests need and
// until when accounts must be held.
func TestARegistryAgainstAModel(t *testing.T) {
	seeds := uint64(400)
	if testing.Short() {
		seeds = 20
	}
	for seed := range seeds {
		w := &registryModel{T: t, r: metertest.Seeded(t, seed), now: 0, gates: map[Key]*modelled{}}
		w.Registry = NewRegistry(1+w.r.IntN(60), seed)
		for range 400 {
			w.step()
			if fault := w.check(w.now); fault != "" {
				require.Fail(t, fault, "seed %d at %v", seed, time.Duration(w.now))
			}
		}
		w.end()
	}
}

// A registryModel is a Registry and what must hold of it.
type registryModel struct {
	*testing.T
	*Registry
	r     *rand.Rand
	now   meter.Instant
	gates map[Key]*modelled // which requests need
}

// A modelled gate is one that requests need.
type modelled struct {
	*Gate
	sent    []meter.Instant
	waiting bool
}

func (w *registryModel) key() *Key {
	return at(fmt.Sprint("h", w.r.IntN(6)), uint64(w.r.IntN(20)), fmt.Sprint("k", w.r.IntN(12)))
}

func (w *registryModel) step() {
	k := w.key()
	known := w.gates[*k]
	g := w.Find(k, w.now)
	require.True(w, known == nil || known.Gate == g, "a gate that requests need was forgotten")
	switch w.r.IntN(11) {
	case 0:
		w.now += w.r.Int64N(40 * second)
	case 1, 2: // a request passes the gate
		made := w.Gate(k, w.now)
		require.True(w, g == nil || made == g, "another gate was made")
		require.True(w, made != nil || w.Len() >= w.most, "there was room")
		if made == nil {
			return
		}
		require.Same(w, made, w.Find(k, w.now))
		require.Equal(w, k.ofGroup(), made.Account.Key.ofGroup())
		need := w.need(k, made)
		if made.Ready(w.now, 0, 1) <= w.now {
			made.Take(w.now, w.now, 1, false)
			need.sent = append(need.sent, w.now)
		} else if !need.waiting {
			made.SetWaiting(true)
			need.waiting = true
		}
		w.settle(k)
	case 3: // a waiter leaves
		if known != nil && known.waiting {
			known.SetWaiting(false)
			known.waiting = false
			w.settle(k)
		}
	case 4, 5: // a response to a request that passed the gate
		if known == nil || len(known.sent) == 0 {
			return
		}
		sent := known.sent[0]
		known.sent = known.sent[1:]
		before := known.Account.Until()
		c := w.Apply(known.Gate, w.report(sent), w.now)
		w.changed(known.Gate, c, before)
		w.settle(k)
	case 6: // one to a request that passed none
		rep := w.report(max(0, w.now-w.r.Int64N(second)))
		if rep.Hints == nil {
			rep.Reading = (&Hints{Limited: true, Wait: time.Second}).Read(w.now)
		}
		before := meter.Instant(0)
		if g != nil {
			before = g.Account.Until()
		}
		made, c := w.ApplyUngated(k, rep, Unseen{Since: w.r.Int64N(20)}, w.now)
		require.True(w, made != nil || !rep.Hints.Limited, "a refusal found no room")
		if made != nil {
			require.Same(w, made, w.Find(k, w.now))
			w.changed(made, c, before)
		}
	case 7:
		w.Sweep(w.now, 1+w.r.IntN(100))
	case 8:
		if g != nil {
			w.Forget(g.Account, w.now)
			require.LessOrEqual(w, g.Account.Until(), w.now)
			require.False(w, g.Account.stops(w.now))
		}
	case 9: // a request is returned
		if known == nil || len(known.sent) == 0 {
			return
		}
		known.sent = known.sent[:len(known.sent)-1]
		known.GiveBack(0, w.now, 1)
		w.Free(known.Gate, w.now)
		w.settle(k)
	case 10:
		if g != nil {
			t := &Figures{Name: []string{"a", "c"}[w.r.IntN(2)], Limit: w.r.Int64N(100), Left: w.r.Int64N(5), Reset: w.now + second, Counted: true}
			require.NoError(w, w.Restore(g.Account, w.now, func(a *Account, now meter.Instant) error {
				a.Restore(now, t)
				return nil
			}))
		}
	}
}

// need returns what is modelled of a gate.
func (w *registryModel) need(k *Key, g *Gate) *modelled {
	if w.gates[*k] == nil {
		w.gates[*k] = &modelled{Gate: g}
	}
	return w.gates[*k]
}

// settle drops a gate that no request needs.
func (w *registryModel) settle(k *Key) {
	if m := w.gates[*k]; m != nil {
		require.EqualValues(w, len(m.sent), m.InFlight())
		if len(m.sent) == 0 && !m.waiting {
			delete(w.gates, *k)
			w.Free(m.Gate, w.now)
		}
	}
}

// changed checks what a change says against the account.
func (w *registryModel) changed(g *Gate, c Change, before meter.Instant) {
	if c.Until > 0 {
		require.Greater(w, c.Until, before)
		require.LessOrEqual(w, c.Until, g.Account.Until())
		require.NotEqual(w, OfNone, c.Late)
	}
	if c.Late == OfHost {
		require.Positive(w, c.Until)
	}
}

// report returns what a response may report.
func (w *registryModel) report(sent meter.Instant) *Report {
	rep := &Report{Sent: sent, Accepted: w.r.IntN(3) > 0, Own: Own{Rate: float64(w.r.IntN(2)), Adaptive: w.r.IntN(4) == 0, Slots: w.r.IntN(4) == 0}}
	if w.r.IntN(3) == 0 {
		return rep
	}
	h := &Hints{Limited: !rep.Accepted, Host: w.r.IntN(4) == 0, Global: w.r.IntN(4) == 0}
	if w.r.IntN(2) == 0 {
		h.Wait = time.Duration(w.r.Int64N(30 * second))
	}
	for range w.r.IntN(3) {
		h.Quotas = append(h.Quotas, QuotaHint{
			Name: []string{Unnamed, "a", "b"}[w.r.IntN(3)], Limit: w.r.Int64N(100), Left: w.r.Int64N(5), Known: w.r.IntN(4) > 0,
			Ends: w.r.IntN(4) > 0, Violated: w.r.IntN(3) == 0, Reset: time.Duration(w.r.Int64N(60 * second)),
		})
	}
	rep.Reading = h.Read(w.now)
	return rep
}

// end lets all requests end, and a day pass.
func (w *registryModel) end() {
	for k, m := range w.gates {
		if m.waiting {
			m.SetWaiting(false)
			m.waiting = false
		}
		for range m.sent {
			w.Apply(m.Gate, &Report{Sent: w.now, Accepted: true}, w.now)
		}
		m.sent = nil
		w.settle(&k)
	}
	w.now += 24 * 3600 * second
	for range 3 { // the keeper looks at a thing again after a minute at the latest
		for w.Sweep(w.now, 10) {
		}
		w.now += 60 * second
	}
	require.Zero(w, w.Len())
	require.Empty(w, w.hosts)
	require.Zero(w, w.size)
	require.Equal(w, meter.Never, w.First())
	require.Empty(w, w.check(w.now))
}

func TestAGateIsFoundByHostKeysAndFamily(t *testing.T) {
	r := NewRegistry(100, 1)
	keys := []*Key{at("a", 0), at("a", 1), at("a", 0, "k"), at("a", 0, "", "k"), at("b", 0), at("", 0)}
	gates := make(map[*Gate]bool)
	for _, k := range keys {
		require.Nil(t, r.Find(k, 0))
		g := r.Gate(k, 0)
		require.Same(t, g, r.Gate(k, 0))
		require.Same(t, g, r.Find(k, 0))
		gates[g] = true
	}
	require.Len(t, gates, len(keys))
	require.Equal(t, len(keys), r.Len())
	require.Same(t, r.Find(keys[0], 0).Account, r.Find(keys[1], 0).Account, "families of one account")
	require.Len(t, r.Host("a").Accounts(), 3)
	require.Same(t, r.Host("a"), r.Find(keys[2], 0).Account.Server())
	require.Nil(t, r.Host("none").Accounts())
	n := 0
	for g := range r.All() {
		require.True(t, gates[g])
		n++
	}
	require.Equal(t, len(keys), n)
}

// A key may be a part of a long URL.
func TestAnAccountKeepsNoLongerStrings(t *testing.T) {
	long := string(make([]byte, 1<<10)) + "host"
	r := NewRegistry(10, 1)
	a := r.Gate(at(long[1<<10:], 0, long[1<<10:1<<10+1]), 0).Account
	require.Equal(t, "host", a.Key.Host)
	require.NotSame(t, unsafe.StringData(long[1<<10:]), unsafe.StringData(a.Key.Host))
	require.NotSame(t, unsafe.StringData(long[1<<10:]), unsafe.StringData(a.Key.keys))
}

func TestAHostOfManyAccountsFindsEach(t *testing.T) {
	r := NewRegistry(10_000, 1)
	const n = 3 * keep.ShrinkAbove
	gates := make([]*Gate, n)
	for i := range gates {
		gates[i] = r.Gate(at("h", 0, fmt.Sprint(i)), meter.Instant(i))
	}
	for i, g := range gates {
		require.Same(t, g, r.Find(at("h", 0, fmt.Sprint(i)), n))
	}
	require.Empty(t, r.check(n))
	require.Equal(t, n, r.Host("h").peak)
	for i, g := range gates[1:] {
		require.True(t, i%1000 > 0 || r.check(n) == "")
		r.keeper.Remove(g)
		r.forget(g)
	}
	require.Empty(t, r.check(n))
	s := r.Host("h")
	require.Equal(t, []*Account{gates[0].Account}, s.Accounts())
	require.Less(t, cap(s.accounts), n/2, "memory is given back")
	require.LessOrEqual(t, s.peak, n/4, "the map was made again")
	require.Same(t, gates[0], r.Find(at("h", 0, "0"), n))
}

func TestARegistryGivesMemoryBack(t *testing.T) {
	r := NewRegistry(10_000, 1)
	const n = 3 * keep.ShrinkAbove
	for i := range n {
		r.Gate(at(fmt.Sprint(i), 0), 0)
	}
	require.Equal(t, []int{n, n}, []int{r.peak, r.peaks})
	r.Find(at("0", 0), 0).SetWaiting(true)
	r.Sweep(60*second, 2*n)
	require.Equal(t, 1, r.Len())
	require.LessOrEqual(t, r.peak, n/4, "the maps were made again")
	require.LessOrEqual(t, r.peaks, n/4)
	require.Empty(t, r.check(60*second))
}

func TestAnAccountThatWasForgottenIsCountedNoMore(t *testing.T) {
	r := NewRegistry(10, 1)
	a := r.Gate(at("h", 0), 0).Account
	require.NotEmpty(t, r.forgetAccount(nil, stopsNothing, 0))
	r.Forget(a, 0)
	require.Zero(t, r.size)
}

func TestWhatIsRestoredIsBounded(t *testing.T) {
	r := NewRegistry(10, 1)
	other := r.Gate(at("other", 0), 0).Account
	other.Hold(0, second)
	a := r.Gate(at("h", 0), 0).Account
	fault := errors.New("fault")
	require.Equal(t, fault, r.Restore(a, 0, func(*Account, meter.Instant) error { return fault }))
	r.size += maxTotal - 500
	err := r.Restore(a, 0, func(a *Account, now meter.Instant) error {
		for i := range maxQuotas {
			a.Restore(now, &Figures{Name: fmt.Sprint(i, strings.Repeat("x", 1000)), Limit: 10, Reset: second, Counted: true})
		}
		return fault
	})
	require.ErrorIs(t, err, fault)
	require.ErrorContains(t, err, "what other reported was forgotten")
	require.Nil(t, r.Host("other"))
	require.LessOrEqual(t, int(a.size), maxSize)
}

func TestWhatAGateTakesIsCountedWhenItIsMade(t *testing.T) {
	size := func(host, key string, gates int) int {
		r := NewRegistry(100, 1)
		for i := range gates {
			r.Gate(at(host, uint64(i), key), 0)
		}
		before := r.size
		r.bound(r.Host(host).Accounts()[0], 0)
		require.Equal(t, before, r.size)
		return r.size
	}
	long := strings.Repeat("x", 1000)
	require.Equal(t, 1000+2*1000, size(long+"h", "k", 2)-size("h", "k", 2), "a host, and the name of each bucket")
	require.Equal(t, 1000+2*1000, size("h", long+"k", 2)-size("h", "k", 2))
	require.Greater(t, size("h", "k", 2)-size("h", "k", 1), gateSize)
}

func TestTheListOfGatesWithWaitersIsThatOfThoseThatSaidSo(t *testing.T) {
	r := NewRegistry(100, 1)
	var gates []*Gate
	for i := range uint64(5) {
		gates = append(gates, r.Gate(at("h", i), 0))
		gates[i].SetWaiting(true)
	}
	for _, i := range []int{1, 4, 0, 3, 2} { // in the middle, last, first
		gates[i].SetWaiting(false)
		require.NotContains(t, gates[0].Account.Waiting(), gates[i])
		require.Empty(t, r.check(0))
	}
	require.Empty(t, gates[0].Account.Waiting())
}

func TestANewGateFallsUnderTheQuotaThatTheServerDoesNotName(t *testing.T) {
	r := NewRegistry(10, 1)
	first := r.Gate(at("h", 1), 0)
	a := first.Account
	require.NoError(t, r.Restore(a, 0, func(a *Account, now meter.Instant) error {
		a.Restore(now, &Figures{Name: "named", Limit: 10, Left: 0, Reset: 50 * second, Counted: true})
		a.Restore(now, &Figures{Name: Unnamed, Limit: 10, Left: 0, Reset: 60 * second, Counted: true})
		return nil
	}))
	require.Equal(t, 60*second, first.Ready(0, 0, 1), "and one that was there before")
	require.Equal(t, 60*second, r.Gate(at("h", 2), 0).Ready(0, 0, 1))
	require.Zero(t, r.Gate(at("h", 2, "other"), 0).Ready(0, 0, 1))
}

func TestHoldsOfARegistryDifferByItsSeed(t *testing.T) {
	ends := make(map[meter.Instant]bool)
	for seed := range uint64(10) {
		r := NewRegistry(10, seed)
		for _, k := range []*Key{at("a", 0), at("a", 0, "k"), at("b", 0)} {
			g := r.Gate(k, 0)
			g.Account.Hold(0, 100*second)
			ends[g.Account.Until()] = true
		}
	}
	require.Len(t, ends, 30)
	same := func() meter.Instant {
		a := NewRegistry(10, 7).Gate(at("a", 0), 0).Account
		a.holdHost(0, 20*second)
		return a.Until() + a.Server().Held()
	}
	require.Equal(t, same(), same())
}

// A gate at which requests wait is kept, whatever the clock says.
func TestAGateIsKeptAsLongAsRequestsNeedIt(t *testing.T) {
	r := NewRegistry(10, 1)
	g := r.Gate(at("h", 1), 0)
	g.SetWaiting(true)
	require.Equal(t, []*Gate{g}, g.Account.Waiting())
	r.Sweep(1000*second, 10)
	require.Same(t, g, r.Find(at("h", 1), 1000*second))
	g.SetWaiting(false)
	require.Empty(t, g.Account.Waiting())
	require.True(t, r.Free(g, 1000*second))
	require.Equal(t, 1000*second, r.First())
	g.Take(1000*second, 1000*second, 1, false)
	r.Sweep(1000*second, 10)
	require.Equal(t, 1, r.Len(), "it is in flight")
	r.Apply(g, &Report{Sent: 1000 * second, Accepted: true}, 1001*second)
	require.True(t, r.Free(g, 1001*second))
	require.False(t, r.Sweep(1010*second, 10))
	require.Zero(t, r.Len())
	require.False(t, g.IsKept())
	require.Zero(t, r.Evicted, "it did not have to make room")
}
