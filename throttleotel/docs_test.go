package throttleotel_test

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"
	"github.com/httpthrottle/throttle/throttleotel"
)

// A nameMeter records the names of the instruments that are made.
type nameMeter struct {
	noop.Meter
	names map[string]bool
}

type nameProvider struct {
	noop.MeterProvider
	meter *nameMeter
}

func (p nameProvider) Meter(string, ...metric.MeterOption) metric.Meter { return p.meter }

func (m *nameMeter) Int64ObservableCounter(name string, o ...metric.Int64ObservableCounterOption) (metric.Int64ObservableCounter, error) {
	m.names[name] = true
	return m.Meter.Int64ObservableCounter(name, o...)
}

func (m *nameMeter) Int64ObservableUpDownCounter(name string, o ...metric.Int64ObservableUpDownCounterOption) (metric.Int64ObservableUpDownCounter, error) {
	m.names[name] = true
	return m.Meter.Int64ObservableUpDownCounter(name, o...)
}

func (m *nameMeter) Float64ObservableGauge(name string, o ...metric.Float64ObservableGaugeOption) (metric.Float64ObservableGauge, error) {
	m.names[name] = true
	return m.Meter.Float64ObservableGauge(name, o...)
}

// TestDocumentsNameEveryInstrument compares docs/observability.md with the instruments that are made and the histograms that are produced.
func TestDocumentsNameEveryInstrument(t *testing.T) {
	text, err := os.ReadFile("../docs/observability.md")
	require.NoError(t, err)
	_, list, _ := strings.Cut(string(text), "The instruments have the names of the Prometheus metrics with dots:")
	list, _, ok := strings.Cut(list, "The attributes are")
	require.True(t, ok)
	documented := make(map[string]bool)
	for _, name := range regexp.MustCompile("`(throttle\\.[a-z_.]+)`").FindAllStringSubmatch(list, -1) {
		documented[name[1]] = true
	}
	l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Shared(store.NewMemory()))))
	require.NoError(t, l.Wait(t.Context(), throttle.Ask{}))
	m := &nameMeter{names: make(map[string]bool)}
	_, err = throttleotel.Register(l, "x", throttleotel.WithMeterProvider(nameProvider{meter: m}))
	require.NoError(t, err)
	produced, err := throttleotel.NewProducer(l, "x").Produce(context.Background())
	require.NoError(t, err)
	for _, scope := range produced {
		for _, metric := range scope.Metrics {
			m.names[metric.Name] = true
		}
	}
	require.Greater(t, len(m.names), 20)
	require.Equal(t, m.names, documented)
}
