package tests

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// A shrinking server works on a number of requests at a time, on fewer after a while, and refuses others immediately.
type shrinking struct {
	from, to   int
	work, away time.Duration // for each request; there and back
	code       int           // of a refusal,
	after      int           // and its Retry-After in seconds
	callers    int
	shrinks    time.Duration // after the start
}

// play returns what the server accepts and refuses in the fourth minute after it has shrunk.
func (s shrinking) play(t *testing.T, opts ...throttle.Option) (accepted, refused int) {
	t.Helper()
	var mu sync.Mutex
	working, shrinks := 0, time.Now().Add(s.shrinks)
	from, end := shrinks.Add(3*time.Minute), shrinks.Add(4*time.Minute)
	tr, err := throttle.New(roundTripper(func(req *http.Request) (*http.Response, error) {
		time.Sleep(s.away / 2)
		defer time.Sleep(s.away / 2)
		resp := &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: req, ProtoMajor: 1, ProtoMinor: 1}
		mu.Lock()
		defer mu.Unlock()
		room, counts := s.from, 0
		if !time.Now().Before(shrinks) {
			room = s.to
		}
		if !time.Now().Before(from) {
			counts = 1
		}
		if working >= room {
			refused += counts
			resp.StatusCode = s.code
			resp.Header.Set("Retry-After", strconv.Itoa(s.after))
			return resp, nil
		}
		working++
		accepted += counts
		mu.Unlock()
		time.Sleep(s.work)
		mu.Lock()
		working--
		return resp, nil
	}), opts...)
	require.NoError(t, err)
	var all sync.WaitGroup
	for range s.callers {
		all.Go(func() {
			for time.Now().Before(end) {
				req, _ := http.NewRequest(http.MethodGet, "http://host.example/", nil)
				resp, err := tr.RoundTrip(req)
				if assert.NoError(t, err) {
					resp.Body.Close()
				}
			}
		})
	}
	all.Wait()
	return accepted, refused
}

// The responses to what was accepted after a pause come after the refusal of what was sent too fast, so that refusal is news although no
// accepted response has come since the pause. Otherwise the rate of 20 workers is tried again after each pause, for good.
func TestALearnedRateFollowsAServerThatLosesWorkers(t *testing.T) { // slow: servers for minutes
	ms := time.Millisecond
	for _, s := range []shrinking{
		{20, 4, 40 * ms, ms, 429, 1, 16, time.Minute},
		{20, 4, 100 * ms, 20 * ms, 503, 1, 40, time.Minute},
		{20, 1, 100 * ms, ms, 429, 2, 16, 10 * time.Minute},
		{40, 10, 400 * ms, 40 * ms, 429, 5, 64, 2 * time.Minute},
		{20, 4, 2000 * ms, ms, 429, 1, 40, time.Minute},
	} {
		for name, opts := range map[string][]throttle.Option{
			"rate": {throttle.WithAdaptive()}, "rate and number": {throttle.WithAdaptive(), throttle.WithAdaptiveInFlight()},
		} {
			t.Run(fmt.Sprint(s, name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					accepted, refused := s.play(t, opts...)
					possible := s.to * int(time.Minute/s.work)
					t.Logf("%d of %d accepted, %d refused", accepted, possible, refused)
					assert.Greater(t, accepted, possible*6/10)
					assert.LessOrEqual(t, refused, (accepted+refused)/50+1)
				})
			})
		}
	}
}
