package bench

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"runtime"
	"testing"
	"time"

	"github.com/failsafe-go/failsafe-go/ratelimiter"
	"golang.org/x/time/rate"
	"resty.dev/v3"

	"github.com/httpthrottle/throttle"
)

var mostWaiters = flag.Int("waiters", 10_000, "the most that BenchmarkWaiters lines up, up to 1,000,000")

// A waiting limiter grants one request an hour.
type waiting struct {
	name string
	make func(*testing.B) func(context.Context) error
}

var waitings = []waiting{
	{"channel", func(*testing.B) func(context.Context) error {
		return func(ctx context.Context) error { // what any waiter that can be cancelled needs
			released := make(chan struct{})
			select {
			case <-released:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}},
	{"throttle", func(b *testing.B) func(context.Context) error {
		l := limiterOf(b, throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.Initial(0))), throttle.WithMaxQueue(2_000_000))
		return func(ctx context.Context) error { return l.Wait(ctx, throttle.Ask{}) }
	}},
	{"RoundTrip", func(b *testing.B) func(context.Context) error {
		tr := noRequests(b)
		return func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example.com/", nil)
			if err == nil {
				_, err = tr.RoundTrip(req)
			}
			return err
		}
	}},
	{"client.Get", func(b *testing.B) func(context.Context) error {
		client := &http.Client{Transport: noRequests(b)}
		return func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example.com/", nil)
			if err == nil {
				_, err = client.Do(req)
			}
			return err
		}
	}},
	{"xtime", func(*testing.B) func(context.Context) error {
		l := rate.NewLimiter(rate.Every(time.Hour), 1)
		l.Allow()
		return l.Wait
	}},
	{"failsafe", func(*testing.B) func(context.Context) error {
		l := ratelimiter.NewSmoothBuilderWithMaxRate[any](time.Hour).Build()
		l.TryAcquirePermit()
		return l.AcquirePermit
	}},
	{"resty", func(*testing.B) func(context.Context) error {
		l := resty.NewRateLimitTokenBucket(1./3600, 1)
		_ = l.Allow(context.Background())
		return l.Allow
	}},
}

// noRequests returns a Transport that lets one request through an hour from now.
func noRequests(b *testing.B) *throttle.Transport {
	tr, err := throttle.New(nil, throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.Initial(0))), throttle.WithMaxQueue(2_000_000))
	if err != nil {
		b.Fatal(err)
	}
	return tr
}

// BenchmarkWaiters lines up goroutines and reports what each of them takes, stack included, how long it took, and what
// the processors do while all wait: next to goroutines that do nothing but receive from a channel of their own. The
// runtime sizes new stacks by what it has seen, so each is to be run in a process of its own.
func BenchmarkWaiters(b *testing.B) {
	for _, n := range []int{1000, 10_000, 100_000, 1_000_000} {
		if n > *mostWaiters {
			break
		}
		for _, w := range waitings {
			b.Run(fmt.Sprintf("n=%d/impl=%s", n, w.name), func(b *testing.B) {
				for b.Loop() {
					lineUp(b, n, w.make(b))
				}
			})
		}
	}
}

// idleFor is how long nothing happens while the use of the processors is measured.
const idleFor = 300 * time.Millisecond

func lineUp(b *testing.B, n int, wait func(context.Context) error) {
	ctx, cancel := context.WithCancel(b.Context())
	idle := runtime.NumGoroutine()
	before := memory()
	began := time.Now()
	for range n {
		go func() { _ = wait(ctx) }()
	}
	quiet := untilQuiet()
	took := quiet.Sub(began)
	after := memory()
	used := processorTime()
	time.Sleep(idleFor)
	used = processorTime() - used

	each := func(x uint64, y uint64) float64 { return float64(int64(x-y)) / float64(n) }
	b.ReportMetric(float64(took.Nanoseconds())/float64(n), "ns/waiter")
	b.ReportMetric(each(after.HeapAlloc+after.StackInuse, before.HeapAlloc+before.StackInuse), "B/waiter")
	b.ReportMetric(each(after.StackInuse, before.StackInuse), "stackB/waiter")
	b.ReportMetric(100*used.Seconds()/idleFor.Seconds(), "%cpuIdle")
	cancel()
	for runtime.NumGoroutine() > idle {
		time.Sleep(time.Millisecond)
	}
}

// untilQuiet returns when this process had nothing to do any more; or gives up after a minute.
func untilQuiet() time.Time {
	const window = 5 * time.Millisecond
	deadline := time.Now().Add(time.Minute)
	for {
		for range 100 { // each goroutine that is ready has a turn first
			runtime.Gosched()
		}
		began, used := time.Now(), processorTime()
		time.Sleep(window)
		if processorTime()-used < window/10 || began.After(deadline) {
			return began
		}
	}
}

// memory is what is in use after a collection.
func memory() (m runtime.MemStats) {
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m
}
