package concurrency

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/scene/flight"
)

// slowed returns a client of a server that has become three times slower, when its next visit is a joint one.
func slowed(t *testing.T, wall *meter.Wall) *machine {
	t.Helper()
	m := newMachine(Config{}, knee(20, 0.05))
	m.joint.wall = wall
	m.rounds(1000, all)
	require.False(t, m.joint.due)
	m.latency = knee(20, 0.15)
	m.until(func() bool { return m.joint.due && m.mode == cruising })
	require.True(t, m.joint.due)
	return m
}

func TestVisitsAreJointOnlyWhereTheServerIsSlowerThanItWas(t *testing.T) {
	m := newMachine(Config{}, knee(20, 0.05))
	for range 3000 {
		m.round(all)
		require.False(t, m.joint.due)
	}
	slowed(t, noon)
}

func TestJointVisitsBeginAtTheSameTimeOfDay(t *testing.T) {
	var at []int64
	for _, wall := range []meter.Wall{{}, {Unix: 1_700_000_000_123_456_789}, {Unix: 12_345}} {
		m := slowed(t, &wall)
		p := m.period()
		assert.Zero(t, p&(p-1), "a power of two")
		assert.GreaterOrEqual(t, float64(p), 16*1e9*m.mean)
		assert.LessOrEqual(t, float64(p), 32*1e9*m.mean)
		assert.Zero(t, (m.joint.at+wall.Unix)%p)
		assert.Greater(t, m.joint.at, m.now-p)
		begins := m.joint.at
		m.until(func() bool { return m.mode == visiting })
		assert.GreaterOrEqual(t, m.now, begins)
		assert.Less(t, m.now-begins, p/2)
		at = append(at, begins+wall.Unix)
	}
	assert.NotEqual(t, at[0], at[1], "the clocks differ")
}

func TestJointVisitIsAsDeepAsTheServerIsSlower(t *testing.T) {
	m := slowed(t, noon)
	want := m.cruise() * math.Exp(m.best-m.usual)
	m.until(func() bool { return m.mode == visiting })
	began := m.now
	assert.InDelta(t, want, float64(m.limit()), 1)
	assert.Less(t, want, 0.5*m.cruise())
	m.until(func() bool { return m.mode != visiting })
	assert.GreaterOrEqual(t, m.now-began, m.period()/jointShare-at(0.2))
	assert.Less(t, m.now-began, m.period()/2)
}

func TestCutEndsAJointVisit(t *testing.T) {
	m := slowed(t, noon)
	m.until(func() bool { return m.mode == visiting })
	m.cut(m.now, 10, false, true)
	assert.False(t, m.joint.due)
	assert.Equal(t, cruising, m.mode)
}

// Clients whose clocks agree roughly share a server better than those whose clocks have nothing to do with each other.
func TestClientsWithTheSameClockEmptyTheQueueTogether(t *testing.T) {
	var busy flight.Scene
	for _, s := range flight.Unseen() {
		if s.Name == "2 busy clients" {
			busy = s
		}
	}
	figures := func(apart float64) flight.Figures {
		k := 0.0
		return busy.Figures(6, func() flight.Limiter {
			k++
			return learned{New(0, Config{}, false, &meter.Wall{Unix: at(k * apart)}), aimd.Unavailable}
		})
	}
	same, near, other := figures(0), figures(0.1), figures(7.7)
	t.Logf("the same clock: %v; 0.1 s apart: %v; 7.7 s: %v", same, near, other)
	for _, f := range []flight.Figures{same, near} {
		assert.Less(t, f.P99, 1.6)
		assert.Greater(t, f.Jain, 0.9)
	}
	assert.Less(t, same.P99, other.P99-0.1)
	assert.Less(t, other.P99, 2.0, "which is the goal of other scenes")
	assert.Greater(t, other.Goodput, 99.0)
}
