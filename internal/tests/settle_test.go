package tests

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// byHeader reads what a request has cost from its answer.
func byHeader(_ *http.Request, resp *http.Response) (int64, bool) {
	cost, err := strconv.ParseInt(resp.Header.Get("X-Cost"), 10, 64)
	return cost, err == nil
}

// costly answers at once that a request has cost so much.
func costly(cost string) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{"X-Cost": {cost}}, Body: http.NoBody, Request: req}, nil
	})
}

// left returns what is left in the bucket of a limit without keys.
func left(t *testing.T, l *throttle.Limiter, limit string) float64 {
	t.Helper()
	for b := range l.Buckets() {
		if b.Limit == limit {
			return b.Tokens
		}
	}
	t.Fatalf("no bucket of limit %q", limit)
	return 0
}

func TestWhatARequestCostIsChargedOnceItIsKnown(t *testing.T) {
	for _, c := range []struct {
		name, cost string
		want       float64
	}{
		{"as estimated", "10", 90}, {"less", "3", 97}, {"nothing", "0", 100}, {"more", "30", 70},
		{"more than there is", "150", -50}, {"more than may be owed", "100000", -100},
		{"more than can be counted", strconv.FormatInt(math.MaxInt64, 10), -100}, {"negative", "-5", 90}, {"missing", "", 90},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			tr, err := throttle.New(costly(c.cost), throttle.WithLimit(
				throttle.TokenBucket(100, time.Minute, throttle.Name("tpm"), throttle.Cost(costing(10)), throttle.Settle(byHeader))))
			require.NoError(t, err)
			ask(t, tr, api)
			assert.Equal(t, c.want, left(t, tr.Limiter(), "tpm"))
		})
	}
}

func TestAGrantIsSettledOnceAndOnlyWithSense(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		settled := 0
		l, err := throttle.NewLimiter(throttle.WithLimit(
			throttle.TokenBucket(100, time.Minute, throttle.Name("a")), throttle.TokenBucket(100, time.Minute, throttle.Name("b")),
			throttle.InFlight(5)), throttle.WithHooks(throttle.Hooks{OnSettle: func(throttle.SettleEvent) { settled++ }}))
		require.NoError(t, err)
		g, err := l.Acquire(t.Context(), throttle.Ask{Costs: map[string]int64{"a": 10, "b": 0}})
		require.NoError(t, err)
		assert.ErrorContains(t, g.Settle("nowhere", 1), `"nowhere"`)
		assert.ErrorContains(t, g.Settle("b", 1), "nothing was charged")
		assert.ErrorContains(t, g.Settle("in-flight", 1), "in-flight")
		assert.ErrorContains(t, g.Settle("a", -1), "negative")
		assert.Equal(t, 90.0, left(t, l, "a"))
		require.NoError(t, g.Settle("a", 20))
		assert.ErrorContains(t, g.Settle("a", 5), "before")
		assert.Equal(t, 1, settled)
		g.Cancel()
		assert.Equal(t, 80.0, left(t, l, "a"))
		g.Done()
		assert.Zero(t, inFlight(l))
		g, err = l.Acquire(t.Context(), throttle.Ask{Cost: 10})
		require.NoError(t, err)
		g.Cancel()
		assert.ErrorContains(t, g.Settle("a", 5), "given back")
		g, err = l.Acquire(t.Context(), throttle.Ask{Cost: 10})
		require.NoError(t, err)
		g.Report(throttle.OutcomeOK)
		g.Done()
		require.NoError(t, g.Settle("b", 0), "after all else that may be done")
		require.NoError(t, g.Settle("a", 0))
		assert.Equal(t, 100.0, left(t, l, "b"))
	})
}

func TestAReceiptReportsAndSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := throttle.New(costly(""), throttle.WithLimit(
			throttle.TokenBucket(1, time.Second, throttle.Name("rpm"), throttle.Cost(costing(1))),
			throttle.TokenBucket(100, time.Minute, throttle.Name("tpm"), throttle.Cost(costing(40)))))
		require.NoError(t, err)
		ctx, receipt := throttle.ContextWithReceipt(t.Context())
		assert.ErrorContains(t, receipt.Settle("tpm", 1), "nothing was charged")
		_, ok := receipt.Cost("tpm")
		assert.False(t, ok)
		opened(t, tr, ctx)
		assert.Zero(t, receipt.Waited())
		opened(t, tr, ctx) // another attempt
		assert.Equal(t, time.Second, receipt.Waited())
		cost, ok := receipt.Cost("tpm")
		assert.True(t, ok)
		assert.Equal(t, int64(40), cost)
		require.NoError(t, receipt.Settle("tpm", 15))
		require.NoError(t, receipt.Settle("rpm", 0))
		assert.Error(t, receipt.Settle("tpm", 15))
		cost, _ = receipt.Cost("tpm")
		assert.Equal(t, int64(15), cost)
		assert.InDelta(t, 100-40-15+100.0/60, left(t, tr.Limiter(), "tpm"), 1e-9)
		assert.ErrorContains(t, receipt.Settle("server", 1), "nothing was charged")
	})
}

// A Receipt is for whatever asks under its context, be it without HTTP, or through two Transports.
func TestAReceiptOfSeveralLimiters(t *testing.T) {
	inner, err := throttle.New(costly(""), throttle.WithLimit(throttle.TokenBucket(100, time.Hour, throttle.Name("inner"))))
	require.NoError(t, err)
	outer, err := throttle.New(inner, throttle.WithLimit(throttle.TokenBucket(100, time.Hour, throttle.Name("outer"))))
	require.NoError(t, err)
	ctx, receipt := throttle.ContextWithReceipt(t.Context())
	opened(t, outer, ctx)
	require.NoError(t, receipt.Settle("outer", 11))
	require.NoError(t, receipt.Settle("inner", 12))
	assert.InDelta(t, 89, left(t, outer.Limiter(), "outer"), 0.1)
	assert.InDelta(t, 88, left(t, inner.Limiter(), "inner"), 0.1)
	require.NoError(t, inner.Limiter().Wait(ctx, throttle.Ask{Cost: 5}))
	require.NoError(t, receipt.Settle("inner", 1))
	assert.InDelta(t, 87, left(t, inner.Limiter(), "inner"), 0.1)
	assert.Error(t, receipt.Settle("outer", 1), "settled before")
}

// The tokens of what never reached a server are given back, slots and all.
func TestWhatNeverReachedAServerCostsNothing(t *testing.T) {
	refusing, err := throttle.New(nil, throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.Initial(0))), throttle.WithFailFast())
	require.NoError(t, err)
	asError, err := throttle.New(nil, throttle.WithLimiter(refusing.Limiter()), throttle.WithFailFast(), throttle.WithRejectionError())
	require.NoError(t, err)
	closed := net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}
	failing := func(err error) http.RoundTripper {
		return roundTripper(func(*http.Request) (*http.Response, error) { return nil, err })
	}
	for _, c := range []struct {
		name string
		base http.RoundTripper
		back bool
	}{
		{"no server listens", &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", closed.String())
		}}, true},
		{"the proxy is down", &http.Transport{Proxy: http.ProxyURL(get(t, t.Context(), "http://"+closed.String()).URL)}, true},
		{"a certificate that is not trusted", failing(&tls.CertificateVerificationError{Err: errors.New("unknown")}), true},
		{"a refusal further in", refusing, true},
		{"a refusal further in, as an error", asError, true},
		{"a broken connection", failing(&net.OpError{Op: "read", Err: io.ErrUnexpectedEOF}), false},
		{"no answer", failing(context.DeadlineExceeded), false},
	} {
		for name, opts := range map[string][]throttle.Option{
			"":             nil,
			", deaf":       {throttle.WithoutServerHints()},
			", with slots": {throttle.WithLimit(throttle.InFlight(5))},
			", adaptive":   {throttle.WithAdaptive()},
		} {
			t.Run(c.name+name, func(t *testing.T) {
				tr, err := throttle.New(c.base, append(opts, throttle.WithLimit(
					throttle.FixedWindow(1000, 1000*24*time.Hour, throttle.Name("quota"), throttle.Cost(costing(10)))))...)
				require.NoError(t, err)
				ctx, receipt := throttle.ContextWithReceipt(t.Context())
				for range 3 {
					resp, err := tr.RoundTrip(get(t, ctx, "http://api.example.com/"))
					if err == nil {
						require.NoError(t, resp.Body.Close())
					}
				}
				want := 970.0
				if c.back {
					want = 1000
					assert.ErrorContains(t, receipt.Settle("quota", 3), "given back")
				}
				assert.Equal(t, want, left(t, tr.Limiter(), "quota"))
				assert.Zero(t, inFlight(tr.Limiter()))
			})
		}
	}
}

// A gate counts what is on the way: what never was must not be counted as sent.
func TestAQuotaIsNotUsedUpByWhatNeverReachedAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down, sent := false, 0
		base := roundTripper(func(req *http.Request) (*http.Response, error) {
			if down {
				return nil, &net.OpError{Op: "dial", Err: errors.New("refused")}
			}
			sent++
			return &http.Response{StatusCode: 200, Body: http.NoBody, Request: req, Header: http.Header{
				"X-Ratelimit-Limit": {"10"}, "X-Ratelimit-Remaining": {strconv.Itoa(10 - sent)}, "X-Ratelimit-Reset": {"3600"}}}, nil
		})
		tr, err := throttle.New(base, throttle.WithFailFast())
		require.NoError(t, err)
		ask(t, tr, api)
		down = true
		for range 100 {
			_, err := tr.RoundTrip(get(t, t.Context(), api))
			require.ErrorContains(t, err, "refused")
		}
		down = false
		for range 20 {
			_, _ = tr.RoundTrip(get(t, t.Context(), api))
		}
		assert.Equal(t, 10, sent)
	})
}

func TestSettlementThatMakesNoSenseIsAnError(t *testing.T) {
	_, err := throttle.New(nil, throttle.WithLimit(
		throttle.TokenBucket(1, 1, throttle.Name("nil"), throttle.Settle(nil)),
		throttle.InFlight(1, throttle.Settle(byHeader)),
		throttle.Pace(1, 1, throttle.ClampCost()), throttle.Adaptive(throttle.AIMD{}, throttle.ClampCost())))
	for _, part := range []string{`"nil": Settle(nil)`, "Settle does not fit a limit of kind in-flight",
		"ClampCost() does not fit a limit of kind pace", "ClampCost() does not fit a limit of kind adaptive"} {
		assert.ErrorContains(t, err, part)
	}
}

// A server that charges what a request really costs, and never more than it allows, is used up and never exceeded,
// however wrong the estimates are.
func TestEstimatesThatAreWrongExceedNothingInTheLongRun(t *testing.T) {
	for name, estimate := range map[string]int64{"too low": 2, "right": 10, "too high": 40} {
		inBubble(t, name, func(t *testing.T) {
			var spent int64
			base := roundTripper(func(req *http.Request) (*http.Response, error) {
				spent += 10
				return costly("10").RoundTrip(req)
			})
			tr, err := throttle.New(base, throttle.WithLimit(
				throttle.TokenBucket(100, time.Second, throttle.Cost(costing(estimate)), throttle.Settle(byHeader))))
			require.NoError(t, err)
			stop := time.Now().Add(time.Minute)
			for time.Now().Before(stop) {
				ask(t, tr, api)
			}
			assert.LessOrEqual(t, spent, int64(60*100+100+10), "burst, what came in, and the one that overdrew it")
			assert.GreaterOrEqual(t, spent, int64(60*100))
		})
	}
}
