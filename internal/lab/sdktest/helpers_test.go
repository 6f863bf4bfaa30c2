package sdktest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMain takes away what SDKs read from the environment.
func TestMain(m *testing.M) {
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		for _, prefix := range []string{"ANTHROPIC_", "AWS_", "CLOUDFLARE_", "ELASTIC", "GEMINI_", "GITHUB_", "GOOGLE_", "OPENAI_", "STORAGE_", "VAULT_"} {
			if strings.HasPrefix(name, prefix) {
				_ = os.Unsetenv(name)
			}
		}
	}
	os.Exit(m.Run())
}

// bubble runs a test in a bubble, where time stands still until all goroutines wait.
func bubble(t *testing.T, name string, f func(*testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, f)
	})
}

// An api is a local server that speaks as a real one.
type api struct {
	serve   http.HandlerFunc
	refusal func(http.ResponseWriter, *http.Request, throttletest.Refusal)
}

// start starts the API in memory.
func (a api) start(t *testing.T, opts ...throttletest.Option) *throttletest.Server {
	t.Helper()
	return throttletest.Start(t, append(opts,
		throttletest.WithInMemory(), throttletest.WithHandler(a.serve), throttletest.WithRefusal(a.refusal))...)
}

// throttled returns a Transport to the server, and an http.Client with it.
func throttled(t *testing.T, server *throttletest.Server, opts ...throttle.Option) (*throttle.Transport, *http.Client) {
	t.Helper()
	transport, err := throttle.New(server.Transport(), opts...)
	require.NoError(t, err)
	return transport, &http.Client{Transport: transport}
}

// left returns how many tokens a limit of one key has now.
func left(t *testing.T, transport *throttle.Transport, limit string) float64 {
	t.Helper()
	for bucket := range transport.Limiter().Buckets() {
		if bucket.Limit == limit {
			return bucket.Tokens
		}
	}
	require.Fail(t, "there is no bucket", limit)
	return 0
}

// A caller makes an SDK's client of the server at this URL, and returns what makes one call with it.
type caller func(t *testing.T, url string, client *http.Client) func(context.Context) error

const (
	calls   = 40
	workers = 8
	perSec  = 10
)

// work makes all calls, and returns the errors of those that failed.
func work(ctx context.Context, call func(context.Context) error) error {
	var todo atomic.Int64
	var failed [calls]error
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := todo.Add(1) - 1; i < calls; i = todo.Add(1) - 1 {
				failed[i] = call(ctx)
			}
		})
	}
	wg.Wait()
	return errors.Join(failed[:]...)
}

// checkLimitKept checks that calls break a server's limit, and that with a Transport they keep it to the nanosecond.
func checkLimitKept(t *testing.T, a api, newCall caller) {
	t.Helper()
	limit := throttletest.WithLimits(throttletest.SlidingWindow(perSec, time.Second))
	bubble(t, "without a Transport some calls are refused", func(t *testing.T) {
		server := a.start(t, limit)
		_ = work(t.Context(), newCall(t, server.URL, server.Client()))
		assert.Positive(t, server.Counts().Refused)
	})
	bubble(t, "with a Transport none is, and none takes longer than it must", func(t *testing.T) {
		server := a.start(t, limit)
		transport, client := throttled(t, server, throttle.WithLimit(throttle.SlidingWindow(perSec, time.Second)))
		begun := time.Now()
		assert.NoError(t, work(t.Context(), newCall(t, server.URL, client)))
		assert.Equal(t, (calls/perSec-1)*time.Second, time.Since(begun))
		counts := server.Counts()
		assert.Zero(t, counts.Refused)
		assert.EqualValues(t, calls, counts.Accepted)
		assert.EqualValues(t, calls, transport.Stats().Granted)
	})
}

// writeJSON answers with a text of JSON.
func writeJSON(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

// writeEvents answers with server-sent events, one by one.
func writeEvents(w http.ResponseWriter, events ...string) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	for _, event := range events {
		_, _ = io.WriteString(w, event+"\n\n")
		_ = http.NewResponseController(w).Flush()
	}
}

// asked returns what a request asks for, in a body of JSON.
func asked[T any](r *http.Request) T {
	var body T
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		panic(err)
	}
	return body
}
