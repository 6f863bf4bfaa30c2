package retry_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/retry"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// bubble runs a test in a bubble, where time stands still until all goroutines wait.
func bubble(t *testing.T, name string, f func(*testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, f)
	})
}

// A step is what the server does with one attempt.
type step func(*http.Request) (*http.Response, error)

// A script is a server: its steps, one for each attempt that reaches it, the last one again and again.
type script struct {
	mu     sync.Mutex
	steps  []step
	begun  time.Time
	at     []time.Duration // of the attempts, since the script was made
	sent   []string        // their methods, paths and bodies
	bodies []*body         // of the responses
}

func scripted(steps ...step) *script { return &script{steps: steps, begun: time.Now()} }

func (s *script) RoundTrip(req *http.Request) (*http.Response, error) {
	var text []byte
	if req.Body != nil {
		defer req.Body.Close()
		var err error
		if text, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	do := s.steps[min(len(s.at), len(s.steps)-1)]
	s.at = append(s.at, time.Since(s.begun))
	s.sent = append(s.sent, strings.TrimSpace(req.Method+" "+req.URL.Path+" "+string(text)))
	resp, err := do(req)
	if err != nil {
		return nil, err
	}
	resp.Request = req
	b := resp.Body.(*body)
	s.bodies = append(s.bodies, b)
	return resp, nil
}

// checkBodies checks that all bodies are closed.
func (s *script) checkBodies(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, b := range s.bodies {
		assert.True(t, b.closed, "the body of response %d is open", i)
	}
}

type body struct {
	io.Reader
	closed bool
}

func (b *body) Close() error { b.closed = true; return nil }

func (b *body) Read(p []byte) (int, error) {
	if b.closed {
		return 0, errors.New("read after Close")
	}
	return b.Reader.Read(p)
}

const text = "the whole response"

// answer responds with a status and header lines "Name: value".
func answer(status int, lines ...string) step {
	return func(*http.Request) (*http.Response, error) {
		h := http.Header{}
		for _, line := range lines {
			name, value, _ := strings.Cut(line, ": ")
			h.Add(name, value)
		}
		return &http.Response{
			Status: http.StatusText(status), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: h, Body: &body{Reader: strings.NewReader(text)}, ContentLength: int64(len(text)),
		}, nil
	}
}

func fail(err error) step {
	return func(*http.Request) (*http.Response, error) { return nil, err }
}

var errBroken = errors.New("connection reset by the script")

// newClient returns a client that sends to s by a Transport without limits.
func newClient(t *testing.T, s http.RoundTripper, opts ...retry.Option) *retry.Client {
	t.Helper()
	return retry.NewClient(newTransport(t, s, throttle.WithoutServerHints()), opts...)
}

func newTransport(t *testing.T, s http.RoundTripper, opts ...throttle.Option) *throttle.Transport {
	t.Helper()
	transport, err := throttle.New(s, opts...)
	require.NoError(t, err)
	return transport
}

const site = "http://api.test/path"

func newRequest(t *testing.T, method string, body any) *retryablehttp.Request {
	t.Helper()
	req, err := retryablehttp.NewRequestWithContext(t.Context(), method, site, body)
	require.NoError(t, err)
	return req
}

// whole checks that resp has that status and can be read to its end, and closes it.
func whole(t *testing.T, resp *http.Response, err error, status int) {
	t.Helper()
	require.NoError(t, err)
	require.NotNil(t, resp)
	got, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, status, resp.StatusCode)
	if _, local := throttle.RejectionOf(resp); !local {
		assert.Equal(t, text, string(got))
	}
}

// between checks that the attempts came at such distances of each other: pairs of the least and the most.
func between(t *testing.T, s *script, bounds ...time.Duration) {
	t.Helper()
	require.Len(t, s.at, 1+len(bounds)/2, "attempts at %v", s.at)
	for i := 1; i < len(s.at); i++ {
		d := s.at[i] - s.at[i-1]
		assert.GreaterOrEqual(t, d, bounds[2*i-2], "before attempt %d", i)
		assert.LessOrEqual(t, d, bounds[2*i-1], "before attempt %d", i)
	}
}

// streamErrorAs is what http2StreamError.As of net/http does.
func streamErrorAs(target any, id, code uint32, cause error) bool {
	dst := reflect.ValueOf(target).Elem()
	if dst.Kind() != reflect.Struct || dst.NumField() != 3 || dst.Type().Field(0).Name != "StreamID" {
		return false
	}
	dst.Field(0).SetUint(uint64(id))
	dst.Field(1).SetUint(uint64(code))
	if cause != nil {
		dst.Field(2).Set(reflect.ValueOf(cause))
	}
	return true
}

// reading gives its text byte by byte.
type reading struct{ text string }

func (r *reading) Read(p []byte) (int, error) {
	if r.text == "" {
		return 0, io.EOF
	}
	n := copy(p[:1], r.text)
	r.text = r.text[n:]
	return n, nil
}

// breaking gives its text, then errBroken once, and then nonsense.
type breaking struct {
	text   string
	broken bool
}

func (b *breaking) Read(p []byte) (int, error) {
	if b.text != "" {
		n := copy(p, b.text)
		b.text = b.text[n:]
		return n, nil
	}
	if !b.broken {
		b.broken = true
		return 0, errBroken
	}
	return 0, io.EOF
}

func readAll(t *testing.T, r io.ReadCloser) string {
	t.Helper()
	got, err := io.ReadAll(r)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	return string(got)
}

func withTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d)
}

// answerLines is answer with its header lines in one string.
func answerLines(status int, lines string) step { return answer(status, strings.Split(lines, "\n")...) }

// checkRefused checks that what came back is the Transport's refusal, for one of the reasons, as a whole response or as an
// error of an http.Client.
func checkRefused(t *testing.T, resp *http.Response, err error, reasons ...throttle.Reason) {
	t.Helper()
	var r *throttle.Rejection
	if err == nil {
		var ok bool
		r, ok = throttle.RejectionOf(resp)
		require.True(t, ok, "not a refusal: %v", resp.Status)
		if resp.StatusCode == http.StatusTooManyRequests {
			assert.Contains(t, readAll(t, resp.Body), "Too many requests")
		}
	} else {
		assert.Nil(t, resp)
		assert.ErrorIs(t, err, throttle.ErrThrottled)
		var outer *url.Error
		ok := errors.As(err, &outer)
		require.True(t, ok)
		r, ok = outer.Err.(*throttle.Rejection)
		require.True(t, ok)
	}
	assert.Contains(t, reasons, r.Reason)
}
