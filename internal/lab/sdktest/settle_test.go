package sdktest

import (
	"compress/gzip"
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	size     = 1000
	estimate = 100
)

// tokens is a limit of tokens per minute that charges every request so many, until it is known better.
func tokens(estimate int64, opts ...throttle.LimitOption) throttle.Limit {
	return throttle.TokenBucket(size, time.Minute, append(opts, throttle.Name("tpm"),
		throttle.Cost(func(*http.Request) int64 { return estimate }))...)
}

// A usageCall makes a call with an SDK's client of the server at this URL, and returns the usage that the SDK reports.
type usageCall func(ctx context.Context, url string, client *http.Client) (usage int64, err error)

// checkSettled checks that a call is charged the usage that it reports, whichever way that comes to be known.
func checkSettled(t *testing.T, a api, settle throttle.LimitOption, usage int64, call usageCall) {
	t.Helper()
	for name, estimate := range map[string]int64{"too much": 500, "too little": 1, "the usage itself": usage} {
		bubble(t, "by SettleJSON, where the estimate was "+name, func(t *testing.T) {
			server := a.start(t)
			transport, client := throttled(t, server, throttle.WithLimit(tokens(estimate, settle)))
			reported, err := call(t.Context(), server.URL, client)
			require.NoError(t, err)
			assert.Equal(t, usage, reported, "what the SDK saw")
			assert.EqualValues(t, size-usage, left(t, transport, "tpm"))
		})
		bubble(t, "by the caller, where the estimate was "+name, func(t *testing.T) {
			server := a.start(t)
			transport, client := throttled(t, server, throttle.WithLimit(tokens(estimate)))
			ctx, receipt := throttle.ContextWithReceipt(t.Context())
			reported, err := call(ctx, server.URL, client)
			require.NoError(t, err)
			assert.EqualValues(t, size-estimate, left(t, transport, "tpm"))
			charged, ok := receipt.Cost("tpm")
			assert.True(t, ok)
			assert.Equal(t, estimate, charged)

			require.NoError(t, receipt.Settle("tpm", reported))
			assert.EqualValues(t, size-usage, left(t, transport, "tpm"))
		})
	}
	bubble(t, "by SettleJSON, where the answer is compressed", func(t *testing.T) {
		server := a.zipped(t).start(t)
		transport, client := throttled(t, server, throttle.WithLimit(tokens(estimate, settle)))
		reported, err := call(t.Context(), server.URL, client)
		require.NoError(t, err)
		assert.Equal(t, usage, reported, "what the SDK saw")
		assert.EqualValues(t, size-usage, left(t, transport, "tpm"))
	})
	bubble(t, "for the attempt that was answered, and the estimate for one that failed", func(t *testing.T) {
		server := a.start(t, throttletest.WithFaults(throttletest.Respond(http.StatusTooManyRequests, nil).First(1)))
		transport, client := throttled(t, server, throttle.WithLimit(throttle.FixedWindow(size, time.Hour, throttle.Name("hourly"),
			throttle.Cost(func(*http.Request) int64 { return estimate }), settle)))
		_, err := call(t.Context(), server.URL, client)
		require.NoError(t, err)
		assert.EqualValues(t, size-estimate-usage, left(t, transport, "hourly"))
	})
	bubble(t, "once, where both know it", func(t *testing.T) {
		server := a.start(t)
		transport, client := throttled(t, server, throttle.WithLimit(tokens(estimate, settle)))
		ctx, receipt := throttle.ContextWithReceipt(t.Context())
		reported, err := call(ctx, server.URL, client)
		require.NoError(t, err)
		require.Error(t, receipt.Settle("tpm", reported))
		assert.EqualValues(t, size-usage, left(t, transport, "tpm"))
	})
	bubble(t, "immediately, so that the next request does not wait for an estimate", func(t *testing.T) {
		server := a.start(t)
		transport, client := throttled(t, server, throttle.WithLimit(tokens(size, settle)))
		begun := time.Now()
		for range 3 { // each of which by its estimate would have to wait for all that the one before it took
			_, err := call(t.Context(), server.URL, client)
			require.NoError(t, err)
		}
		assert.Equal(t, 2*time.Duration(usage)*time.Minute/size, time.Since(begun))
		assert.EqualValues(t, size-usage, left(t, transport, "tpm"))
	})
}

// zipped is the same API where it compresses its answers, which net/http asks for by itself.
func (a api) zipped(t *testing.T) api {
	serve := a.serve
	a.serve = func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "gzip", r.Header.Get("Accept-Encoding"))
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		defer z.Close()
		serve(zipWriter{w, z}, r)
	}
	return a
}

type zipWriter struct {
	http.ResponseWriter
	zip *gzip.Writer
}

func (w zipWriter) Write(p []byte) (int, error) { return w.zip.Write(p) }

func (w zipWriter) FlushError() error {
	if err := w.zip.Flush(); err != nil {
		return err
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}
