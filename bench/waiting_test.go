package bench

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"
)

// BenchmarkWaiters lines up 100,000 goroutines and reports what each of them takes, stack included: against goroutines
// that do nothing but receive from a channel of their own. Run each impl in a process of its own: the runtime sizes new
// stacks by what it has seen.
func BenchmarkWaiters(b *testing.B) {
	const waiters = 100_000
	b.Run("impl=channel", func(b *testing.B) {
		lineUp(b, waiters, func(ctx context.Context) func() {
			return func() {
				released := make(chan struct{})
				select {
				case <-released:
				case <-ctx.Done():
				}
			}
		})
	})
	b.Run("impl=throttle", func(b *testing.B) {
		lineUp(b, waiters, func(ctx context.Context) func() {
			l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.Initial(0))))
			if err != nil {
				b.Fatal(err)
			}
			return func() { _ = l.Wait(ctx, "", 1) }
		})
	})
}

func lineUp(b *testing.B, n int, start func(context.Context) (wait func())) {
	for b.Loop() {
		ctx, cancel := context.WithCancel(b.Context())
		wait := start(ctx)
		idle := runtime.NumGoroutine()
		before := memory()
		began := time.Now()
		for range n {
			go wait()
		}
		for range n { // each has its turn on a processor
			runtime.Gosched()
		}
		took := time.Since(began)
		after := memory()
		b.ReportMetric(float64(took.Nanoseconds())/float64(n), "ns/waiter")
		b.ReportMetric(float64(after.HeapAlloc+after.StackInuse-before.HeapAlloc-before.StackInuse)/float64(n), "B/waiter")
		b.ReportMetric(float64(after.StackInuse-before.StackInuse)/float64(n), "stackB/waiter")
		cancel()
		for runtime.NumGoroutine() > idle {
			runtime.Gosched()
		}
	}
}

func memory() (m runtime.MemStats) {
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m
}
