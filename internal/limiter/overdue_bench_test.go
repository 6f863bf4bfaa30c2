package limiter_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/quota"
)

// BenchmarkCheck reports how long an operation takes that checks n waiters again, best of all runs. Their patience is far longer
// than they wait (far), or just enough for each of them (tight: MaxWait is the same for all of a queue that is full).
func BenchmarkCheck(b *testing.B) {
	kinds := map[string]rule{
		"bucket":   tokenBucket(1000, time.Second, withBurst(1000), withInitial(0), named("limit")),
		"sliding":  slidingWindow(2000, 2*time.Second, named("limit")),
		"adaptive": adaptive(aimd.Config{Initial: 1000, Max: 1000}, named("limit")),
	}
	for _, kind := range []string{"bucket", "sliding", "adaptive"} {
		for _, patience := range []string{"far", "tight"} {
			for _, n := range []int{1000, 10_000, 100_000} {
				for _, families := range []int{1, 30_000} {
					if families > 1 && (n != 100_000 || patience != "far") {
						continue
					}
					b.Run(fmt.Sprintf("kind=%s/patience=%s/families=%d/n=%d", kind, patience, families, n), func(b *testing.B) {
						benchmarkCheck(b, kind, kinds[kind], n, families, patience == "tight")
					})
				}
			}
		}
	}
}

func benchmarkCheck(b *testing.B, kind string, limit rule, n, families int, tight bool) {
	l := drive(b, limit, maxQueue(1<<30), maxKeys(1<<30))
	granted, err := l.pass(b.Context(), ask{})
	require.NoError(b, err)
	if kind == "sliding" {
		l.try(ask{Cost: 1000})
		time.Sleep(time.Millisecond)
		l.try(ask{Cost: 999})
	}
	ctx, cancel := context.WithCancel(b.Context())
	if families > 1 {
		n = families
	}
	for i := range n {
		w := l.waiter(ask{MaxWait: ptr(10_000 * time.Hour)})
		if tight {
			w.MaxWait = time.Duration(i+3000) * time.Millisecond
		}
		if families > 1 {
			w.Gate, w.Late = &quota.Key{Host: "h", Family: uint64(i)}, true
		}
		l.enqueue(ctx, w)
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
			report("SetRate", func(i int) { l.setRate("limit", 2000+int64(i%2), 2*time.Second) })
		}
		if kind == "bucket" {
			report("SetBurst", func(i int) { l.setBurst("limit", 1000+int64(i%2)) })
		}
		report("Hold", func(i int) { l.hold("", time.Duration(1+i)*time.Millisecond) })
		report("Settle", func(i int) {
			r := *granted // as if it was not settled yet
			_, err := l.Settle(&r, 0, int64(2+i))
			require.NoError(b, err)
		})
		b.ReportMetric(float64(l.counts().Waiting), "left")
		b.ReportMetric(0, "ns/op")
	}
	cancel()
}
