package tests

import (
	"fmt"
	"io"
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

// A banning server refuses everything from some time on, without a word about limits, and each request in that time begins the ban again.
type banning struct {
	mu       sync.Mutex
	status   int
	from     time.Time
	ban      time.Duration
	asks     string // for this wait, in seconds, which is shorter than the ban; "": for none
	until    time.Time
	refused  int
	accepted time.Time // the first time after the ban
}

func (s *banning) RoundTrip(q *http.Request) (*http.Response, error) {
	time.Sleep(100 * time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: q, ProtoMajor: 1, ProtoMinor: 1}
	switch {
	case now.Before(s.from):
	case s.until.IsZero() || now.Before(s.until):
		s.refused++
		s.until = now.Add(s.ban)
		resp.StatusCode, resp.Body = s.status, io.NopCloser(strings.NewReader("<html>Request Rate Threshold Exceeded</html>"))
		if s.asks != "" {
			resp.Header.Set("Retry-After", s.asks)
		}
	case s.accepted.IsZero():
		s.accepted = now
	}
	return resp, nil
}

// A ban of ten minutes that each request prolongs ends, whatever its status and whatever limits the client has.
func TestABanThatEachRequestProlongsEnds(t *testing.T) { // slow: minutes of a server
	for name, opts := range learning {
		for _, status := range []int{http.StatusTooManyRequests, http.StatusForbidden, http.StatusServiceUnavailable} {
			t.Run(fmt.Sprint(name, " ", status), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &banning{status: status, from: time.Now().Add(time.Minute), ban: 10 * time.Minute}
					tr := throttle.Must(throttle.New(s, opts...))
					useFor(t, tr, 3*time.Hour)
					require.NotZero(t, s.accepted, "%d refused", s.refused)
					assert.Less(t, s.accepted.Sub(s.from), time.Hour)
					most := 45
					if status == http.StatusServiceUnavailable { // maybe it is down, so for two minutes it is asked each second
						most = 140
					}
					assert.LessOrEqual(t, s.refused, most)
				})
			})
		}
	}
}

// Each refusal names an end of the ban that is three minutes too early, and each request before the true end begins the ban again. The server
// accepts no request of a client that waits exactly as long as it asks.
func TestABanThatLastsLongerThanItSaysEnds(t *testing.T) { // slow: minutes of a server
	for name, opts := range learning {
		if name == "server quota" {
			continue // it believes what its server says of the quota
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &banning{status: http.StatusTooManyRequests, from: time.Now().Add(10 * time.Minute), ban: time.Hour + 3*time.Minute, asks: "3600"}
				useFor(t, throttle.Must(throttle.New(s, opts...)), 6*time.Hour)
				require.NotZero(t, s.accepted, "%d refused", s.refused)
				assert.Less(t, s.accepted.Sub(s.from), 4*time.Hour)
				assert.LessOrEqual(t, s.refused, 6)
			})
		})
	}
}

// useFor has two callers send a request each second.
func useFor(t *testing.T, tr *throttle.Transport, d time.Duration) {
	var wg sync.WaitGroup
	end := time.Now().Add(d)
	for range 2 {
		wg.Go(func() {
			for time.Now().Before(end) {
				q, err := http.NewRequestWithContext(t.Context(), "GET", "http://host.test/", nil)
				require.NoError(t, err)
				resp, err := tr.RoundTrip(q)
				if err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
				time.Sleep(900 * time.Millisecond)
			}
		})
	}
	wg.Wait()
}

// A quota that others use up at the beginning of each hour says until when, and is asked about then, however often it was empty.
func TestAnEmptyQuotaIsAskedAboutAtItsResetEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []time.Time
		tr := throttle.Must(throttle.New(roundTripper(func(q *http.Request) (*http.Response, error) {
			asked = append(asked, time.Now())
			return &http.Response{StatusCode: http.StatusTooManyRequests, Body: http.NoBody, Request: q, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{
				"Retry-After": {"3600"}, "X-Ratelimit-Limit": {"100"}, "X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {"3600"},
			}}, nil
		})))
		for range 12 {
			q, err := http.NewRequestWithContext(t.Context(), "GET", "http://host.test/", nil)
			require.NoError(t, err)
			resp, err := tr.RoundTrip(q)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
		}
		for i, at := range asked[1:] {
			assert.LessOrEqual(t, at.Sub(asked[i]), time.Hour+time.Second, i) // a hold is extended at random, by at most a second
		}
	})
}
