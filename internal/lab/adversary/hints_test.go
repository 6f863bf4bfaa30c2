//go:build !race

package adversary

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// A pretender accepts every request, and says that it will not.
type pretender struct {
	mu     sync.Mutex
	random *rand.Rand
	sent   int
	says   func(h http.Header, r *rand.Rand, nth int)
}

func (p *pretender) RoundTrip(req *http.Request) (*http.Response, error) {
	time.Sleep(3 * time.Millisecond)
	p.mu.Lock()
	defer p.mu.Unlock()
	h := make(http.Header)
	p.says(h, p.random, p.sent)
	p.sent++
	return &http.Response{StatusCode: http.StatusOK, Header: h, Body: http.NoBody, Request: req}, nil
}

func quota(h http.Header, limit, left int, reset string) {
	h.Set("X-RateLimit-Limit", strconv.Itoa(limit))
	h.Set("X-RateLimit-Remaining", strconv.Itoa(left))
	h.Set("X-RateLimit-Reset", reset)
}

// pretences returns lies about a quota that ends, as they say, in so many seconds.
func pretences(reset string) map[string]func(http.Header, *rand.Rand, int) {
	return map[string]func(http.Header, *rand.Rand, int){
		"nothing is left":                 func(h http.Header, _ *rand.Rand, _ int) { quota(h, 100, 0, reset) },
		"less than nothing is left":       func(h http.Header, _ *rand.Rand, _ int) { quota(h, -1, -5, reset) },
		"nothing is left of one":          func(h http.Header, _ *rand.Rand, _ int) { quota(h, 1, 0, reset) },
		"nothing or all is left":          func(h http.Header, r *rand.Rand, _ int) { quota(h, 100, 100*r.IntN(2), reset) },
		"nothing or all, in turn":         func(h http.Header, _ *rand.Rand, n int) { quota(h, 100, 100*(n%2), reset) },
		"one in twenty says nothing":      func(h http.Header, _ *rand.Rand, n int) { quota(h, 100, min(n%20, 1)*50, reset) },
		"less and less, and then no more": func(h http.Header, _ *rand.Rand, n int) { quota(h, 20, max(0, 20-n), reset) },
		"less and less, again and again":  func(h http.Header, _ *rand.Rand, n int) { quota(h, 20, 19-n%20, reset) },
		"anything": func(h http.Header, r *rand.Rand, _ int) {
			quota(h, r.IntN(100), r.IntN(3), strconv.Itoa(r.IntN(10_000)))
		},
		"another quota each time": func(h http.Header, _ *rand.Rand, n int) {
			h.Set("RateLimit", `"`+strconv.Itoa(n)+`";r=0;t=`+reset)
		},
		"a retry after each response": func(h http.Header, _ *rand.Rand, _ int) {
			quota(h, 100, 0, reset)
			h.Set("Retry-After", reset)
		},
		"tokens are used up": func(h http.Header, _ *rand.Rand, _ int) {
			h.Set("X-RateLimit-Limit-Tokens", "1000")
			h.Set("X-RateLimit-Remaining-Tokens", "0")
			h.Set("X-RateLimit-Reset-Tokens", reset+"s")
		},
	}
}

// A claim that requests will be refused costs a client with a rate of its own at most a tenth of it, if they are accepted.
func TestAServerThatAcceptsAndSaysOtherwiseCostsATenth(t *testing.T) { // slow: each limit under each lie for two minutes
	const lasts = 2*time.Minute - time.Millisecond // no window turns at the end
	limits := map[string]throttle.Limit{
		"bucket":  throttle.TokenBucket(20, time.Second, throttle.Burst(1)),
		"burst":   throttle.TokenBucket(5, time.Second),
		"sliding": throttle.SlidingWindow(60, time.Minute),
		"fixed":   throttle.FixedWindow(60, time.Minute),
	}
	if testing.Short() {
		limits = map[string]throttle.Limit{"bucket": limits["bucket"], "sliding": limits["sliding"]}
	}
	truth := func(http.Header, *rand.Rand, int) {}
	for name, limit := range limits {
		most := float64(saturate(t, limit, lasts, truth))
		for _, reset := range []string{"0", "1", "10", "600", "31536000", "1900000000"} {
			for lie, says := range pretences(reset) {
				t.Run(name+", "+lie+", "+reset, func(t *testing.T) {
					sent := float64(saturate(t, limit, lasts, says))
					require.GreaterOrEqual(t, sent, 0.9*most)
					require.LessOrEqual(t, sent, most+1)
				})
			}
		}
	}
}

// saturate returns how many requests a client with that limit and 4 callers sends to a server that says that.
func saturate(t *testing.T, limit throttle.Limit, lasts time.Duration, says func(http.Header, *rand.Rand, int)) int {
	p := &pretender{random: rand.New(rand.NewPCG(1, 2)), says: says}
	synctest.Test(t, func(t *testing.T) {
		tr := throttle.Must(throttle.New(p, throttle.WithLimit(limit)))
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Hour, context.Canceled)
		defer time.AfterFunc(lasts, cancel).Stop()
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				for ctx.Err() == nil {
					req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.test/v1/x", nil)
					require.NoError(t, err)
					if resp, err := tr.RoundTrip(req); err == nil {
						resp.Body.Close()
					}
				}
			})
		}
		group.Wait()
		cancel()
	})
	return p.sent
}
