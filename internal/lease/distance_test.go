package lease

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/store"
)

// TestDistantStoreCostsNoThroughput has processes that always want more, with a store up to 100 ms away.
func TestDistantStoreCostsNoThroughput(t *testing.T) {
	for _, processes := range []int{1, 8} {
		for _, trip := range []time.Duration{2 * time.Millisecond, 10 * time.Millisecond, 40 * time.Millisecond, 100 * time.Millisecond} {
			for _, b := range []store.Budget{
				{Kind: store.Pace, N: 100, Per: time.Second}, {Kind: store.Pace, N: 1000, Per: time.Second}, bucket(100, time.Second, 1),
				bucket(100, time.Second, 20), bucket(1000, time.Second, 1), bucket(1000, time.Second, 500),
			} {
				t.Run(fmt.Sprintf("%d processes, %v away, %s of %d/s, burst %d", processes, trip, b.Kind, b.N, b.Burst), func(t *testing.T) {
					f := newFleet(1, b, processes, 64)
					f.latency = func() int64 { return int64(trip)*3/4 + f.Int64N(int64(trip)/2) }
					f.run(2 * time.Second)
					f.reset()
					const over = 10 * time.Second
					f.run(over)
					used := float64(f.used) / float64(b.N) / over.Seconds()
					t.Logf("%.3f of the rate, Jain %.3f, %.2f calls a token", used, f.jain(), float64(f.calls)/float64(f.used))
					if used < 0.95 || used > 1.01 || f.jain() < 0.98 {
						t.Errorf("%.3f of the rate, Jain's index %.3f", used, f.jain())
					}
				})
			}
		}
	}
}

// Processes that always want more get even shares of any 5 s, also of a bucket that is far away.
func TestSharesOfFarBucketsAreEven(t *testing.T) { // slow: 160 stretches of seven fleets
	seeds, stretches := uint64(8), 20
	if testing.Short() {
		seeds, stretches = 1, 5
	}
	pace := store.Budget{Kind: store.Pace, N: 147, Per: time.Second}
	for _, c := range []struct {
		processes int
		budget    store.Budget
		trip      time.Duration
		callers   int64
		least     float64
	}{
		{20, bucket(500, time.Second, 50), 2 * time.Millisecond, 64, .9},
		{3, bucket(100, time.Second, 10), 20 * time.Millisecond, 64, .85},
		{20, bucket(329, time.Second, 1), 60 * time.Millisecond, 19, .7},
		{8, bucket(1000, time.Second, 100), 60 * time.Millisecond, 64, .8},
		{40, bucket(500, time.Second, 50), 100 * time.Millisecond, 64, .65},
		{8, bucket(500, time.Second, 50), 180 * time.Millisecond, 64, .65},
		{12, pace, 180 * time.Millisecond, 29, .65},
	} {
		t.Run(fmt.Sprintf("%d processes, %s of %d/s, %v", c.processes, c.budget.Kind, c.budget.N, c.trip), func(t *testing.T) {
			least, jain, used, calls := 1., 1., 1., int64(0)
			for seed := range seeds {
				f := newFleet(seed+1, c.budget, c.processes, c.callers)
				f.latency = func() int64 { return int64(c.trip)*3/4 + f.Int64N(int64(c.trip)/2) }
				f.run(5 * time.Second)
				for range stretches {
					f.reset()
					f.run(5 * time.Second)
					for _, p := range f.processes {
						least = min(least, float64(p.used)*float64(c.processes)/float64(f.used))
					}
					jain, used, calls = min(jain, f.jain()), min(used, float64(f.used)/float64(c.budget.N)/5), calls+f.calls
				}
			}
			t.Logf("least share %.2f, Jain %.2f, used %.2f, %.0f calls a second", least, jain, used, float64(calls)/5/float64(stretches)/float64(seeds))
			assert.GreaterOrEqual(t, least, c.least)
			assert.GreaterOrEqual(t, jain, .95)
			assert.GreaterOrEqual(t, used, .98)
		})
	}
}
