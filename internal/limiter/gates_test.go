package limiter_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/quota"
	"github.com/httpthrottle/throttle/internal/saved"
)

type rt func(*http.Request) (*http.Response, error)

func (f rt) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func reply(status int, kv ...string) (*http.Response, error) {
	h := http.Header{}
	for i := 0; i < len(kv); i += 2 {
		h.Add(kv[i], kv[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: http.NoBody}, nil
}

func get(ctx context.Context, url string) *http.Request {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		panic(err)
	}
	return r
}

// A starved line of a host that the server then holds bars every other host for the whole hold.
func TestStarvedLineThatIsHeldBarsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var n atomic.Int64
		tr, err := throttle.New(rt(func(r *http.Request) (*http.Response, error) {
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
		tr.RoundTrip(get(t.Context(), "http://a.com/x"))
		ctx, cancel := context.WithCancel(t.Context())
		for _, path := range []string{"x", "y", "x", "y"} {
			go tr.RoundTrip(get(ctx, "http://a.com/"+path))
		}
		var last, worst time.Duration
		var stop atomic.Bool
		var all sync.WaitGroup
		all.Go(func() {
			for !stop.Load() {
				tr.RoundTrip(get(t.Context(), "http://b.com/z"))
				worst = max(worst, time.Since(start)-last)
				last = time.Since(start)
			}
		})
		all.Go(func() {
			for !stop.Load() {
				tr.RoundTrip(get(t.Context(), "http://b.com/z"))
			}
		})
		time.Sleep(2 * time.Hour)
		stop.Store(true)
		cancel()
		all.Wait()
		assert.Less(t, worst, 15*time.Second, "b.com waits for the hold of a.com")
	})
}

// cancelledOnce is a context that has ended when it is looked at the second time.
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
func (c cancelledLater) Value(k any) any       { return nil }

// What an abandoned request gives back at a gate reaches only its own gate: those of other families wait for the
// reset, or for ever.
func TestWhatIsGivenBackToAQuotaReachesOtherFamilies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var n atomic.Int64
		tr, err := throttle.New(rt(func(r *http.Request) (*http.Response, error) {
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
			tr.RoundTrip(get(t.Context(), "http://a.com/"+path))
		}
		looks := 0
		var y atomic.Int64
		arrive := sync.OnceFunc(func() { // y comes after x was granted, and before it finds that its context is over
			go func() {
				tr.RoundTrip(get(t.Context(), "http://a.com/y"))
				y.Store(int64(time.Since(start)))
			}()
			time.Sleep(time.Millisecond)
		})
		go tr.RoundTrip(get(t.Context(), "http://a.com/x").WithContext(cancelledLater{t.Context(), &looks, 1, arrive})) // waits for the hold, 1 s
		time.Sleep(2 * time.Hour)
		assert.NotZero(t, y.Load(), "waits for ever")
		assert.Less(t, y.Load(), int64(time.Minute), "1 was left, and no request used it")
	})
}

// Requests that waited for an Adaptive limit or a gate waited for ever after hooks panicked.
func TestAPanicOfOnGrantLeavesNothingInFlight(t *testing.T) {
	for _, waits := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var bad atomic.Bool
			bad.Store(true)
			tr, err := throttle.New(rt(func(r *http.Request) (*http.Response, error) { return reply(200) }),
				throttle.WithAdaptive(), throttle.WithHooks(throttle.Hooks{OnGrant: func(throttle.GrantEvent) {
					if bad.Load() {
						panic("hook")
					}
				}}))
			require.NoError(t, err)
			do := func() {
				defer func() { recover() }()
				tr.RoundTrip(get(t.Context(), "http://a.com/x"))
			}
			for range 20 {
				if waits {
					go do()
				} else {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					func() {
						defer func() { recover() }()
						tr.RoundTrip(get(ctx, "http://a.com/x"))
					}()
					cancel()
				}
			}
			time.Sleep(time.Minute)
			bad.Store(false)
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			_, err = tr.RoundTrip(get(ctx, "http://a.com/x"))
			assert.NoError(t, err)
			for b := range tr.Limiter().Buckets() {
				assert.Zero(t, b.InFlight, b.Limit)
			}
		})
	}
}

// A quota that an answer other than a refusal says is empty rejects no waiter that cannot be granted in time.
func TestEmptyQuotaRejectsImmediatelyWithoutPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		tr, err := throttle.New(rt(func(r *http.Request) (*http.Response, error) {
			time.Sleep(100 * time.Millisecond)
			return reply(200, "X-RateLimit-Limit", "10", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "3600")
		}), throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Burst(1))), throttle.WithMaxWait(30*time.Second))
		require.NoError(t, err)
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				resp, err := tr.RoundTrip(get(t.Context(), "http://a.com/x"))
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

// Gates fill the front of the heap, and no key's bucket can be evicted any more (and the other way round).
func TestGatesDontStandInTheWayOfEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := throttle.New(rt(func(r *http.Request) (*http.Response, error) {
			return reply(200, "X-RateLimit-Limit", "100", "X-RateLimit-Remaining", "99", "X-RateLimit-Reset", "60")
		}), throttle.WithLimit(throttle.FixedWindow(100, 24*time.Hour)), throttle.WithKey(throttle.ByHeader("Tenant")), throttle.WithMaxKeys(1000))
		require.NoError(t, err)
		refused := 0
		for i := range 3000 {
			req := get(t.Context(), "http://a.com/x")
			req.Header.Set("Tenant", fmt.Sprint(i))
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			if r, ok := throttle.RejectionOf(resp); ok {
				require.Equal(t, throttle.ReasonKeys, r.Reason)
				refused++
			}
			time.Sleep(time.Millisecond)
		}
		assert.Zero(t, refused, "none of the others has debt, a hold or anybody waiting")
	})
}

func TestBucketsDontStandInTheWayOfGates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := throttle.New(rt(func(r *http.Request) (*http.Response, error) {
			return reply(200, "X-RateLimit-Limit", "100", "X-RateLimit-Remaining", "99", "X-RateLimit-Reset", "86400")
		}), throttle.WithLimit(throttle.TokenBucket(1, time.Minute)), throttle.WithKey(throttle.ByHeader("Tenant")), throttle.WithMaxKeys(1000))
		require.NoError(t, err)
		refused := map[string]int{}
		for i := range 3000 {
			req := get(t.Context(), "http://a.com/x")
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

// Plans do not count requests that wait for the same bucket without a gate.
func TestPlansCountWaitersWithoutAGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Burst(1))))
		require.NoError(t, err)
		tr, err := throttle.New(rt(func(r *http.Request) (*http.Response, error) { return reply(200) }), throttle.WithLimiter(l), throttle.WithMaxWait(5*time.Second))
		require.NoError(t, err)
		for range 30 {
			go l.Wait(t.Context(), throttle.Ask{})
		}
		synctest.Wait()
		start := time.Now()
		resp, err := tr.RoundTrip(get(t.Context(), "http://a.com/x"))
		require.NoError(t, err)
		_, ok := throttle.RejectionOf(resp)
		assert.True(t, ok)
		assert.Zero(t, time.Since(start), "29 s are ahead")
		time.Sleep(time.Minute)
	})
}

// A new rate rejects a request that could be granted in time, because those ahead in another line are rejected only afterwards.
func TestRejudgingDoesNotCountRejectedRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := throttle.New(rt(func(r *http.Request) (*http.Response, error) { return reply(200) }),
			throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Burst(1), throttle.Name("x"))))
		require.NoError(t, err)
		tr.RoundTrip(get(t.Context(), "http://a.com/x"))
		go tr.RoundTrip(get(t.Context(), "http://a.com/x")) // opens a's line first
		synctest.Wait()
		for range 50 {
			go tr.RoundTrip(get(throttle.ContextWithMaxWait(t.Context(), 8*time.Second), "http://b.com/x"))
		}
		synctest.Wait()
		var refused error
		go func() {
			resp, err := tr.RoundTrip(get(throttle.ContextWithMaxWait(t.Context(), 40*time.Second), "http://a.com/x"))
			require.NoError(t, err)
			if r, ok := throttle.RejectionOf(resp); ok {
				refused = r
			}
		}()
		synctest.Wait()
		require.NoError(t, tr.Limiter().SetRate("x", 1, time.Second)) // of b's 50, 7 or so can make it; a's is due after 10 s
		time.Sleep(time.Hour)
		assert.NoError(t, refused)
	})
}

// Requests of other accounts say nothing of the rate of a new one, and what is unknown is no rate.
func TestANewAccountHasNoPaceBeforeItsRateIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var sent []time.Duration
		var mu sync.Mutex
		n := 0
		tr, err := throttle.New(rt(func(r *http.Request) (*http.Response, error) {
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
			req := get(t.Context(), "http://a.com/x")
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
		assert.Equal(t, sent[1], sent[100], "all at once")
	})
}

func TestARestoredHoldOfAHostIsForEveryParty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mk := func() *throttle.Transport {
			tr, err := throttle.New(rt(func(r *http.Request) (*http.Response, error) { return reply(503, "Retry-After", "100") }),
				throttle.WithKey(throttle.ByHeader("Tenant")), throttle.WithLimit(throttle.TokenBucket(100, time.Second)), throttle.WithFailFast())
			require.NoError(t, err)
			return tr
		}
		do := func(tr *throttle.Transport, tenant string) bool {
			req := get(t.Context(), "http://a.com/x")
			req.Header.Set("Tenant", tenant)
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			_, ok := throttle.RejectionOf(resp)
			return ok
		}
		tr := mk()
		require.False(t, do(tr, "1"))
		require.True(t, do(tr, "2"))
		next := mk()
		require.NoError(t, next.Limiter().Restore(tr.Limiter().Snapshot()))
		assert.True(t, do(next, "3"))
	})
}

// A Limiter can't restore what it has saved itself.
func TestAHoldWithoutLimitsIsRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.NewLimiter()
		require.NoError(t, err)
		l.Hold("", time.Minute)
		next, err := throttle.NewLimiter()
		require.NoError(t, err)
		assert.NoError(t, next.Restore(l.Snapshot()))
		_, ok := next.Try(throttle.Ask{})
		assert.False(t, ok)
	})
}

func TestRestoringTwiceSpendsNothingTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.NewLimiter(throttle.WithLimit(throttle.FixedWindow(10, time.Hour)))
		require.NoError(t, err)
		l.Try(throttle.Ask{Cost: 5})
		s := l.Snapshot()
		require.NoError(t, l.Restore(s))
		_, ok := l.Try(throttle.Ask{Cost: 5})
		assert.True(t, ok, "what is restored takes the place of what there is")
	})
}

func TestNegativeDurationsOfASnapshotAreNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.NewLimiter(throttle.WithLimit(throttle.FixedWindow(10, time.Hour, throttle.Name("x"))))
		require.NoError(t, err)
		s := snapshot(t, saved.State{Taken: time.Now(), Buckets: []saved.Bucket{{Limit: "x", Held: math.MinInt64}},
			Servers: []saved.Server{{Host: "h", Held: math.MinInt64, Quotas: []saved.Quota{{Name: "default", Reset: math.MinInt64}}}}})
		time.Sleep(time.Second)
		_ = l.Restore(s)
		_, ok := l.Try(throttle.Ask{})
		assert.True(t, ok)
		s = l.Snapshot()
		assert.Empty(t, stateOf(t, s).Servers)
	})
}

// The first word of a server is overheard in the answer to a request that costs nothing at an Adaptive limit.
func TestTheWordInAnswerToWhatCostsNothingIsHeard(t *testing.T) {
	for name, limit := range map[string]throttle.Limit{"bucket": throttle.TokenBucket(9, time.Second), "adaptive": throttle.Adaptive(throttle.AIMD{})} {
		synctest.Test(t, func(t *testing.T) {
			tr, err := throttle.New(rt(func(r *http.Request) (*http.Response, error) { return reply(503, "Retry-After", "60") }),
				throttle.WithLimit(limit), throttle.WithWeights(map[string]int64{"/free": 0}), throttle.WithFailFast())
			require.NoError(t, err)
			tr.RoundTrip(get(t.Context(), "http://a.com/free"))
			resp, err := tr.RoundTrip(get(t.Context(), "http://a.com/free"))
			require.NoError(t, err)
			_, ok := throttle.RejectionOf(resp)
			assert.True(t, ok, name)
		})
	}
}

// A gate, a party and a host are made for each new key, although no server has said anything and no request waits.
func TestThereAreNoGatesBeforeAServerHasSpoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := throttle.New(rt(func(r *http.Request) (*http.Response, error) { return reply(200) }),
			throttle.WithLimit(throttle.TokenBucket(100, time.Second)), throttle.WithKey(throttle.ByHeader("Tenant")))
		require.NoError(t, err)
		for i := range 1000 {
			req := get(t.Context(), "http://a.com/x")
			req.Header.Set("Tenant", fmt.Sprint(i))
			tr.RoundTrip(req)
		}
		assert.Zero(t, gateCount(tr.Limiter()), "there are gates only for waiters")
	})
}

// Granted less Undone goes down when a grant is abandoned.
func TestAbandonedGrantsAreNotOnTheWay(t *testing.T) {
	for granted, held := range map[uint64]time.Duration{2: 0, 6: 5} { // the second is this one, and the first was abandoned
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t)
			sleep(10)
			coreOf(l).Counts().Granted, coreOf(l).Counts().Undone = granted, 1
			few := quota.QuotaHint{Name: quota.Unnamed, Limit: 5000, Left: 3, Known: true, Ends: true, Reset: time.Second}
			a := &limiter.Answer{Outcome: aimd.OK, Hints: &quota.Hints{Quotas: []quota.QuotaHint{few}}}
			coreOf(l).ReportUngated(&limiter.Request{User: userOf(l), Mark: limiter.Mark{At: 5, Nth: 2}}, &quota.Key{Host: "h"}, a)
			until := l.Servers()[0].HeldUntil
			if held == 0 {
				require.Zero(t, until, "no other request is on the way")
			} else {
				require.Equal(t, held, time.Until(until), "as long as the first response took")
			}
		})
	}
}

// Nil response without an error.
func TestNilResponseWithoutAnErrorDoesNotPanic(t *testing.T) {
	for _, o := range []throttle.Option{throttle.WithLimit(throttle.TokenBucket(9, time.Second)), throttle.WithAdaptive(), throttle.WithLimit(throttle.InFlight(1))} {
		tr, err := throttle.New(rt(func(r *http.Request) (*http.Response, error) { return nil, nil }), o)
		require.NoError(t, err)
		assert.NotPanics(t, func() { tr.RoundTrip(get(t.Context(), "http://a.com/x")) })
	}
}

// What a party with many families costs per answer, under the lock.
func BenchmarkAnswerToAPartyOfManyFamilies(b *testing.B) {
	for _, n := range []int{1, 1000, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			tr, err := throttle.New(rt(func(r *http.Request) (*http.Response, error) {
				return reply(200, "X-RateLimit-Limit", "100000000", "X-RateLimit-Remaining", "99999999", "X-RateLimit-Reset", "3600")
			}))
			require.NoError(b, err)
			for i := range n {
				tr.RoundTrip(get(b.Context(), fmt.Sprintf("http://a.com/f%d", i)))
			}
			req := get(b.Context(), "http://a.com/f0")
			b.ResetTimer()
			for b.Loop() {
				tr.RoundTrip(req)
			}
		})
	}
}

// The first word holds its party for as long as its answer took, for the sake of requests to other hosts, also of
// those that were answered long ago.
func TestTheFirstWordHoldsForASecondAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := throttle.New(rt(func(r *http.Request) (*http.Response, error) {
			if r.URL.Host == "a.com" {
				time.Sleep(30 * time.Second)
				return reply(200, "X-RateLimit-Limit", "5000", "X-RateLimit-Remaining", "4999", "X-RateLimit-Reset", "3600")
			}
			return reply(200)
		}), throttle.WithFailFast())
		require.NoError(t, err)
		go tr.RoundTrip(get(t.Context(), "http://a.com/x"))
		for range 2000 {
			tr.RoundTrip(get(t.Context(), "http://b.com/x"))
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(12 * time.Second)
		resp, err := tr.RoundTrip(get(t.Context(), "http://a.com/x"))
		require.NoError(t, err)
		r, ok := throttle.RejectionOf(resp)
		assert.False(t, ok, "%v", r)
	})
}

// seeds returns n, or 1 in a short test.
func seeds(n uint64) uint64 {
	if testing.Short() {
		return 1
	}
	return n
}
