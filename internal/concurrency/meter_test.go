package concurrency

import (
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/scene/flight"
)

var (
	_ meter.Meter   = (*Meter)(nil)
	_ meter.Planner = (*Meter)(nil)
	_ meter.Flier   = (*Meter)(nil)
	_ meter.Holder  = (*Meter)(nil)
)

// taught returns a meter that has learned a server with 16 workers.
func taught(t *testing.T) (*Meter, instant) {
	t.Helper()
	m := learned{New(0, Config{}, noon), aimd.Unavailable}
	flight.Scene{Length: 60}.Play(1, func() flight.Limiter { return m })
	m.control.inFlight, m.slots = 0, meter.Count{} // the run ends with requests in flight
	m.control.restart(0)
	m.control.mode, m.control.pending = cruising, false
	m.follow(at(60))
	n, _, _, _ := m.Bounds(at(60))
	require.InDelta(t, 25, n, 8)
	return m.Meter, at(60)
}

func TestMeterCountsSlots(t *testing.T) {
	m := New(0, Config{}, noon)
	for range 4 {
		assert.True(t, m.Payable(0, 1))
		m.Take(0, 0, 1, false)
	}
	assert.False(t, m.Payable(0, 1))
	assert.Equal(t, meter.Never, m.Ready(0, 0, 1))
	assert.Equal(t, int64(4), m.InFlight())
	assert.Equal(t, 0.0, m.Tokens(0))
	assert.Equal(t, instant(7), m.Plan(7, 100, 1), "the number may grow")
}

func TestCostAboveTheNumberPassesAlone(t *testing.T) {
	m := New(0, Config{}, noon)
	charged, ok := m.Spend(0, 10)
	assert.True(t, ok)
	assert.False(t, m.Payable(0, 1))
	m.GiveBack(charged, 1, 10)
	assert.True(t, m.Payable(1, 1))
	assert.Equal(t, meter.Never, New(0, Config{Max: 5}, noon).Plan(0, 0, 6))
}

func TestNothingIsLearnedFromCancelledRequests(t *testing.T) {
	m, now := taught(t)
	was := m.Snapshot()
	for i := range 20_000 {
		charged := m.Take(now, now, 1, false)
		now += at(1)
		if i%2 == 0 {
			charged = m.Answered(now, charged, now-at(1), 1, aimd.Ignore, 0)
		}
		m.GiveBack(charged, now, 1)
	}
	assert.Equal(t, was, m.Snapshot())
}

func TestAnHourOfSilenceChangesNothing(t *testing.T) {
	m, now := taught(t)
	was := m.Snapshot()
	now += at(3600)
	for range was.intN() {
		require.True(t, m.Payable(now, 1), "a burst after silence begins with the learned number")
		m.Take(now, now, 1, false)
	}
	assert.Equal(t, was, m.Snapshot())
}

func (l Learned) intN() int { return int(l.N) }

// A request that takes an hour changes what is learned from others by 5 % at most.
func TestLongPollBesideShortRequests(t *testing.T) {
	for seed := range uint64(3) {
		length := 300.0
		if seed == 0 && !testing.Short() {
			length = 3620
		}
		mean := func(poll bool) float64 {
			m := learned{New(0, Config{}, noon), aimd.Unavailable}
			sum, k := 0.0, 0.0
			s := flight.Scene{Length: length}
			s.Watch = func(now instant) {
				if now > at(10) {
					sum += m.control.n
					k++
				}
			}
			if poll {
				s.Poll = at(20)
			}
			s.Play(seed, func() flight.Limiter { return m })
			return sum / k
		}
		without, with := mean(false), mean(true)
		assert.InDelta(t, 1, with/without, 0.05, "seed %d: %v and %v", seed, without, with)
	}
}

func TestRetryAfterIsLeftToRates(t *testing.T) {
	for _, x := range []struct {
		outcome    aimd.Outcome
		retryAfter time.Duration
		cut        bool
	}{
		{aimd.Throttled, 0, true}, {aimd.Throttled, time.Second, false}, {aimd.Unavailable, 0, true}, {aimd.Error, 0, false}, {aimd.ClientError, 0, false},
	} {
		m := New(0, Config{Initial: 10}, noon)
		m.control.brink(0)
		m.Answered(1, m.Take(0, 0, 1, false), 0, 1, x.outcome, x.retryAfter)
		_, ceiling, _, _ := m.Bounds(1)
		assert.Equal(t, x.cut, ceiling > 0, "%+v", x)
	}
}

func TestKeyCostsLessThanAKilobyte(t *testing.T) {
	assert.Less(t, unsafe.Sizeof(Meter{}), uintptr(1000))
}

func TestMeterIsForgottenAnHourAfterItsLastRequest(t *testing.T) {
	m := New(0, Config{}, noon)
	must, full := m.Matters(0)
	assert.Zero(t, must)
	assert.Zero(t, full, "nothing was learned")
	charged := m.Take(0, 0, 1, false)
	must, _ = m.Matters(0)
	assert.Equal(t, meter.Never, must, "a request is in flight")
	m.GiveBack(m.Answered(at(1), charged, 0, 1, aimd.OK, 0), at(1), 1)

	m, now := taught(t)
	must, full = m.Matters(now)
	assert.Zero(t, must)
	assert.InDelta(t, float64(now+keepLearned), float64(full), float64(second))
}

func TestSnapshotResumesAtHalf(t *testing.T) {
	m, _ := taught(t)
	saved := m.Snapshot()
	other := New(0, Config{}, noon)
	require.True(t, other.Learn(0, saved))
	n, ceiling, _, mode := other.Bounds(0)
	assert.Equal(t, int64(saved.N/2), n)
	assert.Zero(t, ceiling)
	assert.Equal(t, "start", mode)
	assert.InDelta(t, saved.Latency, other.Snapshot().Latency, 1e-9)
	for _, bad := range []Learned{{}, {N: -1}, {N: 5, Ceiling: -1}, {N: 0.5}} {
		assert.False(t, New(0, Config{}, noon).Learn(0, bad), "%+v", bad)
	}
	require.True(t, other.Learn(0, Learned{N: 30, Ceiling: 9}))
	n, ceiling, _, _ = other.Bounds(0)
	assert.Equal(t, int64(9), n)
	assert.Equal(t, 9.0, ceiling)
}

func TestPauseCanBeEnded(t *testing.T) {
	m := New(0, Config{}, noon)
	m.control.pause(5, false)
	assert.Equal(t, 5+second/10, m.HeldUntil())
	assert.False(t, m.Payable(5, 1))
	assert.Equal(t, 5+second/10, m.Ready(6, 0, 1))
	m.Resume(6)
	assert.True(t, m.Payable(6, 1))
}

// Whatever happens, the number stays within its bounds, and slots are counted right.
func TestMeterKeepsItsInvariants(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		cfg := Config{Min: r.Int64N(3), Max: 5 + r.Int64N(200)}
		m := New(0, cfg, noon)
		type request struct {
			charged int64
			sent    instant
			headers bool
		}
		var all []request
		now := instant(0)
		for range 5000 {
			now += r.Int64N(at(0.02))
			switch i := r.IntN(3); {
			case i == 0 || len(all) == 0:
				if m.Payable(now, 1) {
					all = append(all, request{m.Take(now, now, 1, false), now, false})
				}
			case i == 1:
				q := &all[r.IntN(len(all))]
				if !q.headers {
					q.charged, q.headers = m.Answered(now, q.charged, q.sent, 1, aimd.Outcome(1+r.IntN(6)), time.Duration(r.IntN(2))), true
				}
			default:
				k := r.IntN(len(all))
				m.GiveBack(all[k].charged, now, 1)
				all[k] = all[len(all)-1]
				all = all[:len(all)-1]
			}
			n, ceiling, e, _ := m.Bounds(now)
			require.Equal(t, int64(len(all)), m.InFlight())
			require.LessOrEqual(t, n, cfg.Max)
			require.GreaterOrEqual(t, n, max(1, cfg.Min))
			require.False(t, ceiling < 0 || e != e, "seed %d", seed)
			require.GreaterOrEqual(t, m.control.open.sent, 0.0)
		}
	}
}
