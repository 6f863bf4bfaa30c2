package bench

import (
	"context"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/failsafe-go/failsafe-go/ratelimiter"
	jujuratelimit "github.com/juju/ratelimit"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
	"go.uber.org/ratelimit"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
	"k8s.io/client-go/util/flowcontrol"
	"resty.dev/v3"

	"github.com/httpthrottle/throttle"
)

// A limiter makes something that is asked for one token and says whether it gave it. With enough it has a limit that is
// never reached, else nothing is left and nothing comes.
type limiter struct {
	name string
	make func(tb testing.TB, enough bool) func() bool
}

// asked never block.
var asked = []limiter{
	{"xtime", func(_ testing.TB, enough bool) func() bool {
		l := rate.NewLimiter(rate.Every(per(enough)), burst(enough))
		return l.Allow
	}},
	{"failsafe", func(_ testing.TB, enough bool) func() bool {
		return ratelimiter.NewSmoothBuilderWithMaxRate[any](per(enough)).Build().TryAcquirePermit
	}},
	{"failsafe-adaptive", failsafeAdaptive},
	{"juju", func(_ testing.TB, enough bool) func() bool {
		l := jujuratelimit.NewBucket(per(enough), int64(burst(enough)))
		return func() bool { return l.TakeAvailable(1) == 1 }
	}},
	{"sethvargo", func(tb testing.TB, enough bool) func() bool { return sethvargo(tb, enough) }},
	{"throttled", func(tb testing.TB, enough bool) func() bool { return throttledGCRA(tb, enough) }},
	{"client-go", func(_ testing.TB, enough bool) func() bool {
		return flowcontrol.NewTokenBucketRateLimiter(float32(1/per(enough).Seconds()), burst(enough)).TryAccept
	}},
	{"semaphore", semaphoreOf},
	{"throttle", func(tb testing.TB, enough bool) func() bool { return try(tb, "", bucketLimit(enough)) }},
	{"throttle-key", func(tb testing.TB, enough bool) func() bool { return try(tb, "tenant-42", bucketLimit(enough)) }},
	{"throttle-three", func(tb testing.TB, enough bool) func() bool {
		return try(tb, "", throttle.WithLimit(throttle.SlidingWindow(many, time.Minute), throttle.FixedWindow(many, time.Hour)), bucketLimit(enough))
	}},
}

// waited block until there is a token; there always is.
var waited = []limiter{
	{"xtime", func(_ testing.TB, enough bool) func() bool {
		l := rate.NewLimiter(many, many)
		return func() bool { return l.Wait(context.Background()) == nil }
	}},
	{"uber", func(testing.TB, bool) func() bool {
		l := ratelimit.New(many)
		return func() bool { return !l.Take().IsZero() }
	}},
	{"failsafe", func(testing.TB, bool) func() bool {
		l := ratelimiter.NewSmoothBuilder[any](many, time.Second).Build()
		return func() bool { return l.AcquirePermit(context.Background()) == nil }
	}},
	{"resty", func(testing.TB, bool) func() bool {
		l := resty.NewRateLimitTokenBucket(many, many)
		return func() bool { return l.Allow(context.Background()) == nil }
	}},
	{"juju", func(testing.TB, bool) func() bool {
		l := jujuratelimit.NewBucketWithRate(many, many)
		return func() bool { l.Wait(1); return true }
	}},
	{"client-go", func(testing.TB, bool) func() bool {
		l := flowcontrol.NewTokenBucketRateLimiter(many, many)
		return func() bool { return l.Wait(context.Background()) == nil }
	}},
	{"semaphore", func(testing.TB, bool) func() bool {
		l := semaphore.NewWeighted(many)
		return func() bool { err := l.Acquire(context.Background(), 1); l.Release(1); return err == nil }
	}},
	{"throttle", func(tb testing.TB, _ bool) func() bool {
		l := limiterOf(tb, bucket)
		return func() bool { return l.Wait(context.Background(), throttle.Ask{}) == nil }
	}},
	{"throttle-key", func(tb testing.TB, _ bool) func() bool {
		l := limiterOf(tb, bucket)
		return func() bool { return l.Wait(context.Background(), throttle.Ask{Key: "tenant-42"}) == nil }
	}},
	{"throttle-three", func(tb testing.TB, _ bool) func() bool {
		l := limiterOf(tb, threeLimits)
		return func() bool { return l.Wait(context.Background(), throttle.Ask{}) == nil }
	}},
}

// floor is what no limiter can do without, or little more.
var floor = []limiter{
	{"time.Since", func(testing.TB, bool) func() bool {
		start := time.Now()
		return func() bool { return time.Since(start) > 0 }
	}},
	{"lock", func(testing.TB, bool) func() bool {
		var mu sync.Mutex
		n := 0
		return func() bool { mu.Lock(); n++; mu.Unlock(); return true }
	}},
	{"atomic", func(testing.TB, bool) func() bool {
		var n atomic.Int64
		return func() bool { return n.Add(1) > 0 }
	}},
	{"time.Since+lock", func(testing.TB, bool) func() bool {
		var mu sync.Mutex
		start := time.Now()
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return time.Since(start) > 0
		}
	}},
}

// BenchmarkLimiter is what a limiter alone costs when it grants, when a caller that would wait need not, and when it
// denies.
func BenchmarkLimiter(b *testing.B) {
	for _, l := range floor {
		measure(b, "op=floor/goroutines=1/impl="+l.name, l.make(b, true), true, false)
	}
	for _, contended := range []bool{false, true} {
		n := "/goroutines=1/impl="
		if contended {
			n = "/goroutines=64/impl="
		}
		for _, l := range asked {
			measure(b, "op=try"+n+l.name, l.make(b, true), true, contended)
		}
		for _, l := range waited {
			measure(b, "op=wait"+n+l.name, l.make(b, true), true, contended)
		}
		for _, l := range asked {
			denying := l.make(b, false)
			for denying() { // what it starts with
			}
			measure(b, "op=denied"+n+l.name, denying, false, contended)
		}
	}
	b.Run("op=denied/goroutines=1/impl=throttle-429", refusal)
}

// refusal is the whole way of a request that is refused, with its synthetic answer.
func refusal(b *testing.B) {
	t := ours("", bucketLimit(false), throttle.WithFailFast()).wrap(b, instant{})
	req := request(b, "http://api.example.com")
	b.ReportAllocs()
	granted := 0
	for b.Loop() {
		resp, err := t.RoundTrip(req)
		if err != nil {
			b.Fatal(err)
		}
		if resp.StatusCode == http.StatusOK {
			granted++
		}
		if err := resp.Body.Close(); err != nil {
			b.Fatal(err)
		}
	}
	if granted > 1 {
		b.Fatalf("%d were not refused", granted)
	}
}

func measure(b *testing.B, name string, ask func() bool, want, contended bool) {
	b.Run(name, func(b *testing.B) {
		b.ReportAllocs()
		if !contended {
			for b.Loop() {
				if ask() != want {
					b.Fatal(!want)
				}
			}
			return
		}
		b.SetParallelism(goroutines / runtime.GOMAXPROCS(0))
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if ask() != want {
					b.Error(!want)
					return
				}
			}
		})
	})
}

// per is the time for a token. An hour is what most of them can do.
func per(enough bool) time.Duration {
	if enough {
		return time.Nanosecond
	}
	return time.Hour
}

func burst(enough bool) int {
	if enough {
		return many
	}
	return 1
}

func bucketLimit(enough bool) throttle.Option {
	n, each := int64(1), per(enough)
	if each < time.Millisecond { // a shorter period is an error
		n, each = int64(time.Millisecond/each), time.Millisecond
	}
	return throttle.WithLimit(throttle.TokenBucket(n, each, throttle.Burst(int64(burst(enough)))))
}

func limiterOf(tb testing.TB, opts ...throttle.Option) *throttle.Limiter {
	l, err := throttle.NewLimiter(opts...)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

func try(tb testing.TB, key string, opts ...throttle.Option) func() bool {
	l := limiterOf(tb, opts...)
	return func() bool { _, ok := l.Try(throttle.Ask{Key: key}); return ok }
}

// failsafeAdaptive limits what is in flight: one at a time, if there is not enough.
func failsafeAdaptive(_ testing.TB, enough bool) func() bool {
	if enough {
		l := plentiful()
		return func() bool {
			permit, ok := l.TryAcquirePermit()
			if ok {
				permit.Record()
			}
			return ok
		}
	}
	l := adaptivelimiter.NewBuilder[any]().WithLimits(1, 1, 1).Build()
	return func() bool { _, ok := l.TryAcquirePermit(); return ok }
}

func semaphoreOf(_ testing.TB, enough bool) func() bool {
	l := semaphore.NewWeighted(int64(burst(enough)))
	return func() bool {
		ok := l.TryAcquire(1)
		if ok && enough {
			l.Release(1)
		}
		return ok
	}
}

func sethvargo(tb testing.TB, enough bool) func() bool {
	store, err := memorystore.New(&memorystore.Config{Tokens: uint64(burst(enough)), Interval: time.Hour})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = store.Close(context.Background()) })
	return func() bool {
		_, _, _, ok, err := store.Take(context.Background(), "tenant-42")
		return ok && err == nil
	}
}

func throttledGCRA(tb testing.TB, enough bool) func() bool {
	store, err := memstore.NewCtx(0)
	if err != nil {
		tb.Fatal(err)
	}
	quota := throttled.RateQuota{MaxRate: throttled.PerHour(1)}
	if enough {
		quota = throttled.RateQuota{MaxRate: throttled.PerSec(many), MaxBurst: many}
	}
	l, err := throttled.NewGCRARateLimiterCtx(store, quota)
	if err != nil {
		tb.Fatal(err)
	}
	// 64 at once lose more than the 10 rounds of compare and swap that are the default, and then get an error.
	l.SetMaxCASAttemptsLimit(many)
	return func() bool {
		limited, _, err := l.RateLimitCtx(context.Background(), "tenant-42", 1)
		return !limited && err == nil
	}
}
