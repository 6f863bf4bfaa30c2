package allowance

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

// refusedAfter returns a Meter with the rate of a server that has accepted a request a second for a minute, and then refused one.
func refusedAfter(t *testing.T) (m *Meter, now meter.Instant) {
	t.Helper()
	m = New(new(meter.Wall))
	accepts(m, 0, 60)
	now = minute
	m.Refused(m.Take(now, now, 1, false), now, 0, true)
	require.Positive(t, m.PerSecond(now))
	return m, now
}

// accepts sends n requests, one a second, which are accepted.
func accepts(m *Meter, now meter.Instant, n int) {
	for range n {
		sent := m.Take(now, now, 1, false)
		m.Report(sent, now, nil, false)
		m.Settle(sent, now, 1, 1)
		now += second
	}
}

func TestWhatWasForgottenByMistakeIsKnownAgain(t *testing.T) {
	m, now := refusedAfter(t)
	rate := m.PerSecond(now)
	m.Unlearn(now)
	assert.Zero(t, m.PerSecond(now))
	m.Relearn(now)
	assert.InEpsilon(t, rate, m.PerSecond(now), 1e-9)
}

// A request that is not charged in a limit may be the one that shows whether refusals are by chance.
func TestALimitThatHasForgottenNothingLearnsNothingAgain(t *testing.T) {
	m, now := refusedAfter(t)
	rate := m.PerSecond(now)
	m.Relearn(now)
	assert.InEpsilon(t, rate, m.PerSecond(now), 1e-9)

	m.Unlearn(now)
	m.Forget(now)
	m.Relearn(now)
	assert.Zero(t, m.PerSecond(now), "the user said that it is not true any more")
}

// What the server has accepted meanwhile is no debt.
func TestRequestsThatWereAcceptedByMistakeDelayNoneLater(t *testing.T) {
	m, now := refusedAfter(t)
	m.Unlearn(now)
	for range 1000 {
		now += second / 100
		accepts(m, now, 1)
	}
	m.Relearn(now)
	assert.Less(t, m.Ready(now, 0, 1)-now, 10*second)
}
