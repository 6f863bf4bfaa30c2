package bench

import (
	"context"
	"fmt"
	"math"
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
// the rest needs at least they were served: 100 is ideal. Who gives nothing back that was reserved comes to 50.
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
		return func(ctx context.Context) error { return l.Wait(ctx, "", 1) }, func(n int) {
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
// were served after 0.4 s and after 1 s: 100 is ideal; less is a line that goes on at the old rate, more is a limit that is
// broken.
func BenchmarkRetuned(b *testing.B) {
	for _, c := range []struct{ from, to int }{{10, 1000}, {10_000, 100}} {
		for _, t := range tunables {
			b.Run(fmt.Sprintf("from=%d/to=%d/impl=%s", c.from, c.to, t.name), func(b *testing.B) {
				for b.Loop() {
					wait, tune := t.make(b, c.from)
					early, late := retuned(b, wait, func() { tune(c.to) }, c.from, c.to)
					b.ReportMetric(early, "%ofIdeal-0.4s")
					b.ReportMetric(late, "%ofIdeal-1s")
				}
			})
		}
	}
}

func retuned(b *testing.B, wait func(context.Context) error, tune func(), from, n int) (early, late float64) {
	ctx, cancel := context.WithCancel(b.Context())
	start := time.Now()
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
	began := time.Now()
	tune()
	began = began.Add(time.Since(began) / 2)                        // it was somewhen between
	before := 1 + began.Sub(start).Seconds()*float64(from)          // were due by then, whether or not they have gone yet
	due := func(t float64) float64 { return before + t*float64(n) } // in all, a part of one included
	// Half an interval later than the last of them is due, for who is a little late.
	share := func(t float64) float64 {
		t += 0.5 / float64(n)
		time.Sleep(time.Until(began.Add(time.Duration(t * 1e9))))
		return 100 * (1 + float64(served.Load()) - before) / (min(math.Floor(due(t)), 1+inLine) - before)
	}
	early = share(0.4)
	late = share(1)
	cancel()
	all.Wait()
	return early, late
}
