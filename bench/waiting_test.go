package bench

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"
)

// BenchmarkWaiters lines up 100,000 goroutines and reports what each of them takes: against goroutines that wait on a
// channel of their own.
func BenchmarkWaiters(b *testing.B) {
	const waiters = 100_000
	b.Run("impl=channel", func(b *testing.B) {
		lineUp(b, waiters, func(ctx context.Context) (func(), func() int) {
			return func() {
				released := make(chan struct{})
				select {
				case <-released:
				case <-ctx.Done():
				}
			}, nil
		})
	})
	b.Run("impl=throttle", func(b *testing.B) {
		lineUp(b, waiters, func(ctx context.Context) (func(), func() int) {
			l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.Initial(0))))
			if err != nil {
				b.Fatal(err)
			}
			return func() { l.Wait(ctx, "", 1) }, func() int { return l.Stats().Waiting }
		})
	})
}

func lineUp(b *testing.B, n int, start func(context.Context) (wait func(), waiting func() int)) {
	for b.Loop() {
		ctx, cancel := context.WithCancel(b.Context())
		wait, waiting := start(ctx)
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := time.Now()
		var done sync.WaitGroup
		for range n {
			done.Go(wait)
		}
		for waiting != nil && waiting() < n {
			runtime.Gosched()
		}
		for runtime.NumGoroutine() < n {
			runtime.Gosched()
		}
		took := time.Since(began)
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(took.Nanoseconds())/float64(n), "ns/waiter")
		b.ReportMetric(float64(after.HeapInuse+after.StackInuse-before.HeapInuse-before.StackInuse)/float64(n), "B/waiter")
		b.ReportMetric(float64(after.StackInuse-before.StackInuse)/float64(n), "stackB/waiter")
		cancel()
		done.Wait()
	}
}
