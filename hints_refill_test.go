package throttle_test

import (
	"math"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"

	"github.com/stretchr/testify/assert"
)

// A refilling server accepts 600 requests a minute, and reports how many are left, but not that the next one is accepted soon.
type refilling struct {
	mu          sync.Mutex
	log         []time.Time // of a sliding window
	count       bool        // the window before counts by the share of it that the last minute covers, as in go-chi/httprate
	turn        int64
	used        [2]int // in this minute and in the one before
	ok, refused int
}

func (s *refilling) RoundTrip(req *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	var left int
	var reset time.Duration
	if s.count {
		if turn := now.Unix() / 60; turn != s.turn {
			s.used = [2]int{0, s.used[0] * int(max(0, 2-turn+s.turn))}
			s.turn = turn
		}
		reset = now.Truncate(time.Minute).Add(time.Minute).Sub(now)
		left = 600 - s.used[0] - int(float64(s.used[1])*reset.Minutes())
	} else {
		for len(s.log) > 0 && now.Sub(s.log[0]) >= time.Minute {
			s.log = s.log[1:]
		}
		left, reset = 600-len(s.log), time.Minute // until all requests may come together
	}
	status := http.StatusTooManyRequests
	if left > 0 {
		status, left = http.StatusOK, left-1
		s.log = append(s.log, now)
		s.used[0]++
		s.ok++
	} else {
		s.refused++
	}
	resp := says(status, "RateLimit-Limit", "600", "RateLimit-Remaining", strconv.Itoa(max(0, left)), "RateLimit-Reset", strconv.Itoa(int(math.Ceil(reset.Seconds()))))
	resp.Request = req
	return resp, nil
}

// The reset of a quota that refills is not when the next request is accepted, neither if nothing is left nor after a refusal.
func TestAnAdaptiveLimitDoesNotWaitForTheResetOfAQuotaThatRefills(t *testing.T) {
	for name, count := range map[string]bool{"a log whose reset moves": false, "a count of two windows": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &refilling{count: count}
				press(t, transportTo(t, s, throttle.WithAdaptive(throttle.AIMD{Initial: 20})), 16, 6*time.Minute, api)
				assert.Greater(t, s.ok, 6*600*85/100)
				assert.Less(t, s.refused, s.ok/20)
			})
		})
	}
}
