package tests

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
)

// A pressed server has one caller, which sends the next request as soon as it can, except that it rests now and then. It notes the longest
// waits that it has not asked for.
type pressed struct {
	status   int           // of a refusal
	wait     time.Duration // for which it asks then
	took     time.Duration // from a request to its response
	every    time.Duration // in which it accepts a request; 0: it accepts all
	closed   bool          // it accepts none
	start    time.Time
	last     time.Duration // when a request came last, and all others likewise
	asked    time.Duration // until when it has asked to stay away
	accepted time.Duration // when it accepted the last request, not counting rests
	gap      time.Duration // the longest between two of those
	requests int
	wrong    string
}

func (s *pressed) RoundTrip(q *http.Request) (*http.Response, error) {
	now := time.Since(s.start)
	waited, most := now-max(s.last, s.asked), max(64*time.Second, (now-s.accepted)/3, 3*s.gap)
	if s.requests++; s.requests == 1 {
		s.accepted = now
	} else if waited > most && s.wrong == "" {
		s.wrong = fmt.Sprintf("at %v, request %d was sent after %v: nothing was accepted for %v, the longest gap is %v", now, s.requests, waited, now-s.accepted, s.gap)
	}
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: q, ProtoMajor: 1, ProtoMinor: 1}
	s.last = now
	if d := now - s.accepted; !s.closed && (d >= s.every || d == 0) {
		s.accepted, s.gap = now, max(s.gap, d)
	} else {
		resp.StatusCode = s.status
		if s.wait > 0 {
			resp.Header.Set("Retry-After", strconv.Itoa(int(s.wait/time.Second)))
			s.asked = max(s.asked, now+s.took+s.wait+min(s.wait/10, time.Second))
		}
	}
	time.Sleep(s.took)
	return resp, nil
}

// rest has the caller rest.
func (s *pressed) rest(d time.Duration) {
	time.Sleep(d)
	s.accepted, s.last = s.accepted+d, s.last+d
}

// ten is what each request costs.
var ten = throttle.Cost(func(*http.Request) int64 { return 10 })

var learning = map[string][]throttle.Option{
	"hints":        nil,
	"adaptive":     {throttle.WithAdaptive()},
	"in flight":    {throttle.WithAdaptiveInFlight()},
	"both":         {throttle.WithAdaptive(), throttle.WithAdaptiveInFlight()},
	"own limit":    {throttle.WithLimit(throttle.TokenBucket(100, time.Second))},
	"server quota": {throttle.WithLimit(throttle.ServerQuota("tokens", ten)), throttle.WithServerHints(headers.OpenAI)},
}

// In 30 days, a server accepts requests, accepts few or none, asks for waits or does not, and is not used. No request waits for longer than
// what was seen explains, whatever its status says of refusals.
func TestNoWaitThatWasNotAskedForIsLongerThanWhatWasSeenExplains(t *testing.T) { // slow: histories of 30 days
	seeds, most := uint64(4), 400
	if testing.Short() {
		seeds, most = 1, 100
	}
	for name, opts := range learning {
		for _, status := range []int{429, 503, 403, 420, 529, 500} {
			t.Run(fmt.Sprint(name, " ", status), func(t *testing.T) {
				for seed := range seeds {
					synctest.Test(t, func(t *testing.T) {
						r := rand.New(rand.NewPCG(seed, uint64(status)))
						s := &pressed{status: status, start: time.Now(), took: time.Duration(1+r.IntN(200)) * time.Millisecond}
						tr := throttle.Must(throttle.New(s, opts...))
						get := func() {
							q, err := http.NewRequestWithContext(t.Context(), "GET", "http://host.test/", nil)
							require.NoError(t, err)
							resp, err := tr.RoundTrip(q)
							require.NoError(t, err)
							require.NoError(t, resp.Body.Close())
						}
						for time.Since(s.start) < 30*24*time.Hour {
							s.closed, s.every, s.wait = false, 0, 0
							n, until := 1+r.IntN(40), time.Now().Add(30*24*time.Hour)
							switch r.IntN(8) {
							case 0:
								s.closed, n = true, 1+r.IntN(3)
							case 1:
								s.closed, s.wait, n = true, time.Duration(1+r.IntN(30))*time.Second, 1+r.IntN(3)
							case 2:
								s.closed, n, until = true, most, time.Now().Add(time.Duration(r.Int64N(int64(12*time.Hour))))
							case 3:
								s.every, n = time.Duration(r.ExpFloat64()*float64(5*time.Minute)), 100
							case 4, 5:
								d := time.Duration(r.ExpFloat64() * float64(24*time.Hour))
								s.rest(d)
							}
							for ; n > 0 && time.Now().Before(until); n-- {
								get()
							}
						}
						assert.Empty(t, s.wrong, "seed %d", seed)
					})
				}
			})
		}
	}
}

// What a host has accepted is remembered for as long as it took: a client that has rested goes on at the rate of before after a refusal,
// whatever made its account.
func TestWhatAHostAcceptedIsRememberedForAsLongAsItTook(t *testing.T) {
	for rest, why := range map[time.Duration]string{
		0: "as accepted before the refusal", 55 * time.Second: "as accepted before the refusal", 10 * time.Minute: "growing, because no rate was known",
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &pressed{status: 429, closed: true, start: time.Now(), took: 20 * time.Millisecond}
			tr := throttle.Must(throttle.New(s))
			get := func(n int) {
				for range n {
					q, err := http.NewRequestWithContext(t.Context(), "GET", "http://host.test/", nil)
					require.NoError(t, err)
					resp, err := tr.RoundTrip(q)
					require.NoError(t, err)
					require.NoError(t, resp.Body.Close())
				}
			}
			get(1)
			s.closed = false
			get(3000)
			s.rest(rest)
			s.closed = true
			get(1)
			require.Len(t, tr.Limiter().Servers(), 1)
			time.Sleep(time.Until(tr.Limiter().Servers()[0].HeldUntil))
			assert.Contains(t, tr.Limiter().Servers()[0].String(), why, "after a rest of %v", rest)
		})
	}
}
