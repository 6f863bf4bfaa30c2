package throttleotel_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/httpthrottle/throttle/internal/metrics/metricstest"
	"github.com/httpthrottle/throttle/throttleotel"
)

func TestMetricsAreAsTheGoldenFileHasThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := metricstest.Play(t)
		reader := sdkmetric.NewManualReader(sdkmetric.WithProducer(throttleotel.NewProducer(s.Transport.Limiter(), "github")))
		_, err := throttleotel.Register(s.Transport.Limiter(), "github", throttleotel.WithRetries("client", s.Policy),
			throttleotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
		require.NoError(t, err)
		var all metricdata.ResourceMetrics
		require.NoError(t, reader.Collect(t.Context(), &all))
		got := text(t, &all)
		if os.Getenv("UPDATE_GOLDEN") != "" {
			require.NoError(t, os.WriteFile("testdata/metrics.txt", []byte(got), 0o644))
		}
		want, err := os.ReadFile("testdata/metrics.txt")
		require.NoError(t, err)
		require.Equal(t, strings.Split(string(want), "\n"), strings.Split(got, "\n"), "UPDATE_GOLDEN=1 writes the file")
	})
}

// text returns a line for each metric and each of its points, without times.
func text(t *testing.T, all *metricdata.ResourceMetrics) string {
	t.Helper()
	var blocks []string
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			kind, points := described(t, m.Data)
			slices.Sort(points)
			blocks = append(blocks, fmt.Sprintf("%s %s %q %s\n%s", m.Name, kind, m.Unit, m.Description, strings.Join(points, "")))
		}
	}
	slices.Sort(blocks)
	return strings.Join(blocks, "")
}

func described(t *testing.T, data metricdata.Aggregation) (kind string, points []string) {
	t.Helper()
	add := func(of attribute.Set, format string, values ...any) {
		points = append(points, "\t"+of.Encoded(attribute.DefaultEncoder())+" "+fmt.Sprintf(format, values...)+"\n")
	}
	switch d := data.(type) {
	case metricdata.Sum[int64]:
		for _, p := range d.DataPoints {
			add(p.Attributes, "%d", p.Value)
		}
		return fmt.Sprintf("sum of integers, %v, monotonic %t", d.Temporality, d.IsMonotonic), points
	case metricdata.Gauge[float64]:
		for _, p := range d.DataPoints {
			add(p.Attributes, "%v", p.Value)
		}
		return "gauge", points
	case metricdata.Histogram[float64]:
		for _, p := range d.DataPoints {
			add(p.Attributes, "count %d, sum %v, up to %v: %v", p.Count, p.Sum, p.Bounds, p.BucketCounts)
		}
		return fmt.Sprintf("histogram, %v", d.Temporality), points
	}
	assert.Fail(t, "unknown aggregation", "%T", data)
	return "", nil
}
