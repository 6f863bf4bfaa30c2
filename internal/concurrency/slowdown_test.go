package concurrency

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/scene/flight"
)

// A server that becomes slower for good is used from the third minute on, or from 200 requests after the change, and so is one that is
// quick again. After a hundredfold slowdown, 200 requests of 8 workers are 25 latencies, which are few: only one visit fits in.
func TestASlowdownCostsAtMostThreeMinutesOr200Requests(t *testing.T) {
	seeds, allWorkers, allTimes := 4, []int{8, 32}, []float64{5, 20, 100}
	if testing.Short() {
		seeds, allWorkers, allTimes = 2, allWorkers[:1], allTimes[1:2]
	}
	for _, workers := range allWorkers {
		for _, times := range allTimes {
			t.Run(fmt.Sprintf("%d workers, %v times", workers, times), func(t *testing.T) {
				t.Parallel()
				const changed, took = 60.0, 0.050
				request := took * times / float64(workers)
				from := changed + max(120, 200*request)
				s := flight.Scene{
					Workers: flight.Always(workers), Callers: flight.Always(4 * workers), Best: int64(workers * 21 / 16),
					Service: flight.During(changed, math.Inf(1), times, flight.LogNormal(took, 0.5)), From: from, Length: from + max(180, 400*request),
				}
				f := s.Figures(seeds, newLearned)
				s.Service = flight.During(changed, from, times, flight.LogNormal(took, 0.5))
				s.From, s.Length = from+120, from+240
				back := s.Figures(2, newLearned)
				t.Logf("%v; back: %v", f, back)
				assert.GreaterOrEqual(t, f.Goodput, 95.0)
				assert.LessOrEqual(t, f.P99, 2.0)
				assert.GreaterOrEqual(t, back.Goodput, 99.0)
			})
		}
	}
}

// A lower level on which no request waited for another, and which is more than four times as slow, is that of another server, if it was
// deep, or the second in a row.
func TestTheBestLatencyIsThatOfTheServerOfNow(t *testing.T) {
	for _, c := range []struct {
		e, errE, times float64
		deep, slower   bool
		renewed        bool
	}{
		{0.64, 0.1, 4.01, true, false, true}, {0.64, 0.1, 3.99, true, false, false}, {0.66, 0.1, 4.01, true, false, false}, {0.64, 0.12, 100, true, false, false},
		{-0.39, 0.1, 100, true, false, true}, {-0.41, 0.1, 100, true, false, false},
		{0, 0.1, 4.01, false, true, true}, {0, 0.1, 4.01, false, false, false},
	} {
		m := newController(0, Config{}, noon)
		m.best, m.e, m.slower = math.Log(0.05), c.e, c.slower
		now := math.Log(0.05 * c.times)
		m.renew(now, c.errE, c.deep)
		assert.Equal(t, c.renewed, m.best == now, "%+v", c)
		assert.Equal(t, c.times > 4, m.slower, "%+v", c)
	}
}

// Two levels of which the elasticity makes no sense are of two servers. The higher one is measured again, once, after the lower one.
func TestLevelsOfTwoServersAreNotCompared(t *testing.T) {
	err := math.Sqrt(0.02) / math.Log(10)
	for _, c := range []struct {
		number, e float64
		second    bool // the higher level was measured after the lower one
		again     bool
	}{
		{20, 1.5 + err - 0.01, false, false}, {20, 1.5 + err + 0.01, false, true}, {20, 1.5 + err + 0.01, true, false},
		{20, -0.5 - err + 0.01, false, false}, {20, -0.5 - err - 0.01, false, true}, {20, -0.5 - err - 0.01, true, false},
		{3.9, 9, false, false}, {3.9, -9, false, false}, // too shallow to be more than noise
	} {
		m := newController(0, Config{Initial: 20}, noon)
		m.mode, m.best, m.mean = cruising, 0, 1
		m.high, m.low = levelWith(c.number, c.e*math.Log(c.number/2), 0.01), levelWith(2, 0, 0.01)
		m.low.from = 100
		if c.second {
			m.high.from = 101
		}
		m.judge(second)
		assert.Equal(t, c.again, m.again, "%+v", c)
		assert.Equal(t, c.again, m.n == 20, "%+v", c)
	}
}

// One visit shows it: as many requests as the server has workers are as quick as a tenth of them.
func TestOneVisitShowsThatTheServerIsSlower(t *testing.T) {
	for _, times := range []float64{5, 20, 100} {
		m := newMachine(Config{}, knee(20, 0.05))
		m.rounds(1000, all)
		m.latency = knee(20, 0.05*times)
		m.until(func() bool { return m.mode == visiting && m.bound(m.away) < visit*m.cruise()-1 })
		require.InDelta(t, 0.05, math.Exp(m.best), 0.02, "%v times", times)
		m.until(func() bool { return m.mode == cruising && !m.pending && !m.again })
		assert.InDelta(t, 0.05*times, math.Exp(m.best), 0.01*times, "%v times", times)
		was := m.seq
		m.rounds(10, all)
		assert.Greater(t, m.n, 20.0, "%v times: after %d requests", times, m.seq-was)
	}
}

// Latencies of an hour, as after a laptop has slept, are followed by a visit that shows the quick server. The two have nothing to do with
// each other, so n stays.
func TestAStallIsNoQueue(t *testing.T) {
	for _, rounds := range []int{2, 3} {
		m := newMachine(Config{}, knee(100, 0.05))
		m.rounds(1000, all)
		m.latency = func(int64) float64 { return 3600 }
		m.rounds(rounds, all)
		m.latency = knee(100, 0.05)
		for range 100 {
			m.round(all)
			require.GreaterOrEqual(t, m.n, 100.0, "%d rounds", rounds)
		}
	}
}

// A queue of our own is no slower server, however long it is.
func TestAQueueOfOurOwnIsNoSlowerServer(t *testing.T) {
	for _, workers := range []float64{1, 2, 4} {
		m := newMachine(Config{}, knee(100, 0.05))
		m.rounds(1000, all)
		m.latency = knee(workers, 0.05)
		for m.now < at(600) {
			m.round(all)
			require.Less(t, math.Exp(m.best), 0.2, "%v workers", workers)
		}
	}
}

// An elasticity is as precise with fewer requests where the two numbers are further apart.
func TestADeepVisitTakesFewerRequests(t *testing.T) {
	const one = 1 / (precise * precise) // with a variance of 1
	for _, c := range []struct{ n, away, variance, enough float64 }{
		{20, 13, 0, 20}, {20, 2, 0, 20}, // each slot once
		{10, 6.5, 0, leastSent}, {10, 1, 0, leastSent},
		{20, 13, 1, one}, {20, 8.45, 4, one}, // twice as far apart, with twice the noise
		{20, 13, 4, mostSent}, {20, 16, 1, one}, // none takes more
	} {
		m := newController(0, Config{Initial: int64(c.n)}, noon)
		m.mode, m.away, m.high = visiting, c.away, levelWith(c.n, 0, c.variance/16)
		assert.InDelta(t, c.enough, m.enough(), 1e-9, "%+v", c)
	}
}
