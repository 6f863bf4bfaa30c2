package bench

import (
	"context"
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
	name string
	do   func(b *testing.B, l *throttle.Limiter, i int)
}

var overKeys = []operation{
	{"SetRate", func(b *testing.B, l *throttle.Limiter, i int) { must(b, l.SetRate("tenant", int64(10+i%2), time.Hour)) }},
	{"SetBurst", func(b *testing.B, l *throttle.Limiter, i int) { must(b, l.SetBurst("tenant", int64(10+i%2))) }},
	{"Refresh", func(b *testing.B, l *throttle.Limiter, _ int) { must(b, l.Refresh("tenant")) }},
	{"Hold", func(_ *testing.B, l *throttle.Limiter, i int) { l.Hold("k0", time.Duration(1+i)*time.Hour) }},
	{"HoldAll", func(_ *testing.B, l *throttle.Limiter, _ int) { l.HoldAll(1) }},
	{"Buckets", func(_ *testing.B, l *throttle.Limiter, _ int) {
		for range l.Buckets() {
		}
	}},
	{"Limits", func(_ *testing.B, l *throttle.Limiter, _ int) { l.Limits() }},
	{"Snapshot", func(_ *testing.B, l *throttle.Limiter, _ int) { l.Snapshot() }},
}

var overWaiters = []operation{
	{"SetRate", func(b *testing.B, l *throttle.Limiter, i int) { must(b, l.SetRate("tenant", int64(10+i%2), time.Hour)) }},
	{"SetBurst", func(b *testing.B, l *throttle.Limiter, i int) { must(b, l.SetBurst("tenant", int64(10+i%2))) }},
	{"Hold", func(_ *testing.B, l *throttle.Limiter, i int) { l.Hold("k0", time.Duration(1+i)*time.Hour) }},
	{"Stats", func(_ *testing.B, l *throttle.Limiter, _ int) { l.Stats() }},
}

func must(b *testing.B, err error) {
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkScale reports how long an operation takes with many keys, or with many waiters of one key, and the longest that another
// caller waited for the lock meanwhile: the median of all iterations. With -scale 1000000 it goes to a million keys and 100,000
// waiters.
func BenchmarkScale(b *testing.B) {
	for n := 1000; n <= *mostScale; n *= 10 {
		l := scaled(b, n)
		for _, op := range overKeys {
			b.Run(fmt.Sprintf("of=keys/n=%d/op=%s", n, op.name), func(b *testing.B) { stall(b, l, op) })
		}
		if n > 100_000 {
			continue // a waiter is a goroutine
		}
		l = scaled(b, 1)
		leave := lineUpFor(b, l, n)
		for _, op := range overWaiters {
			b.Run(fmt.Sprintf("of=waiters/n=%d/op=%s", n, op.name), func(b *testing.B) { stall(b, l, op) })
		}
		leave()
	}
}

// scaled returns a Limiter with n keys, none of which can pay more.
func scaled(b *testing.B, n int) *throttle.Limiter {
	rateFor := throttle.RateFor(func(string) (int64, time.Duration) { return 0, 0 })
	l := limiterOf(b, throttle.WithMaxKeys(2_000_000), throttle.WithMaxQueue(2_000_000),
		throttle.WithLimit(throttle.TokenBucket(10, time.Hour, throttle.Name("tenant"), rateFor)))
	for i := range n {
		if _, ok := l.Try("k"+strconv.Itoa(i), 10); !ok {
			b.Fatal(i)
		}
	}
	return l
}

// lineUpFor has n goroutines wait for the first key, until they are told to leave.
func lineUpFor(b *testing.B, l *throttle.Limiter, n int) (leave func()) {
	ctx, cancel := context.WithCancel(b.Context())
	var all sync.WaitGroup
	for range n {
		all.Go(func() { _ = l.Wait(ctx, "k0", 1) })
	}
	for l.Stats().Waiting < n {
		time.Sleep(time.Millisecond)
	}
	return func() {
		cancel()
		all.Wait()
	}
}

func stall(b *testing.B, l *throttle.Limiter, op operation) {
	var longest, stop atomic.Int64
	var caller sync.WaitGroup
	caller.Go(func() {
		for stop.Load() == 0 {
			began := time.Now()
			l.Try("another", 1)
			if d := int64(time.Since(began)); d > longest.Load() {
				longest.Store(d)
			}
		}
	})
	var all, held []float64
	for i := 0; b.Loop(); i++ {
		longest.Store(0)
		_, _ = longestHold(l)
		op.do(b, l, i)
		if d, ok := longestHold(l); ok {
			held = append(held, float64(d)/1e3)
		}
		for longest.Load() == 0 {
			runtime.Gosched() // until the caller has noted what it waited
		}
		all = append(all, float64(longest.Load())/1e3)
	}
	stop.Store(1)
	caller.Wait()
	b.ReportMetric(median(all), "µs-stall")
	if len(held) > 0 {
		b.ReportMetric(median(held), "µs-lock")
	}
}
