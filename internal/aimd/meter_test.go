package aimd

import (
	"testing"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var _ interface {
	meter.Meter
	meter.Planner
} = (*Meter)(nil)

func TestAMeterOwesAMinuteAtMost(t *testing.T) {
	m := New(0, Config{Initial: 10}, 1)
	charged := m.Take(0, 0, 3, false)
	before := m.Tokens(0)
	m.Settle(charged, 0, 3, 5)
	require.InDelta(t, before-2, m.Tokens(0), 1e-6)
	m.Settle(charged, 0, 3, meter.MaxCount)
	require.InDelta(t, -600, m.Tokens(0), 1e-6)
	m.Settle(charged, 10*second, 3, 0)
	require.GreaterOrEqual(t, m.control.used.Value, 0.0)
}

func TestNoMoreThanTheBoundIsInFlightAfterAPause(t *testing.T) {
	m := New(0, Config{}, 1)
	m.control.inFlight = m.control.inFlightBound()
	m.control.pausedUntil = 5 * second
	assert.Equal(t, never, m.Ready(6*second, 0, 1))
	assert.Equal(t, never, m.Ready(4*second, 0, 1), "the queue asks with the instant at which the first waiter came")
}

func TestBucketAndControllerNumberRequestsAlike(t *testing.T) {
	m := New(0, Config{Initial: 10}, 1)
	charged := m.Take(0, 0, 1, false)
	m.Settle(charged, second, 1, 2)
	charged = m.Take(3*second, 3*second, 1, false)
	require.Equal(t, m.control.seq, uint64(charged/2))
}

// A meter is kept for as long as what it knows matters.
func TestAMeterSaysUntilWhenItMatters(t *testing.T) {
	now := instant(0)
	m := New(now, Config{}, 1)
	assert.Equal(t, now, fullAt(m), "a new one")
	charged := m.Take(now, now, 1, false)
	assert.Equal(t, never, fullAt(m), "a request in flight")
	assert.True(t, needed(m, now))
	m.Answered(now, charged, now, 1, Throttled, time.Minute)
	assert.GreaterOrEqual(t, fullAt(m), 60*second, "a pause")
	assert.True(t, needed(m, 60*second))
	assert.False(t, needed(m, 70*second))
	assert.GreaterOrEqual(t, fullAt(m), KeepLearned, "a learned rate")
	now = 70 * second
	for range rowOfDead + 3 {
		now = max(now, m.control.gate(now)) + second
		charged := m.Take(now, now, 1, false)
		m.Answered(now, charged, now, 1, Unavailable, 0)
	}
	require.True(t, m.control.silence.on)
	assert.True(t, needed(m, now), "a silence")
	assert.Greater(t, fullAt(m), m.control.silence.probeAt+60*second)
}

// needed reports whether a meter may not be forgotten now.
func needed(m *Meter, now instant) bool {
	must, _ := m.Matters(now)
	return must > now
}

// fullAt returns the instant from which a meter is as good as new.
func fullAt(m *Meter) instant {
	_, full := m.Matters(0)
	return full
}
