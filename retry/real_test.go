package retry_test

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/retry"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// quick makes a client's waits short, for tests in real time.
func quick(c *retry.Client) *retry.Client {
	c.RetryWaitMin, c.RetryWaitMax = time.Millisecond, 5*time.Millisecond
	return c
}

// Connections that break are tried again where that can do no harm, over real HTTP, and every attempt pays.
func TestRealHTTP(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, method, key string
		fault             throttletest.Fault
		sent              int64
		ok                bool
	}{
		{"abort GET", "GET", "", throttletest.Abort().First(2), 3, true},
		{"abort POST", "POST", "", throttletest.Abort().First(1), 1, false},
		{"abort POST with a key", "POST", "k", throttletest.Abort().First(2), 3, true},
		{"500 POST", "POST", "", throttletest.Respond(500, nil).First(1), 1, false},
		{"500 POST with a key", "POST", "k", throttletest.Respond(500, nil).First(1), 2, true},
		{"503 PUT", "PUT", "", throttletest.Outage(503).First(2), 3, true},
		{"429 POST", "POST", "", throttletest.Respond(429, http.Header{"Retry-After": {"3"}}).First(1), 2, true},
	} {
		for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
			bubble(t, protocol+" "+c.name, func(t *testing.T) {
				opts := []throttletest.Option{throttletest.WithInMemory(), throttletest.WithFaults(c.fault)}
				if protocol == "HTTP/2.0" {
					opts = append(opts, throttletest.WithHTTP2())
				}
				api := throttletest.Start(t, opts...)
				transport := newTransport(t, api.Transport(), throttle.WithLimit(throttle.TokenBucket(100, time.Hour)))
				req, err := retryablehttp.NewRequestWithContext(t.Context(), c.method, api.URL, []byte("payload"))
				require.NoError(t, err)
				if c.key != "" {
					req.Header.Set("Idempotency-Key", c.key)
				}
				resp, err := retry.NewClient(transport).Do(req)
				assert.Equal(t, c.sent, api.Counts().Received)
				assert.EqualValues(t, c.sent, transport.Stats().Granted)
				if err == nil {
					assert.Equal(t, c.ok, resp.StatusCode == 200)
					_ = readAll(t, resp.Body)
				} else {
					assert.False(t, c.ok, err)
				}
			})
		}
	}
}

// A POST is retried where there was no connection, and a witness knows of all the reasons.
func TestPostWithoutConnection(t *testing.T) {
	t.Parallel()
	deaf, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer deaf.Close()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, gone.Close())

	for name, c := range map[string]struct {
		scheme, first string // where the first connection is made to
		retried       bool
	}{
		"refused":       {"http", gone.Addr().String(), true},
		"TLS handshake": {"https", deaf.Addr().String(), true},
		"no answer":     {"http", deaf.Addr().String(), false},
	} {
		for _, witness := range []bool{true, false} {
			var dialed atomic.Int64
			base := &http.Transport{TLSHandshakeTimeout: 50 * time.Millisecond, ResponseHeaderTimeout: 50 * time.Millisecond,
				DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
					dialed.Add(1)
					return (&net.Dialer{}).DialContext(ctx, network, c.first)
				}}
			client := quick(retry.NewClient(newTransport(t, base)))
			if !witness {
				client.HTTPClient.Transport = newTransport(t, base)
			}
			_, err := client.Post(c.scheme+"://api.test/", "text/plain", []byte("payload"))
			require.Error(t, err)
			want := int64(1)
			if c.retried && (witness || name == "refused") {
				want = 5
			}
			assert.Equal(t, want, dialed.Load(), "%s, witness %t: %v", name, witness, err)
			assert.NotContains(t, err.Error(), "giving up")
			base.CloseIdleConnections()
		}
	}
}

// Certificates that don't verify, and servers that don't speak TLS, are not asked again.
func TestRealCertificates(t *testing.T) {
	t.Parallel()
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	for name, url := range map[string]string{
		"unknown authority": secure.URL, "no TLS": strings.Replace(plain.URL, "http:", "https:", 1),
	} {
		for _, method := range []string{"GET", "POST"} {
			var dialed atomic.Int64
			base := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				dialed.Add(1)
				return (&net.Dialer{}).DialContext(ctx, network, addr)
			}}
			client := quick(retry.NewClient(newTransport(t, base)))
			req, err := retryablehttp.NewRequest(method, url, nil)
			require.NoError(t, err)
			_, err = client.Do(req)
			require.Error(t, err)
			assert.EqualValues(t, 1, dialed.Load(), "%s %s", method, name)
			if name == "no TLS" {
				assert.ErrorIs(t, err, http.ErrSchemeMismatch)
			} else {
				var bad *tls.CertificateVerificationError
				assert.ErrorAs(t, err, &bad)
			}
		}
	}
}

// What go-retryablehttp documents works with our client as with its own: its README, and its doc comments.
func TestDocumentedUses(t *testing.T) {
	t.Parallel()
	start := func(t *testing.T, faults ...throttletest.Fault) (*throttletest.Server, *retry.Client) {
		echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, r.Method+" "+r.Header.Get("Content-Type")+" ")
			io.Copy(w, r.Body)
		})
		api := throttletest.Start(t, throttletest.WithInMemory(), throttletest.WithFaults(faults...),
			throttletest.WithHandler(echo))
		return api, retry.NewClient(newTransport(t, api.Transport()))
	}
	down := throttletest.Outage(503).First(2)
	limited := throttletest.Outage(429).First(2)
	got := func(t *testing.T, resp *http.Response, err error, want string) {
		t.Helper()
		require.NoError(t, err)
		assert.Equal(t, want, readAll(t, resp.Body))
	}
	bubble(t, "Get", func(t *testing.T) {
		api, client := start(t, down)
		resp, err := client.Get(api.URL + "/foo")
		got(t, resp, err, "GET  ")
	})
	bubble(t, "Head", func(t *testing.T) {
		api, client := start(t, down)
		resp, err := client.Head(api.URL)
		got(t, resp, err, "")
	})
	bubble(t, "Post", func(t *testing.T) {
		api, client := start(t, limited)
		resp, err := client.Post(api.URL, "text/plain", []byte("payload"))
		got(t, resp, err, "POST text/plain payload")
	})
	bubble(t, "PostForm", func(t *testing.T) {
		api, client := start(t, limited)
		resp, err := client.PostForm(api.URL, map[string][]string{"a": {"b"}})
		got(t, resp, err, "POST application/x-www-form-urlencoded a=b")
	})
	bubble(t, "StandardClient", func(t *testing.T) {
		api, client := start(t, throttletest.Outage(503).First(8))
		client.RetryMax = 10
		standard := client.StandardClient()
		resp, err := standard.Get(api.URL)
		got(t, resp, err, "GET  ")
		req, err := http.NewRequestWithContext(t.Context(), "PUT", api.URL, strings.NewReader("payload"))
		require.NoError(t, err)
		resp, err = standard.Do(req)
		got(t, resp, err, "PUT  payload")
	})
	bubble(t, "custom CheckRetry", func(t *testing.T) {
		api, client := start(t, throttletest.Respond(404, nil).First(2))
		client.CheckRetry = func(ctx context.Context, resp *http.Response, err error) (bool, error) {
			if err == nil && resp.StatusCode == 404 {
				return true, nil
			}
			return retryablehttp.DefaultRetryPolicy(ctx, resp, err)
		}
		resp, err := client.Get(api.URL)
		got(t, resp, err, "GET  ")
	})
	bubble(t, "CheckRetry around ours", func(t *testing.T) {
		api, client := start(t, throttletest.Respond(404, nil).First(1), throttletest.Outage(503).OnRequests(2))
		ours := client.CheckRetry
		client.CheckRetry = func(ctx context.Context, resp *http.Response, err error) (bool, error) {
			if err == nil && resp.StatusCode == 404 {
				return true, nil
			}
			return ours(ctx, resp, err)
		}
		resp, err := client.Get(api.URL)
		got(t, resp, err, "GET  ")
	})
	bubble(t, "custom Backoff and ErrorHandler", func(t *testing.T) {
		api, client := start(t, throttletest.Outage(503))
		client.Backoff = retryablehttp.LinearJitterBackoff
		handled := 0
		client.ErrorHandler = func(resp *http.Response, err error, tries int) (*http.Response, error) {
			handled = tries
			return retryablehttp.PassthroughErrorHandler(resp, err, tries)
		}
		resp, err := client.Get(api.URL)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, 503, resp.StatusCode)
		assert.Equal(t, 5, handled)
	})
	bubble(t, "hooks", func(t *testing.T) {
		api, client := start(t, down)
		var attempts, statuses []int
		client.RequestLogHook = func(_ retryablehttp.Logger, _ *http.Request, n int) { attempts = append(attempts, n) }
		client.ResponseLogHook = func(_ retryablehttp.Logger, resp *http.Response) { statuses = append(statuses, resp.StatusCode) }
		resp, err := client.Get(api.URL)
		got(t, resp, err, "GET  ")
		assert.Equal(t, []int{0, 1, 2}, attempts)
		assert.Equal(t, []int{503, 503, 200}, statuses)
	})
}

// An own client works the same with the parts, with and without the RoundTripper.
func TestPartsAlone(t *testing.T) {
	t.Parallel()
	for _, witness := range []bool{true, false} {
		bubble(t, "", func(t *testing.T) {
			script := scripted(answer(429, "Retry-After: 7"), fail(errBroken), answer(503), answer(200))
			c := retryablehttp.NewClient()
			c.Logger = nil
			p, err := retry.New(c)
			require.NoError(t, err)
			c.HTTPClient.Transport = newTransport(t, script, throttle.WithoutServerHints())
			if witness {
				c.HTTPClient.Transport = retry.RoundTripper(c.HTTPClient.Transport)
			}
			c.CheckRetry, c.Backoff, c.PrepareRetry, c.ErrorHandler = p.CheckRetry, p.Backoff, p.PrepareRetry, p.ErrorHandler
			resp, err := c.Get(site)
			whole(t, resp, err, 200)
			between(t, script, 7*s, 7*s, 2*s, 4*s, 4*s, 8*s)
			script.checkBodies(t)
		})
	}
}

// Idle connections are the Transport's to close, through the RoundTripper too.
func TestCloseIdleConnections(t *testing.T) {
	t.Parallel()
	base := &idle{}
	client := newClient(t, base)
	client.HTTPClient.CloseIdleConnections()
	assert.Equal(t, 1, base.closed)
	retry.RoundTripper(script0{}).(interface{ CloseIdleConnections() }).CloseIdleConnections()
}

type idle struct{ closed int }

func (*idle) RoundTrip(*http.Request) (*http.Response, error) { return nil, errBroken }
func (i *idle) CloseIdleConnections()                         { i.closed++ }

type script0 struct{}

func (script0) RoundTrip(*http.Request) (*http.Response, error) { return nil, errBroken }

// The witness does not change errors, also those of a POST.
func TestErrorsOfPostsAreUnchanged(t *testing.T) {
	t.Parallel()
	timeout := &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}
	for _, key := range []string{"", "k"} {
		bubble(t, key, func(t *testing.T) {
			req := newRequest(t, "POST", nil)
			if key != "" {
				req.Header.Set("Idempotency-Key", key)
			}
			_, err := newClient(t, scripted(fail(timeout))).StandardClient().Do(req.Request)
			outer, ok := err.(net.Error)
			require.True(t, ok)
			assert.True(t, outer.Timeout())
			_, wrapped := retry.RoundTripper(scripted(fail(timeout))).RoundTrip(req.Request)
			asked, ok := wrapped.(net.Error)
			require.True(t, ok)
			assert.True(t, asked.Timeout())
			//lint:ignore SA1019 url.Error has it, and asks the error for it
			assert.True(t, asked.Temporary())
			assert.ErrorIs(t, wrapped, timeout)
		})
	}
}
