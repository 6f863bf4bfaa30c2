//go:build !race

package tests

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// A strictServer refuses each request above n in a window of its own. Requests take a while to it, each another one.
type strictServer struct {
	n        float64
	per, way time.Duration
	behind   time.Duration // its clock
	asks     string        // Retry-After of refusals
	counts   string        // "fixed" or "sliding" windows, or "estimated": a sliding window of two counts, the last one weighted by its rest

	mu             sync.Mutex
	random         *rand.Rand
	log            []time.Time
	begun          time.Time
	last, current  float64
	accepted, sent int
}

func (s *strictServer) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(s.travel())
	status := s.decide(time.Now())
	time.Sleep(s.travel())
	h := http.Header{}
	if status != http.StatusOK && s.asks != "" {
		h.Set("Retry-After", s.asks)
	}
	return &http.Response{StatusCode: status, Header: h, Body: http.NoBody, Request: r}, nil
}

func (s *strictServer) travel() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.random == nil {
		return s.way
	}
	return time.Duration(float64(s.way) * (1 + 0.2*s.random.NormFloat64()))
}

func (s *strictServer) decide(now time.Time) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	used := 0.0
	now = now.Add(-s.behind)
	switch begun := now.Truncate(s.per); {
	case s.counts == "sliding":
		for len(s.log) > 0 && now.Sub(s.log[0]) >= s.per {
			s.log = s.log[1:]
		}
		used = float64(len(s.log))
	case begun.Equal(s.begun):
	case begun.Equal(s.begun.Add(s.per)):
		s.begun, s.last, s.current = begun, s.current, 0
	default:
		s.begun, s.last, s.current = begun, 0, 0
	}
	switch s.counts {
	case "fixed":
		used = s.current
	case "estimated":
		used = s.current + s.last*(1-now.Sub(s.begun).Seconds()/s.per.Seconds())
	}
	s.sent++
	if used+1 > s.n {
		return http.StatusTooManyRequests
	}
	s.current++
	s.accepted++
	s.log = append(s.log, now)
	return http.StatusOK
}

// saturated returns which share of the server's limit a client gets that has one limit, and which share of its requests is refused.
func (s *strictServer) saturated(t *testing.T, limit throttle.Limit) (share, refused float64) {
	lasts := max(20*time.Second, 20*s.per)
	saturate(t, throttle.Must(throttle.New(s, throttle.WithLimit(limit))), 100, lasts)
	share = float64(s.accepted) / (s.n * lasts.Seconds() / s.per.Seconds())
	refused = float64(s.sent-s.accepted) / float64(s.sent)
	t.Logf("%.1f %% of the limit, %.2f %% refused", 100*share, 100*refused)
	return share, refused
}

// atEach runs a test at strict servers with these limits that count in these ways, at different distances.
func atEach(t *testing.T, counts []string, limits []int64, test func(t *testing.T, s *strictServer, n int64, per time.Duration)) {
	for _, counts := range counts {
		for _, per := range []time.Duration{time.Second, 6 * time.Second, time.Minute} {
			for _, way := range []time.Duration{100 * time.Microsecond, 25 * time.Millisecond, 50 * time.Millisecond} {
				for _, n := range limits {
					t.Run(fmt.Sprint(counts, " ", n, " per ", per, ", ", way, " away"), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							time.Sleep(437 * time.Millisecond)
							s := &strictServer{n: float64(n), per: per, way: way, counts: counts, random: rand.New(rand.NewPCG(1, 2))}
							test(t, s, n, per)
						})
					})
				}
			}
		}
	}
}

func TestASaturatedSlidingWindowIsNotRefused(t *testing.T) {
	atEach(t, []string{"fixed", "sliding"}, []int64{20, 60, 500}, func(t *testing.T, s *strictServer, n int64, per time.Duration) {
		share, refused := s.saturated(t, throttle.SlidingWindow(n, per))
		require.GreaterOrEqual(t, share, 0.94)
		require.LessOrEqual(t, refused, 0.002)
	})
}

// A server that estimates a sliding window refuses bursts, and up to half of the requests of a SlidingWindow.
func TestAPaceSuitsServersThatEstimate(t *testing.T) {
	estimated := []string{"estimated"}
	atEach(t, estimated, []int64{20, 60}, func(t *testing.T, s *strictServer, n int64, per time.Duration) {
		share, refused := s.saturated(t, throttle.Pace(95*n, 100*per))
		require.GreaterOrEqual(t, share, 0.90)
		require.LessOrEqual(t, refused, 0.03)
	})
	atEach(t, estimated, []int64{5, 10}, func(t *testing.T, s *strictServer, n int64, per time.Duration) {
		share, refused := s.saturated(t, throttle.Pace(n-1, per))
		require.GreaterOrEqual(t, share, 0.78)
		require.LessOrEqual(t, refused, 0.015)
	})
	atEach(t, estimated, []int64{20, 60}, func(t *testing.T, s *strictServer, n int64, per time.Duration) {
		_, refused := s.saturated(t, throttle.SlidingWindow(n, per))
		require.LessOrEqual(t, refused, 0.51)
	})
}

// Such a server accepts the first burst and closes for a second. What was accepted in that second is the limit, so a rate that grows beyond
// it before the next second has shown that is refused far above the limit.
func TestAServerThatEstimatesIsUsedWithHintsAlone(t *testing.T) {
	const n, seconds, phases = 50, 20, 10
	for _, way := range []time.Duration{100 * time.Microsecond, time.Millisecond, 10 * time.Millisecond} {
		sum := 0
		for phase := range time.Duration(phases) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(phase * time.Second / phases)
				s := &strictServer{n: n, per: time.Second, way: way, counts: "estimated", asks: "1", random: rand.New(rand.NewPCG(1, 2))}
				saturate(t, throttle.Must(throttle.New(s)), 16, seconds*time.Second)
				require.GreaterOrEqual(t, s.accepted, n*seconds*70/100, "phase %d", phase)
				require.LessOrEqual(t, s.sent-s.accepted, s.sent/25, "phase %d", phase)
				sum += s.accepted
			})
		}
		require.GreaterOrEqual(t, sum, n*seconds*phases*85/100, "%v away", way)
	}
}

func TestAFixedWindowThatBeginsAfterTheServersIsNotRefused(t *testing.T) {
	atEach(t, []string{"fixed"}, []int64{20, 60}, func(t *testing.T, s *strictServer, n int64, per time.Duration) {
		share, refused := s.saturated(t, throttle.FixedWindow(n, per))
		require.GreaterOrEqual(t, share, 0.94)
		require.Zero(t, refused)
	})
	atEach(t, []string{"fixed"}, []int64{20, 60}, func(t *testing.T, s *strictServer, n int64, per time.Duration) {
		s.behind = 200 * time.Millisecond
		share, refused := s.saturated(t, throttle.FixedWindow(n, per, throttle.Start(time.Unix(0, 0).Add(s.behind+s.way))))
		require.GreaterOrEqual(t, share, 0.94)
		require.Zero(t, refused)
	})
	atEach(t, []string{"fixed"}, []int64{20, 60}, func(t *testing.T, s *strictServer, n int64, per time.Duration) {
		s.behind = 200 * time.Millisecond
		_, refused := s.saturated(t, throttle.FixedWindow(n, per))
		require.Positive(t, refused)
		require.LessOrEqual(t, refused, 0.1)
	})
}

// A window that counts from the grant is refused by a server that is not always equally far away.
func TestAWindowFromTheGrantIsExact(t *testing.T) {
	for _, c := range []struct {
		options []throttle.LimitOption
		after   time.Duration // the second request is sent
	}{{nil, time.Second + 40*time.Millisecond}, {[]throttle.LimitOption{throttle.FromGrant()}, time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			s := &strictServer{n: 9, per: time.Second, way: 20 * time.Millisecond, counts: "sliding", random: nil}
			tr := throttle.Must(throttle.New(s, throttle.WithLimit(throttle.SlidingWindow(1, time.Second, c.options...))))
			begun := time.Now()
			for range 2 {
				r, _ := http.NewRequestWithContext(t.Context(), "GET", "http://api.example.com/", nil)
				_, err := tr.RoundTrip(r)
				require.NoError(t, err)
			}
			require.Equal(t, c.after+40*time.Millisecond, time.Since(begun))

			l, err := throttle.NewLimiter(throttle.WithLimit(throttle.SlidingWindow(1, time.Second, c.options...)))
			require.NoError(t, err)
			begun = time.Now()
			for range 2 {
				require.NoError(t, l.Wait(t.Context(), throttle.Ask{}))
			}
			require.Equal(t, time.Second, time.Since(begun), "there is no response")
		})
	}
}

// An hourlyServer limits as GitHub does: 5,000 requests in each hour that begins with a request.
type hourlyServer struct {
	mu                      sync.Mutex
	begun                   time.Time
	used, accepted, refused int
}

func (s *hourlyServer) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(40 * time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.begun) >= time.Hour {
		s.begun, s.used = time.Now(), 0
	}
	status := http.StatusOK
	if s.used++; s.used <= 5000 {
		s.accepted++
	} else {
		status = http.StatusForbidden
		s.refused++
	}
	h := make(http.Header)
	h.Set("X-RateLimit-Limit", "5000")
	h.Set("X-RateLimit-Remaining", fmt.Sprint(max(0, 5000-s.used)))
	h.Set("X-RateLimit-Reset", fmt.Sprint(s.begun.Add(time.Hour).Unix()))
	return &http.Response{StatusCode: status, Header: h, Body: http.NoBody, Request: r}, nil
}

func TestAnHourlyQuotaIsUsedUpAndThenWaitedFor(t *testing.T) {
	for name, c := range map[string]struct {
		option  throttle.Option
		refused int // at most
	}{
		"hints":               {throttle.WithServerHints(), 0},
		"adaptive":            {throttle.WithAdaptive(), 50},
		"a rate that is more": {throttle.WithLimit(throttle.Pace(7500, time.Hour)), 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(26 * 365 * 24 * time.Hour) // a Unix time as long as those of today
				s := new(hourlyServer)
				tr := throttle.Must(throttle.New(s, c.option))
				saturate(t, tr, 16, 119*time.Minute)
				require.GreaterOrEqual(t, s.accepted, 9_900)
				require.LessOrEqual(t, s.refused, c.refused)
			})
		})
	}
}

// saturate sends requests from that many callers for a time.
func saturate(t *testing.T, tr http.RoundTripper, callers int, d time.Duration) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(d, cancel)
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for ctx.Err() == nil {
				r, _ := http.NewRequestWithContext(ctx, "GET", "http://api.example.com/", nil)
				tr.RoundTrip(r)
			}
		})
	}
	all.Wait()
}
