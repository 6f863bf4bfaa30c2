package tests

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/store"
)

// What stops requests for ten hours is forgotten by the name of the host or of the account, in each limit that takes reports: requests that
// wait are sent immediately.
func TestForgetServerReleasesWaitersOfEachLimitThatTakesReports(t *testing.T) {
	const host = "api.openai.com"
	empty := http.Header{"X-Ratelimit-Remaining-Tokens": {"0"}, "X-Ratelimit-Limit-Tokens": {"1000"}, "X-Ratelimit-Reset-Tokens": {"36000s"}}
	asks := http.Header{"Retry-After": {"36000"}}
	for name, c := range map[string]struct {
		limit  throttle.Limit
		opts   []throttle.Option
		status int
		header http.Header
		forget string
		before time.Duration // for which nothing is sent before another request waits
	}{
		"a quota":                    {throttle.ServerQuota("tokens", ten), nil, 200, empty, host, 0},
		"a quota, ten minutes later": {throttle.ServerQuota("tokens", ten), nil, 200, empty, host, 10 * time.Minute},
		"a quota that refuses":       {throttle.ServerQuota("tokens", ten), nil, 429, asks, host, 10 * time.Minute},
		"a quota of an account":      {throttle.ServerQuota("tokens", ten, throttle.Key(throttle.ByHeader("Tenant"))), nil, 200, empty, host, 10 * time.Minute},
		"a quota beside a key":       {throttle.ServerQuota("tokens", ten), []throttle.Option{throttle.WithLimit(throttle.TokenBucket(100, time.Second, throttle.Key(tenant)))}, 200, empty, host + " acme", 0},
		"an account by its name":     {throttle.ServerQuota("tokens", ten, throttle.Key(tenant)), nil, 200, empty, host + " acme", 0},
		"a rate":                     {throttle.Adaptive(throttle.AIMD{}), nil, 429, asks, host, 0},
		"a rate of an account":       {throttle.Adaptive(throttle.AIMD{}, throttle.Key(tenant)), nil, 429, asks, host + " acme", 0},
		"slots":                      {throttle.AdaptiveInFlight(throttle.Concurrency{}), nil, 429, asks, host, 0},
		"a budget in a store":        {throttle.TokenBucket(10, time.Second, throttle.Shared(store.NewMemory())), nil, 429, asks, host, 0},
		"an own limit":               {throttle.TokenBucket(10, time.Second), nil, 429, asks, host, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := 0
				opts := append([]throttle.Option{throttle.WithServerHints(headers.OpenAI), throttle.WithLimit(c.limit)}, c.opts...)
				tr := throttle.Must(throttle.New(roundTripper(func(q *http.Request) (*http.Response, error) {
					resp := &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: q, ProtoMajor: 1, ProtoMinor: 1}
					if n++; n == 1 {
						resp.StatusCode, resp.Header = c.status, c.header
					}
					return resp, nil
				}), opts...))
				get := func(body string) {
					q, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+host+"/v1/chat", strings.NewReader(body))
					require.NoError(t, err)
					q.Header.Set("Tenant", "acme")
					resp, err := tr.RoundTrip(q)
					require.NoError(t, err)
					require.NoError(t, resp.Body.Close())
				}
				get(`{"model":"gpt-4"}`)
				time.Sleep(c.before)
				start := time.Now()
				var went time.Duration
				go func() {
					get(`{"model":"gpt-4"}`)
					went = time.Since(start)
				}()
				time.Sleep(time.Minute)
				require.Equal(t, 1, n, "the other one waits")
				tr.Limiter().ForgetServer("other.host")
				synctest.Wait()
				require.Equal(t, 1, n, "of another host nothing is forgotten here")
				tr.Limiter().ForgetServer(c.forget)
				synctest.Wait()
				assert.Equal(t, time.Minute, went)
				get("")
				assert.Less(t, time.Since(start), 2*time.Minute)
			})
		})
	}
}

func tenant(q *http.Request) string { return q.Header.Get("Tenant") }

// What was learned of the number of requests and the rate before an operator had it forgotten says nothing of the time after it.
func TestAServerQuotaLearnsAgainAfterForgetServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refuse := false
		tr := throttle.Must(throttle.New(roundTripper(func(q *http.Request) (*http.Response, error) {
			resp := &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: q, ProtoMajor: 1, ProtoMinor: 1}
			if refuse {
				resp.StatusCode = 429
			}
			return resp, nil
		}), throttle.WithLimit(throttle.ServerQuota("tokens", ten))))
		get := func(n int) time.Duration {
			start := time.Now()
			for range n {
				q, err := http.NewRequestWithContext(t.Context(), "GET", "http://host.test/", nil)
				require.NoError(t, err)
				resp, err := tr.RoundTrip(q)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
			}
			return time.Since(start)
		}
		get(5)
		refuse = true
		get(1)
		refuse = false
		require.Greater(t, get(20), time.Minute, "the rate is that of five in a minute")
		tr.Limiter().ForgetServer("host.test")
		require.Zero(t, get(100))
		refuse = true
		get(1)
		refuse = false
		assert.Less(t, get(10), time.Minute, "the rate is that of a hundred in a minute, and not of all before")
	})
}
