//go:build !race

package tests

import (
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// hostile responds with as many quotas as are read, under names that it never used before and as long as are read.
type hostile struct{ n, status int }

func (s *hostile) RoundTrip(*http.Request) (*http.Response, error) {
	h := http.Header{"Retry-After": {"31000000"}}
	for range 32 {
		s.n++
		h.Add("Ratelimit", fmt.Sprintf(`"%s%d";r=1;t=31000000`, strings.Repeat("x", 200), s.n))
		h.Add("Ratelimit-Policy", fmt.Sprintf(`"%s%d";q=900;w=31000000`, strings.Repeat("x", 200), s.n))
	}
	return &http.Response{StatusCode: s.status, Header: h, Body: http.NoBody}, nil
}

func TestWhatServersSayTakesBoundedMemory(t *testing.T) { // slow: thousands of responses with thousands of quotas
	little := func(kv ...string) http.RoundTripper {
		return roundTripper(func(*http.Request) (*http.Response, error) { return reply(200, kv...) })
	}
	refused := roundTripper(func(*http.Request) (*http.Response, error) { return reply(429, "Retry-After", "31000000") })
	for name, c := range map[string]struct {
		base                       http.RoundTripper
		hosts, paths, times, bytes int
	}{
		"a hold":                    {refused, 3000, 1, 1, 1600},
		"an empty quota":            {little("X-RateLimit-Limit", "100", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "31000000"), 3000, 1, 1, 1600},
		"a quota":                   {little("X-RateLimit-Limit", "5000", "X-RateLimit-Remaining", "4999", "X-RateLimit-Reset", "3600"), 3000, 1, 5, 1600},
		"two quotas":                {little("RateLimit", `"second";r=9;t=1, "day";r=900;t=80000`, "RateLimit-Policy", `"second";q=10;w=1, "day";q=1000;w=86400`), 3000, 1, 1, 15 << 7},
		"hostile, once":             {&hostile{status: 200}, 500, 1, 1, 16 << 10},
		"hostile, 1,100 responses":  {&hostile{status: 200}, 8, 1, 1100, 17 << 10},
		"hostile, many paths":       {&hostile{status: 200}, 20, 60, 3, 160 << 10},
		"hostile, refusals":         {&hostile{status: 429}, 100, 10, 1, 160 << 10},
		"a large limit, many times": {little("X-RateLimit-Limit", "1000", "X-RateLimit-Remaining", "900", "X-RateLimit-Reset", "3600"), 10, 1, 2500, 16 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			tr := throttle.Must(throttle.New(c.base, throttle.WithFailFast()))
			tr.RoundTrip(get(t, t.Context(), "http://first/")) // what is there once for all
			before := inHeap()
			for range c.times {
				for host := range c.hosts {
					for path := range c.paths {
						tr.RoundTrip(get(t, t.Context(), fmt.Sprintf("http://host-%d.example.com/p%d", host, path)))
					}
				}
			}
			took := int(inHeap()-before) / c.hosts
			t.Logf("%d bytes a host", took)
			assert.LessOrEqual(t, took, c.bytes)
			runtime.KeepAlive(tr)
		})
	}
}

func TestWhatAllServersSayTakes64MBAtMost(t *testing.T) { // slow: 7,000 hosts with all that is kept of one
	tr := throttle.Must(throttle.New(&hostile{status: 429}, throttle.WithFailFast()))
	before := inHeap()
	for host := range 7000 { // of 12 kB each
		tr.RoundTrip(get(t, t.Context(), fmt.Sprintf("http://host-%d.example.com/", host)))
	}
	took := int(inUse() - before)
	t.Logf("%d MB", took>>20)
	assert.LessOrEqual(t, took, 66<<20) // "about 64 MB", and what tests before have left that is freed meanwhile
	assert.Greater(t, took, 48<<20, "no more is forgotten than must be")
	runtime.KeepAlive(tr)
}

// Subdomains of one server may take every place, and say that they stay for a year.
func TestARefusalFindsRoomAmongOtherServers(t *testing.T) {
	for _, c := range []struct {
		status int
		header []string
		stays  bool // the first refusal, because it is worth more than what others said
	}{
		{200, []string{"RateLimit", `"x";r=0;t=31000000`}, true},
		{429, []string{"Retry-After", "31000000"}, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			var log strings.Builder
			sent := 0
			tr := throttle.Must(throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
				if !strings.HasSuffix(r.URL.Host, "evil.com") {
					sent++
					return reply(429, "Retry-After", "600")
				}
				return reply(c.status, c.header...)
			}), throttle.WithMaxKeys(100), throttle.WithFailFast(), throttle.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))))
			evil := func(from int) {
				for i := range 100 {
					tr.RoundTrip(get(t, t.Context(), fmt.Sprintf("http://%d.evil.com/", from+i)))
					time.Sleep(time.Millisecond)
				}
			}
			evil(0)
			require.NotContains(t, log.String(), "no room")
			for range 20 {
				tr.RoundTrip(get(t, t.Context(), "http://good.com/"))
			}
			require.Equal(t, 1, sent)
			require.Contains(t, log.String(), "no room for the reports of all servers")
			require.Regexp(t, `key=\d+\.evil\.com`, log.String())
			for range 10 {
				for range 20 {
					tr.RoundTrip(get(t, t.Context(), "http://good.com/")) // it is in use
				}
				evil(100)
			}
			if c.stays {
				require.Equal(t, 1, sent)
			}
			require.LessOrEqual(t, len(tr.Limiter().Servers()), 100)
		})
	}
}
