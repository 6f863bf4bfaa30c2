package bench

import (
	"context"
	"flag"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
	"golang.org/x/time/rate"

	"github.com/httpthrottle/throttle"
)

var keys = flag.Int("keys", 10_000, "how many keys BenchmarkKeys has")

// A keyed limiter has a bucket of ten for each key.
type keyed struct {
	name string
	make func(b *testing.B, per time.Duration) (take func(key string) bool)
}

var keyeds = []keyed{
	{"throttle", func(b *testing.B, per time.Duration) func(string) bool {
		l := limiterOf(b, throttle.WithLimit(throttle.TokenBucket(10, per)), throttle.WithMaxKeys(10_000_000))
		return func(key string) bool { _, ok := l.Try(throttle.Ask{Key: key}); return ok }
	}},
	{"xtime-map", func(_ *testing.B, per time.Duration) func(string) bool { // what most programs have; it forgets nothing
		var mu sync.Mutex
		limiters := make(map[string]*rate.Limiter)
		return func(key string) bool {
			mu.Lock()
			l := limiters[key]
			if l == nil {
				l = rate.NewLimiter(rate.Every(per/10), 10)
				limiters[key] = l
			}
			mu.Unlock()
			return l.Allow()
		}
	}},
	{"sethvargo", func(b *testing.B, per time.Duration) func(string) bool {
		store, err := memorystore.New(&memorystore.Config{Tokens: 10, Interval: per, SweepInterval: time.Second, SweepMinTTL: max(per, time.Second)})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = store.Close(context.Background()) })
		return func(key string) bool { _, _, _, ok, _ := store.Take(context.Background(), key); return ok }
	}},
	{"throttled", func(b *testing.B, per time.Duration) func(string) bool {
		store, err := memstore.NewCtx(0)
		if err != nil {
			b.Fatal(err)
		}
		l, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{MaxRate: throttled.PerDuration(10, per), MaxBurst: 9})
		if err != nil {
			b.Fatal(err)
		}
		return func(key string) bool {
			limited, _, err := l.RateLimitCtx(context.Background(), key, 1)
			return !limited && err == nil
		}
	}},
}

// BenchmarkKeys has a million keys with -keys 1000000. Live ones are asked for again and again, at random, while none of
// their buckets is full. Churning ones come once each, and their buckets are full again after 10 ms; what is left of them
// is looked at after the last, and some seconds later.
func BenchmarkKeys(b *testing.B) {
	for _, k := range keyeds {
		b.Run("load=live/impl="+k.name, func(b *testing.B) {
			for b.Loop() {
				live(b, k)
			}
		})
		b.Run("load=churning/impl="+k.name, func(b *testing.B) {
			for b.Loop() {
				churning(b, k)
			}
		})
	}
}

func live(b *testing.B, k keyed) {
	names := keyNames()
	before := memory()
	take := k.make(b, 1000*time.Hour)
	began := time.Now()
	for _, name := range names {
		if !take(name) {
			b.Fatal(name)
		}
	}
	b.ReportMetric(each(time.Since(began)), "ns/newKey")
	b.ReportMetric(heapSince(before), "B/key")
	random := rand.New(rand.NewPCG(1, 2))
	began = time.Now()
	for range names {
		take(names[random.IntN(len(names))])
	}
	b.ReportMetric(each(time.Since(began)), "ns/request")
	runtime.KeepAlive(names)
}

func churning(b *testing.B, k keyed) {
	names := keyNames()
	before := memory()
	take := k.make(b, 100*time.Millisecond)
	began := time.Now()
	for _, name := range names {
		if !take(name) {
			b.Fatal(name)
		}
	}
	b.ReportMetric(each(time.Since(began)), "ns/request")
	b.ReportMetric(heapSince(before), "B/key")
	time.Sleep(2*time.Second + 2*time.Microsecond*time.Duration(*keys)) // ours forgets at most 1,024 a millisecond
	b.ReportMetric(heapSince(before), "B/key-idle")
	take("one more")
	runtime.KeepAlive(names)
}

// keyNames are made in advance, so that what is counted is what the limiter adds.
func keyNames() []string {
	names := make([]string, *keys)
	for i := range names {
		names[i] = "tenant-" + strconv.Itoa(i)
	}
	return names
}

func each(d time.Duration) float64 { return float64(d.Nanoseconds()) / float64(*keys) }

func heapSince(before runtime.MemStats) float64 {
	return float64(int64(memory().HeapAlloc-before.HeapAlloc)) / float64(*keys)
}
