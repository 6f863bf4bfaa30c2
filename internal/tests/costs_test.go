package tests

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// spent sends a request and returns what each bucket has less than the 1,000 it began with.
func spent(t *testing.T, req *http.Request, opts ...throttle.Option) map[string]int64 {
	transport, err := throttle.New(&answered{&http.Response{Body: http.NoBody}}, opts...)
	require.NoError(t, err)
	_, err = transport.RoundTrip(req)
	require.NoError(t, err)
	less := make(map[string]int64)
	for b := range transport.Limiter().Buckets() {
		if cost := 1000 - int64(b.Tokens); cost > 0 {
			less[b.Limit+"/"+b.Key] = cost
		}
	}
	return less
}

func thousand(opts ...throttle.LimitOption) throttle.Limit {
	return throttle.FixedWindow(1000, 1000*24*time.Hour, opts...)
}

func get(t *testing.T, ctx context.Context, url string) *http.Request {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	return req
}

func costing(n int64) throttle.CostFunc { return func(*http.Request) int64 { return n } }

func TestMostSpecificCostCounts(t *testing.T) {
	own := throttle.WithLimit(thousand(throttle.Name("own"), throttle.Cost(costing(7))), thousand(throttle.Name("other")))
	weights := throttle.WithWeights(map[string]int64{"GET /a": 3})
	none := t.Context()
	for _, c := range []struct {
		name       string
		ctx        context.Context
		opts       []throttle.Option
		own, other int64
	}{
		{"one, if nothing says", none, nil, 7, 1},
		{"weights", none, []throttle.Option{weights}, 7, 3},
		{"cost before weights", none, []throttle.Option{weights, throttle.WithCost(costing(4))}, 7, 4},
		{"context before cost", throttle.ContextWithCost(none, 5), []throttle.Option{weights, throttle.WithCost(costing(4))}, 7, 5},
		{"context by name before all", throttle.ContextWithCost(throttle.ContextWithCost(none, 5), 6, "own", "nowhere"), nil, 6, 5},
		{"the last one said", throttle.ContextWithCost(throttle.ContextWithCost(none, 5, "own", "other"), 6, "own"), nil, 6, 5},
		{"0 is not limited", throttle.ContextWithCost(none, 0, "own"), []throttle.Option{throttle.WithCost(costing(0))}, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			less := spent(t, get(t, c.ctx, "http://api.example.com/a"), append(c.opts, own)...)
			require.Equal(t, c.own, less["own/"])
			require.Equal(t, c.other, less["other/"])
		})
	}
}

func TestWeightsGoByThePatternsOfServeMux(t *testing.T) {
	weights := throttle.WithWeights(map[string]int64{
		"POST /upload": 10, "api.example.com/search/": 3, "GET /items/{id}": 4, "/items/": 5, "GET /health": 0,
	})
	for _, c := range []struct {
		method, url, host string
		want              int64
	}{
		{"POST", "http://x.test/upload", "", 10},
		{"GET", "http://x.test/upload", "", 1},
		{"GET", "http://api.example.com/search/a/b", "", 3},
		{"GET", "https://api.example.com:8443/search/", "", 3},
		{"GET", "http://10.0.0.1/search/", "api.example.com", 3},
		{"GET", "http://x.test/search/", "", 1},
		{"", "http://x.test/items/7?q=1", "", 4},
		{"DELETE", "http://x.test/items/7", "", 5},
		{"GET", "http://x.test", "", 1},
		{"GET", "http://x.test/health", "", 0},
	} {
		req := get(t, t.Context(), c.url)
		req.Method, req.Host = c.method, c.host
		require.Equal(t, c.want, spent(t, req, throttle.WithLimit(thousand()), weights)["fixed-window/"], "%+v", c)
	}
}

func TestMostSpecificKeyCounts(t *testing.T) {
	keyed := func(key string) throttle.KeyFunc { return func(*http.Request) string { return key } }
	limits := throttle.WithLimit(
		thousand(throttle.Name("own"), throttle.Key(keyed("o"))), thousand(throttle.Name("other")),
		thousand(throttle.Name("context"), throttle.Key(throttle.ByContext)))
	for _, c := range []struct {
		name string
		ctx  context.Context
		key  throttle.KeyFunc
		want []string
	}{
		{"none", t.Context(), nil, []string{"own/o", "other/", "context/(no key)"}},
		{"of the Transport", t.Context(), keyed("t"), []string{"own/o", "other/t", "context/(no key)"}},
		{"of the context", throttle.ContextWithKey(t.Context(), "c"), keyed("t"), []string{"own/o", "other/c", "context/c"}},
		{"empty is no key", throttle.ContextWithKey(t.Context(), ""), keyed("t"), []string{"own/o", "other/(no key)", "context/(no key)"}},
		{"not computed is no key", t.Context(), keyed(""), []string{"own/o", "other/(no key)", "context/(no key)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			opts := []throttle.Option{limits}
			if c.key != nil {
				opts = append(opts, throttle.WithKey(c.key))
			}
			less := spent(t, get(t, c.ctx, "http://x.test/"), opts...)
			require.Len(t, less, 3)
			for _, bucket := range c.want {
				require.Equal(t, int64(1), less[bucket], "%s in %v", bucket, less)
			}
		})
	}
}

func TestKeysOfRequests(t *testing.T) {
	for address, want := range map[string]string{
		"http://API.example.com/x": "api.example.com", "http://api.example.com:80/": "api.example.com",
		"https://api.example.com:443/": "api.example.com", "https://api.example.com:80/": "api.example.com:80",
		"http://api.example.com./": "api.example.com", "http://[::1]:80/": "[::1]", "http://10.0.0.1:8080/": "10.0.0.1:8080",
	} {
		req := get(t, t.Context(), address)
		require.Equal(t, want, throttle.ByHost(req), address)
		req.Host = ""
		require.Equal(t, want, throttle.ByHost(req), "%s, by its URL alone", address)
	}
	require.Empty(t, throttle.ByHost(&http.Request{}))
	require.Equal(t, "h", throttle.ByHost(&http.Request{URL: &url.URL{Scheme: "http", Host: "h:"}}), "as http.NewRequest has it")

	byRoute := throttle.ByRoute("GET /a/{x}", "/b/")
	require.Equal(t, "GET /a/{x}", byRoute(get(t, t.Context(), "http://x.test/a/1")))
	require.Equal(t, "/b/", byRoute(get(t, t.Context(), "http://x.test/b/1")))
	require.Empty(t, byRoute(get(t, t.Context(), "http://x.test/c")))
	require.Empty(t, byRoute(&http.Request{}))
	require.PanicsWithValue(t, fmt.Sprintf("throttle: ByRoute: pattern %q: %v", "{", `parsing "{": at offset 0: host/path missing /`),
		func() { throttle.ByRoute("{") })
}

func TestKeyFromACredentialDoesNotShowIt(t *testing.T) {
	key := throttle.ByHeader("authorization")
	req := get(t, t.Context(), "http://x.test/")
	require.Empty(t, key(req))
	req.Header.Set("Authorization", "Bearer secret")
	// The same in every process and version: SHA-256 of the value, its first half.
	require.Equal(t, "bffde20413347b7a00e1363de3f97ca6", key(req))
	req.Header.Set("Authorization", "Bearer other")
	require.Len(t, key(req), 32)
	require.NotEqual(t, "bffde20413347b7a00e1363de3f97ca6", key(req))
}

// A KeyFunc is called once for a request, however many limits it serves, and once more where that may have to wait.
func TestAKeyIsAskedForOnce(t *testing.T) {
	asked, own := 0, 0
	key := func(*http.Request) string { asked++; return "a" }
	transport, err := throttle.New(&answered{&http.Response{Body: http.NoBody}}, throttle.WithKey(key), throttle.WithLimit(
		thousand(throttle.Name("one")), thousand(throttle.Name("two")),
		thousand(throttle.Name("own"), throttle.Key(func(*http.Request) string { own++; return "b" })), thousand(throttle.Name("three"))))
	require.NoError(t, err)
	for i := range 2 { // the first makes the buckets, without waiting
		_, err := transport.RoundTrip(get(t, t.Context(), "http://api.example.com/a"))
		require.NoError(t, err)
		require.Equal(t, 1+i, asked)
		require.Equal(t, 1+i, own)
	}
	for b := range transport.Limiter().Buckets() {
		switch b.Key {
		case "a", "b":
			require.Equal(t, 998.0, b.Tokens)
			require.Equal(t, b.Key == "b", b.Limit == "own")
		}
	}
}

// A Receipt speaks of the last attempt: an inner Transport that refused it has charged nothing for it.
func TestAReceiptForgetsWhatAnInnerTransportChargedForAnEarlierAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, err := throttle.New(costly(""), throttle.WithFailFast(), throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.Name("inner"))))
		require.NoError(t, err)
		outer, err := throttle.New(inner, throttle.WithLimit(throttle.TokenBucket(100, time.Hour, throttle.Name("outer"))))
		require.NoError(t, err)
		ctx, receipt := throttle.ContextWithReceipt(t.Context())
		opened(t, outer, ctx)
		resp := opened(t, outer, ctx)
		_, local := throttle.RejectionOf(resp)
		require.True(t, local)
		_, ok := receipt.Cost("outer")
		assert.False(t, ok, "given back")
		_, ok = receipt.Cost("inner")
		assert.False(t, ok, "the last attempt was charged nothing there")
	})
}

// http.Client, its Timeout, its redirects and Request.Cancel leave no slot taken.
func TestAClientThatFollowsRedirectsLeavesNoSlotTaken(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/":
			http.Redirect(w, r, "/next", http.StatusFound)
		default:
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"usage":{"total_tokens":42}}`)
		}
	}))
	defer s.Close()
	base := s.Client().Transport.(*http.Transport).Clone()
	defer base.CloseIdleConnections()
	tr, err := throttle.New(base, throttle.WithLimit(throttle.InFlight(1), tokens(throttle.SettleJSON("usage.total_tokens"))))
	require.NoError(t, err)
	ctx, receipt := throttle.ContextWithReceipt(t.Context())
	client := &http.Client{Transport: tr, Timeout: time.Minute}
	resp, err := client.Do(get(t, ctx, s.URL))
	require.NoError(t, err)
	assert.Equal(t, 1, inFlight(tr.Limiter()))
	drained(t, resp)
	require.NoError(t, resp.Body.Close())
	assert.Zero(t, inFlight(tr.Limiter()))
	assert.Equal(t, 1000.0-100-42, left(t, tr.Limiter(), "tpm"), "the redirect stays as estimated")
	cost, ok := receipt.Cost("tpm")
	assert.True(t, ok)
	assert.Equal(t, int64(42), cost)
}

// A Receipt of a request that waited speaks of the grant, where no limit wants to know what becomes of requests.
func TestAReceiptOfARequestThatWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := throttle.New(costly(""), throttle.WithLimit(throttle.Pace(1, time.Second)))
		require.NoError(t, err)
		time.Sleep(time.Minute)
		opened(t, tr, t.Context())
		ctx, receipt := throttle.ContextWithReceipt(t.Context())
		opened(t, tr, ctx)
		assert.Equal(t, time.Second, receipt.Waited())
		cost, ok := receipt.Cost("pace")
		assert.True(t, ok)
		assert.Equal(t, int64(1), cost)
		require.NoError(t, receipt.Settle("pace", 5))
		assert.Equal(t, -5.0, left(t, tr.Limiter(), "pace"))
	})
}

// A limit of its own for bulk requests, in which urgent ones cost nothing, keeps tokens for these. The figures are those of
// docs/recipes.md: what an urgent request waits at most while bulk requests take all that they get.
func TestALimitForBulkRequestsKeepsRoomForUrgentOnes(t *testing.T) {
	none := throttle.TokenBucket(1_000_000, time.Second, throttle.Name("bulk"))
	for name, c := range map[string]struct {
		all, bulk throttle.Limit
		hold      time.Duration // for which a request has its slot
		waits     time.Duration // of an urgent request
		bulkSent  int           // in a minute
	}{
		"a window":                    {throttle.FixedWindow(100, time.Minute, throttle.Name("all")), throttle.FixedWindow(80, time.Minute, throttle.Name("bulk")), 0, 0, 80},
		"a window, by priority alone": {throttle.FixedWindow(100, time.Minute, throttle.Name("all")), none, 0, 59 * time.Second, 100},
		"slots":                       {throttle.InFlight(10, throttle.Name("all")), throttle.InFlight(8, throttle.Name("bulk")), time.Second, 0, 480},
		"slots, by priority alone":    {throttle.InFlight(10, throttle.Name("all")), none, time.Second, time.Second, 600},
		"a bucket":                    {throttle.TokenBucket(10, time.Second, throttle.Name("all")), throttle.TokenBucket(8, time.Second, throttle.Name("bulk")), 0, 0, 487},
		"a bucket, by priority alone": {throttle.TokenBucket(10, time.Second, throttle.Name("all")), none, 0, 100 * time.Millisecond, 589},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, err := throttle.NewLimiter(throttle.WithLimit(c.all, c.bulk))
				require.NoError(t, err)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute-1)
				defer cancel()
				sent := 0
				var mu sync.Mutex
				for range 20 {
					go func() {
						for {
							g, err := l.Acquire(ctx, throttle.Ask{})
							if err != nil {
								return
							}
							mu.Lock()
							sent++
							mu.Unlock()
							time.Sleep(c.hold)
							g.Done()
						}
					}()
				}
				time.Sleep(time.Second)
				longest := time.Duration(0)
				for range 20 {
					synctest.Wait()
					began := time.Now()
					g, err := l.Acquire(t.Context(), throttle.Ask{Priority: 1, Costs: map[string]int64{"bulk": 0}})
					require.NoError(t, err)
					longest = max(longest, time.Since(began))
					g.Done()
					time.Sleep(time.Second)
				}
				<-ctx.Done()
				time.Sleep(2 * time.Second)
				mu.Lock()
				defer mu.Unlock()
				assert.Equal(t, c.waits, longest)
				assert.Equal(t, c.bulkSent, sent)
			})
		})
	}
}
