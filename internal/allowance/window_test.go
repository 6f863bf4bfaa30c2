package allowance

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

// Responses that took longer than others report an earlier end of the same window, because it counts from when they came. That is
// no other window: how long one is, is known only once two have ended.
func TestTheEndOfOneWindowIsNotTakenForTwo(t *testing.T) {
	m := New(&meter.Wall{})
	left := int64(1000)
	send := func(at, took, ends int64) {
		n := m.Take(at, at, 100, false)
		left -= 100
		now := at + took
		m.Report(n, now, []Figures{{Name: "tokens", Limit: 1000, Left: left, Reset: ends - now}}, false)
		m.Settle(n, now, 100, 100)
	}
	send(0, second, 120*second)
	send(5*second, second, 120*second)
	send(10*second, 2*second, 120*second)
	send(15*second, second/2, 120*second)
	later := func() meter.Instant { // when three windows more have been spent
		p, _ := m.Play(20 * second)
		return p.Ready(20*second, 3000, 100)
	}
	require.Equal(t, meter.Never, later())
	left = 1000
	send(121*second, second/4, 240*second)
	require.InDelta(t, 120*second, m.parts[0].lasts, float64(5*second))
	require.InDelta(t, 480*second, later(), float64(15*second))
}
