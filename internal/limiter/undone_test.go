package limiter_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
)

// What a refusal that was none has kept is forgotten as soon as if it had not come.
func TestWhatAnUndoneRefusalKeptIsForgotten(t *testing.T) {
	for name, opts := range map[string][]throttle.Option{"hints": nil, "adaptive": {throttle.WithAdaptive()}, "in flight": {throttle.WithAdaptiveInFlight()}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := headers.Dialect{Rules: []headers.Rule{{Statuses: []int{429}, Body: []headers.Match{{Name: "code", Values: []string{"none"}}}, NotLimited: true}}}
				n := 0
				tr := throttle.Must(throttle.New(rt(func(req *http.Request) (*http.Response, error) {
					if n++; n == 1 { // a server that sends hints, so that the next request passes a gate
						return reply(200, "X-RateLimit-Limit", "5", "X-RateLimit-Remaining", "4", "X-RateLimit-Reset", "1")
					}
					resp, err := reply(429, "Content-Type", "application/json", "Retry-After", "1000")
					resp.Body, resp.ContentLength, resp.Request = io.NopCloser(strings.NewReader(`{"code":"none"}`)), -1, req
					return resp, err
				}), append(opts, throttle.WithServerHints(d))...))
				for range 2 {
					resp, err := tr.RoundTrip(get(t.Context(), "http://a.com/"))
					require.NoError(t, err)
					_, err = io.Copy(io.Discard, resp.Body)
					require.NoError(t, err)
					resp.Body.Close()
				}
				require.NotEmpty(t, tr.Limiter().Servers())
				time.Sleep(30 * time.Second)
				synctest.Wait()
				require.Zero(t, coreOf(tr.Limiter()).Servers().Len())
			})
		})
	}
}
