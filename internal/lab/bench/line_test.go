package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/httpthrottle/throttle"
)

// inLine stand in line where a line is cancelled or retuned.
const inLine = 1000

// BenchmarkCancelled lets 1,000 line up at 1,000/s and cancels every other one. It reports in how much of the time that
// the rest needs at least they were served: 100 is ideal. A limiter that gives nothing back that was reserved comes to 50.
func BenchmarkCancelled(b *testing.B) {
	for _, p := range pacers {
		if p.name == "uber" || p.name == "juju" {
			continue // they know no contexts
		}
		b.Run("impl="+p.name, func(b *testing.B) {
			for b.Loop() {
				b.ReportMetric(cancelled(b, p.make(b, inLine)), "%ofIdeal")
			}
		})
	}
}

func cancelled(b *testing.B, wait func(context.Context) error) float64 {
	if err := wait(b.Context()); err != nil { // what it starts with
		b.Fatal(err)
	}
	began := time.Now()
	leaving, leave := context.WithCancel(b.Context())
	defer leave()
	var served, last atomic.Int64
	var all sync.WaitGroup
	for i := range inLine {
		ctx := b.Context()
		if i%2 == 1 {
			ctx = leaving
		}
		all.Go(func() {
			if wait(ctx) == nil {
				served.Add(1)
				last.Store(max(last.Load(), int64(time.Since(began))))
			}
		})
	}
	time.Sleep(20 * time.Millisecond)
	leave()
	all.Wait()
	least := time.Duration(served.Load()) * time.Second / inLine
	return 100 * least.Seconds() / time.Duration(last.Load()).Seconds()
}

// A tunable pacer can be given another rate. The others of the pacers can't.
type tunable struct {
	name string
	make func(b *testing.B, n int) (wait func(context.Context) error, tune func(n int))
}

var tunables = []tunable{
	{"throttle", func(b *testing.B, n int) (func(context.Context) error, func(int)) {
		l := limiterOf(b, throttle.WithLimit(throttle.TokenBucket(int64(n), time.Second, throttle.Burst(1), throttle.Name("all"))))
		return func(ctx context.Context) error { return l.Wait(ctx, throttle.Ask{}) }, func(n int) {
			if err := l.SetRate("all", int64(n), time.Second); err != nil {
				b.Error(err)
			}
		}
	}},
	{"xtime", func(_ *testing.B, n int) (func(context.Context) error, func(int)) {
		l := rate.NewLimiter(rate.Limit(n), 1)
		return l.Wait, func(n int) { l.SetLimit(rate.Limit(n)) }
	}},
}

// BenchmarkRetuned changes the rate a hundredfold while 1,000 wait, and reports how many of those that the new rate allows
// were served from 20 ms after it until 0.4 s and 1 s after it: 100 is ideal; less is a line that goes on at the old rate, more is a limit that is
// broken.
func BenchmarkRetuned(b *testing.B) {
	for _, c := range []struct{ from, to int }{{10, 1000}, {10_000, 100}} {
		for _, t := range tunables {
			b.Run(fmt.Sprintf("from=%d/to=%d/impl=%s", c.from, c.to, t.name), func(b *testing.B) {
				for b.Loop() {
					early, late, ok := 0.0, 0.0, false
					for tries := 0; !ok && tries < 10; tries++ {
						wait, tune := t.make(b, c.from)
						early, late, ok = retuned(b, wait, func() { tune(c.to) }, c.to)
					}
					b.ReportMetric(early, "%ofIdeal-0.4s")
					b.ReportMetric(late, "%ofIdeal-1s")
				}
			})
		}
	}
}

func retuned(b *testing.B, wait func(context.Context) error, tune func(), n int) (early, late float64, ok bool) {
	start := time.Now()
	ctx, cancel := context.WithCancel(b.Context())
	if err := wait(ctx); err != nil {
		b.Fatal(err)
	}
	var served atomic.Int64
	var all sync.WaitGroup
	for range inLine {
		all.Go(func() {
			if wait(ctx) == nil {
				served.Add(1)
			}
		})
	}
	time.Sleep(5 * time.Millisecond) // until they stand in line
	tune()
	began := time.Now()
	if began.Sub(start) > 30*time.Millisecond { // too much of the line has gone already: the machine was busy
		cancel()
		all.Wait()
		return 0, 0, false
	}
	// An instant at which no request is due, because some are a little late.
	servedAt := func(t float64) float64 {
		t += 0.5 / float64(n)
		time.Sleep(time.Until(began.Add(time.Duration(t * 1e9))))
		return float64(served.Load())
	}
	const settled = 0.02 // by then the requests have gone that were due before the change
	before := servedAt(settled)
	share := func(t float64) float64 { return 100 * (servedAt(t) - before) / ((t - settled) * float64(n)) }
	early = share(0.4)
	late = share(1)
	cancel()
	all.Wait()
	return early, late, true
}
