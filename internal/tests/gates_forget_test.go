package tests

import (
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
)

// A client that gets nothing but 429s backs off as long as it would if its bucket were never forgotten.
func TestRefusalsCountAsLongAsTheyMatter(t *testing.T) {
	sent := func(every time.Duration) (n int) {
		synctest.Test(t, func(t *testing.T) {
			tr := throttle.Must(throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
				n++
				return reply(429)
			}), throttle.WithFailFast()))
			for range 20 * time.Minute / every {
				_, _ = tr.RoundTrip(get(t, t.Context(), "http://h/"))
				sleep(every)
			}
			sleep(time.Hour)
			require.Zero(t, gatesKept(tr.Limiter()))
		})
		return n
	}
	for _, every := range []time.Duration{time.Second / 4, 7 * time.Second, 11 * time.Second} {
		require.LessOrEqual(t, sent(every), 30, "%v", every)
	}
}

func TestManyHostsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		heap := func() int64 {
			runtime.GC()
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		before := heap()
		tr := throttle.Must(throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
			return reply(429, "Retry-After", "1")
		}), throttle.WithLimit(throttle.TokenBucket(10, time.Second)), throttle.WithKey(throttle.ByHost)))
		n := 40_000 // they take about 53 MB; 64 MB are the most
		if testing.Short() {
			n = 10_000
		}
		for i := range n {
			resp, err := tr.RoundTrip(get(t, t.Context(), fmt.Sprintf("http://host-%d/", i)))
			require.NoError(t, err)
			_, _ = io.Copy(io.Discard, resp.Body)
		}
		require.Equal(t, n, gatesKept(tr.Limiter()))
		sleep(11 * time.Minute)
		require.Zero(t, gatesKept(tr.Limiter()))
		require.Less(t, heap()-before, int64(4<<20), "memory is kept for hosts that are not")
		runtime.KeepAlive(tr)
	})
}

// A request has the gate of the one before, but that gate was forgotten in between.
func TestAForgottenGateIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := throttle.Must(throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
			return reply(200, "X-RateLimit-Limit", "100", "X-RateLimit-Remaining", "99", "X-RateLimit-Reset", "1")
		}), throttle.WithLimit(throttle.TokenBucket(10, time.Second))))
		send := func() {
			_, err := tr.RoundTrip(get(t, t.Context(), "http://host/"))
			require.NoError(t, err)
			require.Equal(t, 1, gatesKept(tr.Limiter()))
		}
		send()
		send()
		sleep(time.Hour)
		require.Zero(t, gatesKept(tr.Limiter()))
		send()
	})
}

// What a refusal that was none has kept is forgotten as soon as if it had not come.
func TestWhatAnUndoneRefusalKeptIsForgotten(t *testing.T) {
	for name, opts := range map[string][]throttle.Option{"hints": nil, "adaptive": {throttle.WithAdaptive()}, "in flight": {throttle.WithAdaptiveInFlight()}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := headers.Dialect{Rules: []headers.Rule{{Statuses: []int{429}, Body: []headers.Match{{Name: "code", Values: []string{"none"}}}, NotLimited: true}}}
				n := 0
				tr := throttle.Must(throttle.New(roundTripper(func(req *http.Request) (*http.Response, error) {
					if n++; n == 1 { // a server that sends hints, so that the next request passes a gate
						return reply(200, "X-RateLimit-Limit", "5", "X-RateLimit-Remaining", "4", "X-RateLimit-Reset", "1")
					}
					resp, err := reply(429, "Content-Type", "application/json", "Retry-After", "1000")
					resp.Body, resp.ContentLength, resp.Request = io.NopCloser(strings.NewReader(`{"code":"none"}`)), -1, req
					return resp, err
				}), append(opts, throttle.WithServerHints(d))...))
				for range 2 {
					resp, err := tr.RoundTrip(get(t, t.Context(), "http://a.com/"))
					require.NoError(t, err)
					_, err = io.Copy(io.Discard, resp.Body)
					require.NoError(t, err)
					resp.Body.Close()
				}
				require.NotEmpty(t, tr.Limiter().Servers())
				time.Sleep(30 * time.Second)
				synctest.Wait()
				require.Zero(t, gatesKept(tr.Limiter()))
			})
		})
	}
}
