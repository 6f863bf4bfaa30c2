package throttlepage

import (
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/stretchr/testify/assert"
)

// A limited is a server that fills a bucket, 20 ms away.
type limited struct {
	rate, burst float64
	retryAfter  bool

	mu     sync.Mutex
	tokens float64
	at     time.Time
}

func (s *limited) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(20 * time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.tokens, s.at = min(s.burst, s.tokens+s.rate*now.Sub(s.at).Seconds()), now
	resp := &http.Response{StatusCode: http.StatusOK, Header: make(http.Header), Body: http.NoBody, Request: r}
	if s.tokens--; s.tokens < 0 {
		s.tokens, resp.StatusCode = s.tokens+1, http.StatusTooManyRequests
		if s.retryAfter {
			resp.Header.Set("Retry-After", "1")
		}
	}
	return resp, nil
}

func TestLearnedLimitIsBadOnlyIfProbingDoesNotHelp(t *testing.T) { // slow: six servers for five minutes
	for _, s := range []*limited{
		{rate: 1, burst: 1}, {rate: 5, burst: 1}, {rate: 20, burst: 20}, {rate: 20, burst: 20, retryAfter: true}, {rate: 100, burst: 20}, {rate: 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			transport := throttle.Must(throttle.New(s, throttle.WithAdaptive()))
			var clients sync.WaitGroup
			end := time.Now().Add(5 * time.Minute)
			for range 16 {
				clients.Go(func() {
					for time.Now().Before(end) {
						resp, err := transport.RoundTrip(request(http.MethodGet, "http://api.example.com/"))
						if assert.NoError(t, err) {
							resp.Body.Close()
						}
					}
				})
			}
			p := started(t, map[string]source{"api": transport.Limiter()})
			bad := 0
			for time.Now().Before(end) {
				time.Sleep(time.Second)
				if p.frame(query{}).view.Limiters[0].Level == "bad" {
					bad++
				}
			}
			if s.rate == 0 {
				assert.Greater(t, bad, 290, "of 300 s")
			} else {
				assert.Zero(t, bad, "of 300 s, at %v/s", s.rate)
			}
			clients.Wait()
			p.Close()
		})
	}
}
