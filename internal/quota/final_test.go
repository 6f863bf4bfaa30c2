package quota

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
)

var errSaid = errors.New("no credit")

func refusesFinally(t testing.TB, g *Gate, now meter.Instant) Change {
	t.Helper()
	n := g.Take(now, now, 1, false)
	return g.apply(&Report{Reading: Reading{Hints: &Hints{Limited: true, Final: errSaid}}, Sent: now, Number: n}, now)
}

// requireAsk demands that a request passes at at, and none before.
func requireAsk(t testing.TB, g *Gate, from, at meter.Instant) {
	t.Helper()
	require.Equal(t, at, g.Ready(from, 0, 1))
	require.False(t, at > from && g.Payable(at-1, 1))
	require.True(t, g.Payable(at, 1))
}

func TestAFinalRefusalLetsOneRequestAMinuteAsk(t *testing.T) {
	a, x, y := newFamilies()
	c := refusesFinally(t, x, second)
	require.Equal(t, errSaid, c.Final)
	require.Equal(t, OfAccount, c.Late)
	require.True(t, a.stops(second))
	require.False(t, x.Open(second))
	for _, g := range []*Gate{x, y} {
		requireAsk(t, g, second, 61*second)
		require.Equal(t, meter.Never, g.Plan(61*second-1, 0, 1), "no waiter waits for it")
		require.Equal(t, 61*second, g.Plan(61*second, 0, 1))
		require.Equal(t, meter.Never, g.Plan(61*second, 1, 1), "one asks")
		must, _ := g.Matters(second)
		require.Equal(t, 61*second, must)
	}
	n := y.Take(61*second, 61*second, 1, false)
	requireAsk(t, x, 61*second, 121*second)

	y.GiveBack(n, 62*second, 1)
	requireAsk(t, x, 62*second, 62*second)
	n = sends(t, x, 62*second, 1)
	answer(x, n, 62*second, 63*second, false) // no response
	requireAsk(t, x, 63*second, 122*second)
	c = refusesFinally(t, x, 122*second)
	require.Equal(t, errSaid, c.Final, "it still holds")

	n = sends(t, x, 182*second, 1)
	x.apply(&Report{Sent: 182 * second, Number: n, Accepted: true, Done: true}, 183*second)
	requireAsk(t, x, 183*second, 183*second)
	_, _, said := a.Final()
	require.NoError(t, said)
}

// The others that were in flight say the same, and put nothing off.
func TestOneFinalRefusalIsNews(t *testing.T) {
	_, x, _ := newFamilies()
	var numbers []int64
	for range 16 {
		numbers = append(numbers, x.Take(0, 0, 1, false))
	}
	for i, n := range numbers {
		c := x.apply(&Report{Reading: Reading{Hints: &Hints{Limited: true, Final: errSaid}}, Number: n}, second*int64(1+i))
		require.Equal(t, i == 0, c.Final != nil)
	}
	requireAsk(t, x, 20*second, 61*second)
}

func TestForgetEndsAFinalRefusal(t *testing.T) {
	a, x, _ := newFamilies()
	refusesFinally(t, x, second)
	require.Greater(t, a.Size(), newAccount(NewServer(1), 2).Size(), "its words take room")
	a.Forget(2 * second)
	requireAsk(t, x, 2*second, 2*second)
}

func TestARefusalThatWasNoneLeavesTheAccountAsItWas(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Minute} {
		a, x, _ := newFamilies()
		for i := range int64(100) {
			asks(t, x, i*second/10)
		}
		before := a.barrier
		var ends []func(meter.Instant, aimd.Outcome) bool
		for range 3 {
			n := x.Take(10*second, 10*second, 1, false)
			hints := &Hints{Limited: true, Asked: wait > 0, Wait: wait}
			c := x.apply(&Report{Reading: Reading{Hints: hints}, Sent: 10 * second, Number: n, Doubtful: true}, 10*second+second/100)
			ends = append(ends, c.Doubt)
		}
		require.Greater(t, a.Until(), 10*second)
		for i, end := range ends {
			require.Equal(t, i == 2, end(11*second, aimd.Ignore))
		}
		require.Equal(t, before.held, a.held)
		require.Equal(t, first{}, a.first)
		require.Nil(t, a.rate)
		require.True(t, x.Payable(11*second, 1))
	}
}
