package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/failsafe-go/failsafe-go/ratelimiter"
	jujuratelimit "github.com/juju/ratelimit"
	"golang.org/x/time/rate"

	"github.com/httpthrottle/throttle"
)

// BenchmarkHammer lets 64 goroutines take from one bucket as fast as they can, and reports what was granted as a share
// of burst + rate·t: more than 100 is more than the limit.
func BenchmarkHammer(b *testing.B) {
	const burst = 100
	for _, n := range []int{10_000, 1_000_000} {
		xtime := rate.NewLimiter(rate.Limit(n), burst)
		ours := limiterOf(b, throttle.WithLimit(throttle.TokenBucket(int64(n), time.Second, throttle.Burst(burst))))
		failsafe := ratelimiter.NewSmoothBuilder[any](uint(n), time.Second).Build()
		juju := jujuratelimit.NewBucket(time.Second/time.Duration(n), burst)
		for _, c := range []struct {
			name string
			op   string
			take func() bool
		}{
			{"throttle", "try", func() bool { _, ok := ours.Try(throttle.Ask{}); return ok }},
			{"xtime", "try", xtime.Allow},
			{"failsafe", "try", failsafe.TryAcquirePermit},
			{"juju", "try", func() bool { return juju.TakeAvailable(1) == 1 }},
			{"throttle", "wait", func() bool { return ours.Wait(context.Background(), throttle.Ask{}) == nil }},
			{"xtime", "wait", func() bool { return xtime.Wait(context.Background()) == nil }},
			{"failsafe", "wait", func() bool { return failsafe.AcquirePermit(context.Background()) == nil }},
			{"juju", "wait", func() bool { juju.Wait(1); return true }},
		} {
			b.Run(fmt.Sprintf("rate=%d/op=%s/impl=%s", n, c.op, c.name), func(b *testing.B) {
				for b.Loop() {
					granted, took := hammer(c.take)
					b.ReportMetric(100*float64(granted)/(burst+float64(n)*took.Seconds()), "%ofAllowed")
				}
			})
		}
	}
}

// hammer returns what was granted until no caller asks any more.
func hammer(take func() bool) (granted int64, took time.Duration) {
	var n atomic.Int64
	var all sync.WaitGroup
	start := time.Now()
	for range goroutines {
		all.Go(func() {
			for time.Since(start) < time.Second/4 {
				if take() {
					n.Add(1)
				}
			}
		})
	}
	all.Wait()
	return n.Load(), time.Since(start)
}
