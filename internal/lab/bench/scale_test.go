package bench

import (
	"flag"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"
)

var mostScale = flag.Int("scale", 10_000, "the most keys and waiters of BenchmarkScale, up to 1,000,000")

// An operation changes or reads a whole Limiter, or a line.
type operation struct {
	name    string
	prepare func(b *testing.B, l *throttle.Limiter) // before each; nil: nothing
	do      func(b *testing.B, l *throttle.Limiter, i int)
}

var overKeys = []operation{
	{name: "SetRate", do: func(b *testing.B, l *throttle.Limiter, i int) { must(b, l.SetRate("tenant", int64(10+i%2), time.Hour)) }},
	{name: "SetBurst", do: func(b *testing.B, l *throttle.Limiter, i int) { must(b, l.SetBurst("tenant", int64(10+i%2))) }},
	{name: "Refresh", do: func(b *testing.B, l *throttle.Limiter, _ int) { must(b, l.Refresh("tenant")) }},
	{name: "Hold", do: func(_ *testing.B, l *throttle.Limiter, i int) { l.Hold("k0", time.Duration(1+i)*time.Hour) }},
	{name: "HoldAll", do: func(_ *testing.B, l *throttle.Limiter, _ int) { l.HoldAll(1) }},
	{name: "Buckets", do: func(_ *testing.B, l *throttle.Limiter, _ int) {
		for range l.Buckets() {
		}
	}},
	{name: "Limits", do: func(_ *testing.B, l *throttle.Limiter, _ int) { l.Limits() }},
	{name: "Snapshot", do: func(_ *testing.B, l *throttle.Limiter, _ int) { l.Snapshot() }},
}

func must(b *testing.B, err error) {
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkScale reports how long an operation takes with many keys, or with many waiters of one key, and the longest that another
// caller waited for the lock meanwhile: the median of all iterations. For how long the lock itself was held is not measured any more: that
// took a lock of its own in the program. With -scale 1000000 it goes to a million keys and 100,000 waiters.
func BenchmarkScale(b *testing.B) {
	for n := 1000; n <= *mostScale; n *= 10 {
		l := scaled(b, n)
		for _, op := range overKeys {
			b.Run(fmt.Sprintf("of=keys/n=%d/op=%s", n, op.name), func(b *testing.B) { stall(b, l, op) })
		}
		if n > 100_000 {
			continue // a waiter is a goroutine
		}
		c := crowded(b, n)
		for _, op := range c.operations() {
			b.Run(fmt.Sprintf("of=waiters/n=%d/op=%s", n, op.name), func(b *testing.B) { stall(b, c.tr.Limiter(), op) })
		}
		c.leave()
		benchmarkRejections(b, n)
	}
}

// scaled returns a Limiter with n keys, none of which can pay more.
func scaled(b *testing.B, n int) *throttle.Limiter {
	rateFor := throttle.RateFor(func(string) (int64, time.Duration) { return 0, 0 })
	l := limiterOf(b, throttle.WithMaxKeys(2_000_000), throttle.WithMaxQueue(2_000_000),
		throttle.WithLimit(throttle.TokenBucket(10, time.Hour, throttle.Name("tenant"), rateFor)))
	for i := range n {
		if _, ok := l.Try(throttle.Ask{Key: "k" + strconv.Itoa(i), Cost: 10}); !ok {
			b.Fatal(i)
		}
	}
	return l
}

func stall(b *testing.B, l *throttle.Limiter, op operation) {
	var longest, stop atomic.Int64
	var caller sync.WaitGroup
	caller.Go(func() {
		for stop.Load() == 0 {
			began := time.Now()
			l.Try(throttle.Ask{Key: "another"})
			if d := int64(time.Since(began)); d > longest.Load() {
				longest.Store(d)
			}
		}
	})
	var all []float64
	for i := 0; b.Loop(); i++ {
		if op.prepare != nil {
			b.StopTimer()
			op.prepare(b, l)
			b.StartTimer()
		}
		longest.Store(0)
		op.do(b, l, i)
		for longest.Load() == 0 {
			runtime.Gosched() // until the caller has noted what it waited
		}
		all = append(all, float64(longest.Load())/1e3)
	}
	stop.Store(1)
	caller.Wait()
	b.ReportMetric(median(all), "µs-stall")
}
