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
	}{
		// Tokens of the faster pace were given back 100 ms after they were due, while the slower one was awaited, and promised again later.
		"two paces": {func(shared ruleOption) []rule {
			return []rule{
				pace(5, time.Second, shared, named("a")), pace(4, time.Second, shared, named("b")),
			}
		}, 3, 1, 0, 0, 4, .99, .95, 1.1},
		"two buckets of many": {func(shared ruleOption) []rule {
			return []rule{
				tokenBucket(43, time.Second, withBurst(1), shared, named("a")),
				tokenBucket(27, time.Second, withBurst(1), shared, named("b")),
			}
		}, 31, 1, 0, 0, 27, .99, .95, 1.1},
		// The store was asked for more of the window only when the process had none left, so the pace had to wait for the response.
		"a window beside a pace of its own": {func(shared ruleOption) []rule {
			return []rule{
				fixedWindow(2480, 10*time.Second, shared, named("a")), pace(44, time.Second, named("b")),
			}
		}, 1, 22, 0, 25 * ms, 44, .95, 1, .5},
		// Each was asked for as many tokens as there were of the other one, so both got few.
		"two buckets that are far away": {func(shared ruleOption) []rule {
			return []rule{
				tokenBucket(28, time.Second, withBurst(4), shared, named("a")), pace(106, time.Second, shared, named("b")),
			}
		}, 1, 16, 0, 25 * ms, 28, .95, 1, 1.1},
		// A request got no turn, so all processes asked whenever a window had tokens: 13 and 12 calls for each request.
		"two fixed windows of few requests": {func(shared ruleOption) []rule {
			return []rule{
				fixedWindow(20, 5*time.Second, shared, named("a")), fixedWindow(15, 5*time.Second, shared, named("b")),
			}
		}, 24, 2, 0, ms, 3, .99, .25, 3},
		"two sliding windows of few requests": {func(shared ruleOption) []rule {
			return []rule{
				slidingWindow(4, time.Second, shared, named("a")), slidingWindow(15, 5*time.Second, shared, named("b")),
			}
		}, 24, 2, 0, ms, 3, .99, .25, 6},
		// Processes without a slot reported to the store a moment after its response that they wanted none, so the others kept theirs. Some
		// is unused while slots are on their way to the next process, and chance decides which that is.
		"slots beside a bucket": {func(shared ruleOption) []rule {
			return []rule{
				tokenBucket(13, time.Second, withBurst(2), shared, named("a")), inFlight(2, shared, named("b")),
			}
		}, 12, 3, 40 * ms, 10 * ms, 13, .7, 0, 12},
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
							g, err := l.acquire(ctx, ask{})
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
