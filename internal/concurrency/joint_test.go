package concurrency

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/scene/flight"
)

// deep reports whether the next visit will empty the queue.
func (m *machine) deep() bool { return m.mode == cruising && m.joint.depth < visit }

// slowed returns a client of a server that has become three times slower, when its next visit is a deep one.
func slowed(t *testing.T, wall *meter.Wall) *machine {
	t.Helper()
	m := newMachine(Config{}, knee(20, 0.05))
	m.joint.wall = wall
	m.rounds(1000, all)
	require.False(t, m.deep())
	m.latency = knee(20, 0.15)
	m.until(m.deep)
	require.True(t, m.deep())
	return m
}

func TestVisitsAreDeepOnlyWhereTheServerIsSlowerThanItWas(t *testing.T) {
	m := newMachine(Config{}, knee(20, 0.05))
	for range 3000 {
		m.round(all)
		require.False(t, m.deep())
	}
	slowed(t, noon)
}

// departed waits for a visit, and asserts that it begins soon after the multiple of the period that was decided on.
func departed(t *testing.T, m *machine, period, lasts instant) (unix int64) {
	t.Helper()
	assert.Zero(t, period&(period-1), "a power of two")
	at := m.joint.at
	assert.Zero(t, (at+m.joint.wall.Unix)%period)
	assert.Greater(t, at, m.now-period)
	m.until(func() bool { return m.mode == visiting })
	assert.GreaterOrEqual(t, m.now, at)
	assert.Less(t, m.now-at, period/2)
	began := m.now
	m.until(func() bool { return m.mode != visiting })
	assert.GreaterOrEqual(t, m.now-began, lasts-flight.At(0.2))
	assert.Less(t, m.now-began, period/2)
	return at + m.joint.wall.Unix
}

func TestVisitsBeginAtTheSameTimeOfDay(t *testing.T) {
	var deep, shallow []int64
	for _, wall := range []meter.Wall{{}, {Unix: 1_700_000_000_123_456_789}, {Unix: 12_345}} {
		m := slowed(t, &wall)
		p := m.period()
		assert.GreaterOrEqual(t, float64(p), 8*1e9*m.mean)
		assert.LessOrEqual(t, float64(p), 16*1e9*m.mean)
		deep = append(deep, departed(t, m, 2*p, 2*p/jointShare))

		m = newMachine(Config{}, knee(20, 0.05))
		m.joint.wall = &wall
		m.rounds(1000, all)
		m.until(func() bool { return m.mode == cruising && m.joint.at > m.now })
		require.Equal(t, visit, m.joint.depth)
		m.longer = 1 // while nothing changes, levels may take longer than the period
		shallow = append(shallow, departed(t, m, m.period(), m.period()/jointShare))
	}
	assert.NotEqual(t, deep[0], deep[1], "the clocks differ")
	assert.NotEqual(t, shallow[0], shallow[1], "the clocks differ")
}

func TestDeepVisitIsAsDeepAsTheServerIsSlower(t *testing.T) {
	m := slowed(t, noon)
	want := m.cruise() * math.Exp(m.best-m.usual)
	m.until(func() bool { return m.mode == visiting })
	assert.InDelta(t, want, float64(m.limit()), 1)
	assert.Less(t, want, 0.5*m.cruise())
}

func TestCutEndsAVisit(t *testing.T) {
	m := slowed(t, noon)
	m.until(func() bool { return m.mode == visiting })
	m.cut(m.now, 10, false)
	assert.Equal(t, joint{wall: noon, depth: visit}, m.joint)
	assert.Equal(t, cruising, m.mode)
}

// A server that stood for an hour is visited again as soon as the mean latency, of the last 200 responses or so, is that of now.
func TestVisitsFollowTheLatencyOfNow(t *testing.T) {
	for rounds := range 40 {
		m := newMachine(Config{}, knee(20, 0.05))
		m.rounds(1000, all)
		m.latency = func(int64) float64 { return 3600 }
		m.rounds(1+rounds, all)
		m.latency = knee(20, 0.05)
		m.rounds(50, all)
		require.Less(t, m.until(func() bool { return m.mode == visiting }), 1000, "after %d", rounds)
		require.Less(t, m.until(func() bool { return m.mode != visiting }), 1000, "after %d", rounds)
	}
}

// Clients whose clocks agree roughly share a server better than those whose clocks have nothing to do with each other. How well
// depends on when they start in a period, so these are means of several times of day.
func TestClientsWithTheSameClockEmptyTheQueueTogether(t *testing.T) { // slow: two scenes on three clocks, at six times of day
	scenes := []struct {
		scene     string
		near      float64
		p99, jain float64
		fairer    float64 // than with clocks that do not agree; four of these share well, because each takes the queue for a slower server
	}{
		{"2 busy clients", 0.1, 1.6, 0.9, 0.05},
		{"four busy clients, 8 s apart", 0.01, 1.9, 0.82, -0.05},
	}
	if testing.Short() {
		scenes = scenes[:1]
	}
	for _, c := range scenes {
		all := append(flight.Scenes(), flight.Unseen()...)
		s := all[slices.IndexFunc(all, func(s flight.Scene) bool { return s.Name == c.scene })]
		figures := func(apart float64) (mean flight.Figures) {
			const times = 6
			for time := range times {
				k := 0.0
				f := s.Figures(2, func() flight.Limiter {
					k++
					return learned{New(0, Config{}, &meter.Wall{Unix: at(1000.7*float64(time) + k*apart)}), aimd.Unavailable}
				})
				mean.Goodput += f.Goodput / times
				mean.P99 += f.P99 / times
				mean.Jain += f.Jain / times
			}
			return mean
		}
		same, near, other := figures(0), figures(c.near), figures(7.7)
		t.Logf("%s: the same clock: %v; nearly: %v; another: %v", s.Name, same, near, other)
		for _, f := range []flight.Figures{same, near} {
			assert.Less(t, f.P99, c.p99)
			assert.Greater(t, f.Jain, c.jain)
			assert.Less(t, f.P99, other.P99-0.2)
			assert.Greater(t, f.Jain, other.Jain+c.fairer)
		}
		assert.Greater(t, other.Goodput, 99.0)
		assert.Greater(t, other.Jain, 0.75)
	}
}
