package throttle_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// A Receipt speaks of the last attempt: an inner Transport that refused it has charged nothing for it.
func TestAReceiptForgetsWhatAnInnerTransportChargedForAnEarlierAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, err := throttle.New(costly(""), throttle.WithFailFast(), throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.Name("inner"))))
		require.NoError(t, err)
		outer, err := throttle.New(inner, throttle.WithLimit(throttle.TokenBucket(100, time.Hour, throttle.Name("outer"))))
		require.NoError(t, err)
		ctx, receipt := throttle.ContextWithReceipt(t.Context())
		opened(t, outer, ctx)
		resp := opened(t, outer, ctx)
		_, local := throttle.RejectionOf(resp)
		require.True(t, local)
		_, ok := receipt.Cost("outer")
		assert.False(t, ok, "given back")
		_, ok = receipt.Cost("inner")
		assert.False(t, ok, "the last attempt was charged nothing there")
	})
}

// http.Client, its Timeout, its redirects and Request.Cancel leave no slot taken.
func TestAClientThatFollowsRedirectsLeavesNoSlotTaken(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/":
			http.Redirect(w, r, "/next", http.StatusFound)
		default:
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"usage":{"total_tokens":42}}`)
		}
	}))
	defer s.Close()
	base := s.Client().Transport.(*http.Transport).Clone()
	defer base.CloseIdleConnections()
	tr, err := throttle.New(base, throttle.WithLimit(throttle.InFlight(1), tokens(throttle.SettleJSON("usage.total_tokens"))))
	require.NoError(t, err)
	ctx, receipt := throttle.ContextWithReceipt(t.Context())
	client := &http.Client{Transport: tr, Timeout: time.Minute}
	resp, err := client.Do(get(t, ctx, s.URL))
	require.NoError(t, err)
	assert.Equal(t, 1, inFlight(tr.Limiter()))
	drained(t, resp)
	require.NoError(t, resp.Body.Close())
	assert.Zero(t, inFlight(tr.Limiter()))
	assert.Equal(t, 1000.0-100-42, left(t, tr.Limiter(), "tpm"), "the redirect stays as estimated")
	cost, ok := receipt.Cost("tpm")
	assert.True(t, ok)
	assert.Equal(t, int64(42), cost)
}

// A Receipt of a request that waited speaks of the grant, where no limit wants to know what becomes of requests.
func TestAReceiptOfARequestThatWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := throttle.New(costly(""), throttle.WithLimit(throttle.Pace(1, time.Second)))
		require.NoError(t, err)
		time.Sleep(time.Minute)
		opened(t, tr, t.Context())
		ctx, receipt := throttle.ContextWithReceipt(t.Context())
		opened(t, tr, ctx)
		assert.Equal(t, time.Second, receipt.Waited())
		cost, ok := receipt.Cost("pace")
		assert.True(t, ok)
		assert.Equal(t, int64(1), cost)
		require.NoError(t, receipt.Settle("pace", 5))
		assert.Equal(t, -5.0, left(t, tr.Limiter(), "pace"))
	})
}
