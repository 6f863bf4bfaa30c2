package throttleredis

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle/store"
)

// BenchmarkLease reports the time of a call, and the processor time of Redis for each ask.
func BenchmarkLease(b *testing.B) {
	s := start(b).client(b)
	for _, asks := range []int{1, 8, 32, 64} {
		for _, kind := range []store.Kind{store.Bucket, store.Sliding, store.Fixed, store.Slots} {
			for _, backs := range []bool{false, true} {
				b.Run(fmt.Sprintf("%s/asks=%d/back=%v", kind, asks, backs), func(b *testing.B) { benchLease(b, s, kind, asks, backs) })
			}
		}
	}
}

func benchLease(b *testing.B, c *redis.Client, kind store.Kind, asks int, backs bool) {
	st, err := New(c)
	if err != nil {
		b.Fatal(err)
	}
	all := make([]store.Ask, asks)
	for i := range all {
		p := store.Part{
			Budget: store.Budget{Kind: kind, Limit: "requests", Key: fmt.Sprint("key-", i), N: 1000, Per: time.Second, Burst: 1000, Initial: 1000},
			Need:   1, Want: 10, Horizon: 50 * time.Millisecond, Holder: "holder",
		}
		all[i].Parts = []store.Part{p}
	}
	if _, err := st.Lease(b.Context(), all); err != nil {
		b.Fatal(err)
	}
	before := cpu(b, c)
	for b.Loop() {
		leases, err := st.Lease(b.Context(), all)
		if err != nil {
			b.Fatal(err)
		}
		for i, l := range leases {
			if backs {
				all[i].Parts[0].Back = []store.Return{{Tokens: 1, Lease: l.Parts[0].ID}}
			}
		}
	}
	b.ReportMetric((cpu(b, c)-before)/float64(b.N*asks)*1e6, "redis-µs/ask")
}

// cpu returns how many seconds of processor time Redis has used.
func cpu(b *testing.B, c *redis.Client) (seconds float64) {
	info := c.Info(b.Context(), "cpu").Val()
	for _, m := range regexp.MustCompile(`used_cpu_(?:user|sys):([\d.]+)`).FindAllStringSubmatch(info, -1) {
		s, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			b.Fatal(err)
		}
		seconds += s
	}
	return seconds
}

// BenchmarkColdKeys has calls of 64 asks, each for one of 10,000 budgets that are full.
func BenchmarkColdKeys(b *testing.B) {
	c := start(b).client(b)
	st, err := New(c)
	if err != nil {
		b.Fatal(err)
	}
	asks := make([]store.Ask, 64)
	for i := range asks {
		asks[i].Parts = []store.Part{{
			Budget: store.Budget{Kind: store.Bucket, Limit: "requests", N: 1e6, Per: time.Second, Burst: 1e6, Initial: 1e6},
			Need:   1, Want: 1, Horizon: 50 * time.Millisecond, Since: time.Second,
		}}
	}
	lease := func() {
		for i := range asks {
			asks[i].Parts[0].Budget.Key = fmt.Sprint("key-", rand.IntN(10_000))
		}
		if _, err := st.Lease(b.Context(), asks); err != nil {
			b.Fatal(err)
		}
	}
	for range 500 {
		lease()
	}
	before := cpu(b, c)
	for b.Loop() {
		lease()
	}
	b.ReportMetric((cpu(b, c)-before)/float64(b.N*len(asks))*1e6, "redis-µs/ask")
}

// BenchmarkFleet has 64 processes that ask for one budget, a call each: what Redis can bear is a second over its processor time.
func BenchmarkFleet(b *testing.B) {
	c := start(b).client(b)
	st, err := New(c)
	if err != nil {
		b.Fatal(err)
	}
	for _, kind := range []store.Kind{store.Bucket, store.Sliding, store.Fixed} {
		b.Run(string(kind), func(b *testing.B) {
			asks := []store.Ask{{Parts: []store.Part{{
				Budget: store.Budget{Kind: kind, Limit: "requests", N: 20_000, Per: time.Second, Burst: 20_000, Initial: 20_000},
				Need:   1, Want: 10, Horizon: 50 * time.Millisecond, Since: 50 * time.Millisecond,
			}}}}
			before := cpu(b, c)
			b.SetParallelism(64 / runtime.GOMAXPROCS(0))
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := st.Lease(b.Context(), asks); err != nil {
						b.Error(err)
					}
				}
			})
			b.ReportMetric((cpu(b, c)-before)/float64(b.N)*1e6, "redis-µs/call")
		})
	}
}
