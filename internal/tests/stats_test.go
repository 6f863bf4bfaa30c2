package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/bucket"
)

func TestServerRefusalsCountWithoutServerHintsToo(t *testing.T) {
	for name, opts := range map[string][]throttle.Option{
		"hints": nil, "without hints": {throttle.WithoutServerHints()}, "without hints, tracked": {throttle.WithoutServerHints(), throttle.WithLimit(throttle.InFlight(5))},
		"tracked": {throttle.WithAdaptive()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				status := 0
				base := roundTripper(func(r *http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: status, Body: http.NoBody, Request: r}, nil
				})
				var events []throttle.ServerRefusalEvent
				tr := throttle.Must(throttle.New(base, append(opts, throttle.WithHooks(throttle.Hooks{OnServerRefusal: func(e throttle.ServerRefusalEvent) { events = append(events, e) }}))...))
				for i, s := range []int{200, 404, 500, 429} {
					status = s
					_, err := tr.RoundTrip(get(t, t.Context(), fmt.Sprintf("http://h%d/", i)))
					require.NoError(t, err)
				}
				require.Equal(t, []throttle.ServerRefusalEvent{{Context: t.Context(), Host: "h3", Status: 429}}, events)
				require.EqualValues(t, 1, tr.Stats().ServerRefused)
				require.EqualValues(t, 1, tr.Limiter().Stats().ServerRefused)
			})
		})
	}
}

func TestHooksAddUpInOrder(t *testing.T) {
	var calls []string
	hooks := func(name string) throttle.Option {
		return throttle.WithHooks(throttle.Hooks{OnGrant: func(throttle.GrantEvent) { calls = append(calls, name) }})
	}
	l := limiterWith(t, hooks("first"), throttle.WithHooks(throttle.Hooks{}), hooks("second"))
	tr := throttle.Must(throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) { return nil, errors.New("none") }),
		throttle.WithLimiter(l), hooks("third"), hooks("fourth")))
	_, _ = tr.RoundTrip(get(t, t.Context(), "http://h/"))
	require.Equal(t, []string{"first", "second", "third", "fourth"}, calls)
	_, _ = l.Try(throttle.Ask{})
	require.Equal(t, []string{"first", "second"}, calls[4:])
}

func TestStatsOfLimitsSayWhichOneHeldARequestUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var grant throttle.GrantEvent
		l := limiterWith(t, throttle.WithHooks(throttle.Hooks{OnGrant: func(e throttle.GrantEvent) { grant = e }}), throttle.WithLimit(
			throttle.TokenBucket(10, time.Second, throttle.Name("fast")), throttle.TokenBucket(1, time.Minute, throttle.Name("slow")), throttle.InFlight(3), throttle.FixedWindow(100, time.Hour)))
		for range 2 {
			g, err := l.Acquire(t.Context(), throttle.Ask{Costs: map[string]int64{"fast": 2}})
			require.NoError(t, err)
			require.NoError(t, g.Settle("fast", 5))
			require.NoError(t, g.Settle("fixed-window", 0))
			g.Done()
		}
		require.Equal(t, "slow", grant.Limit)
		_, err := l.Acquire(t.Context(), throttle.Ask{MaxWait: ptr(time.Duration(0))})
		require.ErrorIs(t, err, throttle.ErrThrottled)
		stats := make(map[string]throttle.LimitStats)
		for _, s := range l.Limits() {
			stats[s.Name] = s
		}
		fast, slow, slots, window := stats["fast"], stats["slow"], stats["in-flight"], stats["fixed-window"]
		assert.EqualValues(t, []uint64{2, 0, 10, 0, 0}, []uint64{fast.Granted, fast.Delayed, fast.Charged, fast.Returned, fast.Rejected.Total()})
		assert.EqualValues(t, []uint64{2, 1, 2, 0, 1}, []uint64{slow.Granted, slow.Delayed, slow.Charged, slow.Returned, slow.Rejected[throttle.ReasonNoTokens]})
		assert.EqualValues(t, []uint64{2, 2}, []uint64{window.Charged, window.Returned})
		assert.EqualValues(t, []uint64{2, 2}, []uint64{slots.Charged, slots.Returned})
		assert.Equal(t, time.Minute, slow.Waits.Sum)
		assert.EqualValues(t, 1, slow.Waits.Counts[14], "up to a minute")
		assert.Equal(t, []float64{10, 10}, []float64{fast.Rate, fast.Capacity})
		assert.Equal(t, "server", stats["server"].Kind)

		b, ok := l.Bucket("slow", "")
		require.True(t, ok)
		assert.Equal(t, time.Minute, b.Wait)
		w, ok := l.Bucket("fixed-window", "")
		require.True(t, ok)
		assert.Equal(t, time.Now().Truncate(time.Hour).Add(time.Hour).UnixNano(), w.Reset.UnixNano())
		_, ok = l.Bucket("slow", "unknown")
		assert.False(t, ok)
		_, ok = l.Bucket("unknown", "")
		assert.False(t, ok)
	})
}

func TestWaitsAreCountedUpToTheirBounds(t *testing.T) {
	var w bucket.WaitCounts
	require.Len(t, w.Counts, len(throttle.WaitBounds())+1)
	for i, bound := range throttle.WaitBounds() {
		w = bucket.WaitCounts{}
		w.Add(bound)
		require.EqualValues(t, 1, w.Counts[i], "%v", bound)
		w.Add(bound + 1)
		require.EqualValues(t, 1, w.Counts[i+1], "%v", bound+1)
	}
}

func TestStatisticsWithoutABoundAreValidJSON(t *testing.T) {
	l := limiterWith(t)
	l.Hold("", time.Hour)
	for b := range l.Buckets() {
		require.True(t, math.IsInf(b.Tokens, 1))
		text, err := json.Marshal(b)
		require.NoError(t, err)
		require.Contains(t, string(text), `"tokens":null`)
	}
	text, err := json.Marshal(l.Limits())
	require.NoError(t, err)
	require.Contains(t, string(text), `"tokens":null`)
}

func TestServersHaveTheirQuotas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := roundTripper(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: http.NoBody, Request: r, Header: http.Header{
				"Ratelimit": {`"tokens";r=900;t=60`}, "Ratelimit-Policy": {`"tokens";q=1000;w=60;qu="tokens"`}}}, nil
		})
		tr := throttle.Must(throttle.New(base, throttle.WithKey(throttle.ByHeader("Authorization"))))
		l := tr.Limiter()
		for _, name := range []string{"one", "two"} {
			req := get(t, t.Context(), "http://h/")
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
	_, _ = tr.RoundTrip(get(t, ctx, "http://h/"))
	require.NoError(t, receipt.Settle("bucket", 2))
	require.Equal(t, "request", settled.Value(id{}))
	tr.Limiter().Hold("", time.Second)
	require.Nil(t, held)
}

func TestUndoneCountsGrantsThatWereNeverUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := true
		base := roundTripper(func(r *http.Request) (*http.Response, error) {
			if fails {
				return nil, &net.OpError{Op: "dial", Err: net.ErrClosed}
			}
			return &http.Response{StatusCode: 200, Body: http.NoBody, Request: r}, nil
		})
		panics := true
		transport := throttle.Must(throttle.New(base, throttle.WithLimit(throttle.TokenBucket(10, time.Hour)), throttle.WithHooks(throttle.Hooks{OnGrant: func(throttle.GrantEvent) {
			if panics {
				panic("user")
			}
		}})))
		l := transport.Limiter()
		check := func(granted, undone uint64, what string) {
			for _, s := range []throttle.Stats{l.Stats(), transport.Stats()} {
				require.Equal(t, granted, s.Granted, what)
				require.Equal(t, undone, s.Undone, what)
			}
			for b := range l.Buckets() {
				require.EqualValues(t, 10-(granted-undone), b.Tokens, what)
			}
		}
		send := func() { _, _ = transport.RoundTrip(get(t, t.Context(), "http://h/")) }
		require.PanicsWithValue(t, "user", send)
		check(1, 1, "OnGrant panicked")
		panics = false
		send()
		check(2, 2, "the dial failed")
		fails = false
		send()
		check(3, 2, "sent")
	})
	l := limiterWith(t, throttle.WithLimit(throttle.TokenBucket(10, time.Hour)))
	g, err := l.Acquire(t.Context(), throttle.Ask{Cost: 3})
	require.NoError(t, err)
	g.Cancel()
	g.Cancel()
	require.Equal(t, throttle.Stats{Granted: 1, Undone: 1, MaxQueue: 100_000, MaxKeys: 1 << 20}, l.Stats())
}

// A hook that panics must not leak the slots of a response that no caller is handed.
func TestAHookThatPanicsAfterTheAnswerLeaksNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := roundTripper(func(req *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 429, Request: req, Header: http.Header{"Retry-After": {"5"}}, Body: io.NopCloser(strings.NewReader("x"))}, nil
		})
		tr := throttle.Must(throttle.New(base, throttle.WithLimit(throttle.InFlight(1), throttle.Adaptive(throttle.AIMD{})), throttle.WithHooks(throttle.Hooks{OnRetune: func(throttle.RetuneEvent) { panic("mine") }})))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://example.com/", nil)
		require.NoError(t, err)
		assert.Panics(t, func() { _, _ = tr.RoundTrip(req) })
		assert.Zero(t, tr.Limiter().Limits()[0].InFlight)
	})
}

// Of 100 quotas at one host, each of a path with a number in it, 64 are known. A person recognizes each by the words of its path.
func TestWhatIsCountedSeparatelyIsBoundedAndHasAName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := roundTripper(func(r *http.Request) (*http.Response, error) {
			limit := strconv.Itoa(int(r.URL.Path[6])*100 + int(r.URL.Path[7]))
			return &http.Response{StatusCode: 429, Body: http.NoBody, Request: r, Header: http.Header{
				"X-Ratelimit-Limit": {limit}, "X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {"3600"}}}, nil
		})
		tr := throttle.Must(throttle.New(base))
		for i := range 100 {
			path := "/list-" + string([]byte{byte('a' + i/10), byte('a' + i%10)})
			resp, err := tr.RoundTrip(get(t, t.Context(), "http://h"+path+"/12345"))
			require.NoError(t, err)
			resp.Body.Close()
		}
		servers := tr.Limiter().Servers()
		require.Len(t, servers, 64)
		shown := make(map[string]bool)
		for _, s := range servers {
			require.Equal(t, "h", s.Host)
			require.Empty(t, s.Account)
			require.Regexp(t, `^GET /list-[a-j][a-j]/\*$`, s.For)
			require.Contains(t, s.String(), s.For)
			shown[s.For] = true
		}
		require.Len(t, shown, 64, "one is also of those that found no room")
	})
}

// ptr returns a pointer to a copy of v. (Go 1.26 has new for it.)
func ptr[T any](v T) *T { return &v }
