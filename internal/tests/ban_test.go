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
	case s.accepted.IsZero():
		s.accepted = now
	}
	return resp, nil
}

// A ban of ten minutes that each request prolongs ends, whatever its status and whatever limits the client has.
func TestABanThatEachRequestProlongsEnds(t *testing.T) {
	for name, opts := range learning {
		for _, status := range []int{http.StatusTooManyRequests, http.StatusForbidden, http.StatusServiceUnavailable} {
			t.Run(fmt.Sprint(name, " ", status), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &banning{status: status, from: time.Now().Add(time.Minute), ban: 10 * time.Minute}
					tr := throttle.Must(throttle.New(s, opts...))
					end := time.Now().Add(3 * time.Hour)
					var wg sync.WaitGroup
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
