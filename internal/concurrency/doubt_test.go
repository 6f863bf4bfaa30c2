package concurrency

import (
	"testing"
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/stretchr/testify/require"
)

func TestRefusalsThatWereNoneAreUndone(t *testing.T) {
	for _, n := range []int{1, 3, 20} {
		for _, as := range []aimd.Outcome{aimd.ClientError, aimd.Ignore} {
			m := New(0, Config{Initial: 32}, &meter.Wall{})
			var charged []int64
			for range n {
				charged = append(charged, m.Take(0, 0, 1, false))
			}
			var ends []func(instant, aimd.Outcome) bool
			for i, c := range charged {
				ends = append(ends, m.Doubt(second, c, 0, 1))
				charged[i] = m.Answered(second, c, 0, 1, aimd.Throttled, 0)
			}
			for i, end := range ends {
				require.Equal(t, i == n-1, end(second, as))
				m.GiveBack(charged[i], second, 1)
			}
			require.Equal(t, int64(32), m.control.limit(), n)
			require.Zero(t, m.InFlight())
			require.Zero(t, m.HeldUntil())
			require.Zero(t, m.control.refusals.row)
		}
	}
}

func TestARefusalThatStandsIsNotUndone(t *testing.T) {
	m := New(0, Config{Initial: 32}, &meter.Wall{})
	m.control.brink(second)
	a, b := m.Take(0, 0, 1, false), m.Take(0, 0, 1, false)
	end := m.Doubt(second, a, 0, 1)
	m.Answered(second, a, 0, 1, aimd.Throttled, 0)
	m.Stand()
	m.Answered(second, b, 0, 1, aimd.Throttled, time.Duration(0))
	n := m.control.limit()
	require.Less(t, n, int64(32))
	require.False(t, end(second, aimd.ClientError))
	require.Equal(t, n, m.control.limit())
}
