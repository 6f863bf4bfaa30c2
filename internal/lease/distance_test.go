package lease

import (
	"fmt"
	"testing"
	"time"

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
