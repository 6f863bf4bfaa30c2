package quota

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

// tokens are figures of a quota of another unit.
func tokens(name string, limit, left int64, reset meter.Instant) Figures {
	return Figures{Name: name, Unit: "tokens", Limit: limit, Left: left, Reset: reset}
}

// hears takes a response to the request of that number, with the hints that these figures are of.
func hears(g *Gate, number int64, sent, now meter.Instant, h Hints, figures ...Figures) {
	for i := range figures {
		h.Quotas = append(h.Quotas, QuotaHint{Name: figures[i].Name})
	}
	g.apply(&Report{Reading: Reading{Hints: &h, figures: figures}, Sent: sent, Number: number, Accepted: !h.Limited, Done: !h.Limited}, now)
}

// spending returns a gate whose requests are known to cost 100 of a window of 1,000 that ends after a minute, of which 500 are left at 5 s.
func spending(t *testing.T) (*Account, *Gate) {
	t.Helper()
	a, g, _ := newFamilies()
	for i := range int64(5) {
		asks(t, g, i*second, tokens("tokens", 1000, 900-100*i, 60*second))
	}
	require.True(t, a.units.Reports())
	return a, g
}

// sendable returns how many requests can be sent at an instant.
func sendable(g *Gate, now meter.Instant) (n int64) {
	for n < 20 && g.Payable(now, n+1) {
		n++
	}
	return n
}

func TestOnlyRequestsThatSpendAUnitAreCharged(t *testing.T) {
	a, g := spending(t)
	require.EqualValues(t, 4, sendable(g, 5*second), "of five, with a spare")
	other := newGate(a)
	sends(t, other, 5*second, 3)
	require.EqualValues(t, 4, sendable(g, 5*second), "another family")
	n := g.Take(5*second, 5*second, 1, false)
	require.EqualValues(t, 3, sendable(g, 5*second))
	g.GiveBack(n, 5*second, 1)
	require.EqualValues(t, 4, sendable(g, 5*second), "it was not sent")
	n = g.Take(5*second, 5*second, 1, false)
	hears(g, n, 5*second, 5*second, Hints{Limited: true, Host: true, Asked: true, Wait: time.Second})
	require.EqualValues(t, 4, sendable(g, 8*second), "it was refused for another reason")
}

func TestWhatWasSentBeforeTheFirstReportIsCharged(t *testing.T) {
	a, g, _ := newFamilies()
	sends(t, g, 0, 6)
	hears(g, 1, 0, second, Hints{}, tokens("tokens", 1000, 900, 60*second))
	require.EqualValues(t, 6, a.units.InFlight()+1)
}

// What is reported of tokens as a whole is that of one of its parts, now this one and then another.
func TestAUnitAsAWholeIsLeftOutBesideItsParts(t *testing.T) {
	a, g, _ := newFamilies()
	hears(g, g.Take(0, 0, 1, false), 0, 0, Hints{}, tokens("tokens", 1000, 0, 60*second), tokens("input-tokens", 1000, 900, 60*second))
	require.True(t, g.Payable(second, 1))
	require.False(t, a.units.Refills("tokens"))
}

// What others are to have is left to them.
func TestTheReserveOfAUnitIsLeft(t *testing.T) {
	_, g, _ := newFamilies()
	c := tokens("tokens", 1000, 100, 60*second)
	c.Reserve = 100
	asks(t, g, 0, c)
	require.False(t, g.Payable(second, 1))
}

// A host that refuses everything is held, however little is left of a unit.
func TestLittleLeftExplainsNoRefusalOfTheHost(t *testing.T) {
	for _, host := range []bool{false, true} {
		a, g := spending(t)
		h := Hints{Limited: true, Host: host, Asked: true, Wait: 30 * time.Second}
		hears(g, g.Take(5*second, 5*second, 1, false), 5*second, 5*second, h, tokens("tokens", 1000, 10, 60*second))
		require.Equal(t, host, a.server.held > 5*second)
	}
}

// A reset says when all is back, and no request has to wait for that.
func TestAResetIsNoWaitForAUnit(t *testing.T) {
	a, g := spending(t)
	hears(g, g.Take(5*second, 5*second, 1, false), 5*second, 5*second, Hints{Limited: true, Wait: time.Hour}, tokens("tokens", 1000, 10, 60*second))
	require.Zero(t, a.units.HeldUntil())
}

// Requests of two models are not known to be counted separately yet. Then each limit has its own count, until it is not reported any more.
func TestTwoLimitsOfOneUnitAreCountedApart(t *testing.T) {
	a, g := spending(t)
	asks(t, g, 5*second, tokens("tokens", 5000, 4900, 60*second))
	require.EqualValues(t, 3, sendable(g, 5*second), "which this request may have been charged to as well")
	for i := range meter.Instant(70) {
		passes(g, 6*second+i, tokens("tokens", 5000, 4900, 60*second))
	}
	require.Equal(t, 4900.0, a.units.Tokens(6*second+70))
}

// What comes back between two requests is no contradiction.
func TestABucketAtItsEndIsNotDoubted(t *testing.T) {
	a, g, _ := newFamilies()
	for i, left := range []int64{900, 800, 700, 600} { // 10 come back in a second
		now := meter.Instant(i) * 10 * second
		passes(g, now, tokens("tokens", 1000, left, now+(1000-left)*second/10))
	}
	for i := range meter.Instant(4) {
		now := (40 + i) * second
		passes(g, now, tokens("tokens", 1000, 0, now+100*second))
	}
	require.True(t, a.units.Refills("tokens"))
	require.False(t, only(t, a).doubt.on)
}

// A request of a gate that has moved has a larger number than those of its new account.
func TestUnitsAreChargedAfterAGateHasMoved(t *testing.T) {
	r := NewRegistry(10, 1)
	g, other := r.Gate(at("h", 1), 0), r.Gate(at("h", 2), 0)
	a := r.split(other, new(belonging), 0)
	r.move(other, a, 0)
	passes(other, 0, tokens("tokens", 1000, 900, 60*second))
	for range 200 {
		passes(g, second)
	}
	r.move(g, a, second)
	passes(other, 2*second, tokens("tokens", 1000, 800, 60*second))
	require.Zero(t, a.units.InFlight())
}

func TestACountOfTokensContradictsNoAccount(t *testing.T) {
	for _, counted := range []bool{false, true} {
		a, g, _ := newFamilies()
		c := tokens("tokens", 1000, 900, 60*second)
		c.Counted = counted
		passes(g, 0, c)
		c.Left = 100
		require.Equal(t, !counted, only(t, a).fits(&c, second))
	}
}
