package quota

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/meter/metertest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestGatePlansBehindEarlierRequests(t *testing.T) {
	a, g, _ := newFamilies()
	require.Equal(t, 5*second, g.Plan(5*second, 1<<50, 1))
	asks(t, g, 0, core(100, 10, 60*second))
	assert.Equal(t, second, g.Plan(second, 9, 1))
	assert.Equal(t, 60*second, g.Plan(second, 10, 1))
	assert.Equal(t, 60*second, g.Plan(second, 1000, 1), "a lower bound")
	sends(t, g, 1, 1)
	assert.Equal(t, 60*second, g.Plan(second, 9, 1))
	a.Hold(second, 100*second)
	assert.Equal(t, a.held, g.Plan(second, 1000, 1))
}

func TestGateIsOpenOnlyIfNothingBoundsIt(t *testing.T) {
	a, g, _ := newFamilies()
	require.True(t, g.Open(0))
	asks(t, g, 0)
	require.True(t, g.Open(0))
	asks(t, g, 1, core(meter.MaxCount, meter.MaxCount, meter.Never))
	require.True(t, g.Open(1))
	asks(t, g, 2, core(meter.MaxCount, meter.MaxCount-1, meter.Never))
	require.False(t, g.Open(2))
	asks(t, g, 3, core(meter.MaxCount, meter.MaxCount, meter.Never))
	require.True(t, g.Open(3))

	a.Hold(second, second)
	held := a.held
	require.False(t, g.Open(held-1))
	require.True(t, g.Open(held))
	burst(t, g, 9*second, 10)
	denied(g, sends(t, g, 10*second, 1), 10*second, 10*second, second, NotBare)
	require.False(t, g.Open(a.held), "a rate is to be learned")
}

func TestGateIsForgottenNoEarlierThanWhatStopsIt(t *testing.T) {
	a, g, _ := newFamilies()
	require.False(t, needed(g, 0))
	n := sends(t, g, 0, 1)
	require.Equal(t, meter.Never, fullAt(g))
	require.True(t, needed(g, 0))
	answer(g, n, 0, 0, true, core(10, 0, 60*second))
	require.Greater(t, fullAt(g), 60*second)
	require.True(t, needed(g, 60*second-1))
	require.False(t, needed(g, 60*second))
	a.Hold(0, 100*second)
	require.Greater(t, fullAt(g), a.held)
	require.True(t, needed(g, a.held-1))
	require.False(t, needed(g, a.held))
	a.server.Hold(0, 200*second)
	require.Greater(t, fullAt(g), a.server.held)
	require.True(t, needed(g, a.server.held-1))
	sends(t, g, a.server.held, 1)
	g.GiveBack(0, a.server.held, 1)
	require.Greater(t, fullAt(g), a.even.next)
	require.Panics(t, func() { g.GiveBack(0, a.server.held, 1) })
}

func TestGateReportsTheLeastOfItsQuotas(t *testing.T) {
	_, g, _ := newFamilies()
	require.Equal(t, math.Inf(1), g.Tokens(0))
	asks(t, g, 0, core(100, 40, 60*second), Figures{Name: "daily", Limit: 1000, Left: 30, Reset: meter.Never, Counted: true})
	require.EqualValues(t, 30, g.Tokens(0))
	sends(t, g, 1, 1)
	require.EqualValues(t, 29, g.Tokens(0))
	asks(t, g, 2, core(100, 40, 60*second), Figures{Name: "daily", Limit: 1000, Left: 500, Reset: meter.Never, Counted: true})
	require.EqualValues(t, 39, g.Tokens(59*second))
	require.EqualValues(t, 99, g.Tokens(60*second))
}

// Whatever servers and clocks say, nothing overflows: no instant lies before what was asked for, ready is the first
// instant that is payable, and asking changes nothing.
func TestArithmeticIsTotal(t *testing.T) {
	for seed := range uint64(300) {
		r := metertest.Seeded(t, seed)
		a := newAccount(NewServer(seed), seed)
		gates := []*Gate{newGate(a), newGate(a)}
		now := meter.Instant(0)
		for range 200 {
			now = meter.AddInstant(now, r.Int64N(1<<r.IntN(38)))
			g := gates[r.IntN(2)]
			mess(r, a, g, now)
			at := g.Ready(now, 0, 1)
			require.GreaterOrEqual(t, at, now)
			require.LessOrEqual(t, g.Plan(now, 0, 1), at)
			require.Equal(t, at == now, g.Payable(now, 1))
			if at < meter.Never {
				require.True(t, g.Payable(at, 1))
			}
			g.Tokens(now)
			g.Open(now)
			require.Equal(t, at, g.Ready(now, 0, 1), "asking changes nothing")
			require.GreaterOrEqual(t, g.Plan(now, math.MaxInt64, 1), now)
			require.LessOrEqual(t, len(a.quotas), maxQuotas)
			require.Less(t, len(g.quotas), 2*maxQuotas)
		}
	}
}

// mess does something at random.
func mess(r *rand.Rand, a *Account, g *Gate, now meter.Instant) {
	extremes := []int64{math.MinInt64, -1, 0, 1, 5, 1 << 40, meter.MaxCount, math.MaxInt64 - 1, math.MaxInt64}
	number := func() int64 {
		if r.IntN(3) == 0 {
			return extremes[r.IntN(len(extremes))]
		}
		return r.Int64N(20)
	}
	switch r.IntN(8) {
	case 0:
		a.Hold(now, number()*milli)
	case 1:
		a.server.Hold(now, number())
	case 2:
		if at := g.Ready(now, 0, 1); at == now {
			denied(g, g.Take(now, now, 1, true), max(0, now-r.Int64N(second)), now, max(0, number()), Bare(r.IntN(3)))
		}
	case 3:
		if g.inFlight > 0 {
			g.GiveBack(0, now, 1)
		}
	case 4, 5:
		if at := g.Ready(now, 0, 1); at == now {
			g.Take(max(0, now-r.Int64N(20*milli)), now, 1, true)
		}
	default:
		if g.inFlight == 0 {
			return
		}
		var figures []Figures
		for range r.IntN(5) {
			figures = append(figures, Figures{fmt.Sprint(r.IntN(40)), number(), number(), number(), r.IntN(3) > 0, number(), r.IntN(4) == 0, "", r.IntN(8) == 0})
			if r.IntN(2) == 0 {
				figures[len(figures)-1].Reset = meter.AddInstant(now, r.Int64N(10*second))
			}
		}
		answer(g, a.sent-r.Int64N(10), max(0, now-r.Int64N(second)), now, r.IntN(2) == 0, figures...)
	}
}

// needed reports whether a gate may not be forgotten now.
func needed(g *Gate, now meter.Instant) bool {
	must, _ := g.Matters(now)
	return must > now
}

// fullAt returns the instant from which a gate is as good as new.
func fullAt(g *Gate) meter.Instant {
	_, full := g.Matters(0)
	return full
}
