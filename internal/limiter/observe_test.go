package limiter_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// A ledger adds up what hooks tell, by limit.
type ledger struct {
	mu                sync.Mutex
	delayed, canceled map[string]uint64
	refused           map[string]map[throttle.Reason]uint64
	waited            map[string]time.Duration
	all               uint64
}

func newLedger() *ledger {
	return &ledger{
		delayed: make(map[string]uint64), canceled: make(map[string]uint64),
		refused: make(map[string]map[throttle.Reason]uint64), waited: make(map[string]time.Duration),
	}
}

func (x *ledger) hooks() throttle.Hooks {
	locked := func(f func()) { x.mu.Lock(); defer x.mu.Unlock(); f() }
	return throttle.Hooks{
		OnGrant: func(e throttle.GrantEvent) {
			locked(func() {
				x.all++
				if e.Limit != "" {
					x.delayed[e.Limit]++
					x.waited[e.Limit] += e.Waited
				}
			})
		},
		OnReject: func(e throttle.RejectEvent) {
			locked(func() {
				if x.refused[e.Rejection.Limit] == nil {
					x.refused[e.Rejection.Limit] = make(map[throttle.Reason]uint64)
				}
				x.refused[e.Rejection.Limit][e.Rejection.Reason]++
			})
		},
		OnCancel: func(e throttle.CancelEvent) { locked(func() { x.canceled[e.Limit]++ }) },
	}
}

// Counters of limits are what hooks tell of each request, whatever happens.
func TestCountersOfLimitsAreTheSumOfEvents(t *testing.T) {
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			x := newLedger()
			l := limiterOf(t, throttle.WithHooks(x.hooks()), throttle.WithMaxQueue(20), throttle.WithLimit(
				throttle.TokenBucket(20, time.Second, throttle.Burst(5), throttle.Name("rate")), throttle.SlidingWindow(60, 10*time.Second, throttle.Name("window")), throttle.InFlight(6, throttle.Name("slots"))))
			var all sync.WaitGroup
			for range 400 {
				time.Sleep(time.Duration(r.IntN(40)) * time.Millisecond)
				ask := throttle.Ask{Key: fmt.Sprint(r.IntN(3)), Cost: 1 + r.Int64N(7), Priority: r.IntN(3) - 1}
				if r.IntN(3) == 0 {
					ask.MaxWait = new(time.Duration(r.IntN(2000)) * time.Millisecond)
				}
				ctx, cancel := context.WithCancel(t.Context())
				switch r.IntN(4) {
				case 0:
					time.AfterFunc(time.Duration(r.IntN(1000))*time.Millisecond, cancel)
				case 1:
					ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(3000))*time.Millisecond)
				}
				if r.IntN(50) == 0 {
					l.Hold(ask.Key, time.Duration(r.IntN(1000))*time.Millisecond)
				}
				busy, settles := time.Duration(r.IntN(500))*time.Millisecond, r.Int64N(10)
				all.Go(func() {
					defer cancel()
					if g, err := l.Acquire(ctx, ask); err == nil {
						time.Sleep(busy)
						_ = g.Settle("rate", settles)
						g.Done()
					}
				})
			}
			all.Wait()
			checkInvariants(t, l)
			total := l.Stats()
			require.EqualValues(t, total.Granted-total.Undone, x.all)
			for _, s := range l.Limits() {
				require.Equal(t, x.canceled[s.Name], s.Canceled, s.Name)
				for reason, n := range s.Rejected.All() {
					require.Equal(t, x.refused[s.Name][reason], n, "%s: %v", s.Name, reason)
				}
				require.LessOrEqual(t, x.delayed[s.Name], s.Delayed, s.Name)
				require.LessOrEqual(t, s.Delayed-x.delayed[s.Name], s.Undone, "granted as its context ended")
				if s.Undone == 0 {
					require.Equal(t, x.waited[s.Name], s.Waits.Sum, s.Name)
				}
				require.Zero(t, s.Waiting, s.Name)
				require.Zero(t, s.InFlight, s.Name)
				total.Delayed -= s.Delayed
				total.Canceled -= s.Canceled
				total.Waited -= s.Waits.Sum
			}
			require.Zero(t, total.Delayed)
			require.Zero(t, total.Canceled)
			require.Zero(t, total.Waited)
		})
	}
}

// For the race detector.
func TestHoldsAndStatisticsWhileRequestsGoOn(t *testing.T) {
	base := roundTripper(func(r *http.Request) (*http.Response, error) {
		resp := &http.Response{StatusCode: 200, Body: http.NoBody, Request: r, Header: http.Header{"X-Ratelimit-Remaining": {"1000"}, "X-Ratelimit-Reset": {"60"}}}
		if rand.IntN(20) == 0 {
			resp.StatusCode, resp.Header = 429, http.Header{"Retry-After": {"1"}}
		}
		return resp, nil
	})
	tr := throttle.Must(throttle.New(base, throttle.WithKey(throttle.ByHost), throttle.WithMaxWait(time.Millisecond), throttle.WithLimit(throttle.TokenBucket(1_000_000, time.Second), throttle.InFlight(50))))
	l := tr.Limiter()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	var all sync.WaitGroup
	loop := func(f func(i int)) {
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				f(i)
			}
		})
	}
	for range 4 {
		loop(func(i int) {
			if resp, err := tr.RoundTrip(get(t.Context(), fmt.Sprintf("http://h%d/", i%200))); err == nil {
				_ = resp.Body.Close()
			}
		})
	}
	loop(func(i int) { l.Hold(fmt.Sprintf("h%d", i%200), time.Second); l.Release(fmt.Sprintf("h%d", i%200)) })
	loop(func(i int) { l.HoldAll(time.Millisecond); l.ReleaseAll(); l.ForgetServer(fmt.Sprintf("h%d", i%200)) })
	var w watch
	loop(func(int) {
		w.look(t, l)
		l.Servers()
		for b := range l.Buckets() {
			_, _ = l.Bucket(b.Limit, b.Key)
			_ = l.Server(b.Key)
		}
		l.Snapshot()
	})
	all.Wait()
	l.ReleaseAll()
	for _, s := range l.Limits()[:2] {
		require.Zero(t, s.HeldUntil)
	}
	checkInvariants(t, l)
}

func TestReleaseServerEndsThePauseOfAnAdaptiveLimit(t *testing.T) {
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
		send := func() error { _, err := tr.RoundTrip(get(t.Context(), "http://h/")); return err }
		require.NoError(t, send())
		require.Len(t, holds, 1)
		require.Equal(t, []any{throttle.SourceAdaptive, "h", t.Context()}, []any{holds[0].Source, holds[0].Key, holds[0].Context})
		require.Len(t, retunes, 1)
		require.Equal(t, []any{throttle.CauseThrottled, t.Context()}, []any{retunes[0].Reason, retunes[0].Context})
		s := l.Limits()[0]
		require.EqualValues(t, []uint64{1, 1, 1}, []uint64{s.Retunes[throttle.CauseThrottled], s.Retunes.Total(), s.Holds})
		require.Greater(t, time.Until(s.HeldUntil), time.Hour-1)
		require.EqualValues(t, 1, l.Stats().Holds.Adaptive)
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
		require.Zero(t, l.Limits()[0].HeldUntil)
		checkInvariants(t, l)
	})
}

func TestServersTellQuotas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := roundTripper(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: http.NoBody, Request: r, Header: http.Header{
				"Ratelimit": {`"tokens";r=900;t=60`}, "Ratelimit-Policy": {`"tokens";q=1000;w=60;qu="tokens"`}}}, nil
		})
		tr := throttle.Must(throttle.New(base, throttle.WithKey(throttle.ByHeader("Authorization"))))
		l := tr.Limiter()
		for _, name := range []string{"one", "two"} {
			req := get(t.Context(), "http://h/")
			req.Header.Set("Authorization", name)
			_, err := tr.RoundTrip(req)
			require.NoError(t, err)
		}
		servers := l.Servers()
		require.Len(t, servers, 2)
		require.Equal(t, servers, l.Server("h"))
		require.Empty(t, l.Server("other"))
		q := servers[0].Quotas
		require.Len(t, q, 1)
		require.Equal(t, []any{"tokens", "tokens", int64(1000), int64(900)}, []any{q[0].Name, q[0].Unit, q[0].Limit, q[0].Left})
		require.Equal(t, time.Minute, time.Until(q[0].Reset))
		for _, s := range servers {
			require.NotContains(t, s.Account, "one")
			require.NotContains(t, s.Account, "two")
		}
	})
}

func TestStatisticsOfLimitsAndServersAreReadByPeopleAndMachines(t *testing.T) {
	held := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	limit := throttle.LimitStats{Name: "rpm", Granted: 30, Delayed: 4, Waits: throttle.Waits{Sum: 1500 * time.Millisecond}, Rejected: throttle.Counts[throttle.Reason]{throttle.ReasonDeadline: 3}, Waiting: 2, Tokens: 4.25, HeldUntil: held}
	assert.Equal(t, "rpm: granted 30 (4 waited, 375ms on average), rejected 3 (deadline 3), canceled 0; 2 waiting now, 4.25 tokens, held until 2026-01-02T03:04:05Z", fmt.Sprint(limit))
	assert.Equal(t, "x: granted 0, rejected 0, canceled 0; 0 waiting now, 7 keys", throttle.LimitStats{Name: "x", Keyed: true, Keys: 7}.String())
	text, err := json.Marshal(limit)
	require.NoError(t, err)
	assert.Contains(t, string(text), `"sum":1.5`)
	assert.Contains(t, string(text), `"tokens":4.25`)

	server := throttle.ServerStats{Host: "api", Account: "tenant", Refused: 2, Pace: 3.5, Quotas: []throttle.QuotaStats{
		{Name: "core", Unit: "requests", Limit: 5000, Left: 4231, Reset: held}, {Name: "other", Unit: "tokens", Limit: -1, Left: -1}}}
	assert.Equal(t, "api tenant: refused 2, core: 4231 of 5000 requests left until 2026-01-02T03:04:05Z, other: unknown tokens left, paced at 3.5/s", fmt.Sprint(server))
	_, err = json.Marshal(server)
	require.NoError(t, err)

	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "limit", limit, "server", server)
	for _, want := range []string{"limit.granted=30", "limit.waited=1.5s", "limit.held_until=2026", "server.host=api", "server.refused=2", "server.pace=3.5"} {
		assert.Contains(t, log.String(), want)
	}
}

// What servers reported has buckets without a bound, and JSON has no infinity.
func TestABucketWithoutABoundIsLoggedAsJSON(t *testing.T) {
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "open", throttle.BucketStats{Limit: "server", Tokens: math.Inf(1)}, "rate", throttle.BucketStats{Limit: "a", Tokens: 2})
	assert.NotContains(t, log.String(), "ERROR")
	assert.Contains(t, log.String(), `"open":{"limit":"server","key":"","rate":0,"waiting":0`)
	assert.Contains(t, log.String(), `"rate":{"limit":"a","key":"","rate":0,"tokens":2`)
}

// What is behind an event is in its context; a call of Hold has none.
func TestEventsCarryTheContextOfTheirRequest(t *testing.T) {
	type id struct{}
	ctx := context.WithValue(t.Context(), id{}, "request")
	var settled, held context.Context
	tr := throttle.Must(throttle.New(roundTripper(func(*http.Request) (*http.Response, error) { return nil, errors.New("none") }),
		throttle.WithLimit(throttle.TokenBucket(10, time.Second)), throttle.WithHooks(throttle.Hooks{
			OnSettle: func(e throttle.SettleEvent) { settled = e.Context },
			OnHold:   func(e throttle.HoldEvent) { held = e.Context },
		})))
	ctx, receipt := throttle.ContextWithReceipt(ctx)
	_, _ = tr.RoundTrip(get(ctx, "http://h/"))
	require.NoError(t, receipt.Settle("bucket", 2))
	require.Equal(t, "request", settled.Value(id{}))
	tr.Limiter().Hold("", time.Second)
	require.Nil(t, held)
}
