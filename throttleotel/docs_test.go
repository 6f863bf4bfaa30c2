package throttleotel_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/metrics"
	"github.com/httpthrottle/throttle/internal/metrics/metricstest"
	"github.com/httpthrottle/throttle/pool"
	"github.com/httpthrottle/throttle/throttleotel"
)

// reported returns the table of metrics without those of single Transports and keys, which throttleprom alone exports.
func reported() map[string]*metrics.Metric {
	all := make(map[string]*metrics.Metric)
	for _, m := range metrics.All() {
		if m.Source != metrics.FromTransport && m.Source != metrics.FromKey {
			all[m.Name] = m
		}
	}
	return all
}

// A Pool is reported as one thing, with all its metrics.
func TestEveryMetricOfAPoolIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := metricstest.PlayPool(t)
		reader := sdkmetric.NewManualReader()
		_, err := throttleotel.RegisterPool(p, "models", throttleotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
		require.NoError(t, err)
		found := collect(t, reader)
		for _, m := range metrics.OfPools() {
			assert.Contains(t, found, m.Name)
			delete(found, m.Name)
		}
		assert.Empty(t, found, "not in the table")
		of := func(pairs ...string) attribute.Set {
			all := []attribute.KeyValue{attribute.String("throttle.pool", "models")}
			for i := 0; i < len(pairs); i += 2 {
				all = append(all, attribute.String("throttle."+pairs[i], pairs[i+1]))
			}
			return attribute.NewSet(all...)
		}
		found = collect(t, reader)
		for name, want := range map[string]map[attribute.Set]int64{
			"throttle.pool.waiting_requests":        {of(): 1},
			"throttle.pool.member.waiting_requests": {of("member", "a"): 1, of("member", "b"): 0, of("member", "c"): 1},
		} {
			got := map[attribute.Set]int64{}
			for _, point := range found[name].(metricdata.Sum[int64]).DataPoints {
				got[point.Attributes] = point.Value
			}
			assert.Equal(t, want, got, name)
		}
	})
	p, err := pool.New([]pool.Member{{Name: "a", Transport: throttle.Must(throttle.New(nil))}})
	require.NoError(t, err)
	_, err = throttleotel.RegisterPool(p, "models", nil)
	assert.EqualError(t, err, "throttleotel: RegisterPool: an Option is nil")
	_, err = throttleotel.RegisterPool(nil, "models")
	assert.EqualError(t, err, "throttleotel: RegisterPool: the Pool is nil")
}

func TestEveryMetricOfTheTableIsReported(t *testing.T) {
	types := map[metrics.Kind]string{
		metrics.Counter: "metricdata.Sum[int64]", metrics.UpDownCounter: "metricdata.Sum[int64]",
		metrics.Gauge: "metricdata.Gauge[float64]", metrics.Histogram: "metricdata.Histogram[float64]",
	}
	synctest.Test(t, func(t *testing.T) {
		s := metricstest.Play(t)
		l := s.Transport.Limiter()
		reader := sdkmetric.NewManualReader(sdkmetric.WithProducer(throttleotel.NewProducer(l, "x")))
		_, err := throttleotel.Register(l, "x", throttleotel.WithRetries("c", s.Policy),
			throttleotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
		require.NoError(t, err)
		found := collect(t, reader)
		for name, m := range reported() {
			assert.Equal(t, types[m.Kind], fmt.Sprintf("%T", found[name]), "what is reported of %s", name)
			delete(found, name)
		}
		assert.Empty(t, found, "not in the table")
	})
}

func TestDocumentsNameEveryInstrument(t *testing.T) {
	text, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	_, list, _ := strings.Cut(string(text), "# Instruments")
	list, attributes, ok := strings.Cut(list, "The attributes are")
	require.True(t, ok)
	attributes, _, _ = strings.Cut(attributes, "\n//\n")
	documented := make(map[string]bool)
	for _, name := range regexp.MustCompile(`\bthrottle\.[a-z_.]*[a-z]`).FindAllString(list, -1) {
		documented[name] = true
	}
	all := reported()
	for _, m := range metrics.OfPools() {
		all[m.Name] = m
	}
	for name, m := range all {
		assert.True(t, documented[name], "doc.go lacks %s below \"# Instruments\"", name)
		delete(documented, name)
		for _, label := range m.Labels {
			assert.Regexp(t, `\bthrottle\.`+label+`\b`, attributes, "the attributes in doc.go")
		}
	}
	assert.Empty(t, documented, "in doc.go, and not in the table of metrics")
}
