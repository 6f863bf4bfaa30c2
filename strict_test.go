package throttle_test

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
	counts   string

	mu             sync.Mutex
	random         *rand.Rand
	log            []time.Time
	begun          time.Time
	current        float64
	accepted, sent int
}

func (s *strictServer) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(s.travel())
	status := s.decide(time.Now())
	time.Sleep(s.travel())
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
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
	if s.counts == "sliding" {
		for len(s.log) > 0 && now.Sub(s.log[0]) >= s.per {
			s.log = s.log[1:]
		}
		used = float64(len(s.log))
	} else {
		begun := now.Truncate(s.per)
		if !begun.Equal(s.begun) {
			s.begun, s.current = begun, 0
		}
		used = s.current
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

func TestASaturatedSlidingWindowIsNotRefused(t *testing.T) {
	for _, counts := range []string{"fixed", "sliding"} {
		for _, per := range []time.Duration{time.Second, 6 * time.Second, time.Minute} {
			for _, way := range []time.Duration{100 * time.Microsecond, 25 * time.Millisecond, 50 * time.Millisecond} {
				for _, n := range []int64{20, 60, 500} {
					t.Run(fmt.Sprint(counts, " ", n, " per ", per, ", ", way, " away"), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							time.Sleep(437 * time.Millisecond)
							s := &strictServer{n: float64(n), per: per, way: way, counts: counts, random: rand.New(rand.NewPCG(1, 2))}
							lasts := max(20*time.Second, 20*per)
							saturate(t, throttle.Must(throttle.New(s, throttle.WithLimit(throttle.SlidingWindow(n, per)))), 100, lasts)
							share := float64(s.accepted) / (float64(n) * lasts.Seconds() / per.Seconds())
							refused := float64(s.sent-s.accepted) / float64(s.sent)
							t.Logf("%.1f %% of the limit, %.2f %% refused", 100*share, 100*refused)
							require.GreaterOrEqual(t, share, 0.94)
							require.LessOrEqual(t, refused, 0.002)
						})
					})
				}
			}
		}
	}
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
