package tests

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/throttletest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// serverFunc is a server without a network: it answers at once, unless it sleeps.
type serverFunc func(*http.Request) *http.Response

func (f serverFunc) RoundTrip(r *http.Request) (*http.Response, error) {
	resp := f(r)
	resp.Request = r
	return resp, nil
}

// says returns a response with headers given by name and value.
func says(status int, header ...string) *http.Response {
	h := http.Header{}
	for i := 0; i < len(header); i += 2 {
		h.Add(header[i], header[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: http.NoBody}
}

// ask sends a request and returns the status, or what it was refused for.
func ask(t *testing.T, tr *throttle.Transport, url string) (status int, refused *throttle.Rejection) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	resp, err := tr.RoundTrip(req)
	if errors.As(err, &refused) {
		return 0, refused
	}
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	if r, ok := throttle.RejectionOf(resp); ok {
		return resp.StatusCode, r
	}
	return resp.StatusCode, nil
}

const api = "http://api.example.com/items"

func TestRetryAfterHoldsAllWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var sent []time.Duration
		n := 0
		tr, err := throttle.New(serverFunc(func(*http.Request) *http.Response {
			sent = append(sent, time.Since(start))
			if n++; n == 1 {
				return says(429, "Retry-After", "5")
			}
			return says(200)
		}), throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Burst(1))))
		require.NoError(t, err)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { ask(t, tr, api) })
		}
		wg.Wait()
		require.Len(t, sent, 20)
		assert.GreaterOrEqual(t, sent[1], 5*time.Second)
		assert.LessOrEqual(t, sent[1], 5500*time.Millisecond, "up to a tenth later")
		for i := 2; i < len(sent); i++ {
			assert.GreaterOrEqual(t, sent[i]-sent[i-1], 90*time.Millisecond, "no burst afterwards")
		}
		t.Log(sent)
	})
}

func TestAHoldBeyondThePatienceRefusesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := throttle.New(serverFunc(func(*http.Request) *http.Response { return says(429, "Retry-After", "60") }),
			throttle.WithMaxWait(10*time.Second))
		require.NoError(t, err)
		status, r := ask(t, tr, api)
		require.Equal(t, 429, status)
		require.Nil(t, r, "the server's own")
		start := time.Now()
		status, r = ask(t, tr, api)
		require.Equal(t, 429, status)
		require.NotNil(t, r)
		assert.Equal(t, throttle.ReasonHeld, r.Reason)
		assert.GreaterOrEqual(t, r.Wait, time.Minute)
		assert.LessOrEqual(t, r.Wait, 61*time.Second)
		assert.Equal(t, 10*time.Second, r.MaxWait)
		assert.Zero(t, time.Since(start))
	})
}

func TestAQuotaBoundsWhatIsSentBeforeItsReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, err := throttletest.NewHandler(throttletest.WithLimits(throttletest.FixedWindow(50, 10*time.Second)),
			throttletest.WithFields(throttletest.XDelta), throttletest.WithRetryAfter(throttletest.NoRetryAfter),
			throttletest.WithRoundTrip(40*time.Millisecond, 5*time.Millisecond))
		require.NoError(t, err)
		tr, err := throttle.New(h.Direct())
		require.NoError(t, err)
		ask(t, tr, api)
		var wg sync.WaitGroup
		for range 200 {
			wg.Go(func() { ask(t, tr, api) })
		}
		wg.Wait()
		assert.Zero(t, h.Counts().Refused)
		assert.Len(t, h.Accepted(), 201)
		time.Sleep(time.Minute)
	})
}

func TestANamedQuotaStopsOnlyThoseUnderIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := throttle.New(serverFunc(func(r *http.Request) *http.Response {
			if strings.HasPrefix(r.URL.Path, "/search") {
				return says(200, "X-RateLimit-Resource", "search", "X-RateLimit-Limit", "10", "X-RateLimit-Remaining", "0",
					"X-RateLimit-Reset", "30")
			}
			return says(200, "X-RateLimit-Resource", "core", "X-RateLimit-Limit", "5000", "X-RateLimit-Remaining", "4000",
				"X-RateLimit-Reset", "3600")
		}), throttle.WithFailFast())
		require.NoError(t, err)
		ask(t, tr, "http://api.github.com/search/code")
		_, r := ask(t, tr, "http://api.github.com/repos/a/b")
		assert.Nil(t, r)
		_, r = ask(t, tr, "http://api.github.com/search/code")
		require.NotNil(t, r)
		assert.Equal(t, "server", r.Limit)
		assert.Equal(t, 30*time.Second, r.Wait)
		_, r = ask(t, tr, "http://api.github.com/repos/a/b")
		assert.Nil(t, r)
	})
}

// The server has counted more than was left for a costly request, and says of which policy.
func TestARefusalThatNamesAPolicyStopsOnlyThoseUnderIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := throttle.New(serverFunc(func(r *http.Request) *http.Response {
			if !strings.HasPrefix(r.URL.Path, "/search") {
				return says(200)
			}
			resp := says(429, "Content-Type", "application/problem+json", "Retry-After", "30",
				"RateLimit", `"second";r=9;t=1, "daily";r=3;t=3600`)
			resp.Body = io.NopCloser(strings.NewReader(
				`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","violated-policies":["daily"]}`))
			return resp
		}), throttle.WithFailFast(), throttle.WithServerHints(headers.Problem))
		require.NoError(t, err)
		ask(t, tr, "http://api.example.com/search/all")
		_, r := ask(t, tr, "http://api.example.com/search/all")
		require.NotNil(t, r)
		assert.InDelta(t, 30*time.Second, r.Wait, float64(time.Second), "not for a whole day: there is something left")
		for _, s := range tr.Limiter().Limits() {
			assert.Zero(t, s.HeldUntil, "%s: the quota stops them, and no hold", s.Name)
		}
		status, r := ask(t, tr, "http://api.example.com/items/1")
		assert.Nil(t, r)
		assert.Equal(t, 200, status)
	})
}

func TestA503SpeaksOfTheHostAndA429OfTheKey(t *testing.T) {
	for status, heldToo := range map[int]bool{503: true, 429: false} {
		synctest.Test(t, func(t *testing.T) {
			tr, err := throttle.New(serverFunc(func(r *http.Request) *http.Response {
				if r.Header.Get("Tenant") == "a" {
					return says(status, "Retry-After", "9")
				}
				return says(200)
			}), throttle.WithLimit(throttle.TokenBucket(100, time.Second)), throttle.WithKey(throttle.ByHeader("Tenant")), throttle.WithFailFast())
			require.NoError(t, err)
			try := func(tenant, host string) *throttle.Rejection {
				req, err := http.NewRequest(http.MethodGet, "http://"+host+"/items", nil)
				require.NoError(t, err)
				req.Header.Set("Tenant", tenant)
				resp, err := tr.RoundTrip(req)
				require.NoError(t, err)
				r, _ := throttle.RejectionOf(resp)
				return r
			}
			require.Nil(t, try("a", "x.com"))
			require.NotNil(t, try("a", "x.com"))
			assert.Equal(t, heldToo, try("b", "x.com") != nil, status)
			assert.Nil(t, try("b", "y.com"))
		})
	}
}

func TestABodyThatWasReadForAHintIsPutBack(t *testing.T) {
	const text = `{"message":"You have exceeded a secondary rate limit."}`
	tr, err := throttle.New(serverFunc(func(*http.Request) *http.Response {
		resp := says(403, "Content-Type", "application/json")
		resp.Body = io.NopCloser(strings.NewReader(text))
		return resp
	}), throttle.WithServerHints(headers.GitHub), throttle.WithFailFast())
	require.NoError(t, err)
	req, err := http.NewRequest(http.MethodGet, "https://api.github.com/repos", nil)
	require.NoError(t, err)
	resp, err := tr.RoundTrip(req)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.Equal(t, text, string(body))
	_, r := ask(t, tr, "https://api.github.com/repos")
	require.NotNil(t, r)
	assert.GreaterOrEqual(t, r.Wait, 59*time.Second)
}

func TestRefusalsWithoutAKnownEndHoldForNoShorterTimeThanBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := throttle.New(serverFunc(func(*http.Request) *http.Response { return says(429) }), throttle.WithFailFast())
		require.NoError(t, err)
		for _, hold := range []time.Duration{time.Second, 2 * time.Second, 2 * time.Second, 2 * time.Second, 2 * time.Second, 2600 * time.Millisecond} { // from then on a third of the time for which nothing was accepted
			_, r := ask(t, tr, api)
			require.Nil(t, r)
			_, r = ask(t, tr, api)
			require.NotNil(t, r)
			assert.Equal(t, throttle.ReasonHeld, r.Reason)
			assert.GreaterOrEqual(t, r.Wait, hold)
			assert.LessOrEqual(t, r.Wait, hold+hold/2)
			time.Sleep(r.Wait)
		}
	})
}

func TestHoldRejectsWaitersThatCannotWaitForItsEnd(t *testing.T) {
	for _, status := range []int{429, 503} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			tr, err := throttle.New(serverFunc(func(*http.Request) *http.Response {
				time.Sleep(100 * time.Millisecond)
				return says(status, "Retry-After", "60")
			}), throttle.WithLimit(throttle.TokenBucket(1, 10*time.Second, throttle.Burst(1))), throttle.WithMaxWait(30*time.Second))
			require.NoError(t, err)
			var all sync.WaitGroup
			all.Go(func() { ask(t, tr, api) })
			synctest.Wait()
			all.Go(func() {
				_, r := ask(t, tr, api)
				if assert.NotNil(t, r) {
					assert.Equal(t, throttle.ReasonHeld, r.Reason)
				}
				assert.Equal(t, 100*time.Millisecond, time.Since(start), status)
			})
			all.Wait()
		})
	}
}

func TestTheLineIsPlannedExactlyOverSeveralHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := throttle.New(serverFunc(func(*http.Request) *http.Response { return says(200) }),
			throttle.WithLimit(throttle.TokenBucket(1, time.Second)), throttle.WithMaxQueue(6))
		require.NoError(t, err)
		ask(t, tr, api)
		var all sync.WaitGroup
		for _, host := range []string{"a", "b", "a", "c", "b"} {
			all.Go(func() { ask(t, tr, "http://"+host+".com/") })
		}
		synctest.Wait()
		req, err := http.NewRequestWithContext(throttle.ContextWithMaxWait(t.Context(), 5*time.Second), http.MethodGet, "http://d.com/", nil)
		require.NoError(t, err)
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		r, ok := throttle.RejectionOf(resp)
		require.True(t, ok)
		assert.Equal(t, 6*time.Second, r.Wait, "five are ahead, and the last is sent after five seconds")
		all.Go(func() { ask(t, tr, "http://e.com/") })
		synctest.Wait()
		_, r = ask(t, tr, "http://f.com/")
		require.NotNil(t, r)
		assert.Equal(t, throttle.ReasonQueueFull, r.Reason, "it is one line, whatever the host")
		all.Wait()
	})
}

func TestA503RejectsWaitersForThatHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		tr, err := throttle.New(serverFunc(func(r *http.Request) *http.Response {
			time.Sleep(100 * time.Millisecond)
			if r.Header.Get("Tenant") == "a" {
				return says(503, "Retry-After", "60")
			}
			return says(200)
		}), throttle.WithLimit(throttle.TokenBucket(1, 10*time.Second)), throttle.WithKey(throttle.ByHeader("Tenant")),
			throttle.WithMaxWait(30*time.Second))
		require.NoError(t, err)
		send := func(tenant string) *throttle.Rejection {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, api, nil)
			require.NoError(t, err)
			req.Header.Set("Tenant", tenant)
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			r, _ := throttle.RejectionOf(resp)
			return r
		}
		require.Nil(t, send("b"))
		var all sync.WaitGroup
		all.Go(func() {
			r := send("b") // would go after 10 s
			if assert.NotNil(t, r) {
				assert.Equal(t, throttle.ReasonHeld, r.Reason)
			}
			assert.Equal(t, 200*time.Millisecond, time.Since(start))
		})
		synctest.Wait()
		require.Nil(t, send("a"))
		all.Wait()
	})
}

// A dry run takes in what servers report, also in answer to requests that would have waited or been refused.
func TestADryRunHearsTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := serverOf(t, throttletest.WithLimits(throttletest.FixedWindow(2, time.Minute)))
		tr, err := throttle.New(h.Direct(), throttle.WithLimit(throttle.SlidingWindow(1, time.Hour)),
			throttle.WithDryRun(), throttle.WithMaxWait(time.Second))
		require.NoError(t, err)
		for range 3 {
			ask(t, tr, api)
		}
		held := time.Duration(0)
		for b := range tr.Limiter().Buckets() {
			if b.Limit == "server" {
				held = time.Until(b.HeldUntil)
			}
		}
		assert.GreaterOrEqual(t, held, time.Second, "a refusal without Retry-After")
		assert.Equal(t, uint64(2), tr.Stats().Rejected[throttle.ReasonMaxWait])
	})
}

// Servers that say nothing until they refuse report first to a request that has waited. Their report also holds requests
// that need not wait.
func TestTheFirstReportToARequestThatWaitedHoldsEveryRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		tr := throttle.Must(throttle.New(serverFunc(func(*http.Request) *http.Response {
			if n++; n == 3 {
				return says(429, "Retry-After", "5")
			}
			return says(200)
		}), throttle.WithLimit(throttle.SlidingWindow(2, time.Second))))
		for range 3 {
			_, refused := ask(t, tr, "http://h/")
			require.Nil(t, refused)
		}
		begin := time.Now()
		_, refused := ask(t, tr, "http://h/") // the window has room for it
		require.Nil(t, refused)
		require.GreaterOrEqual(t, time.Since(begin), 5*time.Second)
	})
}

// An empty quota whose reset has passed, because it was rounded down, stops no request: the refusal must do that itself.
func TestARefusalWithAResetThatHasPassedHoldsRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := throttle.New(serverFunc(func(*http.Request) *http.Response {
			return says(429, "X-RateLimit-Limit", "10", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "0")
		}), throttle.WithFailFast())
		require.NoError(t, err)
		_, r := ask(t, tr, api)
		require.Nil(t, r)
		_, r = ask(t, tr, api)
		require.NotNil(t, r)
		assert.Equal(t, throttle.ReasonHeld, r.Reason)
		assert.GreaterOrEqual(t, r.Wait, time.Second)
	})
}

// A curt server answers in 20 ms, and refuses with no more than a status what its rule does not accept.
type curt struct {
	start   time.Time
	accepts func(at time.Duration, n int) bool // of the n-th request, counted from 0
	status  int
	mu      sync.Mutex
	sent    []time.Duration
	ok      int
	refused int
}

func (c *curt) RoundTrip(req *http.Request) (*http.Response, error) {
	c.mu.Lock()
	at := time.Since(c.start)
	ok := c.accepts(at, len(c.sent))
	c.sent = append(c.sent, at)
	if ok {
		c.ok++
	} else {
		c.refused++
	}
	c.mu.Unlock()
	time.Sleep(20 * time.Millisecond)
	resp := says(http.StatusOK, "Content-Type", "text/plain")
	if !ok {
		resp = says(c.status, "Content-Type", "text/plain")
	}
	resp.Request = req
	return resp, nil
}

// most returns the most requests that were sent within a time.
func (c *curt) most(within time.Duration) (most int) {
	for i, first := 0, 0; i < len(c.sent); i++ {
		for c.sent[i]-c.sent[first] >= within {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// press has callers send to a server in a closed loop, each for itself.
func (c *curt) press(t *testing.T, callers int, d time.Duration, opts ...throttle.Option) {
	t.Helper()
	c.start = time.Now()
	tr := transportTo(t, c, opts...)
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for ctx.Err() == nil {
				resp, err := tr.RoundTrip(get(t, ctx, api))
				if err != nil {
					return // it would wait for longer
				}
				resp.Body.Close()
			}
		})
	}
	all.Wait()
}

// perSecond is nginx's limit_req: n per second, and no larger burst.
func perSecond(n int, burst float64) func(time.Duration, int) bool {
	full, at := 0.0, time.Duration(0)
	return func(now time.Duration, _ int) bool {
		full, at = max(0, full-float64(n)*(now-at).Seconds()), now
		if full > burst {
			return false
		}
		full++
		return true
	}
}

func TestALimitThatRefusesWithABareStatusIsPaced(t *testing.T) { // slow: minutes of a server
	for _, status := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusForbidden} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			const runs = 40
			ok, refused := 0, 0 // one row of 20 refusals is more or less, as the callers happen to be scheduled
			for range runs {
				synctest.Test(t, func(t *testing.T) {
					s := &curt{accepts: perSecond(10, 5), status: status}
					s.press(t, 16, 20*time.Second)
					assert.Less(t, s.most(5*time.Second), 3*5*10)
					ok, refused = ok+s.ok, refused+s.refused
				})
			}
			assert.Greater(t, ok/runs, 150)
			assert.Less(t, refused/runs, 100)
		})
	}
}

// Limits that learn heed a bare 403 once requests have been accepted, as they heed a 429.
func TestABareStatusIsHeededByLimitsThatLearn(t *testing.T) {
	for _, c := range []struct {
		name     string
		opts     []throttle.Option
		statuses []int
		most     int // refused requests
	}{
		{"rate", []throttle.Option{throttle.WithAdaptive()}, []int{429, 503, 403}, 150},
		{"rate beside a limit", []throttle.Option{throttle.WithAdaptive(), throttle.WithLimit(throttle.TokenBucket(100, time.Second))}, []int{429, 503, 403}, 150},
		{"rate and number", []throttle.Option{throttle.WithAdaptive(), throttle.WithAdaptiveInFlight()}, []int{429, 403}, 300},
		{"number, which does not suit a server that limits a rate", []throttle.Option{throttle.WithAdaptiveInFlight()}, []int{429, 403}, 10_000},
	} {
		for _, status := range c.statuses {
			t.Run(c.name+" "+http.StatusText(status), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &curt{accepts: perSecond(10, 30), status: status}
					s.press(t, 16, 30*time.Second, c.opts...)
					assert.Greater(t, s.ok, 250)
					assert.Less(t, s.refused, c.most)
				})
			})
		}
	}
}

func TestAnOutageByABareStatusIsNotPressed(t *testing.T) {
	for status, most := range map[int]int{http.StatusServiceUnavailable: 50, http.StatusForbidden: 54} {
		synctest.Test(t, func(t *testing.T) {
			s := &curt{accepts: func(at time.Duration, _ int) bool { return at < 5*time.Second || at >= 10*time.Second }, status: status}
			s.press(t, 16, 20*time.Second)
			assert.LessOrEqual(t, s.refused, most)
			assert.Greater(t, s.ok, 7000, "it continues afterwards")
		})
	}
}

// A client that knows its limit asks once a second, for two minutes, whether a server that answers nothing but 503 is back, and then has its
// whole rate.
func TestAKnownLimitIsUsedAgainRightAfterAnOutage(t *testing.T) {
	for _, down := range []time.Duration{5 * time.Second, 30 * time.Second, 110 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			const rate = 48
			falls, rises := 10*time.Second, 10*time.Second+down
			s := &curt{accepts: func(at time.Duration, _ int) bool { return at < falls || at >= rises }, status: http.StatusServiceUnavailable}
			s.press(t, 64, rises+10*time.Second, throttle.WithLimit(throttle.Pace(rate, time.Second)))
			var while, after int
			for _, at := range s.sent {
				switch {
				case falls+time.Second <= at && at < rises:
					while++
				case rises+1300*time.Millisecond <= at && at < rises+3300*time.Millisecond: // a gap is up to a fifth longer than a second, at random
					after++
				}
			}
			assert.LessOrEqual(t, s.refused, int(down/time.Second)+11, "requests in the outage")
			once := (down - time.Second).Seconds() / 1.12
			assert.InDelta(t, once, while, 1+once/25, "one a second after the last response, once the row is seen")
			assert.InDelta(t, 2*rate, after, 1, "in two seconds after it")
		})
	}
}

// A bare refusal now and then costs no more than itself, and those of a host that accepts nothing are no limit.
func TestAnIsolatedBareStatusCostsNothingElse(t *testing.T) {
	never := func(time.Duration, int) bool { return false }
	for _, c := range []struct {
		name    string
		status  int
		accepts func(time.Duration, int) bool
		opts    []throttle.Option
	}{
		{"every tenth is 403", http.StatusForbidden, func(_ time.Duration, n int) bool { return n%10 != 9 }, nil},
		{"every tenth is 503", http.StatusServiceUnavailable, func(_ time.Duration, n int) bool { return n%10 != 9 }, nil},
		{"nothing but 403", http.StatusForbidden, never, nil},
		{"without hints", http.StatusServiceUnavailable, never, []throttle.Option{throttle.WithoutServerHints()}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &curt{accepts: c.accepts, status: c.status}
				s.press(t, 4, 10*time.Second, c.opts...)
				assert.GreaterOrEqual(t, len(s.sent), 4*10*50)
			})
		})
	}
}

// What one key is refused by a bare 503 concerns no other key of the host.
func TestABareStatusHoldsNoOtherKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := transportTo(t, serverFunc(func(r *http.Request) *http.Response {
			if r.Header.Get("Authorization") == "bad" {
				return says(http.StatusServiceUnavailable)
			}
			return says(http.StatusOK)
		}), throttle.WithLimit(throttle.TokenBucket(1000, time.Second, throttle.Key(throttle.ByHeader("Authorization")))))
		send := func(key string) (took time.Duration) {
			req := get(t, t.Context(), api)
			req.Header.Set("Authorization", key)
			began := time.Now()
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			resp.Body.Close()
			return time.Since(began)
		}
		for range 10 {
			send("bad")
			time.Sleep(20 * time.Millisecond)
		}
		assert.Zero(t, send("good"))
		assert.Greater(t, send("bad"), 500*time.Millisecond)
		assert.Zero(t, send("good"))
	})
}
