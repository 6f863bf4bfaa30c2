package throttletest

import (
	"io"
	"math"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The servers on which the adaptive limiter is measured, in short, each with what a client that sends at a steady 100/s finds
// in 24 s: the share of its requests that is answered 200, and the longest that one took (0: 50 ms, -1: anything).
var scenarios = []struct {
	name    string
	opts    []Option
	during  func(h *Handler) // changes of the limits, in the background
	ok      float64
	longest time.Duration
}{
	{"token bucket, bare", []Option{bucket100(), WithRetryAfter(NoRetryAfter)}, nil, 1, 0},
	{"token bucket, Retry-After", []Option{bucket100()}, nil, 1, 0},
	{"600 per minute", []Option{WithLimits(FixedWindow(600, time.Minute))}, nil, 0.25, 0},
	{"600 per minute, bare", []Option{WithLimits(FixedWindow(600, time.Minute)), WithRetryAfter(NoRetryAfter)}, nil, 0.25, 0},
	{"nginx", []Option{WithLimits(LeakyBucket(100, time.Second, Burst(20), Status(503))), WithRetryAfter(NoRetryAfter)}, nil, 1, 0},
	{"nginx with delay", []Option{WithLimits(LeakyBucket(100, time.Second, Burst(50), Delay(0))), WithRetryAfter(NoRetryAfter)}, nil, 1, 0},
	{"ten workers", []Option{WithWorkers(10, 100), WithServiceTime(Constant(100 * time.Millisecond))}, nil, 1, 140 * time.Millisecond},
	{"a tenth of the limit from 12 s to 18 s", []Option{bucket100()}, func(h *Handler) {
		time.Sleep(12 * time.Second)
		_ = h.SetRate("bucket", 10, time.Second)
		time.Sleep(6 * time.Second)
		_ = h.SetRate("bucket", 100, time.Second)
	}, 1 - 0.25*0.9, 0},
	{"drifting limit", []Option{bucket100()}, func(h *Handler) {
		for i := range 120 {
			rate := 100 + 50*math.Sin(2*math.Pi*float64(i)/120)
			_ = h.SetRate("bucket", int64(rate*1000), 1000*time.Second)
			time.Sleep(200 * time.Millisecond)
		}
	}, 1 - 0.5/math.Pi, 0},
	{"heavy tail and random 500", []Option{bucket100(),
		WithServiceTime(Sometimes(0.01, Uniform(500*time.Millisecond, 2*time.Second), LogNormal(10*time.Millisecond, 1.2))),
		WithFaults(Respond(500, nil).Chance(0.01))}, nil, 0.99, -1},
	{"outage", []Option{bucket100(), WithFaults(Outage(503).Between(12*time.Second, 18*time.Second))}, nil, 0.75, 0},
	{"hanging outage", []Option{bucket100(), WithFaults(Hang().Between(12*time.Second, 18*time.Second))}, nil, 0.75, 0},
	{"two per second", []Option{WithLimits(TokenBucket(2, time.Second, Burst(5)))}, nil, 0.02, 0},
	{"1000 per second", []Option{WithLimits(TokenBucket(1000, time.Second, Burst(100)))}, nil, 1, 0},
	{"presses are counted", []Option{WithLimits(SlidingWindow(990, 10*time.Second, CountRefused()))}, nil, 990.0 / 2400, 0},
	{"several limits", []Option{WithLimits(TokenBucket(100, time.Second), SlidingWindow(500, 10*time.Second), InFlight(50))}, nil, 1400.0 / 2400, 0},
}

func bucket100() Option { return WithLimits(TokenBucket(100, time.Second, Burst(20))) }

func TestScenarios(t *testing.T) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				usual := []Option{WithRoundTrip(40*time.Millisecond, 0), WithServiceTime(Constant(10 * time.Millisecond)),
					WithRefusalTime(Constant(time.Millisecond))}
				h, err := NewHandler(append(usual, s.opts...)...)
				require.NoError(t, err)
				if s.during != nil {
					go s.during(h)
				}
				ok, longest := steady(t, h, 2400, 10*time.Millisecond)
				assert.InDelta(t, s.ok, float64(ok)/2400, 0.012)
				if s.longest == 0 {
					s.longest = 50 * time.Millisecond
				}
				if s.longest > 0 {
					assert.Equal(t, s.longest, longest)
				}
			})
		})
	}
}

// steady sends n requests at a steady pace, and says how many were answered 200 and what the slowest of those took.
func steady(t *testing.T, h *Handler, n int, every time.Duration) (ok int, longest time.Duration) {
	c := &http.Client{Transport: h.Direct(), Timeout: 10 * time.Second}
	var (
		mu  sync.Mutex
		all sync.WaitGroup
	)
	for range n {
		all.Go(func() {
			start := time.Now()
			resp, err := c.Get("http://api.test/")
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			assert.NoError(t, resp.Body.Close())
			if resp.StatusCode == http.StatusOK {
				mu.Lock()
				defer mu.Unlock()
				ok++
				longest = max(longest, time.Since(start))
			}
		})
		time.Sleep(every)
	}
	all.Wait()
	return ok, longest
}
