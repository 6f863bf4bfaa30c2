package bench

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/httpthrottle/throttle"
)

// BenchmarkHammer lets 64 goroutines take from one bucket for a second as fast as they can, and reports what was granted
// as a share of burst + rate·t: it must not be more than 100.
func BenchmarkHammer(b *testing.B) {
	for _, c := range []struct {
		name string
		n    int64
	}{{"rate=10000", 10_000}, {"rate=1000000", 1_000_000}} {
		b.Run(c.name+"/impl=xtime/op=try", func(b *testing.B) {
			l := rate.NewLimiter(rate.Limit(c.n), 1)
			hammer(b, c.n, l.Allow)
		})
		b.Run(c.name+"/impl=throttle/op=try", func(b *testing.B) {
			l := bucketOf(b, c.n)
			hammer(b, c.n, func() bool { _, ok := l.Try("", 1); return ok })
		})
		b.Run(c.name+"/impl=throttle/op=wait", func(b *testing.B) {
			l := bucketOf(b, c.n)
			hammer(b, c.n, func() bool { return l.Wait(context.Background(), "", 1) == nil })
		})
	}
}

func bucketOf(b *testing.B, n int64) *throttle.Limiter {
	l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(n, time.Second, throttle.Burst(1))))
	if err != nil {
		b.Fatal(err)
	}
	return l
}

func hammer(b *testing.B, n int64, take func() bool) {
	for b.Loop() {
		var granted atomic.Int64
		var all sync.WaitGroup
		start := time.Now()
		for range 64 {
			all.Go(func() {
				for time.Since(start) < time.Second {
					if take() {
						granted.Add(1)
					}
				}
			})
		}
		all.Wait()
		allowed := 1 + float64(n)*time.Since(start).Seconds()
		b.ReportMetric(100*float64(granted.Load())/allowed, "%ofAllowed")
	}
}
