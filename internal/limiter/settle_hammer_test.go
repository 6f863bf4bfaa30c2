package limiter_test

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
)

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
		checkInvariants(t, l)
		coreOf(l).Lock()
		require.Zero(t, coreOf(l).LineCount())
		for _, li := range coreOf(l).Limits {
			for key, b := range everyBucket(li) {
				switch m := b.Meter.(type) {
				case *meter.Slots:
					require.Zero(t, m.InFlight(), key)
				case *aimd.Meter:
					require.Zero(t, m.InFlight(), key)
				}
			}
		}
		coreOf(l).Unlock()
	}
	t.Log(inner.Stats(), outer.Stats())
}
