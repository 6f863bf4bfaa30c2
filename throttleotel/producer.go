package throttleotel

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/httpthrottle/throttle"
)

type producer struct {
	limiter *throttle.Limiter
	name    attribute.KeyValue
	start   time.Time
	bounds  []float64
}

// NewProducer returns a Producer of throttle.wait, a histogram of how long requests waited for each limit, for the option
// WithProducer of a reader. Requests that did not wait are in the bucket up to 0. OpenTelemetry has no asynchronous histogram;
// this one is exact and costs requests nothing. It is cumulative, whatever temporality the reader prefers.
func NewProducer(l *throttle.Limiter, name string) metric.Producer {
	if l == nil {
		panic("throttleotel: NewProducer: the Limiter is nil")
	}
	bounds := []float64{0}
	for _, b := range throttle.WaitBounds() {
		bounds = append(bounds, b.Seconds())
	}
	return &producer{l, limiterKey.String(name), time.Now(), bounds}
}

// Produce returns the histogram.
func (p *producer) Produce(context.Context) ([]metricdata.ScopeMetrics, error) {
	now := time.Now()
	var points []metricdata.HistogramDataPoint[float64]
	for _, s := range p.limiter.Limits() {
		points = append(points, metricdata.HistogramDataPoint[float64]{
			Attributes: attribute.NewSet(p.name, limitKey.String(s.Name)), StartTime: p.start, Time: now,
			Count: s.Granted, Sum: s.Waits.Sum.Seconds(), Bounds: p.bounds,
			BucketCounts: append([]uint64{s.Granted - s.Delayed}, s.Waits.Counts[:]...),
		})
	}
	var calls []metricdata.HistogramDataPoint[float64]
	for _, s := range p.limiter.Stores() {
		point := metricdata.HistogramDataPoint[float64]{
			Attributes: attribute.NewSet(p.name, storeKey.String(strings.Join(s.Limits, ","))), StartTime: p.start, Time: now,
			Sum: s.Latency.Sum.Seconds(), Bounds: p.bounds[1:], BucketCounts: s.Latency.Counts[:],
		}
		for _, n := range s.Latency.Counts {
			point.Count += n
		}
		calls = append(calls, point)
	}
	all := []metricdata.Metrics{{
		Name: "throttle.wait", Unit: "s",
		Description: "Time in the queue because of this limit, of all requests that it was charged for.",
		Data:        metricdata.Histogram[float64]{DataPoints: points, Temporality: metricdata.CumulativeTemporality},
	}}
	if len(calls) > 0 {
		all = append(all, metricdata.Metrics{
			Name: "throttle.store.call", Unit: "s", Description: "Time of the calls to the store of shared limits that returned in time.",
			Data: metricdata.Histogram[float64]{DataPoints: calls, Temporality: metricdata.CumulativeTemporality},
		})
	}
	return []metricdata.ScopeMetrics{{Scope: instrumentation.Scope{Name: ScopeName}, Metrics: all}}, nil
}
