package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/failsafe-go/failsafe-go/ratelimiter"
	jujuratelimit "github.com/juju/ratelimit"
	"go.uber.org/ratelimit"
	"golang.org/x/time/rate"
	"k8s.io/client-go/util/flowcontrol"
	"resty.dev/v3"

	"github.com/httpthrottle/throttle"
)

// A pacer lets one request go each time, n per second, one after the other. It is full when it is made.
type pacer struct {
	name string
	make func(tb testing.TB, n int) func(context.Context) error
}

var pacers = []pacer{
	{"throttle", func(tb testing.TB, n int) func(context.Context) error {
		l := limiterOf(tb, throttle.WithLimit(throttle.TokenBucket(int64(n), time.Second, throttle.Burst(1))))
		return func(ctx context.Context) error { return l.Wait(ctx, throttle.Ask{}) }
	}},
	{"xtime", func(_ testing.TB, n int) func(context.Context) error { return rate.NewLimiter(rate.Limit(n), 1).Wait }},
	{"uber", func(_ testing.TB, n int) func(context.Context) error {
		l := ratelimit.New(n, ratelimit.WithoutSlack)
		return func(context.Context) error { l.Take(); return nil }
	}},
	{"failsafe", func(_ testing.TB, n int) func(context.Context) error {
		return ratelimiter.NewSmoothBuilder[any](uint(n), time.Second).Build().AcquirePermit
	}},
	{"resty", func(_ testing.TB, n int) func(context.Context) error {
		return resty.NewRateLimitTokenBucket(float64(n), 1).Allow
	}},
	{"juju", func(_ testing.TB, n int) func(context.Context) error {
		l := jujuratelimit.NewBucket(time.Second/time.Duration(n), 1)
		return func(context.Context) error { l.Wait(1); return nil }
	}},
	{"client-go", func(_ testing.TB, n int) func(context.Context) error {
		return flowcontrol.NewTokenBucketRateLimiter(float32(n), 1).Wait
	}},
}

// sleeper is what waiting costs at least: to each its instant, and time.Sleep until then.
func sleeper(_ testing.TB, n int) func(context.Context) error {
	var k atomic.Int64
	began := time.Now()
	return func(context.Context) error {
		due := began.Add(time.Duration(k.Add(1)-1) * time.Second / time.Duration(n))
		time.Sleep(time.Until(due))
		return nil
	}
}

// BenchmarkLateness keeps 100 waiting at a limit, and reports by how much later they went than the limit demands: the
// k-th is due k intervals after the first. A limiter that makes up for no delay falls behind, so that its median grows with time.
func BenchmarkLateness(b *testing.B) {
	for _, n := range []int{1000, 50_000} {
		for _, p := range slices.Concat([]pacer{{"sleep", sleeper}}, pacers) {
			b.Run(fmt.Sprintf("rate=%d/impl=%s", n, p.name), func(b *testing.B) {
				for b.Loop() {
					late := lateness(b, p.make(b, n), n)
					b.ReportMetric(float64(quantile(late, 0.5).Nanoseconds())/1e3, "p50-µs-late")
					b.ReportMetric(float64(quantile(late, 0.99).Nanoseconds())/1e3, "p99-µs-late")
				}
			})
		}
	}
}

// lateness is that of the grants of half a second.
func lateness(b *testing.B, wait func(context.Context) error, n int) []time.Duration {
	grants := n / 2
	went := make([]time.Duration, grants)
	began := time.Now()
	if err := wait(b.Context()); err != nil { // the first is due at once
		b.Fatal(err)
	}
	var next atomic.Int64
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			for {
				i := next.Add(1)
				if i >= int64(grants) {
					return
				}
				if err := wait(b.Context()); err != nil {
					b.Error(err)
				}
				went[i] = time.Since(began)
			}
		})
	}
	all.Wait()
	slices.Sort(went)
	for i := range went {
		went[i] -= time.Duration(i) * time.Second / time.Duration(n)
	}
	return went
}

// BenchmarkOrder lets 200 line up one after the other at 1,000/s, and reports how many of them one overtook that had
// come later.
func BenchmarkOrder(b *testing.B) {
	const waiters, rate = 200, 1000
	for _, p := range pacers {
		b.Run("impl="+p.name, func(b *testing.B) {
			for b.Loop() {
				b.ReportMetric(100*float64(overtaken(b, p.make(b, rate), waiters))/waiters, "%overtaken")
			}
		})
	}
}

func overtaken(b *testing.B, wait func(context.Context) error, n int) int {
	if err := wait(b.Context()); err != nil {
		b.Fatal(err)
	}
	var mu sync.Mutex
	var order []int
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			if err := wait(b.Context()); err != nil {
				b.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			order = append(order, i)
		})
		time.Sleep(50 * time.Microsecond) // until it stands in line
	}
	all.Wait()
	count, latest := 0, -1
	for _, i := range order {
		if i < latest { // one that came later has gone already
			count++
		}
		latest = max(latest, i)
	}
	return count
}
