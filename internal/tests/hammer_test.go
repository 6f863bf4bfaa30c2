package tests

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// A watch finds counters that fall.
type watch struct {
	last   throttle.Stats
	limits []throttle.LimitStats
}

// check compares the counters with those of the last call.
func (w *watch) check(t testing.TB, s throttle.Stats) {
	t.Helper()
	requireNoFall(t, "Stats", reflect.ValueOf(w.last), reflect.ValueOf(s))
	require.LessOrEqual(t, s.Undone, s.Granted)
	w.last = s
}

// look is check for all counters of a Limiter.
func (w *watch) look(t testing.TB, l *throttle.Limiter) {
	t.Helper()
	w.check(t, l.Stats())
	limits := l.Limits()
	for i := range w.limits {
		requireNoFall(t, w.limits[i].Name, reflect.ValueOf(w.limits[i]), reflect.ValueOf(limits[i]))
	}
	w.limits = limits
}

// requireNoFall compares all counters: fields of type uint64, and durations.
func requireNoFall(t testing.TB, name string, last, now reflect.Value) {
	t.Helper()
	if path := fallen(last, now); path != "" {
		require.Fail(t, "a counter fell", "%s%s, from %+v to %+v", name, path, last, now)
	}
}

// fallen returns the path of a counter that fell; "": none did. Many tests call it after every step, so it formats nothing
// otherwise.
func fallen(last, now reflect.Value) string {
	switch now.Kind() {
	case reflect.Uint64:
		if now.Uint() < last.Uint() {
			return ": "
		}
	case reflect.Int64:
		if now.Int() < last.Int() {
			return ": "
		}
	case reflect.Array:
		for i := range now.Len() {
			if path := fallen(last.Index(i), now.Index(i)); path != "" {
				return fmt.Sprintf("[%d]%s", i, path)
			}
		}
	case reflect.Struct:
		for i := range now.NumField() {
			if now.Type() == reflect.TypeFor[time.Time]() {
				break
			}
			if path := fallen(last.Field(i), now.Field(i)); path != "" {
				return "." + now.Type().Field(i).Name + path
			}
		}
	}
	return ""
}

// TestEverythingAtOnce is for the race detector: all that a Limiter and its Transport can do, by many at once.
func TestEverythingAtOnce(t *testing.T) {
	limits := throttle.WithLimit(
		throttle.TokenBucket(20_000, time.Second, throttle.Name("all"), throttle.Burst(50), throttle.Key(func(*http.Request) string { return "" })),
		throttle.SlidingWindow(300, 20*time.Millisecond, throttle.Name("window"), throttle.SettleJSON("usage.tokens")),
		throttle.FixedWindow(1000, 50*time.Millisecond, throttle.ClampCost(), throttle.Settle(func(r *http.Request, _ *http.Response) (int64, bool) {
			return int64(len(r.URL.Path)), r.URL.Path != "/"
		})), throttle.InFlight(40),
		throttle.Pace(5000, time.Second, throttle.RateFor(func(key string) (int64, time.Duration) { return int64(len(key)) * 1000, time.Second })),
	)
	var seen atomic.Int64
	hooks := throttle.Hooks{OnSettle: func(throttle.SettleEvent) { seen.Add(1) }, OnGrant: func(throttle.GrantEvent) { seen.Add(1) }, OnReject: func(throttle.RejectEvent) { seen.Add(1) }, OnCancel: func(throttle.CancelEvent) { seen.Add(1) }, OnWait: func(throttle.WaitEvent) {}}
	sent := roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path == "/lost" {
			return nil, &net.OpError{Op: "dial", Err: net.ErrClosed}
		}
		return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(`{"usage":{"tokens":3}}`)), Request: r}, nil
	})
	transport := throttle.Must(throttle.New(sent, limits, throttle.WithHooks(hooks), throttle.WithMaxKeys(20), throttle.WithMaxQueue(50), throttle.WithKey(throttle.ByContext)))
	l := transport.Limiter()
	ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	var all sync.WaitGroup
	for i := range 32 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 0))
			for ctx.Err() == nil {
				disturb(ctx, t, l, transport, r)
			}
		})
	}
	all.Go(func() {
		for watch := (watch{}); ctx.Err() == nil; time.Sleep(time.Millisecond) {
			watch.look(t, l)
		}
	})
	all.Wait()
	require.Zero(t, l.Stats().Waiting)
	require.Zero(t, l.Limits()[3].InFlight)
	for b := range l.Buckets() {
		require.Zero(t, b.InFlight, "%s %s", b.Limit, b.Key)
	}
	require.Positive(t, seen.Load())
}

// disturb does one thing.
func disturb(ctx context.Context, t *testing.T, l *throttle.Limiter, transport *throttle.Transport, r *rand.Rand) {
	key := strconv.Itoa(r.IntN(40))
	ctx, cancel := context.WithTimeout(throttle.ContextWithKey(ctx, key), time.Duration(r.IntN(int(20*time.Millisecond))))
	defer cancel()
	switch r.IntN(14) {
	case 0:
		l.Try(throttle.Ask{Key: key, Cost: 1 + r.Int64N(10)})
	case 1:
		_ = l.SetRate("all", 10_000+r.Int64N(20_000), time.Second)
	case 2:
		_ = l.SetBurst("all", 10+r.Int64N(90))
	case 3:
		l.Hold(key, time.Duration(r.IntN(int(time.Millisecond))))
	case 4:
		for s := range l.Buckets() {
			_ = s.Tokens
		}
		_, _ = l.Stats(), transport.Stats()
	case 5, 6:
		ask := throttle.Ask{Key: key, Cost: 1 + r.Int64N(5), Priority: r.IntN(3) - 1, MaxWait: ptr(time.Duration(r.IntN(int(10 * time.Millisecond))))}
		if g, err := l.Acquire(ctx, ask); err == nil {
			cost := r.Int64N(20)
			switch r.IntN(3) {
			case 0:
				go g.Cancel()
				g.Cancel()
			case 1:
				go g.Settle("all", cost)
				_ = g.Settle("window", cost)
			}
			g.Done()
		}
	case 7:
		time.AfterFunc(time.Duration(r.IntN(int(time.Millisecond))), cancel)
		_ = l.Wait(ctx, throttle.Ask{Key: key, Cost: 1 + r.Int64N(50)})
	default:
		ctx, receipt := throttle.ContextWithReceipt(throttle.ContextWithPriority(ctx, r.IntN(3)))
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://example.com/"+[]string{"", "x", "lost"}[r.IntN(3)], nil)
		if err != nil {
			panic(err)
		}
		if r.IntN(2) == 0 {
			go receipt.Settle("all", 2)
		}
		if resp, err := transport.RoundTrip(req); err == nil {
			if rejection, ok := throttle.RejectionOf(resp); ok {
				_ = rejection.Error()
			}
			_, _ = io.CopyN(io.Discard, resp.Body, r.Int64N(50))
			resp.Body.Close()
		}
		receipt.Waited()
		receipt.Cost("all")
	}
}

// For the race detector: adaptive limits, settlement by header, body and receipt, refunds, slots, nested Transports under one
// receipt, contexts that end at any moment, hooks that call back.
func TestSettlementAtOnce(t *testing.T) {
	sent := roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path == "/lost" {
			return nil, &net.OpError{Op: "dial", Err: net.ErrClosed}
		}
		return &http.Response{StatusCode: 200, Header: http.Header{"X-C": {"3"}}, Request: r,
			Body: io.NopCloser(strings.NewReader(strings.Repeat(" ", 2000) + `{"usage":{"tokens":30}}`))}, nil
	})
	var inner, outer *throttle.Transport
	byHeader := throttle.Settle(func(_ *http.Request, resp *http.Response) (int64, bool) {
		n, err := strconv.ParseInt(resp.Header.Get("X-C"), 10, 64)
		return n, err == nil
	})
	hooks := throttle.Hooks{OnSettle: func(e throttle.SettleEvent) {
		_ = inner.Stats()
		for range outer.Limiter().Buckets() {
			break
		}
		_, _ = outer.Limiter().Try(throttle.Ask{Key: e.Key})
	}}
	inner = throttle.Must(throttle.New(sent, throttle.WithLimit(throttle.Adaptive(throttle.AIMD{Initial: 50_000}, throttle.Name("aimd"), throttle.SettleJSON("usage.tokens")), throttle.InFlight(30)), throttle.WithHooks(hooks), throttle.WithKey(throttle.ByContext), throttle.WithMaxKeys(9)))
	outer = throttle.Must(throttle.New(inner, throttle.WithLimit(throttle.TokenBucket(1_000_000, time.Second, throttle.Name("tpm"), throttle.SettleJSON("usage.tokens")),
		throttle.SlidingWindow(100_000, 10*time.Millisecond, byHeader), throttle.FixedWindow(100_000, 10*time.Millisecond, throttle.ClampCost(), byHeader), throttle.Pace(1_000_000, time.Second, byHeader), throttle.InFlight(40)), throttle.WithHooks(hooks), throttle.WithKey(throttle.ByContext), throttle.WithMaxKeys(20)))
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			for ctx.Err() == nil {
				ctx, cancel := context.WithTimeout(throttle.ContextWithKey(ctx, strconv.Itoa(r.IntN(6))), time.Duration(r.IntN(int(10*time.Millisecond))))
				ctx, receipt := throttle.ContextWithReceipt(ctx)
				req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://x/"+[]string{"", "a", "lost"}[r.IntN(3)], nil)
				var helpers sync.WaitGroup
				helpers.Go(func() {
					_ = receipt.Settle([]string{"tpm", "aimd", "pace", "bucket"}[i%4], int64(i))
					receipt.Cost("aimd")
					receipt.Waited()
				})
				if r.IntN(3) == 0 {
					helpers.Go(cancel)
				}
				if resp, err := outer.RoundTrip(req); err == nil {
					if r.IntN(2) == 0 {
						helpers.Go(func() { _ = resp.Body.Close() })
					}
					_, _ = io.CopyN(io.Discard, resp.Body, r.Int64N(4000))
					_ = receipt.Settle("tpm", 5)
					if r.IntN(4) > 0 {
						_ = resp.Body.Close()
					}
				}
				helpers.Wait()
				cancel()
			}
		})
	}
	all.Wait()
	taken := func(l *throttle.Limiter) (n int) {
		for b := range l.Buckets() {
			n += b.InFlight
		}
		return n
	}
	for taken(inner.Limiter())+taken(outer.Limiter()) > 0 { // what contexts that have ended call may be on its way
		runtime.Gosched()
	}
	for _, tr := range []*throttle.Transport{inner, outer} {
		l := tr.Limiter()
		require.Zero(t, l.Stats().Waiting)
		for _, s := range l.Limits() {
			require.Zero(t, s.InFlight, s.Name)
		}
	}
	t.Log(inner.Stats(), outer.Stats())
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
			if resp, err := tr.RoundTrip(get(t, t.Context(), fmt.Sprintf("http://h%d/", i%200))); err == nil {
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
}
