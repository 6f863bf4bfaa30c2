package bench

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"
)

// BenchmarkObserve reads the statistics of a Limiter with 100,000 keys while requests go on. It reports the time of one reading and
// the p99.9 of a request meanwhile.
func BenchmarkObserve(b *testing.B) {
	const keys = 100_000
	for name, read := range map[string]func(*throttle.Limiter){
		"nothing": func(*throttle.Limiter) {},
		"Limits":  func(l *throttle.Limiter) { l.Limits() },
		"Buckets": func(l *throttle.Limiter) {
			for range l.Buckets() {
			}
		},
		"Snapshot": func(l *throttle.Limiter) { l.Snapshot() },
	} {
		b.Run("read="+name, func(b *testing.B) {
			l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(1_000_000_000, 1000*time.Hour)))
			if err != nil {
				b.Fatal(err)
			}
			for i := range keys {
				l.Try(throttle.Ask{Key: fmt.Sprint(i), Cost: 1000})
			}
			stop, all := make(chan struct{}), make(chan []time.Duration)
			go func() {
				var took []time.Duration
				for {
					select {
					case <-stop:
						all <- took
						return
					default:
					}
					start := time.Now()
					l.Try(throttle.Ask{Key: "1"})
					took = append(took, time.Since(start))
					time.Sleep(50 * time.Microsecond)
				}
			}()
			for b.Loop() {
				read(l)
				b.StopTimer()
				time.Sleep(time.Millisecond) // readers come now and then
				b.StartTimer()
			}
			close(stop)
			took := <-all
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*999/1000].Microseconds()), "p99.9-µs")
		})
	}
}
