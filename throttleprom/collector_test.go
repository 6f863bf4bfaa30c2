package throttleprom_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/metrics/metricstest"
	"github.com/httpthrottle/throttle/retry"
	"github.com/httpthrottle/throttle/store"
	"github.com/httpthrottle/throttle/throttleprom"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// server answers as a server with a quota, and refuses every fourth request.
func server() roundTripper {
	n := 0
	return func(r *http.Request) (*http.Response, error) {
		n++
		resp := &http.Response{StatusCode: 200, Body: http.NoBody, Request: r, Header: http.Header{
			"X-Ratelimit-Limit": {"100"}, "X-Ratelimit-Remaining": {fmt.Sprint(90 - n)}, "X-Ratelimit-Reset": {"3600"}}}
		if n%4 == 0 {
			resp.StatusCode, resp.Header = 429, nil
		}
		return resp, nil
	}
}

func get(t *testing.T, ctx context.Context, url string) *http.Request {
	req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	require.NoError(t, err)
	return req
}

func TestMetricsAreAsTheGoldenFileHasThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := metricstest.Play(t)
		c := throttleprom.NewCollector(s.Transport.Limiter(), "github", throttleprom.WithTransport("search", s.Transport),
			throttleprom.WithKeys("requests", metricstest.Host, "unknown"), throttleprom.WithRetries("client", s.Policy))
		reg := prometheus.NewPedanticRegistry()
		require.NoError(t, reg.Register(c))
		got := gather(t, reg)
		if os.Getenv("UPDATE_GOLDEN") != "" {
			require.NoError(t, os.WriteFile("testdata/metrics.txt", []byte(got), 0o644))
		}
		want, err := os.ReadFile("testdata/metrics.txt")
		require.NoError(t, err)
		require.Equal(t, strings.Split(string(want), "\n"), strings.Split(got, "\n"), "UPDATE_GOLDEN=1 writes the file")

		problems, err := testutil.GatherAndLint(reg)
		require.NoError(t, err)
		assert.Empty(t, problems)
	})
}

// gather returns what a scrape gets, as text.
func gather(t *testing.T, reg prometheus.Gatherer) string {
	t.Helper()
	w := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	require.Equal(t, 200, w.Code, w.Body)
	return w.Body.String()
}

func TestRegisterReportsWhatIsWrong(t *testing.T) {
	l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(1, time.Second)))
	require.NoError(t, err)
	tr := throttle.Must(throttle.New(nil, throttle.WithLimiter(l)))
	many := make([]string, 101)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	for want, c := range map[string]*throttleprom.Collector{
		"the Limiter is nil":           throttleprom.NewCollector(nil, "x", throttleprom.WithKeys("y", "z")),
		"an Option is nil":             throttleprom.NewCollector(l, "x", nil),
		`there is no limit "y"`:        throttleprom.NewCollector(l, "x", throttleprom.WithKeys("y", "z")),
		`there is no limit "server"`:   throttleprom.NewCollector(l, "x", throttleprom.WithKeys("server", "z")),
		"101 keys are more than 100":   throttleprom.NewCollector(l, "x", throttleprom.WithKeys("bucket", many...)),
		"is not valid UTF-8":           throttleprom.NewCollector(l, "x", throttleprom.WithKeys("bucket", "\xff")),
		`WithTransport("t", nil)`:      throttleprom.NewCollector(l, "x", throttleprom.WithTransport("t", nil)),
		`two Transports are named "t"`: throttleprom.NewCollector(l, "x", throttleprom.WithTransport("t", tr), throttleprom.WithTransport("t", tr)),
		"WithExemplars(nil)":           throttleprom.NewCollector(l, "x", throttleprom.WithExemplars(nil)),
	} {
		assert.ErrorContains(t, prometheus.NewRegistry().Register(c), want)
	}
	reg := prometheus.NewRegistry()
	require.NoError(t, reg.Register(throttleprom.NewCollector(l, "one")))
	require.NoError(t, reg.Register(throttleprom.NewCollector(l, "two")))
	assert.Error(t, reg.Register(throttleprom.NewCollector(l, "two")), "a name twice")
	require.NoError(t, reg.Register(throttleprom.NewCollector(l, "three", throttleprom.WithTransport("\xff", tr))))
	_, err = reg.Gather()
	assert.NoError(t, err)
}

// However many keys there are, and whatever they are, the series are those of the limits.
func TestSeriesAreBoundedByLimits(t *testing.T) { // slow: thousands of series
	l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(10, time.Hour), throttle.SlidingWindow(10, time.Hour), throttle.InFlight(9), throttle.Adaptive(throttle.AIMD{})))
	require.NoError(t, err)
	c := throttleprom.NewCollector(l, "x")
	before := testutil.CollectAndCount(c)
	for i := range 25_000 { // 100,000 buckets
		g, err := l.Acquire(t.Context(), throttle.Ask{Key: fmt.Sprintf("key \xff %d", i)})
		require.NoError(t, err)
		g.Done()
		g.Report(throttle.OutcomeOK)
	}
	after := testutil.CollectAndCount(c)
	assert.LessOrEqual(t, after, before, "keyed limits have fewer")
	assert.LessOrEqual(t, before, 10+5*40, "metrics, each histogram counted as one")
	assert.NotContains(t, gather(t, registry(t, c)), "key ")
}

func registry(t *testing.T, c prometheus.Collector) *prometheus.Registry {
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, reg.Register(c))
	return reg
}

func TestNamesThatServersMakeUpAreCut(t *testing.T) {
	name := strings.Repeat("long", 100) + "\xff"
	base := roundTripper(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Body: http.NoBody, Request: r, Header: http.Header{"Ratelimit": {`"` + strings.Repeat("long", 25) + `";r=5;t=60`}}}, nil
	})
	tr, err := throttle.New(base, throttle.WithKey(throttle.ByHost), throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Name(name))))
	require.NoError(t, err)
	_, err = tr.RoundTrip(get(t, t.Context(), "http://h/"))
	require.NoError(t, err)
	text := gather(t, registry(t, throttleprom.NewCollector(tr.Limiter(), name, throttleprom.WithKeys(name, "h"))))
	assert.False(t, strings.Contains(text, strings.Repeat("long", 21)))
	assert.True(t, strings.Contains(text, `throttle_server_quota_remaining{host="h",limiter="`))
}

// A server chooses the names of its quotas, and may choose others for each tenant and each response.
func TestAServerDoesNotDecideHowManySeriesThereAre(t *testing.T) {
	n := 0
	base := roundTripper(func(r *http.Request) (*http.Response, error) {
		h := http.Header{}
		for range 20 {
			n++
			h.Add("Ratelimit", fmt.Sprintf(`"q%d";r=5;t=60`, n))
			h.Add("Ratelimit-Policy", fmt.Sprintf(`"q%d";q=10`, n))
		}
		return &http.Response{StatusCode: 200, Body: http.NoBody, Request: r, Header: h}, nil
	})
	tr, err := throttle.New(base, throttle.WithLimit(
		throttle.TokenBucket(1000, time.Second, throttle.Key(throttle.ByHost)), throttle.TokenBucket(9, time.Second, throttle.Name("tenant"), throttle.Key(throttle.ByHeader("Tenant")))))
	require.NoError(t, err)
	c := throttleprom.NewCollector(tr.Limiter(), "x", throttleprom.WithKeys("bucket", "h"))
	for round := range 3 {
		for i := range 30 {
			req := get(t, t.Context(), "http://h/")
			req.Header.Set("Tenant", fmt.Sprint(i))
			_, err = tr.RoundTrip(req)
			require.NoError(t, err)
		}
		text := gather(t, registry(t, c))
		most := strings.Count(text, "\nthrottle_server_quota_remaining{")
		if round == 0 {
			require.Equal(t, 16, most)
		}
		require.LessOrEqual(t, most, 16)
		require.LessOrEqual(t, strings.Count(text, "\nthrottle_server_quota_limit{"), most)
		require.LessOrEqual(t, strings.Count(text, "\nthrottle_server_quota_reset_seconds{"), most)
		require.NotContains(t, text, `quota="q700"}`)
	}
}

// Nothing of a credential by which requests are counted is exported.
func TestNoSecretIsExported(t *testing.T) {
	const secret = "Bearer hunter2"
	tr, err := throttle.New(server(), throttle.WithKey(throttle.ByHeader("Authorization")), throttle.WithLimit(throttle.TokenBucket(10, time.Second)))
	require.NoError(t, err)
	req := get(t, t.Context(), "http://h/")
	req.Header.Set("Authorization", secret)
	_, err = tr.RoundTrip(req)
	require.NoError(t, err)
	key := throttle.ByHeader("Authorization")(req)
	text := gather(t, registry(t, throttleprom.NewCollector(tr.Limiter(), "x", throttleprom.WithTransport("t", tr), throttleprom.WithKeys("bucket", key))))
	assert.Contains(t, text, "throttle_key_tokens_available")
	assert.NotContains(t, text, "hunter2")
}

func TestScrapesAtTheSameTime(t *testing.T) {
	tr, err := throttle.New(server(), throttle.WithKey(throttle.ByHost), throttle.WithFailFast(), throttle.WithLimit(throttle.TokenBucket(1000, time.Second)))
	require.NoError(t, err)
	reg := registry(t, throttleprom.NewCollector(tr.Limiter(), "x", throttleprom.WithTransport("t", tr), throttleprom.WithKeys("bucket", "h")))
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 50 {
				_, err := reg.Gather()
				assert.NoError(t, err)
			}
		})
	}
	for i := range 1000 {
		_, err := tr.RoundTrip(get(t, t.Context(), fmt.Sprintf("http://h%d/", i%100)))
		require.NoError(t, err)
	}
	all.Wait()
}

func TestExemplarsLeadFromWaitsToRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type id struct{}
		calls := 0
		exemplars := throttleprom.NewExemplars(func(ctx context.Context) prometheus.Labels {
			calls++
			if name, ok := ctx.Value(id{}).(string); ok {
				return prometheus.Labels{"trace_id": name}
			}
			return nil
		})
		l, err := throttle.NewLimiter(throttle.WithHooks(exemplars.Hooks()), throttle.WithLimit(throttle.TokenBucket(1, time.Second)))
		require.NoError(t, err)
		for _, name := range []string{"did not wait", "first", "second", strings.Repeat("too long", 20)} {
			require.NoError(t, l.Wait(context.WithValue(t.Context(), id{}, name), throttle.Ask{}))
		}
		require.NoError(t, l.Wait(throttle.ContextWithCost(t.Context(), 1), throttle.Ask{}))
		assert.Equal(t, 4, calls, "only for requests that waited")
		require.NoError(t, l.Wait(context.WithValue(t.Context(), id{}, "third"), throttle.Ask{}))

		reg := registry(t, throttleprom.NewCollector(l, "x", throttleprom.WithExemplars(exemplars)))
		w := httptest.NewRecorder()
		req := httptest.NewRequest("GET", "/metrics", nil)
		req.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
		promhttp.HandlerFor(reg, promhttp.HandlerOpts{EnableOpenMetrics: true}).ServeHTTP(w, req)
		text, err := io.ReadAll(w.Body)
		require.NoError(t, err)
		assert.Contains(t, string(text), `throttle_wait_seconds_bucket{limit="bucket",limiter="x",le="1.0"} 6 # {trace_id="third"} 1.0`)
		assert.Equal(t, 1, strings.Count(string(text), "trace_id"))
	})
}

func TestDryRunSaysSo(t *testing.T) {
	tr, err := throttle.New(server(), throttle.WithDryRun(), throttle.WithLimit(throttle.TokenBucket(1, time.Second)))
	require.NoError(t, err)
	assert.Contains(t, gather(t, registry(t, throttleprom.NewCollector(tr.Limiter(), "x"))), `throttle_dry_run{limiter="x"} 1`)
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

func TestStoresOfSharedLimitsAreExported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := &flaky{Store: store.NewMemory()}
		l, err := throttle.NewLimiter(throttle.WithLimit(
			throttle.TokenBucket(100, time.Second, throttle.Name("all"), throttle.Shared(memory, throttle.WithoutStore(throttle.OutagePass), throttle.StoreGrace(0))),
			throttle.Pace(100, time.Second)))
		require.NoError(t, err)
		require.NoError(t, l.Wait(t.Context(), throttle.Ask{}))
		strict, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(50, time.Second, throttle.Name("all"), throttle.Shared(memory.Store))))
		require.NoError(t, err)
		require.NoError(t, strict.Wait(t.Context(), throttle.Ask{}))
		time.Sleep(time.Second) // what was leased ahead goes back
		require.NoError(t, l.Wait(t.Context(), throttle.Ask{Cost: 40}))
		memory.err = errors.New("cut off")
		require.NoError(t, l.Wait(t.Context(), throttle.Ask{Cost: 80}))
		synctest.Wait()
		text := gather(t, registry(t, throttleprom.NewCollector(l, "x")))
		for _, want := range []string{
			`throttle_store_up{limiter="x",store="all"} 0`,
			`throttle_store_outages_total{limiter="x",store="all"} 1`,
			`throttle_store_tokens_total{kind="alone",limiter="x",store="all"} 80`,
			`throttle_store_asks_total{limiter="x",outcome="faulty",store="all"} 0`,
			`throttle_store_call_seconds_bucket{limiter="x",store="all",le="0.001"}`,
		} {
			assert.Contains(t, text, want)
		}
		s := l.Stores()[0]
		for metric, value := range map[string]uint64{
			`throttle_store_calls_total{limiter="x",outcome="ok",store="all"}`:     s.OK,
			`throttle_store_calls_total{limiter="x",outcome="failed",store="all"}`: s.Failed,
			`throttle_store_tokens_total{kind="leased",limiter="x",store="all"}`:   s.Leased,
			`throttle_store_asks_total{limiter="x",outcome="differs",store="all"}`: s.Differs,
			`throttle_store_call_seconds_count{limiter="x",store="all"}`:           s.OK + s.Failed,
		} {
			assert.Contains(t, text, fmt.Sprintf("%s %d\n", metric, value))
			assert.Positive(t, value, metric)
		}
	})
}

func TestRetriesAreExported(t *testing.T) {
	l, err := throttle.NewLimiter()
	require.NoError(t, err)
	client := retry.NewClient(throttle.Must(throttle.New(nil, throttle.WithLimiter(l))))
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(throttleprom.NewCollector(l, "x", throttleprom.WithRetries("github", client.Policy)))
	assert.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP throttle_retry_budget Retries that the budget allows now.
# TYPE throttle_retry_budget gauge
throttle_retry_budget{client="github",limiter="x"} 100
# HELP throttle_retry_give_ups_total Failures that were not retried, by the reason.
# TYPE throttle_retry_give_ups_total counter
throttle_retry_give_ups_total{client="github",limiter="x",reason="budget"} 0
throttle_retry_give_ups_total{client="github",limiter="x",reason="deadline"} 0
throttle_retry_give_ups_total{client="github",limiter="x",reason="exhausted"} 0
throttle_retry_give_ups_total{client="github",limiter="x",reason="max_wait"} 0
`), "throttle_retry_budget", "throttle_retry_give_ups_total"))
	registry = prometheus.NewPedanticRegistry()
	twice := throttleprom.NewCollector(l, "x", throttleprom.WithRetries("a", client.Policy), throttleprom.WithRetries("a", client.Policy), throttleprom.WithRetries("b", nil))
	err = registry.Register(twice)
	assert.ErrorContains(t, err, `two Policies are named "a"`)
	assert.ErrorContains(t, err, `WithRetries("b", nil)`)
}
