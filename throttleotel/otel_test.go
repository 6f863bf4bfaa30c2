package throttleotel_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/metrics/metricstest"
	"github.com/httpthrottle/throttle/retry"
	"github.com/httpthrottle/throttle/store"
	"github.com/httpthrottle/throttle/throttleotel"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// ok answers every request.
func ok(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Body: http.NoBody, Request: r}, nil
}

func get(t *testing.T, ctx context.Context) *http.Request {
	req, err := http.NewRequestWithContext(ctx, "GET", "http://api.example.com/", nil)
	require.NoError(t, err)
	return req
}

func limiterOf(t *testing.T, opts ...throttle.Option) *throttle.Limiter {
	l, err := throttle.NewLimiter(opts...)
	require.NoError(t, err)
	return l
}

// collect returns what a reader gets, by name.
func collect(t *testing.T, reader sdkmetric.Reader) map[string]metricdata.Aggregation {
	t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &all))
	found := make(map[string]metricdata.Aggregation)
	for _, scope := range all.ScopeMetrics {
		assert.Equal(t, throttleotel.ScopeName, scope.Scope.Name)
		for _, m := range scope.Metrics {
			found[m.Name] = m.Data
		}
	}
	return found
}

func set(pairs ...string) attribute.Set {
	all := []attribute.KeyValue{attribute.String("throttle.limiter", "github")}
	for i := 0; i < len(pairs); i += 2 {
		all = append(all, attribute.String("throttle."+pairs[i], pairs[i+1]))
	}
	return attribute.NewSet(all...)
}

// scene has three requests granted, one of them after a second, and one rejected.
func scene(t *testing.T) *throttle.Limiter {
	l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(2, 2*time.Second, throttle.Name("requests")), throttle.InFlight(5, throttle.Name("slots"))))
	for range 3 {
		_, err := l.Acquire(t.Context(), throttle.Ask{})
		require.NoError(t, err)
	}
	_, err := l.Acquire(t.Context(), throttle.Ask{MaxWait: new(time.Duration(0))})
	require.ErrorIs(t, err, throttle.ErrThrottled)
	return l
}

func TestMetricsAreThoseOfTheLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := scene(t)
		reader := sdkmetric.NewManualReader(sdkmetric.WithProducer(throttleotel.NewProducer(l, "github")))
		provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
		registration, err := throttleotel.Register(l, "github", throttleotel.WithMeterProvider(provider))
		require.NoError(t, err)
		got := collect(t, reader)

		equal := func(name string, want metricdata.Aggregation) {
			t.Helper()
			metricdatatest.AssertAggregationsEqual(t, want, got[name], metricdatatest.IgnoreTimestamp(), metricdatatest.IgnoreExemplars())
		}
		sum := func(monotonic bool, points ...metricdata.DataPoint[int64]) metricdata.Aggregation {
			return metricdata.Sum[int64]{DataPoints: points, IsMonotonic: monotonic, Temporality: metricdata.CumulativeTemporality}
		}
		point := func(n int64, pairs ...string) metricdata.DataPoint[int64] {
			return metricdata.DataPoint[int64]{Attributes: set(pairs...), Value: n}
		}
		equal("throttle.requests", sum(true, point(3, "outcome", "granted"), point(1, "outcome", "rejected"), point(0, "outcome", "canceled")))
		equal("throttle.tokens.charged", sum(true, point(3, "limit", "requests"), point(3, "limit", "slots")))
		equal("throttle.in_flight_requests", sum(false, point(3, "limit", "slots"), point(0, "limit", "server")))
		equal("throttle.server_refusals", sum(true, point(0)))
		equal("throttle.rate", metricdata.Gauge[float64]{DataPoints: []metricdata.DataPoint[float64]{{Attributes: set("limit", "requests"), Value: 1}}})
		equal("throttle.tokens.capacity", metricdata.Gauge[float64]{DataPoints: []metricdata.DataPoint[float64]{
			{Attributes: set("limit", "requests"), Value: 2}, {Attributes: set("limit", "slots"), Value: 5}}})
		rejections := got["throttle.rejections"].(metricdata.Sum[int64])
		assert.Contains(t, values(rejections), "no_tokens requests 1")

		waits := got["throttle.wait"].(metricdata.Histogram[float64])
		require.Len(t, waits.DataPoints, 3)
		w := waits.DataPoints[0]
		want := set("limit", "requests")
		assert.True(t, w.Attributes.Equals(&want))
		assert.EqualValues(t, 3, w.Count)
		assert.EqualValues(t, 1.0, w.Sum)
		assert.Len(t, w.BucketCounts, len(w.Bounds)+1)
		assert.EqualValues(t, []any{0.0, uint64(2)}, []any{w.Bounds[0], w.BucketCounts[0]}, "did not wait")
		assert.EqualValues(t, []any{1.0, uint64(1)}, []any{w.Bounds[10], w.BucketCounts[10]}, "waited a second")

		require.NoError(t, registration.Unregister())
		assert.NotContains(t, collect(t, reader), "throttle.requests")
	})
}

// A flaky store fails as long as err says so.
type flaky struct {
	store.Store
	err error
}

func (f *flaky) Lease(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	if f.err != nil {
		return nil, f.err
	}
	return f.Store.Lease(ctx, asks)
}

func TestStoresOfSharedLimitsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := &flaky{Store: store.NewMemory()}
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(100, time.Second, throttle.Name("all"),
			throttle.Shared(memory, throttle.WithoutStore(throttle.OutagePass), throttle.StoreGrace(0)))))
		require.NoError(t, l.Wait(t.Context(), throttle.Ask{}))
		memory.err = errors.New("cut off")
		require.NoError(t, l.Wait(t.Context(), throttle.Ask{Cost: 80}))
		synctest.Wait()
		reader := sdkmetric.NewManualReader(sdkmetric.WithProducer(throttleotel.NewProducer(l, "github")))
		_, err := throttleotel.Register(l, "github", throttleotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
		require.NoError(t, err)
		got := collect(t, reader)
		up := got["throttle.store.up"].(metricdata.Gauge[float64]).DataPoints
		require.Len(t, up, 1)
		want := set("store", "all")
		assert.True(t, up[0].Attributes.Equals(&want))
		assert.Equal(t, 0.0, up[0].Value)
		s := l.Stores()[0]
		for name, want := range map[string]map[string]uint64{
			"throttle.store.calls":   {"ok": s.OK, "failed": s.Failed, "setup": 0},
			"throttle.store.tokens":  {"leased": s.Leased, "returned": s.Returned, "alone": 80},
			"throttle.store.asks":    {"faulty": 0, "differs": 0},
			"throttle.store.outages": {"": 1},
		} {
			values := make(map[string]uint64)
			for _, p := range got[name].(metricdata.Sum[int64]).DataPoints {
				kind, _ := p.Attributes.Value("throttle.kind")
				outcome, _ := p.Attributes.Value("throttle.outcome")
				values[kind.AsString()+outcome.AsString()] = uint64(p.Value)
			}
			assert.Equal(t, want, values, name)
		}
		calls := got["throttle.store.call"].(metricdata.Histogram[float64]).DataPoints
		require.Len(t, calls, 1)
		assert.Equal(t, s.OK+s.Failed, calls[0].Count)
		assert.Len(t, calls[0].BucketCounts, len(calls[0].Bounds)+1)
		assert.Positive(t, s.OK)
		assert.Positive(t, s.Failed)
	})
}

// values returns the points with a value above 0.
func values(s metricdata.Sum[int64]) (all []string) {
	for _, p := range s.DataPoints {
		reason, _ := p.Attributes.Value("throttle.reason")
		limit, _ := p.Attributes.Value("throttle.limit")
		if p.Value > 0 {
			all = append(all, fmt.Sprintf("%s %s %d", reason.AsString(), limit.AsString(), p.Value))
		}
	}
	return all
}

func TestSeveralLimitersShareAProvider(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	provider := throttleotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	for _, name := range []string{"one", "two"} {
		_, err := throttleotel.Register(limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second))), name, provider)
		require.NoError(t, err)
	}
	assert.Len(t, collect(t, reader)["throttle.server_refusals"].(metricdata.Sum[int64]).DataPoints, 2)
	_, err := throttleotel.Register(nil, "x")
	assert.Error(t, err)
	_, err = throttleotel.Register(limiterOf(t), "x", nil)
	assert.Error(t, err)
	_, err = throttleotel.Register(limiterOf(t), "x", throttleotel.WithMeterProvider(nil))
	assert.Error(t, err)
}

// Keys and the names of servers' quotas are no attributes, so the SDK's limit of 2,000 attribute sets is far away.
func TestAttributesAreBoundedByLimits(t *testing.T) {
	l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Hour)))
	names := throttle.Must(throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
		resp, err := ok(r)
		resp.Header = http.Header{"Ratelimit": {`"` + r.URL.Query().Get("n") + `";r=5;t=60`}}
		return resp, err
	}), throttle.WithLimiter(l), throttle.WithKey(throttle.ByContext)))
	for i := range 3000 {
		req := get(t, throttle.ContextWithKey(t.Context(), fmt.Sprint(i)))
		req.URL.RawQuery = fmt.Sprint("n=q", i)
		_, err := names.RoundTrip(req)
		require.NoError(t, err)
	}
	require.NotEmpty(t, l.Servers())
	reader := sdkmetric.NewManualReader(sdkmetric.WithProducer(throttleotel.NewProducer(l, "x")))
	_, err := throttleotel.Register(l, "x", throttleotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
	require.NoError(t, err)
	for name, data := range collect(t, reader) {
		switch d := data.(type) {
		case metricdata.Sum[int64]:
			assert.LessOrEqual(t, len(d.DataPoints), 20, name)
		case metricdata.Gauge[float64]:
			assert.LessOrEqual(t, len(d.DataPoints), 2, name)
			for _, p := range d.DataPoints {
				assert.False(t, math.IsInf(p.Value, 0), name)
			}
		}
	}
}

// The Prometheus exporter of OpenTelemetry has the names of throttleprom, with other labels.
func TestNamesInPrometheusAreThoseOfThrottleprom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := metricstest.Play(t)
		l := s.Transport.Limiter()
		reg := prometheus.NewRegistry()
		exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(reg), otelprometheus.WithProducer(throttleotel.NewProducer(l, "github")))
		require.NoError(t, err)
		_, err = throttleotel.Register(l, "github", throttleotel.WithRetries("client", s.Policy),
			throttleotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))))
		require.NoError(t, err)
		families, err := reg.Gather()
		require.NoError(t, err)
		var got, want []string
		for _, f := range families {
			if f.GetName() != "target_info" {
				got = append(got, f.GetName())
			}
		}
		for _, m := range reported() {
			want = append(want, m.PrometheusName())
		}
		assert.ElementsMatch(t, want, got)
	})
}

func TestRetriesAreReported(t *testing.T) {
	l := limiterOf(t)
	client := retry.NewClient(throttle.Must(throttle.New(nil, throttle.WithLimiter(l))))
	reader := sdkmetric.NewManualReader()
	provider := throttleotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	_, err := throttleotel.Register(l, "github", provider, throttleotel.WithRetries("api", client.Policy))
	require.NoError(t, err)
	got := collect(t, reader)
	var points []metricdata.DataPoint[int64]
	for _, reason := range []string{"budget", "max_wait", "deadline", "exhausted"} {
		points = append(points, metricdata.DataPoint[int64]{Attributes: set("client", "api", "reason", reason)})
	}
	metricdatatest.AssertAggregationsEqual(t, metricdata.Sum[int64]{DataPoints: points, IsMonotonic: true, Temporality: metricdata.CumulativeTemporality},
		got["throttle.retry.give_ups"], metricdatatest.IgnoreTimestamp())
	for _, name := range []string{"throttle.retry.budget", "throttle.retry.budget_max"} {
		metricdatatest.AssertAggregationsEqual(t, metricdata.Gauge[float64]{DataPoints: []metricdata.DataPoint[float64]{{Attributes: set("client", "api"), Value: 100}}},
			got[name], metricdatatest.IgnoreTimestamp())
	}
	assert.Len(t, got["throttle.retries"].(metricdata.Sum[int64]).DataPoints, len(client.Policy.Stats().Retries))
	assert.Len(t, got["throttle.retry.attempts"].(metricdata.Sum[int64]).DataPoints, 1)

	_, err = throttleotel.Register(l, "github", provider,
		throttleotel.WithRetries("a", client.Policy), throttleotel.WithRetries("a", client.Policy), throttleotel.WithRetries("b", nil))
	assert.ErrorContains(t, err, `two Policies are named "a"`)
	assert.ErrorContains(t, err, `WithRetries("b", nil)`)
}
