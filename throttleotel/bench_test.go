package throttleotel_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttleotel"
)

// BenchmarkGrantOtel is what a grant costs without instruments, and with instruments and a Producer that are read 100 times a second.
func BenchmarkGrantOtel(b *testing.B) {
	for _, attached := range []string{"nothing", "read"} {
		b.Run("attached="+attached, func(b *testing.B) {
			l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(1_000_000_000, time.Second)))
			require.NoError(b, err)
			reader := sdkmetric.NewManualReader(sdkmetric.WithProducer(throttleotel.NewProducer(l, "x")))
			provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
			_, err = throttleotel.Register(l, "x", throttleotel.WithMeterProvider(provider))
			require.NoError(b, err)
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				for ticker := time.Tick(10 * time.Millisecond); attached == "read"; {
					select {
					case <-stop:
						return
					case <-ticker:
						_ = reader.Collect(b.Context(), new(metricdata.ResourceMetrics))
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
