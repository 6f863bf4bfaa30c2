package tests

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// gatesKept returns how many gates are kept.
func gatesKept(l *throttle.Limiter) int {
	all := l.Limits()
	return all[len(all)-1].Keys
}

// sleep lets time pass, and all that then happens.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// reply returns a response without a body, with these names and values of headers.
func reply(status int, kv ...string) (*http.Response, error) {
	h := http.Header{}
	for i := 0; i < len(kv); i += 2 {
		h.Add(kv[i], kv[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: http.NoBody}, nil
}

// Requests that were passed over for long, and that the server then holds, delay no other host.
func TestStarvedRequestsThatAreHeldBarNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var n atomic.Int64
		tr, err := throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.URL.Host != "a.com" {
				return reply(200)
			}
			time.Sleep(50 * time.Millisecond)
			if n.Add(1) == 1 {
				return reply(429, "Retry-After", "12")
			}
			return reply(429, "Retry-After", "3600")
		}), throttle.WithLimit(throttle.TokenBucket(2, time.Second, throttle.Burst(1))))
		require.NoError(t, err)
		tr.RoundTrip(get(t, t.Context(), "http://a.com/x"))
		ctx, cancel := context.WithCancel(t.Context())
		for _, path := range []string{"x", "y", "x", "y"} {
			go tr.RoundTrip(get(t, ctx, "http://a.com/"+path))
		}
		var last, worst time.Duration
		var stop atomic.Bool
		var all sync.WaitGroup
		all.Go(func() {
			for !stop.Load() {
				tr.RoundTrip(get(t, t.Context(), "http://b.com/z"))
				worst = max(worst, time.Since(start)-last)
				last = time.Since(start)
			}
		})
		all.Go(func() {
			for !stop.Load() {
				tr.RoundTrip(get(t, t.Context(), "http://b.com/z"))
			}
		})
		time.Sleep(2 * time.Hour)
		stop.Store(true)
		cancel()
		all.Wait()
		assert.Less(t, worst, 15*time.Second, "b.com waits for the hold of a.com")
	})
}

// A cancelledLater is a context that has ended once it has been looked at a number of times.
type cancelledLater struct {
	context.Context
	looks *int
	fine  int
	then  func()
}

func (c cancelledLater) Err() error {
	if *c.looks++; *c.looks > c.fine {
		c.then()
		return context.Canceled
	}
	return nil
}

func (c cancelledLater) Done() <-chan struct{} { return nil }

func (c cancelledLater) Value(k any) any { return nil }

// What a canceled request gives back to a quota reaches the gates of other path families.
func TestWhatIsGivenBackToAQuotaReachesOtherFamilies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var n atomic.Int64
		tr, err := throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
			switch n.Add(1) {
			case 1, 2:
				return reply(200, "X-RateLimit-Limit", "10", "X-RateLimit-Remaining", "2", "X-RateLimit-Reset", "3600")
			case 3:
				return reply(429, "Retry-After", "1", "X-RateLimit-Limit", "10", "X-RateLimit-Remaining", "1", "X-RateLimit-Reset", "3600")
			}
			return reply(200)
		}))
		require.NoError(t, err)
		for _, path := range []string{"x", "y", "first"} { // all are counted together, as their responses show
			tr.RoundTrip(get(t, t.Context(), "http://a.com/"+path))
		}
		looks := 0
		var y atomic.Int64
		arrive := sync.OnceFunc(func() { // y comes after x was granted, and before it finds that its context is over
			go func() {
				tr.RoundTrip(get(t, t.Context(), "http://a.com/y"))
				y.Store(int64(time.Since(start)))
			}()
			time.Sleep(time.Millisecond)
		})
		go tr.RoundTrip(get(t, t.Context(), "http://a.com/x").WithContext(cancelledLater{t.Context(), &looks, 1, arrive})) // waits for the hold, 1 s
		time.Sleep(2 * time.Hour)
		assert.NotZero(t, y.Load(), "waits forever")
		assert.Less(t, y.Load(), int64(time.Minute), "1 was left, and no request used it")
	})
}

// A quota that is empty by a response other than a refusal rejects each waiter that cannot be granted in time.
func TestAnEmptyQuotaRejectsWhatMayNotWaitSoLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		tr, err := throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
			time.Sleep(100 * time.Millisecond)
			return reply(200, "X-RateLimit-Limit", "10", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "3600")
		}), throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Burst(1))), throttle.WithMaxWait(30*time.Second))
		require.NoError(t, err)
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				resp, err := tr.RoundTrip(get(t, t.Context(), "http://a.com/x"))
				require.NoError(t, err)
				if r, ok := throttle.RejectionOf(resp); ok {
					assert.Less(t, time.Since(start), time.Second, "%d", i)
					assert.Equal(t, throttle.ReasonHeld, r.Reason)
				}
			})
		}
		wg.Wait()
	})
}

// A bucket can be evicted although there are gates that stay longer, and the other way round.
func TestGatesDontStandInTheWayOfEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
			return reply(200, "X-RateLimit-Limit", "100", "X-RateLimit-Remaining", "99", "X-RateLimit-Reset", "60")
		}), throttle.WithLimit(throttle.FixedWindow(100, 24*time.Hour)), throttle.WithKey(throttle.ByHeader("Tenant")), throttle.WithMaxKeys(1000))
		require.NoError(t, err)
		refused := 0
		for i := range 3000 {
			req := get(t, t.Context(), "http://a.com/x")
			req.Header.Set("Tenant", fmt.Sprint(i))
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			if r, ok := throttle.RejectionOf(resp); ok {
				require.Equal(t, throttle.ReasonKeys, r.Reason)
				refused++
			}
			time.Sleep(time.Millisecond)
		}
		assert.Zero(t, refused, "none of the others has debt, a hold or a waiter")
	})
}

func TestBucketsDontStandInTheWayOfGates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
			return reply(200, "X-RateLimit-Limit", "100", "X-RateLimit-Remaining", "99", "X-RateLimit-Reset", "86400")
		}), throttle.WithLimit(throttle.TokenBucket(1, time.Minute)), throttle.WithKey(throttle.ByHeader("Tenant")), throttle.WithMaxKeys(1000))
		require.NoError(t, err)
		refused := map[string]int{}
		for i := range 3000 {
			req := get(t, t.Context(), "http://a.com/x")
			req.Header.Set("Tenant", fmt.Sprint(i))
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			if r, ok := throttle.RejectionOf(resp); ok {
				refused[r.Reason.String()+" "+r.Limit]++
			}
			time.Sleep(time.Millisecond)
		}
		assert.Empty(t, refused)
	})
}

// A plan counts requests that wait for the same bucket without a gate.
func TestPlansCountWaitersWithoutAGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Burst(1))))
		require.NoError(t, err)
		tr, err := throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) { return reply(200) }), throttle.WithLimiter(l), throttle.WithMaxWait(5*time.Second))
		require.NoError(t, err)
		for range 30 {
			go l.Wait(t.Context(), throttle.Ask{})
		}
		synctest.Wait()
		start := time.Now()
		resp, err := tr.RoundTrip(get(t, t.Context(), "http://a.com/x"))
		require.NoError(t, err)
		_, ok := throttle.RejectionOf(resp)
		assert.True(t, ok)
		assert.Zero(t, time.Since(start), "29 s are ahead")
		time.Sleep(time.Minute)
	})
}

// Requests of other accounts say nothing of the rate of a new one, so its requests begin slowly after a refusal.
func TestANewAccountFindsItsOwnRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var sent []time.Duration
		var mu sync.Mutex
		n := 0
		tr, err := throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Header.Get("Tenant") != "new" {
				return reply(200, "X-RateLimit-Limit", "100000", "X-RateLimit-Remaining", "99999", "X-RateLimit-Reset", "60")
			}
			mu.Lock()
			defer mu.Unlock()
			sent = append(sent, time.Since(start))
			if n++; n == 1 {
				return reply(429, "Retry-After", "5")
			}
			return reply(200)
		}), throttle.WithKey(throttle.ByHeader("Tenant")))
		require.NoError(t, err)
		do := func(tenant string) {
			req := get(t, t.Context(), "http://a.com/x")
			req.Header.Set("Tenant", tenant)
			tr.RoundTrip(req)
		}
		for i := range 10000 {
			do(fmt.Sprint(i % 500))
			time.Sleep(time.Millisecond)
		}
		var wg sync.WaitGroup
		do("new")
		for range 100 {
			wg.Go(func() { do("new") })
		}
		wg.Wait()
		require.Len(t, sent, 101)
		assert.GreaterOrEqual(t, sent[1]-sent[0], 5*time.Second)
		assert.Equal(t, 250*time.Millisecond, sent[2]-sent[1])
		assert.InDelta(t, math.Log2(100/(4/math.Ln2)), (sent[100] - sent[1]).Seconds(), 0.2, "the rate doubles each second")
	})
}

// The first hints of a server count, also in the response to a request that costs nothing in an adaptive limit.
func TestHintsCountInTheResponseToARequestThatCostsNothing(t *testing.T) {
	for name, limit := range map[string]throttle.Limit{"bucket": throttle.TokenBucket(9, time.Second), "adaptive": throttle.Adaptive(throttle.AIMD{})} {
		synctest.Test(t, func(t *testing.T) {
			tr, err := throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) { return reply(503, "Retry-After", "60") }),
				throttle.WithLimit(limit), throttle.WithWeights(map[string]int64{"/free": 0}), throttle.WithFailFast())
			require.NoError(t, err)
			tr.RoundTrip(get(t, t.Context(), "http://a.com/free"))
			resp, err := tr.RoundTrip(get(t, t.Context(), "http://a.com/free"))
			require.NoError(t, err)
			_, ok := throttle.RejectionOf(resp)
			assert.True(t, ok, name)
		})
	}
}

// As long as no server has sent hints and no request waits, a new key makes no gate.
func TestThereAreNoGatesBeforeAServerSendsHints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) { return reply(200) }),
			throttle.WithLimit(throttle.TokenBucket(100, time.Second)), throttle.WithKey(throttle.ByHeader("Tenant")))
		require.NoError(t, err)
		for i := range 1000 {
			req := get(t, t.Context(), "http://a.com/x")
			req.Header.Set("Tenant", fmt.Sprint(i))
			tr.RoundTrip(req)
		}
		assert.Zero(t, gatesKept(tr.Limiter()), "there are gates only for waiters")
	})
}

// A base that returns neither a response nor an error breaks its contract, but not the Transport.
func TestNilResponseWithoutAnErrorDoesNotPanic(t *testing.T) {
	for _, o := range []throttle.Option{throttle.WithLimit(throttle.TokenBucket(9, time.Second)), throttle.WithAdaptive(), throttle.WithLimit(throttle.InFlight(1))} {
		tr, err := throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) { return nil, nil }), o)
		require.NoError(t, err)
		assert.NotPanics(t, func() { tr.RoundTrip(get(t, t.Context(), "http://a.com/x")) })
	}
}

// BenchmarkResponseToAnAccountOfManyFamilies is what a response takes where an account has many path families.
func BenchmarkResponseToAnAccountOfManyFamilies(b *testing.B) {
	for _, n := range []int{1, 1000, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			tr, err := throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
				return reply(200, "X-RateLimit-Limit", "100000000", "X-RateLimit-Remaining", "99999999", "X-RateLimit-Reset", "3600")
			}))
			require.NoError(b, err)
			for i := range n {
				tr.RoundTrip(httptest.NewRequestWithContext(b.Context(), http.MethodGet, fmt.Sprintf("http://a.com/f%d", i), nil))
			}
			req := httptest.NewRequestWithContext(b.Context(), http.MethodGet, "http://a.com/f0", nil)
			b.ResetTimer()
			for b.Loop() {
				tr.RoundTrip(req)
			}
		})
	}
}

// The first report holds its account for as long as the response took, but for a second at most, because requests to other hosts
// count as well.
func TestTheFirstReportHoldsForASecondAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.URL.Host == "a.com" {
				time.Sleep(30 * time.Second)
				return reply(200, "X-RateLimit-Limit", "5000", "X-RateLimit-Remaining", "4999", "X-RateLimit-Reset", "3600")
			}
			return reply(200)
		}), throttle.WithFailFast())
		require.NoError(t, err)
		go tr.RoundTrip(get(t, t.Context(), "http://a.com/x"))
		for range 2000 {
			tr.RoundTrip(get(t, t.Context(), "http://b.com/x"))
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(12 * time.Second)
		resp, err := tr.RoundTrip(get(t, t.Context(), "http://a.com/x"))
		require.NoError(t, err)
		r, ok := throttle.RejectionOf(resp)
		assert.False(t, ok, "%v", r)
	})
}

// Forgetting what a server reported does not open the client's own limit further than it is.
func TestForgettingAServerGrantsNothingAsOfEarlier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int64
		base := roundTripper(func(req *http.Request) (*http.Response, error) {
			resp := &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: req}
			if sent.Add(1) == 1 {
				resp.StatusCode = http.StatusTooManyRequests
				resp.Header.Set("RateLimit", `"a";r=0;t=3600`)
			}
			return resp, nil
		})
		tr, err := throttle.New(base, throttle.WithLimit(throttle.Pace(1000, time.Second)))
		require.NoError(t, err)
		for range 101 {
			go func() {
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://host/", nil)
				_, _ = tr.RoundTrip(req)
			}()
			synctest.Wait()
		}
		time.Sleep(time.Second)
		require.EqualValues(t, 1, sent.Load())
		tr.Limiter().ForgetServer("host")
		synctest.Wait()
		require.EqualValues(t, 2, sent.Load())
		time.Sleep(time.Millisecond - 1)
		synctest.Wait()
		require.EqualValues(t, 2, sent.Load())
		time.Sleep(99 * time.Millisecond)
		synctest.Wait()
		require.EqualValues(t, 101, sent.Load())
	})
}
