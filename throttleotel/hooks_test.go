package throttleotel_test

import (
	"context"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttleotel"
)

// traced returns a recorder of spans, and its provider.
func traced() (*tracetest.SpanRecorder, *sdktrace.TracerProvider) {
	recorder := tracetest.NewSpanRecorder()
	return recorder, sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
}

// events returns the names of the events of a span, in order.
func events(s sdktrace.ReadOnlySpan) (names []string) {
	for _, e := range s.Events() {
		names = append(names, e.Name)
	}
	return names
}

func attributes(s sdktrace.ReadOnlySpan, event string) map[string]any {
	all := make(map[string]any)
	for _, e := range s.Events() {
		if e.Name == event {
			for _, a := range e.Attributes {
				all[string(a.Key)] = a.Value.AsInterface()
			}
		}
	}
	return all
}

func TestSpansHaveEventsOfWaitsAndRejections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		recorder, provider := traced()
		status := 200
		base := roundTripper(func(r *http.Request) (*http.Response, error) {
			resp, err := ok(r)
			resp.StatusCode, resp.Header = status, http.Header{"Cost": {"3"}}
			if status == 429 {
				resp.Header.Set("Retry-After", "7")
			}
			return resp, err
		})
		limit := throttle.TokenBucket(1, time.Second, throttle.Name("requests"), throttle.Settle(func(*http.Request, *http.Response) (int64, bool) { return 0, true }))
		tr, err := throttle.New(base, throttle.WithHooks(throttleotel.Hooks()), throttle.WithRejectionError(), throttle.WithKey(throttle.ByHost), throttle.WithLimit(limit))
		require.NoError(t, err)
		send := func(ctx context.Context) sdktrace.ReadOnlySpan {
			ctx, span := provider.Tracer("test").Start(ctx, "caller")
			resp, err := tr.RoundTrip(get(t, ctx))
			if err == nil {
				require.NoError(t, resp.Body.Close())
			}
			span.End()
			ended := recorder.Ended()
			return ended[len(ended)-1]
		}
		s := send(t.Context())
		assert.Equal(t, []string{"throttle.settle"}, events(s), "granted immediately")
		assert.Equal(t, map[string]any{"throttle.limit": "requests", "throttle.charged": int64(1), "throttle.cost": int64(0)}, attributes(s, "throttle.settle"))

		tr.Limiter().Hold("api.example.com", time.Second)
		s = send(t.Context())
		assert.Equal(t, []string{"throttle.wait", "throttle.grant", "throttle.settle"}, events(s))
		assert.Equal(t, map[string]any{"throttle.limit": "requests", "throttle.cost": int64(1), "throttle.wait": 1.0}, attributes(s, "throttle.wait"))
		assert.Equal(t, map[string]any{"throttle.limit": "requests", "throttle.waited": 1.0}, attributes(s, "throttle.grant"))

		tr.Limiter().Hold("api.example.com", 2*time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		s = send(ctx)
		assert.Equal(t, []string{"throttle.wait", "throttle.cancel"}, events(s))
		assert.Equal(t, 1.0, attributes(s, "throttle.cancel")["throttle.waited"])

		s = send(throttle.ContextWithMaxWait(t.Context(), 0))
		assert.Equal(t, map[string]any{"throttle.limit": "requests", "throttle.reason": "held", "throttle.cost": int64(1), "throttle.wait": 1.0}, attributes(s, "throttle.reject"))

		time.Sleep(time.Second)
		status = 429
		s = send(t.Context())
		assert.Equal(t, map[string]any{"http.response.status_code": int64(429), "throttle.retry_after": 7.0}, attributes(s, "throttle.server_refusal"))
	})
}

func TestKeysAreInEventsOnlyIfAskedFor(t *testing.T) {
	for _, c := range []struct {
		opts []throttleotel.HookOption
		want any
	}{{nil, nil}, {[]throttleotel.HookOption{throttleotel.WithKeys()}, "tenant"}} {
		recorder, provider := traced()
		l := limiterOf(t, throttle.WithHooks(throttleotel.Hooks(c.opts...)), throttle.WithLimit(throttle.TokenBucket(1, time.Hour)))
		ctx, span := provider.Tracer("test").Start(t.Context(), "caller")
		_, err := l.Acquire(ctx, throttle.Ask{Key: "tenant", Cost: 2})
		require.ErrorIs(t, err, throttle.ErrThrottled)
		span.End()
		assert.Equal(t, c.want, attributes(recorder.Ended()[0], "throttle.reject")["throttle.key"])
	}
}

// A request whose span does not record, or that has none, pays nothing for the hooks.
func TestWithoutARecordingSpanNothingIsAllocated(t *testing.T) {
	tr, err := throttle.New(roundTripper(ok), throttle.WithHooks(throttleotel.Hooks(throttleotel.WithKeys())), throttle.WithLimit(throttle.TokenBucket(1_000_000_000, time.Second)))
	require.NoError(t, err)
	resp := &http.Response{StatusCode: 200, Body: http.NoBody}
	tr, err = throttle.New(roundTripper(func(*http.Request) (*http.Response, error) { return resp, nil }), throttle.WithLimiter(tr.Limiter()))
	require.NoError(t, err)
	silent, _ := noop.NewTracerProvider().Tracer("test").Start(t.Context(), "silent")
	for name, ctx := range map[string]context.Context{"no span": t.Context(), "not recording": silent} {
		req := get(t, ctx)
		assert.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = tr.RoundTrip(req) }), name)
		hooks := throttleotel.Hooks()
		assert.Zero(t, testing.AllocsPerRun(1000, func() {
			hooks.OnGrant(throttle.GrantEvent{Place: throttle.Place{Context: ctx}, Waited: time.Second})
			hooks.OnWait(throttle.WaitEvent{Place: throttle.Place{Context: ctx}, Wait: time.Second})
		}), name)
	}
}

// wrapped is a chain of otelhttp and a Transport whose bucket is empty after one request, with what they record.
type wrapped struct {
	*tracetest.SpanRecorder
	client *http.Client
	caller func(ctx context.Context) (context.Context, func())
	reader sdkmetric.Reader
}

// wrap puts a Transport around otelhttp, or otelhttp around the Transport.
func wrap(t *testing.T, throttleOutside bool, opts ...throttle.Option) wrapped {
	recorder, provider := traced()
	reader := sdkmetric.NewManualReader()
	instrumented := func(base http.RoundTripper) http.RoundTripper {
		return otelhttp.NewTransport(base, otelhttp.WithTracerProvider(provider), otelhttp.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
	}
	opts = append(opts, throttle.WithHooks(throttleotel.Hooks()), throttle.WithLimit(throttle.TokenBucket(1, time.Second)))
	base := http.RoundTripper(roundTripper(ok))
	if throttleOutside {
		base = instrumented(base)
	}
	tr, err := throttle.New(base, opts...)
	require.NoError(t, err)
	outside := http.RoundTripper(tr)
	if !throttleOutside {
		outside = instrumented(tr)
	}
	return wrapped{recorder, &http.Client{Transport: outside}, func(ctx context.Context) (context.Context, func()) {
		ctx, span := provider.Tracer("test").Start(ctx, "caller")
		return ctx, func() { span.End() }
	}, reader}
}

// send sends one request under a span of its caller.
func (w wrapped) send(t *testing.T, ctx context.Context) {
	ctx, end := w.caller(ctx)
	defer end()
	resp, err := w.client.Do(get(t, ctx))
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
}

// durations returns how many requests http.client.request.duration has, by status and by the attribute throttle.rejected.
func (w wrapped) durations(t *testing.T) map[[2]any]uint64 {
	var all metricdata.ResourceMetrics
	require.NoError(t, w.reader.Collect(t.Context(), &all))
	counts := make(map[[2]any]uint64)
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != "http.client.request.duration" {
				continue
			}
			for _, p := range m.Data.(metricdata.Histogram[float64]).DataPoints {
				status, _ := p.Attributes.Value("http.response.status_code")
				marked := p.Attributes.HasValue("throttle.rejected")
				counts[[2]any{status.AsInt64(), marked}] += p.Count
			}
		}
	}
	return counts
}

func TestThrottleOutsideOtelhttpHasAClientSpanForWhatWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := wrap(t, true)
		w.send(t, t.Context())
		w.send(t, t.Context()) // waits
		w.send(t, throttle.ContextWithMaxWait(t.Context(), 0))
		spans := w.Ended()
		var names []string
		for _, s := range spans {
			names = append(names, s.Name())
		}
		require.Equal(t, []string{"HTTP GET", "caller", "HTTP GET", "caller", "caller"}, names, "a rejection has no client span")
		assert.Zero(t, spans[2].EndTime().Sub(spans[2].StartTime()), "the client span does not contain the wait")
		assert.Equal(t, []string{"throttle.wait", "throttle.grant"}, events(spans[3]))
		assert.Equal(t, []string{"throttle.reject"}, events(spans[4]))
		assert.Equal(t, map[[2]any]uint64{{int64(200), false}: 2}, w.durations(t))
	})
}

func TestOtelhttpOutsideThrottleHasTheWaitInTheClientSpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := wrap(t, false, markRejections())
		w.send(t, t.Context())
		w.send(t, t.Context()) // waits
		w.send(t, throttle.ContextWithMaxWait(t.Context(), 0))
		spans := w.Ended()
		require.Len(t, spans, 6)
		assert.Equal(t, time.Second, spans[2].EndTime().Sub(spans[2].StartTime()))
		assert.Equal(t, []string{"throttle.wait", "throttle.grant"}, events(spans[2]))
		assert.Equal(t, codes.Error, spans[4].Status().Code, "a synthetic 429 is an error span")
		assert.Equal(t, map[[2]any]uint64{{int64(200), false}: 2, {int64(429), true}: 1}, w.durations(t), "the 429 is marked")
	})
}

// markRejections marks synthetic 429s in the metrics of an otelhttp.Transport around the Transport.
func markRejections() throttle.Option {
	return throttle.WithHooks(throttle.Hooks{OnReject: func(e throttle.RejectEvent) {
		if labeler, ok := otelhttp.ClientLabelerFromContext(e.Context); ok {
			labeler.Add(attribute.String("throttle.rejected", e.Rejection.Reason.Label()))
		}
	}})
}
