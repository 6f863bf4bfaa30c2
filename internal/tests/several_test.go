package tests

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle"
)

// This file is what several clients get that know nothing of each other, of a server that reports what is left and until when.

// Each client sees that more is gone than it has sent, so it sends slower, and the more so the less it has. So the window lasts, no client
// starves, and few requests are refused.
func TestSeveralClientsOfOneWindowShareItEvenly(t *testing.T) {
	const from, until = time.Minute, 4 * time.Minute
	for _, c := range []struct {
		limit, clients int
		window         time.Duration
	}{{40, 8, 2 * time.Second}, {50, 8, 5 * time.Second}, {100, 15, 10 * time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			var (
				all           sync.WaitGroup
				mu            sync.Mutex
				window        time.Time
				used, refused int
				start         = time.Now()
				accepted      = make([]float64, c.clients)
			)
			ctx, cancel := context.WithDeadline(t.Context(), start.Add(until-1))
			defer cancel()
			for i := range c.clients {
				tr := throttle.Must(throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
					time.Sleep(20 * time.Millisecond)
					defer time.Sleep(20 * time.Millisecond)
					mu.Lock()
					defer mu.Unlock()
					now := time.Now()
					if at := now.Truncate(c.window); at.After(window) {
						window, used = at, 0
					}
					used++
					status, steady := http.StatusOK, now.Sub(start) >= from
					switch {
					case used > c.limit:
						status = http.StatusTooManyRequests
						if steady {
							refused++
						}
					case steady:
						accepted[i]++
					}
					h := http.Header{}
					h.Set("X-RateLimit-Limit", strconv.Itoa(c.limit))
					h.Set("X-RateLimit-Remaining", strconv.Itoa(max(0, c.limit-used)))
					h.Set("X-RateLimit-Reset", strconv.Itoa(int((window.Add(c.window).Sub(now)+time.Second-1)/time.Second)))
					return &http.Response{StatusCode: status, Header: h, Body: http.NoBody, Request: r}, nil
				})))
				all.Go(func() {
					time.Sleep(time.Duration(i) * 700 * time.Millisecond)
					pressAll(ctx, tr, 4, to(t, http.MethodGet, "http://api.example.com/"))
				})
			}
			all.Wait()
			var sum, squares float64
			for _, n := range accepted {
				sum, squares = sum+n, squares+n*n
			}
			t.Logf("%+v: Jain %.3f, refused %d of %v", c, sum*sum/squares/float64(c.clients), refused, sum)
			assert.GreaterOrEqual(t, sum*sum/squares/float64(c.clients), 0.9, "%+v", c)
			assert.LessOrEqual(t, float64(refused), 0.03*sum, "%+v", c)
			assert.GreaterOrEqual(t, sum, 0.9*float64(c.limit)*float64(until-from)/float64(c.window), "%+v", c)
		})
	}
}
