package limiter_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/meter"
)

// TestManyGoroutinesNeverGetMore counts grants in real time. The time is read after the last of them, so that a slow
// machine only makes the test easier.
func TestManyGoroutinesNeverGetMore(t *testing.T) {
	for _, perSecond := range []int64{10_000, 1_000_000} {
		for kind, limit := range map[string]throttle.Limit{
			"bucket": throttle.TokenBucket(perSecond, time.Second, throttle.Burst(100)), "pace": throttle.Pace(perSecond, time.Second),
			"sliding window": throttle.SlidingWindow(perSecond/100, 10*time.Millisecond),
		} {
			for _, by := range []string{"Try", "Wait"} {
				t.Run(fmt.Sprint(kind, perSecond, by), func(t *testing.T) {
					l := limiterOf(t, throttle.WithLimit(limit))
					ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
					defer cancel()
					var granted atomic.Int64
					var all sync.WaitGroup
					for range 64 {
						all.Go(func() {
							for ctx.Err() == nil {
								if by == "Wait" {
									if l.Wait(ctx, throttle.Ask{}) == nil {
										granted.Add(1)
									}
								} else if _, ok := l.Try(throttle.Ask{}); ok {
									granted.Add(1)
								}
							}
						})
					}
					all.Wait()
					elapsed := time.Since(coreOf(l).Start)
					most := int64(float64(perSecond)*elapsed.Seconds()) + 1
					switch kind {
					case "bucket":
						most += 100
					case "pace":
						most++
					case "sliding window":
						most = perSecond / 100 * (int64(elapsed/(10*time.Millisecond)) + 1)
					}
					require.LessOrEqual(t, granted.Load(), most, "in %v", elapsed)
					s := l.Stats()
					require.Equal(t, uint64(granted.Load()), s.Granted-s.Undone)
					require.Positive(t, granted.Load())
					checkInvariants(t, l)
				})
			}
		}
	}
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
	checkInvariants(t, l)
	coreOf(l).Lock()
	require.Zero(t, coreOf(l).LineCount())
	for _, b := range everyBucket(coreOf(l).Limits[3]) {
		require.Zero(t, b.Meter.(*meter.Slots).InFlight())
	}
	coreOf(l).Unlock()
	require.Positive(t, seen.Load())
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

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
		ask := throttle.Ask{Key: key, Cost: 1 + r.Int64N(5), Priority: r.IntN(3) - 1, MaxWait: new(time.Duration(r.IntN(int(10 * time.Millisecond))))}
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
