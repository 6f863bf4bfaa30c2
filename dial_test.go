package throttle_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// passThrough is a base that net/http's Transport is further in of.
func passThrough(base http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		resp, err := base.RoundTrip(req.Clone(req.Context()))
		if resp != nil {
			resp.Request = req
		}
		return resp, err
	})
}

// dialBases are a Transport of net/http as the base, and as the base's base.
var dialBases = map[string]func(http.RoundTripper) http.RoundTripper{
	"direct":  func(base http.RoundTripper) http.RoundTripper { return base },
	"wrapped": passThrough,
	"nested": func(base http.RoundTripper) http.RoundTripper {
		return throttle.Must(throttle.New(base))
	},
}

func hourly(t *testing.T, base http.RoundTripper, n int64) *throttle.Transport {
	tr, err := throttle.New(base, throttle.WithLimit(throttle.TokenBucket(n, time.Hour, throttle.Name("hourly"))), throttle.WithFailFast())
	require.NoError(t, err)
	return tr
}

// counting returns a Transport that counts every request for an hour, and lets an attempt at a server that is down follow another
// after 3.6 ms.
func counting(t *testing.T, base http.RoundTripper) *throttle.Transport {
	tr, err := throttle.New(base, throttle.WithLimit(throttle.SlidingWindow(manyAnHour, time.Hour, throttle.Name("hourly"))), throttle.WithFailFast())
	require.NoError(t, err)
	return tr
}

const manyAnHour = 1_000_000

// A server has a request, of which the body then fails because another connection could not be made.
func TestABodyThatFailsWithADialErrorIsCharged(t *testing.T) {
	for name, wrap := range dialBases {
		t.Run(name, func(t *testing.T) {
			var served atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				served.Add(1)
				_, _ = io.Copy(io.Discard, r.Body)
			}))
			defer server.Close()
			base := &http.Transport{}
			defer base.CloseIdleConnections()
			tr := hourly(t, wrap(base), 2)
			for range 6 {
				body := io.MultiReader(strings.NewReader(strings.Repeat("a", 1<<16)), failing{&net.OpError{Op: "dial", Err: errors.New("connection refused")}})
				req, err := http.NewRequestWithContext(t.Context(), "POST", server.URL, body)
				require.NoError(t, err)
				if resp, err := tr.RoundTrip(req); err == nil {
					resp.Body.Close()
				}
			}
			assert.LessOrEqual(t, served.Load(), int32(2))
			assert.InDelta(t, 0, left(t, tr.Limiter(), "hourly"), 0.01)
		})
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// The body of one request is the response to another, which its own Transport rejects.
func TestABodyThatFailsWithARejectionIsCharged(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	defer server.Close()
	tr := hourly(t, server.Client().Transport, 2)
	req, err := http.NewRequestWithContext(t.Context(), "POST", server.URL, failing{&throttle.Rejection{Reason: throttle.ReasonMaxWait}})
	require.NoError(t, err)
	_, err = tr.RoundTrip(req)
	require.ErrorIs(t, err, throttle.ErrThrottled)
	assert.InDelta(t, 1, left(t, tr.Limiter(), "hourly"), 0.01)
}

// A closing server answers the first request of each connection. It reads the second, and closes the connection.
type closingServer struct {
	net.Listener
	served atomic.Int32
}

func newClosingServer(t *testing.T, addr string) *closingServer {
	l, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	s := &closingServer{Listener: l}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go s.serve(conn)
		}
	}()
	return s
}

func (s *closingServer) serve(conn net.Conn) {
	defer conn.Close()
	r := bufio.NewReader(conn)
	for range 2 {
		if _, err := http.ReadRequest(r); err != nil {
			return
		}
		if s.served.Add(1)%2 == 1 {
			_, _ = io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n")
		} else {
			s.Close() // before the connection, so that there can be no other
		}
	}
}

// net/http sends a request again whose idle connection the server closed. The error is that of the second connection.
func TestARequestThatAServerTookBeforeItWentDownIsCharged(t *testing.T) {
	for name, wrap := range dialBases {
		t.Run(name, func(t *testing.T) {
			s := newClosingServer(t, "127.0.0.1:0")
			addr := s.Addr().String()
			base := &http.Transport{}
			tr := counting(t, wrap(base))
			for round := 1; round <= 3; round++ {
				resp, err := tr.RoundTrip(get(t, t.Context(), "http://"+addr))
				require.NoError(t, err)
				resp.Body.Close()
				_, err = tr.RoundTrip(get(t, t.Context(), "http://"+addr))
				require.ErrorContains(t, err, "dial")
				require.EqualValues(t, 2, s.served.Load())
				require.EqualValues(t, manyAnHour-2*round, left(t, tr.Limiter(), "hourly"))
				for range 5 { // while the server is down
					_, err = tr.RoundTrip(get(t, t.Context(), "http://"+addr))
					require.ErrorContains(t, err, "dial")
				}
				require.EqualValues(t, manyAnHour-2*round, left(t, tr.Limiter(), "hourly"), "what followed was not sent")
				s = newClosingServer(t, addr)
			}
			s.Close()
			base.CloseIdleConnections()
		})
	}
}

// Whatever a request is like, it costs nothing where no server was ever reached.
func TestARequestWithoutAConnectionCostsNothing(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l.Close()
	for name, wrap := range dialBases {
		t.Run(name, func(t *testing.T) {
			tr := counting(t, wrap(&http.Transport{}))
			for _, method := range []string{"GET", "POST", "PUT"} {
				for range 5 {
					req, err := http.NewRequestWithContext(t.Context(), method, "http://"+l.Addr().String(), strings.NewReader(strings.Repeat("body", len(method)-3)))
					require.NoError(t, err)
					_, err = tr.RoundTrip(req)
					require.ErrorContains(t, err, "dial")
				}
			}
			assert.EqualValues(t, manyAnHour, left(t, tr.Limiter(), "hourly"))
		})
	}
}

// Of the first requests with a body nothing is certain, until one has shown that the server is down.
func TestARequestWithABodyIsChargedUntilTheServerIsKnownToBeDown(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l.Close()
	tr := counting(t, &http.Transport{})
	for range 10 {
		req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+l.Addr().String(), strings.NewReader("body"))
		require.NoError(t, err)
		_, err = tr.RoundTrip(req)
		require.ErrorContains(t, err, "dial")
	}
	assert.EqualValues(t, manyAnHour-1, left(t, tr.Limiter(), "hourly"))
}

// The request that a caller gets back with the response is its own.
func TestATracedRequestIsTheCallersInTheResponse(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	tr := hourly(t, server.Client().Transport, 5)
	for range 2 {
		req := get(t, t.Context(), server.URL)
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		resp.Body.Close()
		assert.Same(t, req, resp.Request)
	}
}
