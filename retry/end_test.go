package retry_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/retry"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// When attempts are used up, the last response comes back whole, with the real transport's body unread.
func TestLastResponseIsWhole(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(*retry.Client, *retryablehttp.Request) (*http.Response, error){
		"client": (*retry.Client).Do,
		"StandardClient": func(c *retry.Client, req *retryablehttp.Request) (*http.Response, error) {
			return c.StandardClient().Do(req.Request)
		},
	} {
		bubble(t, name, func(t *testing.T) {
			script := scripted(answer(503), answer(500), answer(502), answer(429), answer(504))
			resp, err := do(newClient(t, script), newRequest(t, "PUT", []byte("payload")))
			whole(t, resp, err, 504)
			assert.Len(t, script.at, 5)
			script.checkBodies(t)
		})
		bubble(t, name+", none", func(t *testing.T) {
			script := scripted(answer(503), fail(errBroken))
			resp, err := do(newClient(t, script), newRequest(t, "GET", nil))
			assert.Nil(t, resp)
			assert.ErrorIs(t, err, errBroken)
			assert.Equal(t, `Get "http://api.test/path": connection reset by the script`, err.Error())
			assert.Len(t, script.at, 5)
			script.checkBodies(t)
		})
		bubble(t, name+", no retries", func(t *testing.T) {
			script := scripted(answer(503))
			c := newClient(t, script)
			c.RetryMax = 0
			resp, err := do(c, newRequest(t, "GET", nil))
			whole(t, resp, err, 503)
			script.checkBodies(t)
		})
		bubble(t, name+", over the cap", func(t *testing.T) {
			script := scripted(answer(429, "Retry-After: 11"))
			resp, err := do(newClient(t, script, retry.WithMaxWait(10*time.Second)), newRequest(t, "GET", nil))
			whole(t, resp, err, 429)
			assert.Equal(t, []time.Duration{0}, script.at)
			assert.Zero(t, time.Since(script.begun))
		})
		bubble(t, name+", local", func(t *testing.T) {
			transport := newTransport(t, scripted(answer(200)), throttle.WithFailFast(),
				throttle.WithLimit(throttle.TokenBucket(1, time.Hour)))
			c := retry.NewClient(transport)
			resp, err := do(c, newRequest(t, "GET", nil))
			whole(t, resp, err, 200)
			resp, err = do(c, newRequest(t, "GET", nil))
			checkRefused(t, resp, err, throttle.ReasonNoTokens)
		})
	}
}

// A wait that would not end before the deadline is not begun: by the server's word, by the backoff at its longest.
func TestNeverPastTheDeadline(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		steps    []step
		deadline time.Duration
		status   int // that comes back; 0: an error
		at       time.Duration
	}{
		{"word and deadline at once", []step{answer(429, "Retry-After: 10"), answer(200)}, 10 * s, 429, 0},
		{"no room for the hold", []step{answer(429, "Retry-After: 10"), answer(200)}, 11 * s, 429, 0},
		{"word before the deadline", []step{answer(429, "Retry-After: 10"), answer(200)}, 11*s + 1, 200, 10 * s},
		{"backoff may be as long", []step{answer(500), answer(200)}, 2 * s, 500, 0},
		{"second backoff may be as long", []step{answer(500), answer(500), answer(200)}, 5 * s, 500, -1},
		{"error", []step{fail(errBroken)}, 2 * s, 0, 0},
	} {
		bubble(t, c.name, func(t *testing.T) {
			script := scripted(c.steps...)
			ctx, cancel := context.WithTimeout(t.Context(), c.deadline)
			defer cancel()
			resp, err := newClient(t, script).Do(newRequest(t, "GET", nil).WithContext(ctx))
			if c.status == 0 {
				assert.ErrorIs(t, err, errBroken)
			} else {
				whole(t, resp, err, c.status)
			}
			if c.at >= 0 {
				assert.Equal(t, c.at, time.Since(script.begun))
			} else {
				assert.Equal(t, script.at[1], time.Since(script.begun))
				assert.Len(t, script.at, 2)
			}
			script.checkBodies(t)
		})
	}
}

// slow answers after d, unless the request's context ends.
func slow(d time.Duration, then step) step {
	return func(req *http.Request) (*http.Response, error) {
		select {
		case <-time.After(d):
			return then(req)
		case <-req.Context().Done():
			return nil, context.Cause(req.Context())
		}
	}
}

// The Timeout of the inner client is for each attempt, that of the outer one for all.
func TestTwoTimeouts(t *testing.T) {
	t.Parallel()
	bubble(t, "inner", func(t *testing.T) {
		script := scripted(slow(time.Hour, answer(200)), answer(500), answer(200))
		c := newClient(t, script)
		c.HTTPClient.Timeout = 3 * s // shorter than the waits together
		resp, err := c.Get(site)
		whole(t, resp, err, 200)
		between(t, script, 4*s, 5*s, 2*s, 4*s)
	})
	bubble(t, "inner, POST", func(t *testing.T) {
		script := scripted(slow(time.Hour, answer(200)))
		c := newClient(t, script)
		c.HTTPClient.Timeout = 3 * s
		_, err := c.Post(site, "text/plain", []byte("payload"))
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Len(t, script.at, 1) // it may have been processed
	})
	bubble(t, "inner, in line", func(t *testing.T) {
		script := scripted(answer(200))
		c := retry.NewClient(newTransport(t, script, throttle.WithLimit(throttle.TokenBucket(1, 10*s))))
		c.HTTPClient.Timeout = 3 * s
		resp, err := c.Get(site)
		whole(t, resp, err, 200)
		resp, err = c.Get(site)
		checkRefused(t, resp, err, throttle.ReasonDeadline)
		assert.Zero(t, time.Since(script.begun))
	})
	bubble(t, "outer", func(t *testing.T) {
		script := scripted(answer(500))
		c := newClient(t, script).StandardClient()
		c.Timeout = 5 * s
		resp, err := c.Get(site)
		whole(t, resp, err, 500)
		between(t, script, s, 2*s) // the third would come after 5 s at the latest
	})
}

// A wait that the context ends is retryablehttp's to report; the response is gone then, and its body closed.
func TestContextEndsDuringTheWait(t *testing.T) {
	t.Parallel()
	bubble(t, "response", func(t *testing.T) {
		script := scripted(answer(429, "Retry-After: 10"))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(4*s, cancel)
		resp, err := newClient(t, script).Do(newRequest(t, "GET", nil).WithContext(ctx))
		assert.Nil(t, resp)
		assert.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, 4*s, time.Since(script.begun))
		script.checkBodies(t)
	})
}

// The response of a request whose preparation failed was drained; the error is what counts.
func TestPrepareRetryOfOnesOwn(t *testing.T) {
	t.Parallel()
	bubble(t, "fails", func(t *testing.T) {
		script := scripted(answer(500))
		c := newClient(t, script)
		c.PrepareRetry = func(*http.Request) error { return errBroken }
		resp, err := c.Get(site)
		assert.Nil(t, resp)
		assert.ErrorIs(t, err, errBroken)
		script.checkBodies(t)
	})
	bubble(t, "calls ours", func(t *testing.T) {
		script := scripted(answer(500))
		c := newClient(t, script)
		ours, signed := c.PrepareRetry, 0
		c.PrepareRetry = func(req *http.Request) error {
			signed++
			return ours(req)
		}
		resp, err := c.Get(site)
		whole(t, resp, err, 500)
		assert.Equal(t, 4, signed)
		between(t, script, s, 2*s, 2*s, 4*s, 4*s, 8*s, 8*s, 16*s)
	})
}

// The caller's request stays as it is: only copies carry the count of attempts.
func TestRequestIsNotChanged(t *testing.T) {
	t.Parallel()
	bubble(t, "", func(t *testing.T) {
		script := scripted(answer(500), answer(500), answer(200))
		req, err := http.NewRequestWithContext(t.Context(), "GET", site, nil)
		require.NoError(t, err)
		before := *req
		resp, err := newClient(t, script).StandardClient().Do(req)
		whole(t, resp, err, 200)
		assert.Equal(t, before, *req)
	})
}

// A body that the transport does not read is closed by the Transport; one that it reads is sent whole each time.
func TestRequestBodies(t *testing.T) {
	t.Parallel()
	for name, raw := range map[string]any{
		"bytes": []byte("payload"), "buffer": bytes.NewBufferString("payload"), "reader": strings.NewReader("payload"),
		"stream": io.LimitReader(strings.NewReader("payload!"), 7),
		"function": retryablehttp.ReaderFunc(func() (io.Reader, error) {
			return strings.NewReader("payload"), nil
		}),
	} {
		bubble(t, name, func(t *testing.T) {
			script := scripted(answer(503, "Retry-After: 1"), fail(refused), answer(200))
			resp, err := newClient(t, script).Post(site, "text/plain", raw)
			whole(t, resp, err, 200)
			assert.Equal(t, []string{"POST /path payload", "POST /path payload", "POST /path payload"}, script.sent)
		})
	}
	bubble(t, "closed when refused", func(t *testing.T) {
		opened, closed := 0, 0
		c := retry.NewClient(newTransport(t, scripted(answer(200)), throttle.WithFailFast(),
			throttle.WithLimit(throttle.TokenBucket(1, 10*s))))
		for range 2 {
			resp, err := c.Post(site, "text/plain", func() (io.Reader, error) {
				opened++
				return &closing{strings.NewReader("payload"), &closed}, nil
			})
			whole(t, resp, err, 200)
		}
		assert.Equal(t, opened, closed)
	})
}

type closing struct {
	io.Reader
	closed *int
}

func (c *closing) Close() error { *c.closed++; return nil }

// NewClient takes a wrong option for a mistake in the program, New for an error.
func TestBadOptions(t *testing.T) {
	t.Parallel()
	opts := []retry.Option{
		retry.WithMaxWait(0), retry.WithMaxWait(-s), retry.WithBudget(-1, 2), retry.WithBudget(1, math.NaN()), nil,
		retry.WithLogger(nil),
	}
	want := []string{
		"WithMaxWait(0s): must be positive", "WithMaxWait(-1s): must be positive", "reserve -1: must not be negative",
		"share 2: must be from 0 to 1", "share NaN: must be from 0 to 1", "an Option is nil", "WithLogger(nil)",
	}
	p, err := retry.New(nil, opts...)
	assert.Nil(t, p)
	for _, text := range append(want, "New: the Client is nil") {
		assert.ErrorContains(t, err, text)
	}
	func() {
		defer func() {
			err, _ := recover().(error)
			for _, text := range append(want, "NewClient: the Transport is nil") {
				assert.ErrorContains(t, err, text)
			}
		}()
		retry.NewClient(nil, opts...)
		t.Error("it did not panic")
	}()
}

// It logs nothing unless it has a logger, and then why a failure was not retried.
func TestLogger(t *testing.T) {
	t.Parallel()
	bubble(t, "none", func(t *testing.T) {
		assert.Nil(t, newClient(t, scripted(answer(200))).Logger)
	})
	for why, c := range map[string]struct {
		first step
		opts  []retry.Option
		log   string
	}{
		"max wait": {answer(429, "Retry-After: 3600"), nil, `reason="max wait" wait=1h0m0s attempt=1 max=1m0s status=429`},
		"deadline": {answer(429, "Retry-After: 30"), nil, `reason=deadline wait=30s attempt=1 status=429`},
		"budget":   {answer(500), []retry.Option{retry.WithBudget(0, 0)}, `reason=budget wait=0s attempt=1 status=500`},
		"budget, error": {fail(errBroken), []retry.Option{retry.WithBudget(0, 0)},
			`reason=budget wait=0s attempt=1 error="Get`},
	} {
		bubble(t, why, func(t *testing.T) {
			var log bytes.Buffer
			handler := slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})
			client := newClient(t, scripted(c.first), append(c.opts, retry.WithLogger(slog.New(handler)))...)
			ctx, cancel := context.WithTimeout(t.Context(), 30*s)
			defer cancel()
			resp, err := client.Do(newRequest(t, "GET", nil).WithContext(ctx))
			if !errors.Is(err, errBroken) {
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
			}
			assert.Contains(t, log.String(), `msg="retry: not retried" `+c.log)
		})
	}
}
