package quota

import (
	"fmt"
	"math"
	"testing"

	"github.com/httpthrottle/throttle/internal/meter"

	"github.com/stretchr/testify/require"
)

func TestAccountKeepsTheQuotasThatLastLongest(t *testing.T) {
	a, g, y := newFamilies()
	for i := range maxQuotas + 8 {
		c := core(10, 0, meter.Instant(100+i)*second)
		c.Name = fmt.Sprint("q", i)
		asks(t, y, 0, c)
		y = newGate(a)
		answer(g, g.Take(0, 0, 1, false), 0, 0, true, c) // it falls under all
		require.LessOrEqual(t, len(a.quotas), maxQuotas)
	}
	require.Len(t, g.quotas, maxQuotas)
	for _, q := range a.quotas {
		require.GreaterOrEqual(t, q.reset, 108*second)
	}
}

func TestAccountDropsQuotasThatAreLongOver(t *testing.T) {
	a, x, y := newFamilies()
	asks(t, x, 0, Figures{Name: "old", Limit: 10, Left: 0, Reset: 60 * second, Counted: true})
	at := 60*second + quotaStale
	asks(t, y, at, Figures{Name: "new", Limit: 10, Left: 5, Reset: meter.Never, Counted: true})
	require.Len(t, a.quotas, 2)
	asks(t, y, at+1, Figures{Name: "newer", Limit: 10, Left: 5, Reset: meter.Never, Counted: true})
	require.Len(t, a.quotas, 2)
	require.True(t, x.Open(at+1), "a dropped quota stops no request")
	sends(t, x, at+1, 200)
	asks(t, x, at+2)
	require.Empty(t, x.quotas)

	a, x, y = newFamilies()
	asks(t, x, 0, Figures{Name: "old", Limit: 10, Left: 5, Reset: 60 * second, Counted: true})
	sends(t, x, 1, 1)
	asks(t, y, 2*at, Figures{Name: "new", Limit: 10, Left: 5, Reset: meter.Never, Counted: true})
	require.Len(t, a.quotas, 2, "something is in flight")
}

func TestAccountHoldEndsNoEarlierAndAtMostATenthLater(t *testing.T) {
	for _, d := range []int64{1, 10, second, 5 * second, 10 * second, 3600 * second} {
		ends := map[meter.Instant]bool{}
		for seed := range uint64(100) {
			a := newAccount(NewServer(1), seed)
			g := newGate(a)
			a.Hold(7, d)
			require.GreaterOrEqual(t, a.held, 7+d)
			require.Less(t, a.held, 7+d+max(1, min(second, d/10)))
			requireReady(t, g, 7, a.held)
			ends[a.held] = true

			s := NewServer(seed)
			g = newGate(newAccount(s, 1))
			s.Hold(7, d)
			require.GreaterOrEqual(t, s.held, 7+d)
			require.Less(t, s.held, 7+d+max(1, min(second, d/10)))
			requireReady(t, g, 7, s.held)
		}
		if d >= second {
			require.Greater(t, len(ends), 90)
		}
	}
}

func TestAccountHoldIsNeverShortened(t *testing.T) {
	a, g, _ := newFamilies()
	a.Hold(0, 10*second)
	held := a.held
	for _, d := range []int64{1, 0, -1, math.MinInt64, 5 * second} {
		a.Hold(second, d)
		a.server.Hold(second, d)
		require.Equal(t, held, a.held)
	}
	requireReady(t, g, second, held)
	a.server.Hold(second, 100*second)
	requireReady(t, g, second, a.server.held)
	a.Hold(second, math.MaxInt64)
	require.GreaterOrEqual(t, a.held, second+longestHold)
	require.LessOrEqual(t, a.held, second+longestHold+second, "it is asked about after a day")
	requireReady(t, g, 2*second, a.held)
}

// After a hold of a day, a server that asked for a longer one gets one request a second until it accepts one.
func TestAServerIsAskedOnceADayWhetherALongHoldHasEnded(t *testing.T) {
	for d, asks := range map[int64]bool{longestHold: false, longestHold + 1: true, 365 * longestHold: true} {
		a, _, _ := newFamilies()
		a.Hold(0, d)
		require.Equal(t, asks, a.asking)
	}
	a, g, _ := newFamilies()
	asks(t, g, 0)
	denied(g, sends(t, g, second, 1), second, second, 365*longestHold, NotBare)
	for range 3 {
		at := a.held
		requireReady(t, g, 2*second, at)
		n := sends(t, g, at, 1)
		requireReady(t, g, at, at+second)
		denied(g, n, at, at+milli, 365*longestHold, NotBare)
		require.GreaterOrEqual(t, a.held, at+milli+longestHold)
	}
	at := a.held
	asks(t, g, at)
	require.False(t, a.asking)
	require.False(t, a.held > at)
}

// A quota that is empty for more than a day is asked about once a day, whatever its unit, and its end is still shown.
func TestAnEmptyQuotaIsAskedAboutOnceADay(t *testing.T) {
	for name, counted := range map[string]bool{"requests": true, "tokens": false} {
		t.Run(name, func(t *testing.T) {
			a, g, _ := newFamilies()
			end := 30 * longestHold
			nothing := core(100, 0, end)
			nothing.Counted = counted
			asks(t, g, 0, nothing)
			for at := longestHold; at < 3*longestHold; at += longestHold {
				requireReady(t, g, at-second, at)
				n := sends(t, g, at, 1)
				require.False(t, g.Payable(at, 1), "one at a time")
				answer(g, n, at, at, true, nothing)
				require.Equal(t, end, a.quotas[0].reset)
			}
			full := nothing
			full.Left = 100
			asks(t, g, 3*longestHold, full)
			require.Less(t, g.Ready(3*longestHold, 0, 1), 3*longestHold+second)
		})
	}
}

// A refusal that names its quota stops the requests of that quota for a day at most.
func TestAHoldOfAQuotaIsAskedAboutOnceADay(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(100, 50, 3*second))
	g.apply(&Report{
		Reading: Reading{Hints: &Hints{Limited: true, Wait: year}, figures: []Figures{empty(100, 3*second)}, named: true, empty: true},
		Sent:    second, Number: sends(t, g, second, 1),
	}, second)
	require.Equal(t, second+longestHold, only(t, a).held)
}

func TestAccountHoldStopsNoOtherAccount(t *testing.T) {
	a, x, _ := newFamilies()
	other := newGate(newAccount(a.server, 3))
	a.Hold(0, second)
	require.False(t, x.Payable(1, 1))
	requireReady(t, other, 1, 1)
	a.server.Hold(0, second)
	require.False(t, other.Payable(1, 1))
}
