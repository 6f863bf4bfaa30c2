package retry_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/retry"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// refused is what a dialer returns where no server listens.
var refused = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}

// http2Refused is what net/http returns for a stream that was refused; errors.As finds it by its fields.
type http2Refused struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (http2Refused) Error() string { return "stream error: REFUSED_STREAM" }

func (e http2Refused) As(target any) bool { return streamErrorAs(target, e.StreamID, e.Code, e.Cause) }

// Which failures are retried: once for a method that may be sent twice, and for one that may not.
func TestWhatIsRetried(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		first     step
		get, post bool
	}{
		{"200", answer(200), false, false},
		{"204 with Retry-After", answer(204, "Retry-After: 1"), false, false},
		{"304", answer(304), false, false},
		{"400", answer(400), false, false},
		{"401 with an empty quota", answer(401, "X-RateLimit-Remaining: 0"), false, false},
		{"403", answer(403), false, false},
		{"403 with Retry-After", answer(403, "Retry-After: 1"), true, true},
		{"404", answer(404), false, false},
		{"408", answer(408), false, false},
		{"429", answer(429), true, true},
		{"429 with Retry-After", answer(429, "Retry-After: 1"), true, true},
		{"429, not to be retried", answer(429, "X-Should-Retry: false"), false, false},
		{"429, not to be retried, with Retry-After", answer(429, "X-Should-Retry: false", "Retry-After: 1"), false, false},
		{"500, not to be retried", answer(500, "X-Should-Retry: false"), false, false},
		{"500", answer(500), true, false},
		{"500 with Retry-After", answer(500, "Retry-After: 1"), true, false},
		{"501", answer(501), false, false},
		{"502", answer(502), true, false},
		{"503", answer(503), true, false},
		{"503 with Retry-After", answer(503, "Retry-After: 1"), true, true},
		{"504", answer(504), true, false},
		{"529", answer(529), true, true},
		{"599", answer(599), true, false},
		{"0", answer(0), true, false},
		{"broken connection", fail(errBroken), true, false},
		{"reset", fail(&net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}), true, false},
		{"connection refused", fail(refused), true, true},
		{"no such host", fail(&net.DNSError{Err: "no such host", Name: "api.test", IsNotFound: true}), true, true},
		{"proxy refused", fail(&net.OpError{Op: "proxyconnect", Net: "tcp", Err: refused}), true, true},
		{"HTTP/2 stream refused", fail(http2Refused{StreamID: 1, Code: 7}), true, true},
		{"HTTP/2 internal error", fail(http2Refused{StreamID: 1, Code: 2}), true, false},
	} {
		for _, method := range []string{"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "POST", "PATCH", "PURGE"} {
			want := c.get
			if method == "POST" || method == "PATCH" || method == "PURGE" {
				want = c.post
			}
			bubble(t, method+" "+c.name, func(t *testing.T) {
				s := scripted(c.first, answer(200))
				resp, err := newClient(t, s).Do(newRequest(t, method, nil))
				if resp != nil {
					require.NoError(t, resp.Body.Close())
				} else {
					require.Error(t, err)
				}
				if want {
					require.NoError(t, err)
					assert.Equal(t, 200, resp.StatusCode)
				}
				assert.Equal(t, want, len(s.at) == 2, "attempts at %v", s.at)
				s.checkBodies(t)
			})
		}
	}
}

// A key, be it nil, and the option make of a POST a request like others.
func TestPostThatMayBeSentTwice(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		header http.Header
		opts   []retry.Option
	}{
		{"Idempotency-Key", http.Header{"Idempotency-Key": {"abc"}}, nil},
		{"X-Idempotency-Key", http.Header{"X-Idempotency-Key": {"abc"}}, nil},
		{"a key that is not sent", http.Header{"Idempotency-Key": nil}, nil},
		{"WithNonIdempotent", http.Header{}, []retry.Option{retry.WithNonIdempotent()}},
	} {
		for failure, first := range map[string]step{"500": answer(500), "broken": fail(errBroken)} {
			bubble(t, c.name+" "+failure, func(t *testing.T) {
				s := scripted(first, answer(200))
				req := newRequest(t, "POST", []byte("payload"))
				req.Header = c.header
				resp, err := newClient(t, s, c.opts...).Do(req)
				whole(t, resp, err, 200)
				assert.Equal(t, []string{"POST /path payload", "POST /path payload"}, s.sent)
				s.checkBodies(t)
			})
		}
	}
}

// After a redirect it is the first request that would be sent again.
func TestRedirectedPost(t *testing.T) {
	t.Parallel()
	to := "Location: /other"
	for _, c := range []struct {
		name  string
		steps []step
		sent  int
	}{
		{"303 then 500 of the GET", []step{answer(303, to), answer(500)}, 2},
		{"303 then 429 of the GET", []step{answer(303, to), answer(429, "Retry-After: 1")}, 2},
		{"303 then connection refused", []step{answer(303, to), fail(refused)}, 2},
		{"307 then 500", []step{answer(307, to), answer(500)}, 2},
		{"307 then 429", []step{answer(307, to), answer(429, "Retry-After: 1"), answer(200)}, 3},
		{"308 then connection refused", []step{answer(308, to), fail(refused), answer(200)}, 3},
	} {
		bubble(t, c.name, func(t *testing.T) {
			s := scripted(c.steps...)
			resp, err := newClient(t, s).Do(newRequest(t, "POST", []byte("payload")))
			if err == nil {
				require.NoError(t, resp.Body.Close())
			}
			assert.Len(t, s.sent, c.sent)
			s.checkBodies(t)
		})
	}
}

type loop struct{}

func (loop) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := answer(302, "Location: /again")(req)
	resp.Request = req
	return resp, err
}

// What would come again is not tried again, and comes back as net/http has it.
func TestHopelessIsNeverRetried(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"certificate":           &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}},
		"unknown authority":     x509.UnknownAuthorityError{},
		"other host's":          x509.HostnameError{Certificate: &x509.Certificate{}, Host: "api.test"},
		"expired":               x509.CertificateInvalidError{Reason: x509.Expired},
		"no TLS":                http.ErrSchemeMismatch,
		"canceled":              context.Canceled,
		"deadline":              context.DeadlineExceeded,
		"deadline, wrapped":     fmt.Errorf("token: %w", context.DeadlineExceeded),
		"deadline, joined":      errors.Join(errBroken, context.DeadlineExceeded),
		"unsupported scheme":    errors.New(`unsupported protocol scheme "ftp"`),
		"invalid header":        errors.New(`net/http: invalid header field name "a b"`),
		"no host":               errors.New("http: no Host in request URL"),
		"body of wrong length":  errors.New("http: ContentLength=5 with Body length 3"),
		"cost can't be paid":    &throttle.Rejection{Reason: throttle.ReasonCost},
		"deadline can't be met": &throttle.Rejection{Reason: throttle.ReasonDeadline},
	} {
		for _, method := range []string{"GET", "POST"} {
			bubble(t, method+" "+name, func(t *testing.T) {
				s := scripted(fail(err))
				resp, got := newClient(t, s, retry.WithNonIdempotent()).Do(newRequest(t, method, nil))
				assert.Nil(t, resp)
				assert.ErrorIs(t, got, err)
				var outer *url.Error
				ok := errors.As(got, &outer)
				require.True(t, ok)
				assert.Equal(t, err, outer.Err)
				assert.Len(t, s.at, 1)
				assert.Zero(t, time.Since(s.begun))
			})
		}
	}
	bubble(t, "redirects", func(t *testing.T) {
		resp, err := newClient(t, loop{}).Get(site)
		assert.Nil(t, resp)
		assert.ErrorContains(t, err, "stopped after 10 redirects")
	})
	bubble(t, "redirect not wanted", func(t *testing.T) {
		s := scripted(answer(302, "Location: /other"))
		c := newClient(t, s)
		c.HTTPClient.CheckRedirect = func(*http.Request, []*http.Request) error { return errBroken }
		resp, err := c.Get(site)
		assert.Nil(t, resp)
		assert.ErrorIs(t, err, errBroken)
		assert.Len(t, s.at, 1)
		s.checkBodies(t)
	})
	bubble(t, "scheme", func(t *testing.T) {
		_, err := newClient(t, http.DefaultTransport).Get("ftp://api.test/")
		assert.ErrorContains(t, err, "unsupported protocol scheme")
		assert.Zero(t, time.Since(time.Now()))
	})
}

// A canceled context ends it before an attempt, at it, and between attempts.
func TestCanceledIsNeverRetried(t *testing.T) {
	t.Parallel()
	bubble(t, "before", func(t *testing.T) {
		s := scripted(answer(500))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		req := newRequest(t, "GET", nil).WithContext(ctx)
		resp, err := newClient(t, s).Do(req)
		assert.Nil(t, resp)
		assert.ErrorIs(t, err, context.Canceled)
		assert.Empty(t, s.at)
	})
	bubble(t, "with the answer", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := scripted(func(r *http.Request) (*http.Response, error) { cancel(); return answer(500)(r) })
		resp, err := newClient(t, s).Do(newRequest(t, "GET", nil).WithContext(ctx))
		whole(t, resp, err, 500)
		assert.Len(t, s.at, 1)
	})
	for name, opts := range map[string][]throttle.Option{"in backoff": nil, "in CheckRetry": {throttle.WithRejectionError()}} {
		bubble(t, name, func(t *testing.T) {
			s := scripted(answer(500))
			opts = append(opts, throttle.WithLimit(throttle.TokenBucket(1, 20*time.Second)), throttle.WithFailFast())
			c := retry.NewClient(newTransport(t, s, opts...))
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(2500*time.Millisecond, cancel) // 500 at 0, a refusal at 1 to 2, a wait of 18 to 19
			resp, err := c.Do(newRequest(t, "GET", nil).WithContext(ctx))
			assert.Nil(t, resp)
			assert.ErrorIs(t, err, context.Canceled)
			assert.Len(t, s.at, 1)
			assert.Equal(t, 2500*time.Millisecond, time.Since(s.begun))
			s.checkBodies(t)
		})
	}
}

// A handler's error is retried if the request may be processed twice, since it was processed once.
func TestResponseHandler(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]int{"GET": 2, "POST": 1} {
		bubble(t, method, func(t *testing.T) {
			s := scripted(answer(200))
			req := newRequest(t, method, nil)
			req.SetResponseHandler(func(*http.Response) error {
				if len(s.at) < 2 {
					return errBroken
				}
				return nil
			})
			resp, err := newClient(t, s).Do(req)
			assert.Len(t, s.at, want)
			if want == 2 {
				whole(t, resp, err, 200)
			} else {
				assert.ErrorIs(t, err, errBroken)
				assert.Nil(t, resp)
			}
			s.checkBodies(t)
		})
	}
	bubble(t, "of what is not retried anyway", func(t *testing.T) {
		s := scripted(answer(429, "Retry-After: 3600"))
		req := newRequest(t, "GET", nil)
		req.SetResponseHandler(func(*http.Response) error { return errBroken })
		_, err := newClient(t, s).Do(req)
		assert.ErrorIs(t, err, errBroken)
		assert.Len(t, s.at, 1)
		s.checkBodies(t)
	})
}

// A dialect may know refusals that are none by their status, from their bodies, which stay whole.
func TestReaderOfDialects(t *testing.T) {
	t.Parallel()
	reader, err := headers.NewReader(headers.Dialect{
		Members: []headers.Field{{Name: "retry_after", Role: headers.RoleRetryAfter}},
		Rules:   []headers.Rule{{Statuses: []int{400}, Body: []headers.Match{{Name: "code", Values: []string{"SlowDown"}}}}},
	})
	require.NoError(t, err)
	const slow = `{"code":"SlowDown","retry_after":7}`
	slowDown := func(r *http.Request) (*http.Response, error) {
		resp, err := answer(400, "Content-Type: application/json")(r)
		resp.Body, resp.ContentLength = &body{Reader: &reading{slow}}, int64(len(slow))
		return resp, err
	}
	bubble(t, "retried", func(t *testing.T) {
		s := scripted(slowDown, answer(200))
		resp, err := newClient(t, s, retry.WithReader(reader)).Do(newRequest(t, "POST", nil))
		whole(t, resp, err, 200)
		between(t, s, 7*time.Second, 7*time.Second)
		s.checkBodies(t)
	})
	bubble(t, "whole", func(t *testing.T) {
		s := scripted(slowDown)
		c := newClient(t, s, retry.WithReader(reader), retry.WithMaxWait(5*time.Second))
		resp, err := c.Do(newRequest(t, "POST", nil))
		require.NoError(t, err)
		assert.Equal(t, slow, readAll(t, resp.Body))
		s.checkBodies(t)
	})
	bubble(t, "whole until it breaks", func(t *testing.T) {
		s := scripted(func(r *http.Request) (*http.Response, error) {
			resp, err := answer(400, "Content-Type: application/json")(r)
			resp.Body, resp.ContentLength = &body{Reader: &breaking{text: "half of"}}, -1
			return resp, err
		})
		resp, err := newClient(t, s, retry.WithReader(reader)).Get(site)
		require.NoError(t, err)
		got := make([]byte, 7)
		n, _ := resp.Body.Read(got)
		assert.Equal(t, "half of", string(got[:n]))
		_, err = resp.Body.Read(got)
		assert.ErrorIs(t, err, errBroken)
		require.NoError(t, resp.Body.Close())
		s.checkBodies(t)
	})
}

// CheckRetry may be asked about responses that no http.Client has made.
func TestCheckRetryOfBareResponses(t *testing.T) {
	t.Parallel()
	p, err := retry.New(retryablehttp.NewClient())
	require.NoError(t, err)
	for status, want := range map[int]bool{200: false, 429: true, 500: false} {
		again, err := p.CheckRetry(t.Context(), &http.Response{StatusCode: status}, nil)
		require.NoError(t, err)
		assert.Equal(t, want, again, status) // it is not known whether the request may be sent twice
	}
	again, err := p.CheckRetry(t.Context(), nil, errBroken)
	require.NoError(t, err)
	assert.False(t, again)
	resp, err := p.ErrorHandler(&http.Response{StatusCode: 500}, nil, 1)
	require.NoError(t, err)
	assert.Equal(t, 500, resp.StatusCode)
}
