package tests

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// statusOf sends a request and returns the status of the response; 0: there is none.
func statusOf(ctx context.Context, tr http.RoundTripper, url string) int {
	q, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		return 0
	}
	resp, err := tr.RoundTrip(q)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// A service has a report that is not ready, for which it asks to wait. Everything else is accepted, unless it is down.
type service struct {
	mu            sync.Mutex
	status, polls int
	others        int
	down          func() bool
	refused       []string
	first         int // refusals in the first half minute
	since         time.Time
}

func (s *service) RoundTrip(q *http.Request) (*http.Response, error) {
	time.Sleep(100 * time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: q, ProtoMajor: 1, ProtoMinor: 1}
	refuse := s.down != nil && s.down()
	switch {
	case refuse:
	case strings.HasPrefix(q.URL.Path, "/exports/"):
		s.polls++
		refuse = s.polls%12 != 0 // a report takes twelve polls
	default:
		s.others++
	}
	if refuse {
		if s.refused = append(s.refused, q.URL.Path); len(s.refused) == 1 {
			s.since = time.Now()
		}
		if time.Since(s.since) < 30*time.Second {
			s.first++
		}
		resp.StatusCode = s.status
		resp.Header.Set("Retry-After", "30")
	}
	return resp, nil
}

// A report that is not ready stops no request for anything else, whatever the status says of the host. Gates are forgotten between reports,
// so this is found again and again.
func TestAReportThatIsNotReadyStopsNothingElse(t *testing.T) { // slow: minutes of a server
	for name, opts := range map[string][]throttle.Option{
		"default": nil, "own limit": {throttle.WithLimit(throttle.Quota(20, time.Second))}, "by route": {throttle.WithKey(throttle.ByRoute("/exports/", "/"))},
		"learned": {throttle.WithAdaptive()}, "both learned": {throttle.WithAdaptive(), throttle.WithAdaptiveInFlight()},
	} {
		for _, status := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable} {
			for every := 30 * time.Second; every <= 32*time.Second; every += time.Second {
				t.Run(fmt.Sprint(name, status, every), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						s := &service{status: status}
						tr := throttle.Must(throttle.New(s, opts...))
						ctx, stop := context.WithTimeout(t.Context(), time.Hour)
						defer stop()
						var wg sync.WaitGroup
						wg.Go(func() {
							for ctx.Err() == nil {
								statusOf(ctx, tr, "http://host.test/items")
								time.Sleep(900 * time.Millisecond)
							}
						})
						for report := 0; ctx.Err() == nil; time.Sleep(every) {
							if statusOf(ctx, tr, fmt.Sprintf("http://host.test/exports/%d", report)) == http.StatusOK {
								report++
							}
						}
						wg.Wait()
						assert.GreaterOrEqual(t, s.others, 3600*95/100)
						assert.GreaterOrEqual(t, s.polls, 108, "as often as it asked")
					})
				})
			}
		}
	}
}

// While a host is down, one request asks whether a hold concerns it all, and no other one is sent before the end.
func TestOneRequestAsksWhetherAHoldConcernsTheWholeHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s := &service{status: http.StatusServiceUnavailable, down: func() bool { return time.Since(start) > time.Minute && time.Since(start) < 3*time.Minute }}
		tr := throttle.Must(throttle.New(s, throttle.WithKey(func(q *http.Request) string { return q.URL.Path })))
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
		defer stop()
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 200 * time.Millisecond)
				for ctx.Err() == nil {
					statusOf(ctx, tr, fmt.Sprint("http://host.test/", i))
					time.Sleep(1900 * time.Millisecond)
				}
			})
		}
		wg.Wait()
		require.NotEmpty(t, s.refused)
		assert.LessOrEqual(t, s.first, 3, "two that were on their way, and the one that asks")
		assert.Greater(t, s.others, 10*(60+90)/2)
	})
}
