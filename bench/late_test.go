package bench

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"
)

// BenchmarkThroughput keeps a line of 100 at a limit for as long as it runs, and reports what was granted as a share of
// the limit: late timers must cost nothing.
func BenchmarkThroughput(b *testing.B) {
	for _, c := range []struct {
		name string
		n    int64
	}{{"rate=1000", 1000}, {"rate=50000", 50_000}} {
		b.Run(c.name, func(b *testing.B) {
			l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(c.n, time.Second, throttle.Burst(1))))
			if err != nil {
				b.Fatal(err)
			}
			work := make(chan struct{})
			var all sync.WaitGroup
			for range 100 {
				all.Go(func() {
					for range work {
						if err := l.Wait(context.Background(), "", 1); err != nil {
							b.Error(err)
						}
					}
				})
			}
			began := time.Now()
			for b.Loop() {
				work <- struct{}{}
			}
			close(work)
			all.Wait()
			took := time.Since(began)
			b.ReportMetric(100*float64(b.N-1)/(took.Seconds()*float64(c.n)), "%ofLimit")
		})
	}
}

// BenchmarkLateness waits 1 ms at a time and reports by how much longer it was, against time.Sleep.
func BenchmarkLateness(b *testing.B) {
	b.Run("impl=sleep", func(b *testing.B) {
		lateness(b, time.Sleep)
	})
	b.Run("impl=throttle", func(b *testing.B) {
		l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(1, time.Millisecond)))
		if err != nil {
			b.Fatal(err)
		}
		lateness(b, func(time.Duration) {
			l.Wait(context.Background(), "", 1)
			l.Wait(context.Background(), "", 1)
		})
	})
}

func lateness(b *testing.B, sleep func(time.Duration)) {
	var late []time.Duration
	for b.Loop() {
		time.Sleep(3 * time.Millisecond) // so that a bucket is full, and the processor idle
		began := time.Now()
		sleep(time.Millisecond)
		late = append(late, time.Since(began)-time.Millisecond)
	}
	slices.Sort(late)
	b.ReportMetric(float64(late[len(late)/2].Microseconds()), "p50-µs-late")
	b.ReportMetric(float64(late[len(late)*99/100].Microseconds()), "p99-µs-late")
}
