package quota

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

const year = 365 * 24 * time.Hour

// spam returns hints of as many quotas as are read, under names that were never used before and as long as are read.
func spam(n *int, limited bool) *Hints {
	h := &Hints{Limited: limited, Wait: year}
	for range 32 {
		*n++
		h.Quotas = append(h.Quotas, until(fmt.Sprintf("%s%d", strings.Repeat("x", 200), *n), 1, year))
	}
	return h
}

// reports has a server report hints in response to a request that passed no gate.
func reports(r *Registry, host string, h *Hints, now meter.Instant) (g *Gate, forgot string) {
	g, c := r.ApplyUngated(at(host, 1), &Report{Reading: h.Read(now), Sent: now, Accepted: !h.Limited}, Unseen{}, now)
	return g, c.Forgot
}

// inUse returns how many bytes are in use after a collection.
func inUse() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// What an account takes is counted, and what is counted is no less than there is: little for one that reported little, and about maxSize
// for any other.
func TestWhatAnAccountTakesIsBounded(t *testing.T) {
	n := 0
	for name, c := range map[string]struct {
		hints           func() *Hints
		families, times int
		hosts           int
		most            int // bytes
	}{
		"a hold":               {func() *Hints { return refusing(year) }, 1, 1, 2000, 1450},
		"an empty quota":       {func() *Hints { return &Hints{Quotas: []QuotaHint{until(Unnamed, 0, year)}} }, 1, 1, 2000, 1500},
		"a quota, many times":  {func() *Hints { return &Hints{Quotas: []QuotaHint{until(Unnamed, 99, year)}} }, 1, 2500, 60, 16 << 10},
		"hostile":              {func() *Hints { return spam(&n, false) }, 1, 1, 200, 16 << 10},
		"hostile, many times":  {func() *Hints { return spam(&n, false) }, 1, 200, 40, 16 << 10},
		"hostile, many gates":  {func() *Hints { return spam(&n, false) }, 60, 2, 40, 128 << 10},
		"hostile, refusals":    {func() *Hints { return spam(&n, true) }, 10, 1, 50, 128 << 10},
		"hostile, named twice": {func() *Hints { h := spam(&n, true); h.Quotas = append(h.Quotas, h.Quotas...); return h }, 2, 3, 50, 32 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewRegistry(10_000, 1)
			before := inUse()
			for time := range c.times {
				for host := range c.hosts {
					for family := range c.families {
						now := meter.Instant(time)
						rep := &Report{Reading: c.hints().Read(now), Sent: now, Accepted: true}
						g, change := r.ApplyUngated(at(fmt.Sprint("host-", host, ".example.com"), uint64(family)), rep, Unseen{}, now)
						require.Empty(t, change.Forgot)
						require.LessOrEqual(t, int(g.Account.size), 16<<10)
						require.LessOrEqual(t, len(g.Account.gates), maxFamilies)
					}
				}
			}
			require.Empty(t, r.check(meter.Instant(c.times)))
			took, counted := (inUse()-before)/c.hosts, r.size/c.hosts
			t.Logf("%d bytes a host, %d counted", took, counted)
			require.LessOrEqual(t, took, counted)
			require.LessOrEqual(t, took, c.most)
			runtime.KeepAlive(r)
		})
	}
}

func TestAllAccountsTogetherTake64MBAtMost(t *testing.T) {
	r := NewRegistry(1<<20, 1)
	n, forgot := 0, ""
	for host := range 6500 {
		_, forgot = reports(r, fmt.Sprint("host-", host), spam(&n, true), meter.Instant(host))
		require.LessOrEqual(t, r.size, maxTotal)
	}
	require.Empty(t, r.check(6500))
	require.Greater(t, r.size, maxTotal-2*maxSize, "no more is forgotten than must be")
	require.NotEmpty(t, forgot)
	require.Nil(t, r.Host(forgot))
	require.EqualValues(t, 6500-len(r.hosts), r.Evicted)
}

// Of accounts that may be forgotten, the one goes that is worth least, and of these the one that was used least recently.
func TestTheAccountThatIsWorthLeastIsForgotten(t *testing.T) {
	r := NewRegistry(10, 1)
	empty := func() *Hints { return &Hints{Quotas: []QuotaHint{until(Unnamed, 0, year)}} }
	reports(r, "refuses", refusing(year), 1)
	reports(r, "refuses later", refusing(year), 2)
	reports(r, "empty", empty(), 3)
	reports(r, "empty later", empty(), 4)
	reports(r, "says nothing", &Hints{Quotas: []QuotaHint{until(Unnamed, 50, year)}}, 5)
	reports(r, "says nothing later", &Hints{}, 6)
	r.Find(at("refuses", 1), 7) // it is in use
	busy, _ := reports(r, "busy", &Hints{}, 0)
	busy.Take(0, 0, 1, false)
	waits, _ := reports(r, "waits", &Hints{}, 0)
	waits.SetWaiting(true)

	require.Empty(t, r.forgetAccount(r.Find(at("says nothing", 1), 5).Account, stopsNothing-1, 10))
	for _, name := range []string{"says nothing", "says nothing later", "empty", "empty later", "refuses later", "refuses"} {
		worth := map[byte]int{'s': stopsNothing, 'e': stopsRequests, 'r': stopsByRefusal}[name[0]]
		require.Equal(t, worth, r.Host(name).Accounts()[0].worth(10))
		if worth > stopsNothing {
			require.Empty(t, r.forgetAccount(nil, worth-1, 10))
		}
		evicted := r.Evicted
		require.Equal(t, Plain(name), r.forgetAccount(nil, stopsByRefusal, 10))
		require.Equal(t, evicted+1, r.Evicted)
		require.Empty(t, r.check(10))
	}
	require.Empty(t, r.forgetAccount(nil, stopsByRefusal, 10), "requests need the others")
	require.Equal(t, 2, r.Len())
	waits.SetWaiting(false)
	require.Empty(t, r.forgetAccount(waits.Account, stopsByRefusal, 10))
	require.Equal(t, "waits", r.forgetAccount(nil, stopsByRefusal, 10))
}

// What a refusal stopped is over: what the account says next is worth no more than what others say.
func TestARefusalIsWorthMoreUntilItIsOver(t *testing.T) {
	r := NewRegistry(10, 1)
	g, _ := reports(r, "h", refusing(time.Second), 0)
	require.Equal(t, stopsByRefusal, g.Account.worth(0))
	require.Equal(t, stopsNothing, g.Account.worth(10*second))
	reports(r, "h", &Hints{Quotas: []QuotaHint{until(Unnamed, 0, year)}}, 0)
	require.Equal(t, stopsByRefusal, g.Account.worth(10*second))
	r.Forget(g.Account, 10*second)
	reports(r, "h", &Hints{}, 10*second)
	reports(r, "h", &Hints{Quotas: []QuotaHint{until(Unnamed, 0, year)}}, 11*second)
	require.Equal(t, stopsRequests, g.Account.worth(12*second))
}

func TestARefusalFindsRoom(t *testing.T) {
	r := NewRegistry(3, 1)
	empty := &Hints{Quotas: []QuotaHint{until(Unnamed, 0, year)}}
	for i := range 3 {
		g, forgot := reports(r, fmt.Sprint("e", i), empty, meter.Instant(i))
		require.NotNil(t, g)
		require.Empty(t, forgot)
	}
	g, _ := reports(r, "other", empty, 10)
	require.Nil(t, g, "it is worth no more than the others")
	require.Nil(t, r.Gate(at("other", 1), 10), "a waiter does without")
	g, forgot := reports(r, "refuses", refusing(year), 10)
	require.NotNil(t, g)
	require.Equal(t, "e0", forgot)
	require.Equal(t, 3, r.Len())
	g, forgot = reports(r, "e1", empty, 10)
	require.NotNil(t, g, "it has its gate")
	require.Empty(t, forgot)
	for i := range 3 { // of refusals, the oldest goes
		g, forgot = reports(r, fmt.Sprint("r", i), refusing(year), meter.Instant(20+i))
		require.NotNil(t, g)
		require.Equal(t, []string{"e2", "e1", "refuses"}[i], forgot)
	}
	for _, a := range r.hosts {
		a.accounts[0].gates[0].SetWaiting(true)
	}
	g, forgot = reports(r, "more", refusing(year), 30)
	require.NotNil(t, g, "if requests need all others, it is one more")
	require.Empty(t, forgot)
	require.Equal(t, 4, r.Len())
	require.Empty(t, r.check(30))
}

func TestAGateThatStopsNothingMakesRoom(t *testing.T) {
	r := NewRegistry(2, 1)
	first := r.Gate(at("a", 1), 0)
	stops, _ := reports(r, "b", refusing(year), 0)
	require.Nil(t, r.Find(at("c", 1), 0))
	require.NotNil(t, r.Gate(at("c", 1), 0))
	require.False(t, first.IsKept())
	require.True(t, stops.IsKept())
	require.EqualValues(t, 1, r.Evicted)
	require.Equal(t, 2, r.Len())
	require.Same(t, stops, r.Gate(at("b", 1), 0))
}

// An account of which 100 requests are in flight has as many gates. Idle ones go first.
func TestFamiliesThatNoRequestNeedsMakeRoom(t *testing.T) {
	r := NewRegistry(1000, 1)
	for i := range 100 {
		r.Gate(at("a", uint64(i)), 0)
		require.Equal(t, min(i+1, maxFamilies), r.Len())
	}
	var busy []*Gate
	for i := range 100 {
		busy = append(busy, sent(r, at("a", uint64(100+i)), 0, 1))
	}
	require.Equal(t, 100, r.Len())
	require.True(t, busy[0].IsKept())
	require.False(t, isIdle(busy[0].Account))
	for _, g := range busy {
		r.Apply(g, &Report{Accepted: true}, 0)
	}
	require.False(t, isIdle(busy[0].Account), "too many to look at")
	require.Empty(t, r.check(0))
	r.Gate(at("b", 1), 0)
	require.Equal(t, 101, r.Len())
	require.Zero(t, r.Evicted, "they were as good as new")
	r.Sweep(3600*second, 1000)
	require.Zero(t, r.Len())
}

// What gates take leaves room for quotas, however many gates requests need.
func TestManyGatesLeaveRoomForQuotas(t *testing.T) {
	r := NewRegistry(1000, 1)
	for i := range 100 {
		sent(r, at("a", uint64(i)), 0, 1)
	}
	n := 0
	r.Apply(r.Find(at("a", 0), 0), &Report{Reading: spam(&n, false).Read(0), Accepted: true}, 0)
	require.Greater(t, len(r.Find(at("a", 0), 0).Account.quotas), 8)
}

func TestAnAccountIsIdleIfFewGatesAreToBeLookedAt(t *testing.T) {
	r := NewRegistry(1000, 1)
	for n, idle := range map[int]bool{lookAtMost: true, lookAtMost + 1: false} {
		k := at(fmt.Sprint("h", n), 0)
		for i := range n {
			k.Family = uint64(i)
			sent(r, k, 0, 1)
		}
		for i := range n {
			k.Family = uint64(i)
			r.Apply(r.Find(k, 0), &Report{Accepted: true}, 0)
		}
		require.Equal(t, idle, isIdle(r.Find(k, 0).Account))
	}
}

func TestAnIdleAccountIsFoundAmongManyBusyOnes(t *testing.T) {
	r := NewRegistry(1<<20, 1)
	for i := range sweepMost / 2 {
		sent(r, at(fmt.Sprint("busy", i), 0), 0, 1)
	}
	for range 10 {
		r.Gate(at("idle", 0), 0)
		require.Equal(t, "idle", r.forgetAccount(nil, stopsByRefusal, 0))
	}
}

// Finding a victim takes bounded time, whatever there is.
func TestOnlySomeAccountsAreLookedAt(t *testing.T) {
	r := NewRegistry(1<<20, 1)
	for i := range 4 * sweepMost {
		g := r.Gate(at("busy", 0, fmt.Sprint(i)), 0)
		g.SetWaiting(true)
	}
	require.Empty(t, r.forgetAccount(nil, stopsByRefusal, 0))
	r.Gate(at("idle", 0), 0)
	require.Equal(t, "idle", r.forgetAccount(nil, stopsByRefusal, 0), "each host has its turn")
}
