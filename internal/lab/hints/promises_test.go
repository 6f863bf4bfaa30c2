package hints

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
)

// A recordedLimit keeps when requests came.
type recordedLimit struct {
	hintLimit
	came    []int64
	refused int64 // when the first was refused; 0: none was
	retry   int64 // when the server asked for the next request
}

func (l *recordedLimit) admit(now int64) (ok bool, left, end, retry int64) {
	ok, left, end, retry = l.hintLimit.admit(now)
	l.came = append(l.came, now)
	if !ok && l.refused == 0 {
		l.refused, l.retry = now, now+int64(ceilSeconds(time.Duration(retry-now)))*int64(time.Second)
	}
	return ok, left, end, retry
}

// between returns how many requests came from from on and before to.
func (l *recordedLimit) between(from, to int64) (n int) {
	for _, at := range l.came {
		if at >= from && at < to {
			n++
		}
	}
	return n
}

func TestNothingLeavesBeforeARetryAfterAndNoBurstFollowsIt(t *testing.T) {
	const n, trip = 50, 20 * time.Millisecond
	for _, wait := range []time.Duration{time.Second, 5 * time.Second, time.Minute, time.Hour} {
		for _, clients := range []int{1, 10} {
			t.Run(fmt.Sprint(wait, " ", clients), func(t *testing.T) {
				var l *recordedLimit
				c := hintCase{clients: clients, trip: trip, length: 2*wait + wait/2, options: hintsAlone, report: onlyRetryAfter}
				c.limit = func(*rand.Rand) hintLimit {
					l = &recordedLimit{hintLimit: &winLimit{n: n, per: int64(wait), clock: -1}}
					return l
				}
				c.run(t, 1)
				require.NotZero(t, l.refused)
				known := l.refused + int64(2*trip) // every client that was refused has heard it by then
				if clients == 1 {
					assert.Zero(t, l.between(known, l.retry))
				}
				assert.LessOrEqual(t, l.between(l.retry, l.retry+int64(wait)), 2*n+clients-1) // each of several may be one ahead
			})
		}
	}
}

// A limit with a Fraction that was given the very number that the server reports keeps to its part already. Of any other quota, the
// rest is left to other clients.
func TestAShareLeavesAPartOfAQuotaOnlyOnce(t *testing.T) {
	for _, c := range []struct{ limit, left, more int64 }{{1000, 10, 10}, {100, 52, 2}} {
		synctest.Test(t, func(t *testing.T) {
			left := c.left + 1
			tr, err := throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
				left--
				return &http.Response{StatusCode: 200, Body: http.NoBody, Request: r, Header: http.Header{
					"X-Ratelimit-Limit":     {strconv.FormatInt(c.limit, 10)},
					"X-Ratelimit-Remaining": {strconv.FormatInt(left, 10)},
					"X-Ratelimit-Reset":     {"60"},
				}}, nil
			}), throttle.WithLimit(throttle.TokenBucket(1000, time.Second, throttle.Fraction(0.5))))
			require.NoError(t, err)
			start := time.Now()
			for range 1 + c.more {
				_, err := tr.RoundTrip(get(t.Context()))
				require.NoError(t, err)
			}
			assert.Less(t, time.Since(start), time.Second)
			resp, err := tr.RoundTrip(get(throttle.ContextWithMaxWait(t.Context(), time.Second)))
			require.NoError(t, err)
			r, local := throttle.RejectionOf(resp)
			if left < 0 { // a client with a rate of its own is trusted until a request is refused
				require.False(t, local)
				return
			}
			require.True(t, local)
			assert.Equal(t, "server", r.Limit)
			assert.Greater(t, r.Wait, 58*time.Second)
		})
	}
}

// After a window that ran dry what is left is spread, until a window ends with plenty left: then requests leave at once again.
func TestInteractiveUseIsNotSpreadAfterAWindowWithPlentyLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, per = 50, 10 * time.Second
		s := &hintServer{limit: &winLimit{n: n, per: int64(per)}, report: draft7, began: time.Now(), dice: rand.New(rand.NewPCG(1, 2)),
			refused: make([]int, 1), counts: make([][]int, 1)}
		tr, err := throttle.New(s.client(0))
		require.NoError(t, err)
		asks := func(times int) time.Duration {
			start := time.Now()
			for range times {
				_, err := tr.RoundTrip(get(t.Context()))
				require.NoError(t, err)
			}
			return time.Since(start)
		}
		assert.Zero(t, asks(n), "the first window")
		assert.Equal(t, per, asks(1), "it is dry")
		assert.Equal(t, 2*((per-time.Second)/(n-1)), asks(2), "what is left is spread, and the last one leaves a second before the end")
		time.Sleep(2 * per)
		asks(1)
		assert.Zero(t, asks(n/2), "that window ended with plenty left")
		assert.Zero(t, s.refused[0])
	})
}

// Each request prolongs an elastic window, accepted or not. A client gets the limit once in a window and a pause as long as the
// server asks for.
func TestAnElasticWindowIsLeftAloneUntilItEnds(t *testing.T) {
	for server, least := range map[string]float64{"elastic window": 0.33, "elastic window, reported late": 0.26} {
		for name, options := range map[string]func(int64, time.Duration) []throttle.Option{"hints": hintsAlone, "known": known, "adaptive": adaptiveTwice} {
			t.Run(server+", "+name, func(t *testing.T) {
				r := hintServerOf(t, server).with(options, time.Millisecond).median(t, seeds(3))
				assert.GreaterOrEqual(t, r.share, least, "%v", r)
				assert.LessOrEqual(t, r.refused, 0.05, "%v", r) // two for each window
			})
		}
	}
}

// A refusal that reports an end a minute late costs that wait. What is left of the windows after it is spread, which shows when they end.
func TestEndsThatAreReportedAMinuteLateAreLearned(t *testing.T) {
	c := hintServerOf(t, "clock, exact")
	c.limit = window(50, time.Second, true)
	c.report = func(h http.Header, ok bool, n, left int64, per time.Duration, now, end, retry time.Time) {
		deltaExact(h, ok, n, left, per, now, end.Add(time.Minute), retry)
	}
	c.options, c.length = hintsAlone, 3*time.Minute
	r := c.median(t, seeds(3))
	assert.GreaterOrEqual(t, r.share, 0.31, "%v", r)
	assert.LessOrEqual(t, r.refused, 0.001, "%v", r)
}

// Refusals of a client that begins while others use up the window are no ceiling of its learned rate, as its first accepted response shows.
func TestTheFirstAcceptedResponseExplainsTheRefusalsBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status, left := http.StatusTooManyRequests, "0"
		tr := throttle.Must(throttle.New(roundTripper(func(*http.Request) (*http.Response, error) {
			h := make(http.Header)
			for name, value := range map[string]string{"X-RateLimit-Limit": "50", "X-RateLimit-Remaining": left, "X-RateLimit-Reset": "1", "Retry-After": "1"} {
				h.Set(name, value)
			}
			return &http.Response{StatusCode: status, Header: h, Body: http.NoBody}, nil
		}), throttle.WithAdaptive()))
		for i := range 3 {
			if i == 2 {
				status, left = http.StatusOK, "20"
			}
			resp, err := tr.RoundTrip(get(t.Context()))
			require.NoError(t, err)
			resp.Body.Close()
			for b := range tr.Limiter().Buckets() {
				if b.Learned != nil {
					require.Zero(t, b.Learned.Ceiling, "response %d: %v", i, b)
				}
			}
		}
	})
}
