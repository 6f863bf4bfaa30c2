package limiter_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/quota"
)

// BenchmarkCheck reports how long an operation takes that checks n waiters again, best of all runs. Their patience is far longer
// than they wait (far), or just enough for each of them (tight: MaxWait is the same for all of a queue that is full).
func BenchmarkCheck(b *testing.B) {
	kinds := map[string]throttle.Limit{
		"bucket":   throttle.TokenBucket(1000, time.Second, throttle.Burst(1000), throttle.Initial(0), throttle.Name("limit")),
		"sliding":  throttle.SlidingWindow(2000, 2*time.Second, throttle.Name("limit")),
		"adaptive": throttle.Adaptive(throttle.AIMD{Initial: 1000, Max: 1000}, throttle.Name("limit")),
	}
	for _, kind := range []string{"bucket", "sliding", "adaptive"} {
		for _, patience := range []string{"far", "tight"} {
			for _, n := range []int{1000, 10_000, 100_000} {
				for _, families := range []int{1, 30_000} {
					if families > 1 && (n != 100_000 || patience != "far") {
						continue
					}
					b.Run(fmt.Sprintf("kind=%s/patience=%s/families=%d/n=%d", kind, patience, families, n), func(b *testing.B) {
						benchmarkCheck(b, kinds[kind], n, families, patience == "tight")
					})
				}
			}
		}
	}
}

func benchmarkCheck(b *testing.B, limit throttle.Limit, n, families int, tight bool) {
	l := limiterOf(b, throttle.WithLimit(limit), throttle.WithMaxQueue(1<<30), throttle.WithMaxKeys(1<<30))
	grant, err := l.Acquire(b.Context(), throttle.Ask{})
	require.NoError(b, err)
	kind := l.Limits()[0].Kind
	if kind == "sliding-window" {
		l.Try(throttle.Ask{Cost: 1000})
		time.Sleep(time.Millisecond)
		l.Try(throttle.Ask{Cost: 999})
	}
	ctx, cancel := context.WithCancel(b.Context())
	if families > 1 {
		n = families
	}
	for i := range n {
		w := waiterOf(l, throttle.Ask{MaxWait: new(10_000 * time.Hour)})
		if tight {
			w.MaxWait = time.Duration(i+3000) * time.Millisecond
		}
		if families > 1 {
			w.Gate, w.Late = &quota.Key{Host: "h", Family: uint64(i)}, true
		}
		enqueue(ctx, l, w)
	}
	report := func(name string, op func(i int)) {
		best := time.Hour
		for i := range 5 {
			start := time.Now()
			op(i)
			best = min(best, time.Since(start))
		}
		b.ReportMetric(float64(best.Nanoseconds())/1e3, "µs/"+name)
	}
	for b.Loop() {
		if kind != "adaptive" {
			report("SetRate", func(i int) { require.NoError(b, l.SetRate("limit", 2000+int64(i%2), 2*time.Second)) })
		}
		if kind == "bucket" {
			report("SetBurst", func(i int) { require.NoError(b, l.SetBurst("limit", 1000+int64(i%2))) })
		}
		report("Hold", func(i int) { l.Hold("", time.Duration(1+i)*time.Millisecond) })
		report("Settle", func(i int) {
			requestOf(grant).Unsettle()
			require.NoError(b, grant.Settle("limit", int64(2+i)))
		})
		b.ReportMetric(float64(l.Stats().Waiting), "left")
		b.ReportMetric(0, "ns/op")
	}
	cancel()
}
