package concurrency

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
)

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// requireSane checks that what a controller has computed is finite and within its bounds, and can be saved.
func requireSane(t *testing.T, c *controller, of any) {
	t.Helper()
	for _, x := range []float64{c.n, c.e, c.mean, c.longer, c.open.flying, c.open.sum} {
		require.False(t, math.IsNaN(x) || math.IsInf(x, 0), "%v: %+v", of, c)
	}
	require.False(t, math.IsNaN(c.best) || math.IsInf(c.best, -1), "%v", of)
	require.LessOrEqual(t, c.cfg.Min, c.limit(), "%v", of)
	require.LessOrEqual(t, c.limit(), c.cfg.Max, "%v", of)
	require.LessOrEqual(t, c.cfg.Min, int64(c.cruise()), "%v", of)
	require.True(t, c.snapshot().valid(), "%v: %+v", of, c.snapshot())
}

func TestEveryConfigurationThatIsValidKeepsItsBounds(t *testing.T) {
	numbers := []int64{-1, 0, 1, 2, 5, meter.MaxCount - 1, meter.MaxCount, meter.MaxCount + 1, math.MaxInt64}
	floats := []float64{-1, 0, 5e-324, 0.5, 1, 1.5, 7, 1e18, 1e300, math.MaxFloat64, math.Inf(1), math.NaN()}
	r := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		cfg := Config{pick(r, numbers...), pick(r, numbers...), pick(r, numbers...)}
		if cfg.Validate() != nil {
			continue
		}
		m := New(0, cfg, noon)
		requireSane(t, &m.control, cfg)
		require.True(t, m.Payable(0, math.MaxInt64), "a request of any cost passes alone")
		l := Learned{pick(r, floats...), pick(r, floats...), pick(r, floats...)}
		was := m.Snapshot()
		if !m.Learn(0, l) {
			require.Equal(t, was, m.Snapshot(), "what is invalid changes nothing")
			continue
		}
		requireSane(t, &m.control, l)
		require.True(t, New(0, cfg, noon).Learn(0, m.Snapshot()), "what was restored can be saved again: %+v", l)
	}
}

func TestErrorsNameFieldAndValue(t *testing.T) {
	assert.EqualError(t, Config{Initial: -3, Min: 5, Max: 4}.Validate(),
		"Concurrency.Initial is -3: negative\nConcurrency.Min is 5: above Max, which is 4")
	assert.EqualError(t, Config{Initial: 9, Min: -1, Max: 8}.Validate(),
		"Concurrency.Min is -1: negative\nConcurrency.Initial is 9: above Max, which is 8")
	assert.EqualError(t, Config{Initial: 1, Min: 2}.Validate(), "Concurrency.Initial is 1: below Min, which is 2")
}

func TestLatenciesOfAnySizeKeepTheNumberWithinItsBounds(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		cfg := Config{Min: r.Int64N(4), Max: 4 + r.Int64N(60)}
		m := newMachine(cfg, func(int64) float64 { return pick(r, 0, 1e-9, 1e-3, 1, 3600, 3.6e6) })
		for range 200 {
			m.round(all)
			requireSane(t, m.controller, seed)
		}
	}
}

// The controller compares latencies with latencies, so the start does not depend on how fast a server is.
func TestStartFindsTheSameNumberAtAnyScaleOfTime(t *testing.T) {
	for _, k := range []float64{3, 10, 50} {
		var want float64
		for _, s := range []float64{0.05, 1e-4, 1, 60, 3600} {
			m := newMachine(Config{}, knee(k, s))
			m.until(func() bool { return m.mode != starting })
			if want == 0 {
				want = m.n
			}
			assert.InDelta(t, want, m.n, 1e-6, "%v s, %v workers", s, k)
		}
	}
}

func TestNumberRecoversFromExtremeLatencies(t *testing.T) {
	for _, extreme := range []float64{0, 1e-9, 3600} {
		m := newMachine(Config{}, knee(20, 0.05))
		m.rounds(500, all)
		was := m.n
		usual := m.latency
		m.latency = func(int64) float64 { return extreme }
		m.rounds(20, all)
		requireSane(t, m.controller, extreme)
		m.latency = usual
		m.rounds(1000, all)
		assert.InDelta(t, was, m.n, 0.3*was, "after latencies of %v s", extreme)
		assert.Greater(t, m.n, 20.0, "all workers are busy again")
	}
}

// A computer that was suspended gets all responses that it waits for hours later.
func TestStepOfTheClockWithRequestsInFlightIsNoOverload(t *testing.T) {
	for seed := range uint64(20) {
		m := newMachine(Config{}, knee(20, 0.05))
		m.rounds(300+int(seed)*7, all)
		was := m.n
		m.now += at(8 * 3600)
		for i := range m.line {
			m.line[i].latency += 8 * 3600
		}
		for range 50 {
			m.round(all)
			require.Greater(t, m.n, 0.6*was, "seed %d", seed)
		}
		require.GreaterOrEqual(t, m.n, 20.0, "seed %d: all workers are busy", seed)
		m.rounds(400, all)
		require.InDelta(t, was, m.n, 0.1*was, "seed %d: it is the same server", seed)
	}
}

func TestSilenceAtAnyPointChangesNothing(t *testing.T) {
	for rounds := range 60 {
		m := newMachine(Config{}, knee(20, 0.05))
		m.rounds(rounds*5, all)
		for len(m.line) > 0 {
			m.round(0)
		}
		was := m.snapshot()
		m.now += at(8 * 3600)
		m.advance(m.now)
		assert.Equal(t, was, m.snapshot(), "after %d rounds", rounds*5)
	}
}

func TestOneCutForARoundInAnyOrder(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		n := 2 + r.Int64N(60)
		c := newController(0, Config{Initial: n}, noon)
		c.brink(0)
		sent := make([]ticket, n)
		for i := range sent {
			sent[i] = c.send(0, 1)
		}
		r.Shuffle(len(sent), func(i, k int) { sent[i], sent[k] = sent[k], sent[i] })
		for i, s := range sent[:1+r.IntN(len(sent))] {
			c.free(1)
			c.refuse(at(0.1), s, false)
			f := max(float64(s.inFlight), float64(n)/2)
			if i == 0 {
				require.Equal(t, max(1, f-1), c.refusals.ceiling, "seed %d", seed)
				require.Equal(t, max(1, math.Floor(min(f-1, left*f))), c.n, "seed %d", seed)
				sent[0].inFlight = int64(c.n) // what the others must not change
			}
			require.Equal(t, float64(sent[0].inFlight), c.n, "seed %d, refusal %d", seed, i)
			require.Zero(t, c.refusals.until, "they are no row of refusals either")
		}
	}
}

// With a quarter of the slots free, neither latencies nor the time since a cut let n grow.
func TestNumberThatIsNotUsedDoesNotGrowInAnyState(t *testing.T) {
	for n := int64(2); n < 60; n += 7 {
		for _, cut := range []bool{false, true} {
			m := newMachine(Config{Initial: n}, knee(1000, 0.05))
			if cut {
				m.cut(0, float64(n), false)
			}
			was := m.limit()
			for m.now < at(300) {
				m.round(max(1, was*3/4))
				require.LessOrEqual(t, m.limit(), was, "%d, after a cut: %v", n, cut)
				if was == 1 {
					break // one request uses it
				}
			}
		}
	}
}

func TestCancelledRequestsTeachANewKeyNothing(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := New(0, Config{Initial: 10}, noon)
		was := m.control
		var charged []int64
		now := instant(0)
		for range 500 {
			now += r.Int64N(at(100))
			if m.Payable(now, 1) && r.IntN(2) == 0 {
				charged = append(charged, m.Take(now, now, 1, false))
			} else if k := len(charged); k > 0 {
				i := r.IntN(k)
				if r.IntN(2) == 0 {
					charged[i] = m.Answered(now, charged[i], 0, 1, pick(r, aimd.Ignore, aimd.Error), 0)
				}
				m.GiveBack(charged[i], now, 1)
				charged[i] = charged[k-1]
				charged = charged[:k-1]
			}
		}
		for _, c := range charged {
			m.GiveBack(c, now, 1)
		}
		is := m.control
		is.seq, is.flying, is.open.last = was.seq, was.flying, was.open.last
		is.refusals.backoff = was.refusals.backoff // it has seen requests, and bounds only waits
		require.Equal(t, was, is, "seed %d", seed)
	}
}

// Requests of several slots, of any latency, with steps of the clock: what was taken is given back, and no more.
func TestSlotsAreCountedWhateverRequestsCost(t *testing.T) {
	type request struct {
		charged, cost int64
		sent          instant
		headers       bool
	}
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 2))
		m := New(0, Config{Max: 1 + r.Int64N(30)}, noon)
		var there []request
		used, now := int64(0), instant(0)
		end := func(i int) {
			q := there[i]
			m.GiveBack(q.charged, now, q.cost)
			used -= q.cost
			there = append(there[:i], there[i+1:]...)
		}
		for range 2000 {
			now += pick(r, 0, 1, at(0.001), at(0.1), at(3600))
			cost := 1 + r.Int64N(20)
			switch i := r.IntN(max(1, len(there))); {
			case r.IntN(2) == 0:
				require.Equal(t, now >= m.HeldUntil() && min(cost, m.control.limit()) <= m.control.limit()-used, m.Payable(now, cost))
				if charged, ok := m.Spend(now, cost); ok {
					there = append(there, request{charged, cost, now, false})
					used += cost
				}
			case len(there) == 0:
			case !there[i].headers:
				q := &there[i]
				q.charged, q.headers = m.Answered(now, q.charged, q.sent, q.cost, pick(r, aimd.OK, aimd.OK, aimd.OK, aimd.Unavailable, aimd.Ignore), 0), true
			default:
				end(i)
			}
			require.Equal(t, used, m.InFlight(), "seed %d", seed)
			require.Equal(t, used, m.control.inFlight, "seed %d", seed)
			requireSane(t, &m.control, seed)
		}
		for len(there) > 0 {
			end(0)
		}
		now = max(now, m.HeldUntil())
		require.True(t, m.Payable(now, math.MaxInt64), "seed %d", seed)
		must, _ := m.Matters(now)
		require.LessOrEqual(t, must, now, "seed %d", seed)
	}
}

func TestPauseDoublesUpToItsMostAndEndsWithASuccess(t *testing.T) {
	m := New(0, Config{}, noon)
	now := instant(0)
	for k := range 80 {
		m.control.pause(now, false)
		require.Equal(t, min(2*time.Second, 100*time.Millisecond<<min(k, 10)), time.Duration(m.HeldUntil()-now), "pause %d", k)
		require.False(t, m.Payable(m.HeldUntil()-1, 1))
		now = m.HeldUntil()
		require.True(t, m.Payable(now, 1))
	}
	m.GiveBack(m.Answered(now, m.Take(now, now, 1, false), now, 1, aimd.OK, 0), now, 1)
	m.control.pause(now, false)
	assert.Equal(t, second/10, m.HeldUntil()-now)
}
