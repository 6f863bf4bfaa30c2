package aimd

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/internal/server"
)

// refusedSlowly returns a meter whose rate has fallen, because each fifth request was refused.
func refusedSlowly() (*Meter, instant) {
	m := New(0, Config{Initial: 10}, 1)
	now := instant(0)
	for sent := 0; sent < 60; now += second / 20 {
		if !m.Payable(now, 1) {
			continue
		}
		o := OK
		if sent++; sent%5 == 0 {
			o = Throttled
		}
		m.Answered(now+second/50, m.Take(now, now, 1, true), now, 1, o, 0)
	}
	return m, now
}

// atOnce returns how many requests can be sent now.
func atOnce(m *Meter, now instant) (n int) {
	for ; m.Payable(now, 1); n++ {
		m.Take(now, now, 1, true)
	}
	return n
}

func TestATrialSendsRequestsAtOnce(t *testing.T) {
	m, now := refusedSlowly()
	m.Trial(now)
	assert.Equal(t, server.Together, atOnce(m, now))
}

// What did not wait when a trial began is not sent at once later.
func TestATrialEndsWithTheNextResponse(t *testing.T) {
	m, now := refusedSlowly()
	charged := m.Take(now, now, 1, false)
	m.Trial(now)
	m.Answered(now+1, charged, now, 1, OK, 0)
	assert.LessOrEqual(t, atOnce(m, now+1), 1)
}

// A full server refuses all requests of a trial, which is no silence.
func TestATrialIsNoSilence(t *testing.T) {
	m, now := refusedSlowly()
	for range 3 {
		m.Trial(now)
		var all []int64
		for m.Payable(now, 1) {
			all = append(all, m.Take(now, now, 1, true))
		}
		for _, charged := range all {
			m.Answered(now+second/10, charged, now, 1, Throttled, 0)
		}
		now += second / 5
	}
	_, _, mode := m.Bounds(now)
	assert.NotEqual(t, "silence", mode)
}

func TestARateForgetsRefusalsByChance(t *testing.T) {
	m, now := refusedSlowly()
	was := m.PerSecond(now)
	m.Unlearn(now)
	ceiling, _, mode := m.Bounds(now)
	assert.Zero(t, ceiling)
	assert.Equal(t, "start", mode)
	assert.InDelta(t, was, m.PerSecond(now), 1e-9, "it grows again as at the start")
	for range 200 {
		now += second / 20
		if m.Payable(now, 1) {
			m.Answered(now+second/50, m.Take(now, now, 1, true), now, 1, OK, 0)
		}
	}
	grown := m.PerSecond(now)
	assert.Greater(t, grown, 2*was)
	m.Relearn(now)
	assert.InDelta(t, leastLately*grown, m.PerSecond(now), 1e-9, "only half of it was used lately")
}
