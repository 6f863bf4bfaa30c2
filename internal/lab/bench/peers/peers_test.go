// Package peers has only tests: what docs/comparison.md says of other libraries, in fake time, at the releases that go.mod names.
package peers

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/failsafe-go/failsafe-go/ratelimiter"
	"github.com/hashicorp/go-retryablehttp"
	"github.com/httpthrottle/throttle"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/ratelimit"
	"golang.org/x/time/rate"
	"resty.dev/v3"
)

// A peer waits for one of the tokens that come once a second.
type peer struct {
	name string
	make func(*testing.T) (wait func(context.Context) error)
}

var peers = []peer{
	{"throttle", func(t *testing.T) func(context.Context) error {
		l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(1, time.Second)))
		require.NoError(t, err)
		return func(ctx context.Context) error { return l.Wait(ctx, throttle.Ask{}) }
	}},
	{"x/time/rate", func(*testing.T) func(context.Context) error { return rate.NewLimiter(1, 1).Wait }},
	{"uber/ratelimit", func(*testing.T) func(context.Context) error {
		l := ratelimit.New(1, ratelimit.WithoutSlack)
		return func(context.Context) error { l.Take(); return nil }
	}},
	{"failsafe-go", func(*testing.T) func(context.Context) error {
		return ratelimiter.NewSmooth[*http.Response](1, time.Second).AcquirePermit
	}},
	{"resty v3", func(*testing.T) func(context.Context) error { return resty.NewRateLimitTokenBucket(1, 1).Allow }},
}

// each runs a test of each peer in a bubble, and compares what it returns with a cell of the table.
func each(t *testing.T, want map[string]string, f func(*testing.T, func(context.Context) error) string) {
	for _, p := range peers {
		t.Run(p.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				wait := p.make(t)
				assert.NoError(t, wait(t.Context()))
				assert.Equal(t, want[p.name], f(t, wait))
			})
		})
	}
}

func TestVersionsAreThoseThatAreTested(t *testing.T) {
	modules, err := os.ReadFile("../../go.mod")
	require.NoError(t, err)
	page, err := os.ReadFile("../../../../docs/comparison.md")
	require.NoError(t, err)
	found := regexp.MustCompile(`\(https://pkg\.go\.dev/([^)]+)\) (v[0-9][^ ,:]*[0-9])`).FindAllStringSubmatch(string(page), -1)
	require.Len(t, found, 6)
	for _, m := range found {
		module := strings.TrimSuffix(m[1], "/rate")
		assert.Regexp(t, regexp.QuoteMeta(strings.TrimSuffix(module, "/aws/retry")+" "+m[2]), string(modules))
	}
}

// "order of waiting requests"
func TestOrderOfWaitingRequests(t *testing.T) {
	each(t, map[string]string{"throttle": "in order", "x/time/rate": "in order", "uber/ratelimit": "in order", "failsafe-go": "in order", "resty v3": "not in order"},
		func(t *testing.T, wait func(context.Context) error) string {
			var mu sync.Mutex
			var order []int
			var all sync.WaitGroup
			for i := range 20 {
				all.Go(func() {
					assert.NoError(t, wait(t.Context()))
					mu.Lock()
					defer mu.Unlock()
					order = append(order, i)
				})
				time.Sleep(time.Millisecond)
			}
			all.Wait()
			if slices.IsSorted(order) {
				return "in order"
			}
			return "not in order"
		})
}

// "a wait beyond the deadline fails early"
func TestAWaitBeyondTheDeadline(t *testing.T) {
	each(t, map[string]string{"throttle": "fails after 0s", "x/time/rate": "fails after 0s", "uber/ratelimit": "waits 1s", "failsafe-go": "fails after 500ms", "resty v3": "fails after 500ms"},
		func(t *testing.T, wait func(context.Context) error) string {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
			defer cancel()
			start := time.Now()
			if err := wait(ctx); err == nil {
				return fmt.Sprint("waits ", time.Since(start))
			}
			return fmt.Sprint("fails after ", time.Since(start))
		})
}

// "tokens return on cancel": a request is cancelled that waits for the token at 1 s, with another one behind it, or as the last.
func TestACancelledRequestReturnsItsToken(t *testing.T) {
	each(t, map[string]string{
		"throttle":       "the next at 1s, 1s",
		"x/time/rate":    "the next at 2s, 1s",
		"uber/ratelimit": "the next at 2s, 2s",
		"failsafe-go":    "the next at 2s, 2s",
		"resty v3":       "the next at 1s, 1s",
	},
		func(t *testing.T, wait func(context.Context) error) string {
			var next [2]time.Duration
			for i, behind := range []bool{true, false} {
				start := time.Now() // the token of this instant is spent
				ctx, cancel := context.WithCancel(t.Context())
				var all sync.WaitGroup
				all.Go(func() { _ = wait(ctx) })
				synctest.Wait()
				if behind {
					all.Go(func() { assert.NoError(t, wait(t.Context())); next[i] = time.Since(start) })
					synctest.Wait()
				}
				cancel()
				synctest.Wait()
				if !behind {
					assert.NoError(t, wait(t.Context()))
					next[i] = time.Since(start)
				}
				all.Wait()
			}
			return fmt.Sprintf("the next at %v, %v", next[0].Round(100*time.Millisecond), next[1].Round(100*time.Millisecond))
		})
}

// "a new rate applies to waiting requests"
func TestANewRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		theirs := rate.NewLimiter(rate.Every(time.Hour), 1)
		ours, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.Name("api"))))
		require.NoError(t, err)
		var all sync.WaitGroup
		var times [2]time.Duration
		for i, wait := range []func(context.Context) error{theirs.Wait, func(ctx context.Context) error { return ours.Wait(ctx, throttle.Ask{}) }} {
			require.NoError(t, wait(t.Context()))
			all.Go(func() { assert.NoError(t, wait(t.Context())); times[i] = time.Since(start) })
		}
		synctest.Wait()
		theirs.SetLimit(1)
		require.NoError(t, ours.SetRate("api", 1, time.Second))
		all.Wait()
		require.Equal(t, [2]time.Duration{time.Hour, time.Second}, times)
	})
}

// "several limits, all or nothing": the second limit cannot pay in time, and the first has paid.
func TestSeveralLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		first, second := rate.NewLimiter(1, 10), rate.NewLimiter(rate.Every(time.Hour), 1)
		require.True(t, second.Allow())
		require.NoError(t, first.Wait(ctx))
		require.Error(t, second.Wait(ctx))
		require.EqualValues(t, 9, first.Tokens())

		ours, err := throttle.NewLimiter(throttle.WithLimit(
			throttle.TokenBucket(1, time.Second, throttle.Burst(10), throttle.Name("first")), throttle.TokenBucket(1, time.Hour, throttle.Name("second"))))
		require.NoError(t, err)
		require.NoError(t, ours.Wait(ctx, throttle.Ask{Costs: map[string]int64{"first": 0}}))
		require.Error(t, ours.Wait(ctx, throttle.Ask{}))
		bucket, _ := ours.Bucket("first", "")
		require.EqualValues(t, 10, bucket.Tokens)
	})
}

// "cost per request": up to the burst, by its API.
func TestCostPerRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		require.Error(t, rate.NewLimiter(1, 5).WaitN(t.Context(), 6))
		require.NoError(t, ratelimiter.NewSmooth[*http.Response](1, time.Second).AcquirePermits(t.Context(), 6))
	})
}

// "reads rate-limit headers": while the server asks to wait, the others still send every request that is new.
func TestARetryAfter(t *testing.T) {
	for name, client := range map[string]func(http.RoundTripper) http.RoundTripper{
		"failsafe-go": func(base http.RoundTripper) http.RoundTripper {
			return failsafehttp.NewRoundTripper(base, ratelimiter.NewSmooth[*http.Response](1000, time.Second))
		},
		"go-retryablehttp": func(base http.RoundTripper) http.RoundTripper {
			c := retryablehttp.NewClient()
			c.HTTPClient.Transport, c.Logger = base, nil
			return &retryablehttp.RoundTripper{Client: c}
		},
		"throttle": func(base http.RoundTripper) http.RoundTripper { return throttle.Must(throttle.New(base)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var sent atomic.Int64
				api := client(roundTripper(func(r *http.Request) (*http.Response, error) {
					sent.Add(1)
					resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: r}
					if time.Since(start) < time.Minute {
						resp.StatusCode = http.StatusTooManyRequests
						resp.Header.Set("Retry-After", "60")
					}
					return resp, nil
				}))
				get := func() {
					req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.example.com/", nil)
					assert.NoError(t, err)
					resp, err := api.RoundTrip(req)
					if assert.NoError(t, err) {
						assert.NoError(t, resp.Body.Close())
					}
				}
				var all sync.WaitGroup
				for range 10 {
					all.Go(get)
					time.Sleep(time.Second)
				}
				if name == "throttle" {
					assert.EqualValues(t, 1, sent.Load(), "while the server asks to wait")
				} else {
					assert.EqualValues(t, 10, sent.Load(), "while the server asks to wait")
				}
				all.Wait()
			})
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
