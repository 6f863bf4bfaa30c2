//go:build !race

package limiter_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Where requests need tokens of several limits, a fleet uses the scarcest of them.
func TestAFleetUsesTheScarcestOfSeveralLimits(t *testing.T) {
	for name, c := range map[string]struct {
		limits             func(shared ruleOption) []rule
		processes, callers int
		takes              time.Duration
		away               time.Duration // a way to the store takes so much longer
		perSecond          float64       // by the scarcest limit
		used, least, calls float64       // the part that is used and the least share, at least, and calls of the store for each request, at most
		costs              map[string]int64
	}{
		// Tokens of the faster pace were given back 100 ms after they were due, while the slower one was awaited, and promised again later.
		"two paces": {func(shared ruleOption) []rule {
			return []rule{
				pace(5, time.Second, shared, named("a")), pace(4, time.Second, shared, named("b")),
			}
		}, 3, 1, 0, 0, 4, .99, .95, 1.1, nil},
		"two buckets of many": {func(shared ruleOption) []rule {
			return []rule{
				tokenBucket(43, time.Second, withBurst(1), shared, named("a")),
				tokenBucket(27, time.Second, withBurst(1), shared, named("b")),
			}
		}, 31, 1, 0, 0, 27, .99, .95, 1.1, nil},
		// The store was asked for more of the window only when the process had none left, so the pace had to wait for the response.
		"a window beside a pace of its own": {func(shared ruleOption) []rule {
			return []rule{
				fixedWindow(2480, 10*time.Second, shared, named("a")), pace(44, time.Second, named("b")),
			}
		}, 1, 22, 0, 25 * ms, 44, .95, 1, .5, nil},
		// Each was asked for as many tokens as there were of the other one, so both got few.
		"two buckets that are far away": {func(shared ruleOption) []rule {
			return []rule{
				tokenBucket(28, time.Second, withBurst(4), shared, named("a")), pace(106, time.Second, shared, named("b")),
			}
		}, 1, 16, 0, 25 * ms, 28, .95, 1, 1.1, nil},
		// One bucket had a part of a request more than the other one, so they were asked one by one: 1.5 calls, and bursts.
		"two buckets in which a request costs 1,000 and 1": {func(shared ruleOption) []rule {
			return []rule{
				tokenBucket(13_000, time.Second, withBurst(1000), shared, named("a")),
				tokenBucket(26, 2*time.Second, withBurst(1), shared, named("b")),
			}
		}, 8, 8, 0, 6 * ms, 13, .99, .9, 1.2, map[string]int64{"a": 1000, "b": 1}},
		// After each refusal of the pace, a process paused as if the window had none: .86.
		"a pace beside a sliding window": {func(shared ruleOption) []rule {
			return []rule{
				pace(72, 5*time.Second, shared, named("a")), slidingWindow(48, 5*time.Second, shared, named("b")),
			}
		}, 2, 8, 0, 19 * ms, 9.6, .97, .9, 2.5, nil},
		// Each window gave a turn of its own, and at the later one the other was empty: 3.9 calls.
		"two fixed windows of different lengths": {func(shared ruleOption) []rule {
			return []rule{
				fixedWindow(4, 10*time.Second, shared, named("a")), fixedWindow(1, 2*time.Second, shared, named("b")),
			}
		}, 8, 2, 0, 0, .4, .99, 0, 3, nil},
		// A request got no turn, so all processes asked whenever a window had tokens: 13 and 12 calls for each request.
		"two fixed windows of few requests": {func(shared ruleOption) []rule {
			return []rule{
				fixedWindow(20, 5*time.Second, shared, named("a")), fixedWindow(15, 5*time.Second, shared, named("b")),
			}
		}, 24, 2, 0, ms, 3, .99, .25, 3, nil},
		"two sliding windows of few requests": {func(shared ruleOption) []rule {
			return []rule{
				slidingWindow(4, time.Second, shared, named("a")), slidingWindow(15, 5*time.Second, shared, named("b")),
			}
		}, 24, 2, 0, ms, 3, .99, .25, 6, nil},
		// Processes without a slot reported to the store a moment after its response that they wanted none, so the others kept theirs. Some
		// is unused while slots are on their way to the next process, and chance decides which that is.
		"slots beside a bucket": {func(shared ruleOption) []rule {
			return []rule{
				tokenBucket(13, time.Second, withBurst(2), shared, named("a")), inFlight(2, shared, named("b")),
			}
		}, 12, 3, 40 * ms, 10 * ms, 13, .7, 0, 12, nil},
	} {
		within(t, name, func(t *testing.T) {
			s := newFar(0)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			var sent atomic.Int64
			used := make([]atomic.Int64, c.processes)
			for i := range c.processes {
				l := drive(t, limits(c.limits(shared(farther{s, c.away}))...))
				for range c.callers {
					wg.Go(func() {
						for {
							g, err := l.acquire(ctx, ask{Costs: c.costs})
							if err != nil {
								return
							}
							sent.Add(1)
							used[i].Add(1)
							time.Sleep(c.takes + time.Microsecond)
							g.done()
						}
					})
				}
			}
			time.Sleep(5 * time.Second)
			s.mu.Lock()
			before := s.n
			s.mu.Unlock()
			sent.Store(0)
			for i := range used {
				used[i].Store(0)
			}
			const over = 30
			time.Sleep(over * time.Second)
			n := float64(sent.Load())
			s.mu.Lock()
			calls := float64(s.n - before)
			s.mu.Unlock()
			least := float64(used[0].Load())
			for i := range used {
				least = min(least, float64(used[i].Load()))
			}
			cancel()
			wg.Wait()
			s.rest()
			synctest.Wait()
			t.Logf("%.3f of the scarcest limit, the least share %.2f, %.2f calls a request", n/over/c.perSecond, least*float64(c.processes)/n, calls/n)
			require.GreaterOrEqual(t, n/over/c.perSecond, c.used)
			require.GreaterOrEqual(t, least*float64(c.processes)/n, c.least)
			require.LessOrEqual(t, calls/n, c.calls)
		})
	}
}
