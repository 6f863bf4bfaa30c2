package limiter_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/meter"
)

// BenchmarkScale lines up 100,000 requests of so many callers, cancels every tenth, and grants the others. It reports what each
// of these takes. 0 callers take no turns: their requests stand in the order of arrival or, as a comparison, in an order that is
// as mixed as that of callers.
func BenchmarkScale(b *testing.B) {
	const n = 100_000
	for _, c := range []struct{ callers, priorities int }{{0, 1}, {0, 1000}, {1, 1}, {10, 1}, {1000, 1}, {100_000, 1}} {
		callers := c.callers
		b.Run(fmt.Sprintf("callers=%d/priorities=%d", callers, c.priorities), func(b *testing.B) {
			in, off, out := time.Hour, time.Hour, time.Hour // the best of all runs: others use the machine, too
			for b.Loop() {
				var opts []ruleOption
				if callers > 0 {
					opts = append(opts, fair())
				}
				l := drive(b, limits(tokenBucket(1, time.Hour, append(opts, withBurst(n), withInitial(0))...)))
				names := make([]string, max(1, callers))
				for i := range names {
					names[i] = fmt.Sprint("caller ", i)
				}
				waiters := make([]*limiter.Waiter, n)
				for i := range waiters {
					waiters[i] = l.waiter(ask{Priority: i % c.priorities, Caller: names[i%len(names)]})
				}
				ctx, cancel := context.WithCancel(b.Context())
				start := time.Now()
				for _, w := range waiters {
					l.enqueue(ctx, w)
				}
				in = min(in, time.Since(start))
				cancel()
				start = time.Now()
				for i := 0; i < n; i += 10 {
					l.Leave(waiters[i])
				}
				off = min(off, time.Since(start))
				start = time.Now()
				l.setRate("bucket", meter.MaxCount, time.Nanosecond)
				for l.counts().Waiting > 0 { // for a timer
					time.Sleep(10 * time.Microsecond)
				}
				out = min(out, time.Since(start))
				require.Zero(b, l.LineCount())
			}
			b.ReportMetric(float64(in.Nanoseconds())/n, "ns/line-up")
			b.ReportMetric(float64(off.Nanoseconds())/(n/10), "ns/cancel")
			b.ReportMetric(float64(out.Nanoseconds())/(n*9/10), "ns/grant")
			b.ReportMetric(0, "ns/op")
		})
	}
}
