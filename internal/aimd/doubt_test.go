package aimd

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// doubted sends n requests, has them fail, and returns what ends the doubts.
func doubted(m *Meter, now instant, n int, o Outcome, retryAfter time.Duration) (ends []func(instant, Outcome) bool) {
	charged := make([]int64, n)
	for i := range charged {
		charged[i] = m.Take(now, now, 1, false)
	}
	for _, c := range charged {
		ends = append(ends, m.Doubt(now, c, now, 1))
		m.Answered(now, c, now, 1, o, retryAfter)
	}
	return ends
}

func TestFailuresThatWereNoneAreUndone(t *testing.T) {
	for _, o := range []Outcome{Throttled, Unavailable, Error} {
		for _, retryAfter := range []time.Duration{0, time.Minute} {
			for _, n := range []int{1, 3, 20} {
				for _, as := range []Outcome{ClientError, Ignore} {
					m := New(0, Config{Initial: 100, Min: 1, Max: 1000}, 1)
					for range 30 {
						m.Answered(second/10, m.Take(0, 0, 1, false), 0, 1, OK, 0)
					}
					rate := m.PerSecond(second)
					for i, end := range doubted(m, second, n, o, retryAfter) {
						require.Equal(t, i == n-1, end(second, as))
					}
					require.InDelta(t, rate, m.PerSecond(second), 1e-9)
					require.Zero(t, m.InFlight())
					require.Zero(t, m.control.pausedUntil)
					require.True(t, m.Payable(2*second, 1))
					require.Equal(t, 0., m.control.row)
				}
			}
		}
	}
}

// settled is a meter of which enough was accepted for a refusal to count.
func settled() *Meter {
	m := New(0, Config{Initial: 100, Min: 1, Max: 1000}, 1)
	for range handful {
		m.Answered(0, m.Take(0, 0, 1, false), 0, 1, OK, 0)
	}
	return m
}

func TestAFailureThatStandsIsNotUndone(t *testing.T) {
	m := settled()
	ends := doubted(m, second, 2, Throttled, time.Minute)
	rate := m.PerSecond(second)
	require.Less(t, rate, 100.)
	require.False(t, ends[0](second, 0))
	require.False(t, ends[1](second, ClientError))
	require.Equal(t, rate, m.PerSecond(second))
	require.Equal(t, 61*second, m.control.pausedUntil)
}

// A silent server that answers its probe after all is silent no more.
func TestAProbeThatWasNoFailureEndsASilence(t *testing.T) {
	m := New(0, Config{Initial: 100, Min: 1, Max: 1000}, 1)
	for range 2 * rowOfDead {
		m.Answered(0, m.Take(0, 0, 1, false), 0, 1, Unavailable, 0)
	}
	require.True(t, m.control.silence.on)
	now := m.control.silence.probeAt
	end := doubted(m, now, 1, Throttled, 0)[0]
	require.True(t, end(now, ClientError))
	require.False(t, m.control.silence.on)
	require.False(t, m.control.silence.probe > 0)
}

func TestAnUndoneCutIsReported(t *testing.T) {
	m := settled()
	end := doubted(m, second, 1, Throttled, time.Minute)[0]
	cut, ok := m.Retuned()
	require.True(t, ok)
	require.True(t, end(second, ClientError))
	back, ok := m.Retuned()
	require.True(t, ok)
	require.Equal(t, Retune{CauseRestored, cut.To, cut.From}, back)
}
