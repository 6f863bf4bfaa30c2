package throttletest

import (
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// took is how long a request takes.
func (c caller) took() time.Duration {
	start := time.Now()
	c.do()
	return time.Since(start)
}

func TestLatencyIsTheSumOfItsParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithLimits(FixedWindow(1, time.Minute)),
			WithRoundTrip(40*time.Millisecond, 0), WithServiceTime(Constant(10*time.Millisecond)), WithRefusalTime(Constant(time.Millisecond)))
		assert.Equal(t, 50*time.Millisecond, api.took())
		assert.Equal(t, 41*time.Millisecond, api.took())
		accepted := api.Accepted()
		require.Len(t, accepted, 1)
		assert.Equal(t, 20*time.Millisecond, accepted[0].Sub(api.start), "accepted halfway")
	})
}

func TestJitterStaysInItsBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithRoundTrip(40*time.Millisecond, time.Millisecond))
		var low, high time.Duration = math.MaxInt64, 0
		for range 1000 {
			d := api.took()
			low, high = min(low, d), max(high, d)
		}
		assert.GreaterOrEqual(t, low, 38*time.Millisecond)
		assert.Less(t, low, 38500*time.Microsecond)
		assert.LessOrEqual(t, high, 42*time.Millisecond)
		assert.Greater(t, high, 41500*time.Microsecond)
	})
}

func TestDistributions(t *testing.T) {
	draw := func(l Latency) []time.Duration {
		r := rand.New(rand.NewPCG(1, 2))
		all := make([]time.Duration, 20_000)
		for i := range all {
			all[i] = l.draw(r)
		}
		slices.Sort(all)
		return all
	}
	normal := draw(LogNormal(10*time.Millisecond, 0.3))
	assert.InDelta(t, 10e6, float64(normal[10_000]), 0.2e6)
	assert.InDelta(t, 10e6*math.Exp(0.3), float64(normal[16_827]), 0.3e6, "one sigma")

	uniform := draw(Uniform(time.Second, 3*time.Second))
	assert.GreaterOrEqual(t, uniform[0], time.Second)
	assert.InDelta(t, 2e9, float64(uniform[10_000]), 0.05e9)
	assert.LessOrEqual(t, uniform[19_999], 3*time.Second)

	mixed := draw(Sometimes(0.01, Constant(time.Minute), Constant(1)))
	assert.InDelta(t, 200, len(mixed)-slices.Index(mixed, time.Minute), 60)

	assert.Zero(t, draw(drawn(func(*rand.Rand) time.Duration { return -1 }))[0])
	assert.Equal(t, maxLatency, draw(LogNormal(time.Hour, 1000))[19_999])
}

func TestBadLatenciesAreErrors(t *testing.T) {
	for _, l := range []Latency{
		{},
		Constant(-1),
		Uniform(2, 1), Uniform(-1, 1), Uniform(0, math.MaxInt64),
		LogNormal(-1, 1), LogNormal(1, -1), LogNormal(1, math.NaN()), LogNormal(1, math.Inf(1)),
		Sometimes(math.NaN(), Constant(1), Constant(1)), Sometimes(1.1, Constant(1), Constant(1)),
		Sometimes(0.5, Latency{}, Constant(1)), Sometimes(0.5, Constant(-1), Constant(1)), Sometimes(0.5, Constant(1), Constant(-1)),
	} {
		_, err := NewHandler(WithServiceTime(l))
		assert.ErrorContains(t, err, "throttletest: WithServiceTime")
	}
}

func TestARunCanBeRepeated(t *testing.T) {
	run := func(seed uint64) (took []time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			api := newCaller(t, WithSeed(seed), WithServiceTime(LogNormal(time.Second, 1)), WithRoundTrip(time.Second, time.Millisecond),
				WithFaults(Respond(500, nil).Chance(0.5)))
			for range 50 {
				took = append(took, api.took())
			}
			took = append(took, time.Duration(api.Counts().Spoiled))
		})
		return took
	}
	assert.Equal(t, run(1), run(1))
	assert.NotEqual(t, run(1), run(2))
}

func TestWorkersServeInOrderAndTheQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithWorkers(2, 3), WithServiceTime(Constant(100*time.Millisecond)))
		start := time.Now()
		var (
			mu      sync.Mutex
			took    []time.Duration
			refused int
			all     sync.WaitGroup
		)
		for range 7 {
			all.Go(func() {
				resp := api.do()
				mu.Lock()
				defer mu.Unlock()
				if resp.StatusCode == http.StatusServiceUnavailable {
					assert.Empty(t, resp.Header.Get("Retry-After"))
					refused++
				} else {
					took = append(took, time.Since(start))
				}
			})
		}
		all.Wait()
		const ms = time.Millisecond
		assert.Equal(t, []time.Duration{100 * ms, 100 * ms, 200 * ms, 200 * ms, 300 * ms}, took)
		assert.Equal(t, 2, refused)
		assert.EqualValues(t, 2, api.Counts().QueueFull)
		assert.Equal(t, 100*ms, api.took(), "idle again")
	})
}

// The instants that workers compute are those of workers that take requests from a queue.
func TestWorkersAgreeWithBruteForce(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 5))
		n, queue := 1+r.IntN(4), r.IntN(5)
		w := newWorkers(n, queue)
		var starts, ends []int64 // of all that were accepted
		now := int64(0)
		for range 300 {
			now += r.Int64N(30)
			waiting, busy := 0, 0
			for i := range starts {
				if starts[i] > now {
					waiting++
				} else if ends[i] > now {
					busy++
				}
			}
			ok := busy < n || waiting < queue
			require.Equal(t, ok, w.check(now), "seed %d", seed)
			if !ok {
				continue
			}
			service := 1 + r.Int64N(60)
			start := now
			for running(starts, ends, start) == n {
				start++
			}
			if len(starts) > 0 {
				start = max(start, starts[len(starts)-1])
			}
			starts, ends = append(starts, start), append(ends, start+service)
			require.Equal(t, start+service, w.serve(now, now, time.Duration(service)), "seed %d", seed)
		}
	}
}

func running(starts, ends []int64, at int64) (n int) {
	for i := range starts {
		if starts[i] <= at && at < ends[i] {
			n++
		}
	}
	return n
}

func TestAFullQueueChargesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithLimits(TokenBucket(2, time.Hour)), WithWorkers(1, 0), WithServiceTime(Constant(time.Second)))
		go api.do()
		synctest.Wait()
		assert.Zero(t, api.take(5))
		time.Sleep(time.Second)
		assert.Equal(t, 1, api.take(1))
		assert.Equal(t, Counts{MaxInFlight: 2, Received: 7, Accepted: 2, Refused: 5, RefusedBy: map[string]int64{"bucket": 0}, QueueFull: 5}, api.Counts())
	})
}
