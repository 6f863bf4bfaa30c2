package tests

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

var errDial = &net.OpError{Op: "dial", Err: errors.New("refused")}

func tokensOf(l *throttle.Limiter, limit, key string) (tokens float64, ok bool) {
	for b := range l.Buckets() {
		if b.Limit == limit && b.Key == key {
			return b.Tokens, true
		}
	}
	return 0, false
}

// A debt is owed by the key, not by a bucket that was forgotten while the answer streamed.
func TestADebtIsOwedThoughTheBucketWasForgottenMeanwhile(t *testing.T) {
	for name, limit := range map[string]throttle.Limit{
		"bucket":   throttle.TokenBucket(100, time.Second, throttle.Name("tpm")),
		"pace":     throttle.Pace(100, time.Second, throttle.Name("tpm")),
		"adaptive": throttle.Adaptive(throttle.AIMD{Initial: 100}, throttle.Name("tpm")),
	} {
		for _, key := range []string{"", "tenant"} {
			inBubble(t, name+"/"+key, func(t *testing.T) {
				l, err := throttle.NewLimiter(throttle.WithLimit(limit))
				require.NoError(t, err)
				g, err := l.Acquire(t.Context(), throttle.Ask{Key: key, Cost: 1})
				require.NoError(t, err)
				g.Report(throttle.OutcomeOK)
				time.Sleep(5 * time.Second) // the answer streams
				synctest.Wait()
				require.NoError(t, g.Settle("tpm", 60))
				// 59 more are owed from now on: of a bucket of 100 (5 for Adaptive, none for a Pace) that comes to
				want := map[string]float64{"bucket": 41, "pace": -59, "adaptive": -54}[name]
				if _, ok := tokensOf(l, "tpm", key); !ok { // as the next one finds it
					g, err := l.Acquire(t.Context(), throttle.Ask{Key: key, Cost: 1, MaxWait: ptr(time.Duration(0))})
					if err == nil {
						g.Cancel()
					}
				}
				got, _ := tokensOf(l, "tpm", key)
				assert.InDelta(t, want, got, 1e-6)
			})
		}
	}
}

// A user's function that panics must not leak the slot: no caller is handed a body to close.
func TestASettleFuncThatPanicsLeaksNoSlot(t *testing.T) {
	for name, opts := range map[string][]throttle.Option{
		"SettleFunc": {throttle.WithLimit(throttle.InFlight(1), throttle.TokenBucket(10, time.Second,
			throttle.Settle(func(*http.Request, *http.Response) (int64, bool) { panic("mine") })))},
		"OnSettle": {throttle.WithLimit(throttle.InFlight(1), throttle.TokenBucket(10, time.Second, throttle.Settle(byHeader))),
			throttle.WithHooks(throttle.Hooks{OnSettle: func(throttle.SettleEvent) { panic("mine") }})},
	} {
		inBubble(t, name, func(t *testing.T) {
			closed := false
			base := roundTripper(func(req *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 200, Request: req, Header: http.Header{"X-Cost": {"2"}}, Body: closing{strings.NewReader("x"), &closed}}, nil
			})
			tr, err := throttle.New(base, opts...)
			require.NoError(t, err)
			assert.Panics(t, func() { _, _ = tr.RoundTrip(get(t, t.Context(), api)) })
			assert.Zero(t, inFlight(tr.Limiter()))
			assert.True(t, closed, "no caller can")
		})
	}
}

// closing is a body that notes that it was closed.
type closing struct {
	io.Reader
	closed *bool
}

func (c closing) Close() error {
	*c.closed = true
	return nil
}

// settledThenUnsent settles by receipt while the request is on its way, which then turns out never to have been sent.
func settledThenUnsent(t *testing.T, limit throttle.Limit, cost int64) *throttle.Limiter {
	t.Helper()
	var receipt *throttle.Receipt
	base := roundTripper(func(req *http.Request) (*http.Response, error) {
		if req.Header.Get("X-Fails") == "" {
			return costly("").RoundTrip(req)
		}
		require.NoError(t, receipt.Settle("x", cost))
		return nil, errDial
	})
	tr, err := throttle.New(base, throttle.WithLimit(limit))
	require.NoError(t, err)
	for range 5 {
		ask(t, tr, api)
	}
	var ctx context.Context
	ctx, receipt = throttle.ContextWithReceipt(t.Context())
	req := get(t, ctx, api)
	req.Header.Set("X-Fails", "yes")
	_, err = tr.RoundTrip(req)
	require.ErrorContains(t, err, "refused")
	return tr.Limiter()
}

// It is unknown what of that would have to be undone, so nothing is.
func TestASettledChargeStaysThoughItWasNeverSent(t *testing.T) {
	for name, c := range map[string]struct {
		limit throttle.Limit
		least float64
	}{
		"bucket":  {throttle.TokenBucket(10, time.Hour, throttle.Name("x")), -10},
		"sliding": {throttle.SlidingWindow(10, time.Hour, throttle.Name("x")), -40},
		"fixed":   {throttle.FixedWindow(10, time.Hour, throttle.Name("x")), -40},
	} {
		for cost, want := range map[int64]float64{0: 5, 3: 2, 1000: c.least} {
			inBubble(t, name, func(t *testing.T) {
				assert.Equal(t, want, left(t, settledThenUnsent(t, c.limit, cost), "x"), "settled to %d", cost)
			})
		}
	}
}

// Hooks of a Transport add to those of its Limiter, also for what a receipt settles.
func TestReceiptCallsTheHooksOfTransportAndLimiter(t *testing.T) {
	var own, shared int
	l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(10, time.Hour)),
		throttle.WithHooks(throttle.Hooks{OnSettle: func(throttle.SettleEvent) { shared++ }}))
	require.NoError(t, err)
	tr, err := throttle.New(costly(""), throttle.WithLimiter(l), throttle.WithHooks(throttle.Hooks{OnSettle: func(throttle.SettleEvent) { own++ }}))
	require.NoError(t, err)
	ctx, receipt := throttle.ContextWithReceipt(t.Context())
	opened(t, tr, ctx)
	require.NoError(t, receipt.Settle("bucket", 3))
	assert.Equal(t, []int{1, 1}, []int{own, shared})
}

// A refusal further in costs nothing whatever it looks like.
func TestARefusalFurtherInOfAnyShapeCostsNothing(t *testing.T) {
	inner, err := throttle.New(nil, throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.Initial(0))), throttle.WithFailFast(),
		throttle.WithRejectionResponse(func(*throttle.Rejection, *http.Request) *http.Response {
			return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader("{}"))}
		}))
	require.NoError(t, err)
	tr, err := throttle.New(inner, throttle.WithLimit(throttle.FixedWindow(10, 10000*time.Hour, throttle.Name("x"))))
	require.NoError(t, err)
	ask(t, tr, api)
	assert.Equal(t, 10.0, left(t, tr.Limiter(), "x"))
}

// Our own refusals never feed AIMD, whatever a Classify takes them for.
func TestARefusalFurtherInIsNotClassified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, err := throttle.New(nil, throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.Initial(0))), throttle.WithFailFast())
		require.NoError(t, err)
		tr, err := throttle.New(inner, throttle.WithLimit(throttle.Adaptive(throttle.AIMD{Initial: 100}, throttle.Classify(func(resp *http.Response, err error) throttle.Outcome {
			if err == nil && resp.StatusCode == 429 {
				return throttle.OutcomeThrottled
			}
			return 0
		}))))
		require.NoError(t, err)
		ask(t, tr, api)
		for b := range tr.Limiter().Buckets() {
			if b.Limit == "adaptive" {
				assert.Equal(t, 100.0, b.Rate)
			}
		}
	})
}
