package throttleotel

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/metrics"
)

type producer struct {
	limiter *throttle.Limiter
	name    attribute.KeyValue
	start   time.Time
}

// NewProducer returns a Producer of throttle.wait, a histogram of how long requests waited for each limit, and of throttle.store.call,
// one of how long calls of the stores of shared limits took, for the option WithProducer of a reader. Requests that did not wait are
// in the bucket up to 0. OpenTelemetry has no asynchronous histogram; these are exact and cost requests nothing. They are cumulative,
// whatever temporality the reader prefers.
func NewProducer(l *throttle.Limiter, name string) metric.Producer {
	if l == nil {
		panic("throttleotel: NewProducer: the Limiter is nil")
	}
	return &producer{l, attribute.String("throttle.limiter", name), time.Now()}
}

// Produce returns the histograms that have values.
func (p *producer) Produce(context.Context) ([]metricdata.ScopeMetrics, error) {
	now := time.Now()
	points := make(map[*metrics.Metric][]metricdata.HistogramDataPoint[float64])
	metrics.ReadLimiter(p.limiter, func(s metrics.Sample) {
		if s.Metric.Kind != metrics.Histogram {
			return
		}
		point := metricdata.HistogramDataPoint[float64]{
			Attributes: attributes(p.name, keysOf(s.Metric), s), StartTime: p.start, Time: now,
			Sum: s.Counts.Sum, Bounds: s.Counts.Bounds, BucketCounts: s.Counts.Counts,
		}
		for _, n := range s.Counts.Counts {
			point.Count += n
		}
		points[s.Metric] = append(points[s.Metric], point)
	})
	var all []metricdata.Metrics
	for _, m := range metrics.All() {
		if points[m] != nil {
			all = append(all, metricdata.Metrics{
				Name: m.Name, Unit: m.Unit, Description: m.Help,
				Data: metricdata.Histogram[float64]{DataPoints: points[m], Temporality: metricdata.CumulativeTemporality},
			})
		}
	}
	return []metricdata.ScopeMetrics{{Scope: instrumentation.Scope{Name: ScopeName}, Metrics: all}}, nil
}
