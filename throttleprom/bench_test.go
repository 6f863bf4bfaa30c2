package throttleprom_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttleprom"
)

// full returns a Limiter with so many keys, and its registry.
func full(b *testing.B, keys int) (*throttle.Limiter, *prometheus.Registry) {
	l, err := throttle.NewLimiter(throttle.WithLimit(
		throttle.TokenBucket(1_000_000_000, time.Hour), throttle.Pace(1_000_000_000, time.Millisecond), throttle.FixedWindow(1_000_000_000, time.Hour)))
	require.NoError(b, err)
	for i := range keys {
		_, ok := l.Try(throttle.Ask{Key: fmt.Sprint(i)})
		require.True(b, ok)
	}
	reg := prometheus.NewRegistry()
	require.NoError(b, reg.Register(throttleprom.NewCollector(l, "x", throttleprom.WithKeys("bucket", "1", "2", "3"))))
	return l, reg
}

// BenchmarkScrape is what a scrape costs, which does not depend on the number of keys.
func BenchmarkScrape(b *testing.B) {
	for _, keys := range []int{0, 100_000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			_, reg := full(b, keys)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := reg.Gather(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkGrantProm is what a grant costs without a Collector, and with one that is scraped 100 times a second.
func BenchmarkGrantProm(b *testing.B) {
	for _, attached := range []string{"nothing", "scraped"} {
		b.Run("attached="+attached, func(b *testing.B) {
			l, reg := full(b, 0)
			scraped := attached == "scraped"
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				for ticker := time.Tick(10 * time.Millisecond); scraped; {
					select {
					case <-stop:
						return
					case <-ticker:
						_, _ = reg.Gather()
					}
				}
			}()
			b.ReportAllocs()
			for b.Loop() {
				l.Try(throttle.Ask{})
			}
			close(stop)
			<-stopped
		})
	}
}
