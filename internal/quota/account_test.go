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
		sends(t, y, 0, 1)
		y.Answered(0, 0, true, []Tell{c})
		y = NewGate(a)
		g.Take(0, 0, 1, false)
		g.Answered(0, 0, true, []Tell{c}) // it falls under all
		require.LessOrEqual(t, len(a.quotas), maxQuotas)
	}
	require.Len(t, g.quotas, maxQuotas)
	for _, q := range a.quotas {
		require.GreaterOrEqual(t, q.reset, 108*second)
	}
}

func TestAccountDropsQuotasThatAreLongOver(t *testing.T) {
	a, x, y := newFamilies()
	asks(t, x, 0, Tell{"old", 10, 0, 60 * second, true, 0, false, ""})
	at := 60*second + quotaStale
	asks(t, y, at, Tell{"new", 10, 5, meter.Never, true, 0, false, ""})
	require.Len(t, a.quotas, 2)
	asks(t, y, at+1, Tell{"newer", 10, 5, meter.Never, true, 0, false, ""})
	require.Len(t, a.quotas, 2)
	require.True(t, x.Open(at+1), "a dropped quota stops no request")
	sends(t, x, at+1, 200)
	asks(t, x, at+2)
	require.Empty(t, x.quotas)

	a, x, y = newFamilies()
	asks(t, x, 0, Tell{"old", 10, 5, 60 * second, true, 0, false, ""})
	sends(t, x, 1, 1)
	asks(t, y, 2*at, Tell{"new", 10, 5, meter.Never, true, 0, false, ""})
	require.Len(t, a.quotas, 2, "something is in flight")
}

func TestAccountHoldEndsNoEarlierAndAtMostATenthLater(t *testing.T) {
	for _, d := range []int64{1, 10, second, 5 * second, 10 * second, 3600 * second} {
		ends := map[meter.Instant]bool{}
		for seed := range uint64(100) {
			a := NewAccount(NewServer(1), seed)
			g := NewGate(a)
			a.Hold(7, d)
			require.GreaterOrEqual(t, a.held, 7+d)
			require.Less(t, a.held, 7+d+max(1, min(second, d/10)))
			requireReady(t, g, 7, a.held)
			ends[a.held] = true

			s := NewServer(seed)
			g = NewGate(NewAccount(s, 1))
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
	require.Equal(t, meter.Never, g.Ready(2*second, 0, 1))
	require.Equal(t, meter.Never, g.Plan(2*second, 0, 1), "this is no want of an answer")
}

func TestAccountHoldStopsNoOtherAccount(t *testing.T) {
	a, x, _ := newFamilies()
	other := NewGate(NewAccount(a.server, 3))
	a.Hold(0, second)
	require.False(t, x.Payable(1, 1))
	requireReady(t, other, 1, 1)
	a.server.Hold(0, second)
	require.False(t, other.Payable(1, 1))
}
