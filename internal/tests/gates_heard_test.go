package tests

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

func TestGatesAreNoMoreThanMaxKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterWith(t, throttle.WithMaxKeys(3))
		tr := throttle.Must(throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
			time.Sleep(time.Second)
			return reply(200, "X-RateLimit-Limit", "100", "X-RateLimit-Remaining", "9", "X-RateLimit-Reset", "60")
		}), throttle.WithLimiter(l)))
		for round := range 2 { // of requests that leave before the first response of a server, and of others
			for i := range 10 {
				go tr.RoundTrip(get(t, t.Context(), fmt.Sprintf("http://h%d-%d.com/x", round, i)))
			}
			time.Sleep(2 * time.Second)
			assert.Equal(t, 3, gatesKept(l))
		}
		assert.Zero(t, l.Stats().Holds.Server, "nothing was held")
	})
}

func TestAccountsDifferInEachOfTheirKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := throttle.Must(throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) { return reply(429, "Retry-After", "60") }), throttle.WithFailFast(),
			throttle.WithLimit(throttle.TokenBucket(100, time.Second, throttle.Key(throttle.ByHeader("User"))), throttle.TokenBucket(100, time.Second, throttle.Name("org"), throttle.Key(throttle.ByHeader("Org"))))))
		for _, keys := range []string{"ax", "bx", "ay"} {
			req := get(t, t.Context(), "http://a.com/x")
			req.Header.Set("User", keys[:1])
			req.Header.Set("Org", keys[1:])
			for _, refused := range []bool{false, true} {
				resp, err := tr.RoundTrip(req)
				require.NoError(t, err)
				_, ok := throttle.RejectionOf(resp)
				assert.Equal(t, refused, ok, keys)
			}
		}
	})
}

func TestAHoldOfAServerIsReportedAndCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var holds []time.Duration
		tr := throttle.Must(throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) { return reply(429, "Retry-After", "60") }), throttle.WithFailFast(),
			throttle.WithHooks(throttle.Hooks{OnHold: func(e throttle.HoldEvent) { holds = append(holds, e.For) }})))
		for range 2 { // the first response, and later through a gate
			time.Sleep(time.Hour)
			tr.RoundTrip(get(t, t.Context(), "http://a.com/x"))
		}
		require.Len(t, holds, 2)
		for _, d := range holds {
			assert.GreaterOrEqual(t, d, time.Minute)
			assert.LessOrEqual(t, d, time.Minute+time.Second, "with jitter")
		}
		require.EqualValues(t, 2, tr.Stats().Holds.Server)
	})
}

func TestA503HoldsItsHostAlsoUnderAnAdaptiveLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := 503
		tr := throttle.Must(throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) { return reply(status, "Retry-After", "10") }), throttle.WithFailFast(),
			throttle.WithLimit(throttle.Adaptive(throttle.AIMD{}, throttle.Key(throttle.ByHeader("Tenant"))))))
		for i, refused := range []bool{false, true} {
			req := get(t, t.Context(), "http://a.com/x")
			req.Header.Set("Tenant", fmt.Sprint(i))
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			_, ok := throttle.RejectionOf(resp)
			assert.Equal(t, refused, ok)
			status = 200
		}
	})
}

// One tenant may be able to provoke a 503, by an expensive request for instance.
func TestA503ToOneTenantHoldsTheOthersForAMinuteAtMost(t *testing.T) {
	for name, limit := range map[string]throttle.Limit{"bucket": throttle.TokenBucket(100, time.Second), "adaptive": throttle.Adaptive(throttle.AIMD{Initial: 100})} {
		for _, c := range []struct {
			status      int
			after       string
			own, others time.Duration // how long they are held, up to a tenth more or a second
		}{
			{503, "", 0, 0}, {529, "", 0, 0}, {503, "30", 30 * time.Second, 30 * time.Second},
			{503, "60", time.Minute, time.Minute}, {503, "86400", 24 * time.Hour, time.Minute}, {529, "3600", time.Hour, time.Minute},
		} {
			synctest.Test(t, func(t *testing.T) {
				status := 200
				tr := throttle.Must(throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
					if status != 200 && c.after != "" {
						return reply(status, "Retry-After", c.after)
					}
					return reply(status)
				}), throttle.WithFailFast(), throttle.WithLimit(limit), throttle.WithKey(throttle.ByContext)))
				held := func(tenant string) bool {
					resp, err := tr.RoundTrip(get(t, throttle.ContextWithKey(t.Context(), tenant), "http://a.com/x"))
					require.NoError(t, err)
					r, ok := throttle.RejectionOf(resp)
					return ok && r.Reason == throttle.ReasonHeld
				}
				require.False(t, held("other"))
				status = c.status
				require.False(t, held("bad"))
				status = 200
				begin := time.Now()
				until := func(d time.Duration, tenants ...string) {
					for i, want := range []bool{true, false} {
						if d > 0 {
							time.Sleep(time.Until(begin.Add(d - 1 + time.Duration(i)*(1+min(d/10, time.Second)))))
						}
						for _, tenant := range tenants {
							require.Equal(t, want && d > 0, held(tenant), "%s %+v %s", name, c, tenant)
						}
					}
				}
				until(c.others, "other", "new")
				if c.own > c.others {
					until(c.own, "bad")
				}
			})
		}
	}
}

// The first response of a server may have been sent before it counted the other requests in flight: little may be left for them.
func TestTheFirstResponseHoldsRequestsForAsLongAsItTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := time.Duration(0)
		tr := throttle.Must(throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
			n++
			time.Sleep(n * 100 * time.Millisecond)
			return reply(200, "X-RateLimit-Limit", "1000", "X-RateLimit-Remaining", "20", "X-RateLimit-Reset", "1")
		}), throttle.WithFailFast()))
		for range 10 {
			go tr.RoundTrip(get(t, t.Context(), "http://a.com/x"))
			synctest.Wait()
		}
		for i, refused := range []bool{true, false} { // the second response is no news
			time.Sleep(time.Duration(150+50*i) * time.Millisecond)
			resp, err := tr.RoundTrip(get(t, t.Context(), "http://a.com/x"))
			require.NoError(t, err)
			r, ok := throttle.RejectionOf(resp)
			assert.Equal(t, refused, ok, "%+v", r)
			if ok {
				assert.GreaterOrEqual(t, r.Wait, 50*time.Millisecond)
				assert.LessOrEqual(t, r.Wait, 60*time.Millisecond, "jitter adds up to a tenth of the hold")
			}
		}
		time.Sleep(time.Minute)
	})
}

func TestReleaseServerForgetsWhatAServerSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status, header := 429, http.Header{"Retry-After": {"3600"}}
		base := roundTripper(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: status, Header: header, Body: http.NoBody, Request: r}, nil
		})
		var holds []throttle.HoldEvent
		var refusals []throttle.ServerRefusalEvent
		tr := throttle.Must(throttle.New(base, throttle.WithFailFast(), throttle.WithRejectionError(), throttle.WithKey(throttle.ByHost), throttle.WithHooks(throttle.Hooks{
			OnHold:          func(e throttle.HoldEvent) { holds = append(holds, e) },
			OnServerRefusal: func(e throttle.ServerRefusalEvent) { refusals = append(refusals, e) },
		})))
		l := tr.Limiter()
		send := func() error { _, err := tr.RoundTrip(get(t, t.Context(), "http://api/")); return err }
		require.NoError(t, send())
		require.ErrorIs(t, send(), throttle.ErrThrottled)
		require.Len(t, holds, 1)
		require.Equal(t, throttle.SourceServer, holds[0].Source)
		require.Equal(t, t.Context(), holds[0].Context)
		require.Equal(t, []throttle.ServerRefusalEvent{{Context: t.Context(), Host: "api", Status: 429, RetryAfter: time.Hour}}, refusals)
		servers := l.Servers()
		require.Len(t, servers, 1)
		require.Equal(t, "api", servers[0].Host)
		require.EqualValues(t, 1, servers[0].Refused)
		require.Greater(t, time.Until(servers[0].HeldUntil), time.Hour-1)

		l.Release("api")
		l.ReleaseAll()
		require.ErrorIs(t, send(), throttle.ErrThrottled, "what a server reported stays")
		status, header = 200, nil
		l.ForgetServer("api")
		require.NoError(t, send())
		require.Zero(t, l.Limits()[1].HeldUntil)
		require.EqualValues(t, 1, l.Stats().ServerRefused)
		require.EqualValues(t, 1, tr.Stats().Holds.Server)
		require.EqualValues(t, 1, l.Stats().Holds.Server)
	})
}

func TestAHoldEventSaysForHowLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var holds []throttle.HoldEvent
		tr := throttle.Must(throttle.New(roundTripper(func(*http.Request) (*http.Response, error) { return reply(429, "Retry-After", "60") }),
			throttle.WithLimit(throttle.Adaptive(throttle.AIMD{})), throttle.WithHooks(throttle.Hooks{OnHold: func(e throttle.HoldEvent) { holds = append(holds, e) }})))
		sleep(time.Hour)
		_, err := tr.RoundTrip(get(t, t.Context(), "http://h/"))
		require.NoError(t, err)
		require.NotEmpty(t, holds)
		require.Equal(t, throttle.SourceServer, holds[0].Source, "the limit learns a rate of it, and no more")
		require.InDelta(t, time.Minute, holds[0].For, float64(time.Second), "a minute and jitter")
		require.Equal(t, throttle.HoldCounts{Server: 1}, tr.Limiter().Stats().Holds)
		require.Equal(t, throttle.HoldCounts{Server: 1}, tr.Stats().Holds)
	})
}

func TestForgetServerEndsTheHoldBesideAnAdaptiveLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status, header := 429, http.Header{"Retry-After": {"3600"}}
		base := roundTripper(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: status, Header: header, Body: http.NoBody, Request: r}, nil
		})
		var holds []throttle.HoldEvent
		var retunes []throttle.RetuneEvent
		tr := throttle.Must(throttle.New(base, throttle.WithKey(throttle.ByHost), throttle.WithFailFast(), throttle.WithRejectionError(), throttle.WithAdaptive(), throttle.WithHooks(throttle.Hooks{
			OnHold:   func(e throttle.HoldEvent) { holds = append(holds, e) },
			OnRetune: func(e throttle.RetuneEvent) { retunes = append(retunes, e) },
		})))
		l := tr.Limiter()
		send := func() error { _, err := tr.RoundTrip(get(t, t.Context(), "http://h/")); return err }
		require.NoError(t, send())
		require.Len(t, holds, 1)
		require.Equal(t, []any{throttle.SourceServer, "h", t.Context()}, []any{holds[0].Source, holds[0].Key, holds[0].Context})
		require.Len(t, retunes, 1)
		require.Equal(t, []any{throttle.CauseThrottled, t.Context()}, []any{retunes[0].Reason, retunes[0].Context})
		s := l.Limits()[0]
		require.EqualValues(t, []uint64{1, 1, 0}, []uint64{s.Retunes[throttle.CauseThrottled], s.Retunes.Total(), s.Holds})
		require.Zero(t, s.HeldUntil)
		s = l.Limits()[1]
		require.EqualValues(t, 1, s.Holds)
		require.Greater(t, time.Until(s.HeldUntil), time.Hour-1)
		require.Equal(t, throttle.HoldCounts{Server: 1}, l.Stats().Holds)
		b, ok := l.Bucket("adaptive", "h")
		require.True(t, ok)
		require.Equal(t, "paused", b.Learned.Mode)

		time.Sleep(time.Minute)
		require.ErrorIs(t, send(), throttle.ErrThrottled)
		l.Release("h")
		require.ErrorIs(t, send(), throttle.ErrThrottled, "what a server said stays")
		l.ForgetServer("h")
		status, header = 200, nil
		require.NoError(t, send())
		require.Zero(t, l.Limits()[1].HeldUntil)
	})
}
