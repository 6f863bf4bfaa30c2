package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"

	"github.com/stretchr/testify/require"
)

const day = 24 * time.Hour

// hosts answers after 100 ms, by host: those that begin with a word refuse, with this Retry-After. It counts the requests to each host.
type hosts struct {
	mu         sync.Mutex
	refusing   string
	retryAfter string
	status     int
	seen       map[string]int
}

func (h *hosts) RoundTrip(req *http.Request) (*http.Response, error) {
	h.mu.Lock()
	h.seen[req.URL.Host]++
	h.mu.Unlock()
	time.Sleep(100 * time.Millisecond)
	resp := &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: req}
	if h.refusing != "" && strings.HasPrefix(req.URL.Host, h.refusing) {
		resp.StatusCode = h.status
		resp.Header.Set("Retry-After", h.retryAfter)
	}
	return resp, nil
}

func refusing(word string) *hosts {
	return &hosts{refusing: word, retryAfter: "31000000", status: 429, seen: make(map[string]int)}
}

// try sends a request, and returns why it was rejected; nil: it was sent.
func try(t *testing.T, tr *throttle.Transport, ctx context.Context, url string) *throttle.Rejection {
	t.Helper()
	resp, err := tr.RoundTrip(get(t, ctx, url))
	require.NoError(t, err)
	r, _ := throttle.RejectionOf(resp)
	return r
}

// clients are the options of clients that a server may ask to wait, beside what a test adds.
func clients() map[string][]throttle.Option {
	shared := throttle.WithLimit(throttle.TokenBucket(100, time.Second))
	return map[string][]throttle.Option{
		"hints alone":             nil,
		"a limit":                 {shared},
		"a limit by host":         {shared, throttle.WithKey(throttle.ByHost)},
		"adaptive":                {throttle.WithAdaptive()},
		"adaptive beside a limit": {shared, throttle.WithAdaptive()},
		"a number in flight":      {throttle.WithAdaptiveInFlight()},
		"both":                    {throttle.WithAdaptive(), throttle.WithAdaptiveInFlight()},
		"both, by host":           {throttle.WithAdaptive(), throttle.WithAdaptiveInFlight(), throttle.WithKey(throttle.ByHost)},
	}
}

func eachClient(t *testing.T, f func(t *testing.T, with func(base http.RoundTripper, opts ...throttle.Option) *throttle.Transport)) {
	for name, mine := range clients() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f(t, func(base http.RoundTripper, opts ...throttle.Option) *throttle.Transport {
					tr, err := throttle.New(base, append(opts, mine...)...)
					require.NoError(t, err)
					return tr
				})
			})
		})
	}
}

// What one host refuses stops no request to another one: not by the first response of all, and not after ten minutes of both.
func TestARefusalStopsNoOtherHost(t *testing.T) {
	for _, ran := range []time.Duration{0, 10 * time.Minute} {
		t.Run(ran.String(), func(t *testing.T) {
			eachClient(t, func(t *testing.T, with func(http.RoundTripper, ...throttle.Option) *throttle.Transport) {
				base := refusing("")
				tr := with(base, throttle.WithMaxWait(time.Minute))
				for end := time.Now().Add(ran); time.Now().Before(end); time.Sleep(time.Second) {
					require.Nil(t, try(t, tr, t.Context(), "http://evil.test/"))
					require.Nil(t, try(t, tr, t.Context(), "http://good.test/"))
				}
				base.refusing = "evil"
				require.Nil(t, try(t, tr, t.Context(), "http://evil.test/"))
				for _, later := range []time.Duration{0, time.Hour, day, 300 * day} {
					time.Sleep(later)
					start := time.Now()
					require.Nil(t, try(t, tr, t.Context(), "http://good.test/"))
					require.Less(t, time.Since(start), time.Second, "%v later", later)
				}
			})
		})
	}
}

// A server that asks for a wait of a year is asked again once a day, by one request, and until then each request is rejected with the
// time until then.
func TestALongWaitIsAskedAboutOnceADay(t *testing.T) {
	for _, status := range []int{429, 503} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			eachClient(t, func(t *testing.T, with func(http.RoundTripper, ...throttle.Option) *throttle.Transport) {
				base := refusing("evil")
				base.status = status
				tr := with(base, throttle.WithMaxWait(time.Minute))
				require.Nil(t, try(t, tr, t.Context(), "http://evil.test/"))
				for n := range 5 {
					r := try(t, tr, t.Context(), "http://evil.test/")
					require.NotNil(t, r)
					require.GreaterOrEqual(t, r.Wait, day)
					require.LessOrEqual(t, r.Wait, day+time.Second)
					time.Sleep(r.Wait - time.Minute - 1)
					var all sync.WaitGroup
					for range 10 {
						all.Go(func() { try(t, tr, t.Context(), "http://evil.test/") })
					}
					all.Wait()
					require.Equal(t, n+1, base.seen["evil.test"], "they are rejected at once")
					time.Sleep(2 * time.Nanosecond)
					for range 10 {
						all.Go(func() { try(t, tr, t.Context(), "http://evil.test/") })
					}
					all.Wait()
					require.Equal(t, n+2, base.seen["evil.test"])
				}
				base.refusing = "" // the next one is accepted, and then all are
				time.Sleep(day + time.Second)
				for range 10 {
					require.Nil(t, try(t, tr, t.Context(), "http://evil.test/"))
				}
			})
		})
	}
}

// Without a key, an adaptive limit counts requests by host, and other limits count them together.
func TestWithoutAKeyAdaptiveLimitsCountByHost(t *testing.T) {
	byTenant := func(r *http.Request) string { return r.Header.Get("Tenant") }
	limits := throttle.WithLimit(throttle.Adaptive(throttle.AIMD{}), throttle.AdaptiveInFlight(throttle.Concurrency{}),
		throttle.TokenBucket(1, time.Hour, throttle.Burst(10)), throttle.Adaptive(throttle.AIMD{}, throttle.Key(byTenant), throttle.Name("tenant")))
	for name, c := range map[string]struct {
		opts []throttle.Option
		ctx  func(context.Context) context.Context
		keys map[string]string
	}{
		"no key":                 {keys: map[string]string{"adaptive": "api.example.com", "adaptive-in-flight": "api.example.com", "bucket": "", "tenant": throttle.NoKey}},
		"WithKey":                {opts: []throttle.Option{throttle.WithKey(func(*http.Request) string { return "k" })}, keys: map[string]string{"adaptive": "k", "adaptive-in-flight": "k", "bucket": "k", "tenant": throttle.NoKey}},
		"WithKey without a key":  {opts: []throttle.Option{throttle.WithKey(byTenant)}, keys: map[string]string{"adaptive": throttle.NoKey, "adaptive-in-flight": throttle.NoKey, "bucket": throttle.NoKey, "tenant": throttle.NoKey}},
		"ContextWithKey":         {ctx: func(ctx context.Context) context.Context { return throttle.ContextWithKey(ctx, "k") }, keys: map[string]string{"adaptive": "k", "adaptive-in-flight": "k", "bucket": "k", "tenant": throttle.NoKey}},
		"another of the context": {ctx: func(ctx context.Context) context.Context { return throttle.ContextWithPriority(ctx, 1) }, keys: map[string]string{"adaptive": "api.example.com", "adaptive-in-flight": "api.example.com", "bucket": "", "tenant": throttle.NoKey}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr, err := throttle.New(refusing("never"), append(c.opts, limits)...)
				require.NoError(t, err)
				ctx := t.Context()
				if c.ctx != nil {
					ctx = c.ctx(ctx)
				}
				for range 3 { // with and without a gate
					go func() { require.Nil(t, try(t, tr, ctx, "https://API.example.com:443/")) }()
					synctest.Wait()
					found := make(map[string]string)
					for b := range tr.Limiter().Buckets() {
						if b.InFlight > 0 || b.Limit == "bucket" {
							found[b.Limit] = b.Key
						}
					}
					require.Equal(t, c.keys, found)
					time.Sleep(time.Second)
				}
			})
		})
	}
}

// Without HTTP there is no host: an Ask without a key has the key "".
func TestAnAskWithoutAKeyHasNoHost(t *testing.T) {
	l, err := throttle.NewLimiter(throttle.WithAdaptive())
	require.NoError(t, err)
	g, err := l.Acquire(t.Context(), throttle.Ask{})
	require.NoError(t, err)
	b, ok := l.Bucket("adaptive", "")
	require.True(t, ok)
	require.Equal(t, 1, b.InFlight)
	g.Report(throttle.OutcomeOK)
	_, err = l.Acquire(t.Context(), throttle.Ask{Keys: map[string]string{"adaptive": "a.test"}})
	require.NoError(t, err)
	b, ok = l.Bucket("adaptive", "a.test")
	require.True(t, ok)
	require.Equal(t, 1, b.InFlight)
}

// Transports that share a Limiter share what was learned about a host. What its server asked for concerns requests to it, and not a Limiter
// that is asked for a key of that name.
func TestTransportsShareWhatWasLearnedAboutAHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.NewLimiter(throttle.WithAdaptive(), throttle.WithMaxWait(time.Minute))
		require.NoError(t, err)
		base := refusing("evil")
		one, two := throttle.Must(throttle.New(base, throttle.WithLimiter(l))), throttle.Must(throttle.New(base, throttle.WithLimiter(l)))
		require.Nil(t, try(t, one, t.Context(), "http://evil.test/"))
		require.NotNil(t, try(t, two, t.Context(), "http://evil.test/"))
		require.Nil(t, try(t, two, t.Context(), "http://good.test/"))
		rate := func(key string) float64 { b, _ := l.Bucket("adaptive", key); return b.Rate }
		require.Less(t, rate("evil.test"), rate("good.test"))
		_, err = l.Acquire(t.Context(), throttle.Ask{Key: "evil.test"})
		require.NoError(t, err)
		_, err = l.Acquire(t.Context(), throttle.Ask{})
		require.NoError(t, err)
		l.ForgetServer("evil.test")
		require.Nil(t, try(t, two, t.Context(), "http://evil.test/"))
	})
}

// A hold of the key "" holds the requests that have no key, also where they are counted by host, and no others.
func TestAHoldOfNoKeyHoldsRequestsCountedByHost(t *testing.T) {
	for name, opt := range map[string]throttle.Option{"a rate": throttle.WithAdaptive(), "a number": throttle.WithAdaptiveInFlight()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr, err := throttle.New(refusing("never"), opt, throttle.WithMaxWait(time.Hour))
				require.NoError(t, err)
				l := tr.Limiter()
				keyed := throttle.ContextWithKey(t.Context(), "k")
				took := func(ctx context.Context, url string) time.Duration {
					start := time.Now()
					require.Nil(t, try(t, tr, ctx, url))
					return time.Since(start) - 100*time.Millisecond
				}
				require.Zero(t, took(t.Context(), "http://old.test/"))
				l.Hold("", time.Minute)
				r := try(t, tr, throttle.ContextWithMaxWait(t.Context(), time.Minute-1), "http://old.test/")
				require.NotNil(t, r)
				require.Equal(t, throttle.ReasonHeld, r.Reason)
				require.Equal(t, time.Minute, r.Wait)
				require.Zero(t, took(keyed, "http://old.test/"))
				require.Equal(t, time.Minute-100*time.Millisecond, took(t.Context(), "http://old.test/"))

				l.Hold("", time.Minute)
				require.Equal(t, time.Minute, took(t.Context(), "http://new.test/"))

				waited := func(hold, change func()) (d time.Duration) {
					hold()
					go func() { d = took(t.Context(), "http://old.test/") }()
					time.Sleep(time.Second)
					synctest.Wait()
					change()
					time.Sleep(2 * time.Minute)
					synctest.Wait()
					return d
				}
				hold := func() { l.Hold("", time.Minute) }
				require.Equal(t, time.Second, waited(hold, func() { l.Release("") }))
				require.Equal(t, time.Second, waited(hold, l.ReleaseAll))
				require.Equal(t, time.Minute, waited(hold, func() { l.Release("old.test") }), "that is another hold")
				require.Equal(t, 31*time.Second, waited(func() { l.Hold("old.test", 10*time.Second) }, func() { l.Hold("", 30*time.Second) }))
				l.Hold("old.test", time.Minute)
				require.Zero(t, took(t.Context(), "http://new.test/"))
				require.Equal(t, time.Minute-100*time.Millisecond, took(t.Context(), "http://old.test/"))
			})
		})
	}
}

// A hold of the key "" counts for a request that waits: it is rejected as soon as it cannot be sent in time.
func TestAHoldOfNoKeyRejectsWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := throttle.New(refusing("never"), throttle.WithAdaptive(throttle.AIMD{Initial: 0.1, Max: 0.1}), throttle.WithMaxWait(time.Minute))
		require.NoError(t, err)
		require.Nil(t, try(t, tr, t.Context(), "http://api.test/"))
		start := time.Now()
		go func() {
			time.Sleep(time.Second)
			tr.Limiter().Hold("", time.Hour)
		}()
		require.NotNil(t, try(t, tr, t.Context(), "http://api.test/"))
		require.Equal(t, time.Second, time.Since(start))
	})
}

// The rate of an adaptive limit is shown as long as there is one host, and its buckets afterwards.
func TestTheStatisticsOfOneHostAreThoseOfTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := throttle.New(refusing("never"), throttle.WithAdaptive(throttle.AIMD{Initial: 20, Max: 20}))
		require.NoError(t, err)
		keys := func() (keys []string) {
			for b := range tr.Limiter().Buckets() {
				keys = append(keys, b.Key)
			}
			return keys
		}
		require.Equal(t, []string{""}, keys())
		require.Nil(t, try(t, tr, t.Context(), "http://a.test/"))
		require.Equal(t, []string{"a.test"}, keys())
		s := tr.Limiter().Limits()[0]
		require.False(t, s.Keyed)
		require.Equal(t, 20.0, s.Rate)
		require.Equal(t, 1, s.Keys)
		require.Nil(t, try(t, tr, t.Context(), "http://b.test/"))
		s = tr.Limiter().Limits()[0]
		require.True(t, s.Keyed)
		require.Zero(t, s.Rate)
	})
}

// What an earlier version has learned about all hosts together is restored under the key that it had, and stops no host.
func TestASnapshotWithoutHostsIsRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, err := throttle.NewLimiter(throttle.WithAdaptive())
		require.NoError(t, err)
		g, err := old.Acquire(t.Context(), throttle.Ask{})
		require.NoError(t, err)
		g.Report(throttle.OutcomeThrottled)
		tr, err := throttle.New(refusing("never"), throttle.WithAdaptive())
		require.NoError(t, err)
		require.NoError(t, tr.Limiter().Restore(old.Snapshot()))
		require.Nil(t, try(t, tr, t.Context(), "http://a.test/"))
		b, ok := tr.Limiter().Bucket("adaptive", "a.test")
		require.True(t, ok)
		require.Equal(t, 10.0, b.Rate)
	})
}

// Hosts that ask for a wait keep no other host out, however many they are: if there is no other way to make room, the pause that ends
// last is forgotten.
func TestPausedHostsMakeRoom(t *testing.T) {
	eachClient(t, func(t *testing.T, with func(http.RoundTripper, ...throttle.Option) *throttle.Transport) {
		base := refusing("evil")
		tr := with(base, throttle.WithMaxWait(time.Minute), throttle.WithMaxKeys(100))
		base.refusing, base.retryAfter = "slow", "7200"
		require.Nil(t, try(t, tr, t.Context(), "http://slow.test/"))
		base.refusing, base.retryAfter = "evil", "31000000"
		for n := range 1000 {
			if r := try(t, tr, t.Context(), fmt.Sprintf("http://evil%d.test/", n)); r != nil {
				require.Fail(t, r.Error())
			}
			if n%100 == 0 {
				require.Nil(t, try(t, tr, t.Context(), fmt.Sprintf("http://good%d.test/", n)))
			}
		}
		require.NotNil(t, try(t, tr, t.Context(), "http://evil999.test/"))
		base.refusing, base.retryAfter = "late", "3600"
		require.Nil(t, try(t, tr, t.Context(), "http://late.test/"))
		require.NotNil(t, try(t, tr, t.Context(), "http://late.test/"), "a refusal finds room")
	})
}

// What a caller holds, what waits and what is in flight makes no room.
func TestOnlyWhatServersAskForMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := refusing("evil")
		tr, err := throttle.New(base, throttle.WithAdaptive(), throttle.WithMaxKeys(4), throttle.WithMaxWait(2*day))
		require.NoError(t, err)
		l := tr.Limiter()
		l.Hold("held.test", 48*time.Hour)
		require.Nil(t, try(t, tr, t.Context(), "http://evil-waiter.test/"))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _, _ = tr.RoundTrip(get(t, ctx, "http://evil-waiter.test/")) }()
		flying, err := l.Acquire(t.Context(), throttle.Ask{Key: "flying.test"})
		require.NoError(t, err)
		synctest.Wait()
		base.retryAfter = "3600"
		require.Nil(t, try(t, tr, t.Context(), "http://evil-1.test/"))
		kept := func() map[string]bool {
			keys := make(map[string]bool)
			for b := range l.Buckets() {
				if b.Limit == "adaptive" {
					keys[b.Key] = true
				}
			}
			return keys
		}
		base.retryAfter = "31000000"
		require.Nil(t, try(t, tr, t.Context(), "http://evil-2.test/"), "the shorter pause makes room if there is no other")
		require.Equal(t, map[string]bool{"held.test": true, "evil-waiter.test": true, "flying.test": true, "evil-2.test": true}, kept())
		require.Nil(t, try(t, tr, t.Context(), "http://good.test/"))
		for range 2 {
			g, err := l.Acquire(t.Context(), throttle.Ask{Key: "good.test"})
			require.NoError(t, err)
			defer g.Cancel()
		}
		r := try(t, tr, t.Context(), "http://other.test/")
		require.NotNil(t, r)
		require.Equal(t, throttle.ReasonKeys, r.Reason)
		flying.Cancel()
		require.Nil(t, try(t, tr, t.Context(), "http://other.test/"))
		cancel()
		synctest.Wait()
	})
}

// A pause that a server asked for is a pause after a restart, too: ForgetServer ends it, Release does not, and one request asks whether
// it has ended.
func TestAPauseIsRestoredAsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := refusing("evil")
		opts := []throttle.Option{throttle.WithAdaptive(), throttle.WithMaxWait(0)}
		old, err := throttle.New(base, opts...)
		require.NoError(t, err)
		require.Nil(t, try(t, old, t.Context(), "http://evil.test/"))
		old.Limiter().Hold("held.test", time.Minute)
		text, err := json.Marshal(old.Limiter().Snapshot())
		require.NoError(t, err)
		end := time.Now().Add(try(t, old, t.Context(), "http://evil.test/").Wait)
		time.Sleep(time.Second)
		restored := func() *throttle.Transport {
			var s throttle.Snapshot
			require.NoError(t, json.Unmarshal(text, &s))
			tr, err := throttle.New(base, opts...)
			require.NoError(t, err)
			require.NoError(t, tr.Limiter().Restore(s))
			return tr
		}
		tr := restored()
		r := try(t, tr, t.Context(), "http://evil.test/")
		require.NotNil(t, r)
		require.Equal(t, throttle.ReasonHeld, r.Reason)
		require.GreaterOrEqual(t, r.Wait, time.Until(end))
		require.LessOrEqual(t, r.Wait, time.Until(end)+time.Second)
		tr.Limiter().Release("evil.test")
		require.NotNil(t, try(t, tr, t.Context(), "http://evil.test/"))
		require.NotNil(t, try(t, tr, t.Context(), "http://held.test/"))
		require.Nil(t, try(t, tr, t.Context(), "http://good.test/"))
		tr.Limiter().ForgetServer("evil.test")
		require.Nil(t, try(t, tr, t.Context(), "http://evil.test/"))

		tr, base.refusing = restored(), ""
		time.Sleep(time.Until(end) + time.Second)
		before := base.seen["evil.test"]
		for range 5 {
			go try(t, tr, t.Context(), "http://evil.test/")
			synctest.Wait()
		}
		require.Equal(t, 1, base.seen["evil.test"]-before)
		time.Sleep(time.Second)
		require.Nil(t, try(t, tr, t.Context(), "http://evil.test/"))
	})
}
