package tests

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A flaky server is down for a while. It notes when it is dialed, and answers in 20 ms.
type flaky struct {
	start  time.Time
	until  time.Duration
	mu     sync.Mutex
	dialed []time.Duration
	served []time.Duration
}

var errRefused = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}

func transportTo(t *testing.T, base http.RoundTripper, opts ...throttle.Option) *throttle.Transport {
	t.Helper()
	transport, err := throttle.New(base, opts...)
	require.NoError(t, err)
	return transport
}

func (f *flaky) RoundTrip(req *http.Request) (*http.Response, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := time.Since(f.start)
	if at < f.until && req.URL.Host == "down" {
		f.dialed = append(f.dialed, at)
		return nil, errRefused
	}
	f.served = append(f.served, at)
	f.mu.Unlock()
	time.Sleep(20 * time.Millisecond)
	f.mu.Lock()
	return &http.Response{StatusCode: 200, Body: http.NoBody, Request: req}, nil
}

func TestAServerThatIsDownIsDialedNoOftenerThanItsLimitsAllow(t *testing.T) { // slow: minutes of a server
	for _, c := range []struct {
		name  string
		limit throttle.Limit
		burst int           // dials at once, or nearly so
		rate  float64       // dials per second, at most
		gap   time.Duration // between two of them, at least
	}{
		{"bucket", throttle.TokenBucket(50, time.Second, throttle.Burst(10)), 10, 50, 20 * time.Millisecond},
		{"slow bucket", throttle.TokenBucket(1, time.Hour), 1, 10, 100 * time.Millisecond},
		{"pace", throttle.Pace(20, time.Second), 0, 20, 50 * time.Millisecond},
		{"window", throttle.SlidingWindow(100, time.Second), 100, 100, 10 * time.Millisecond},
		{"fixed window", throttle.FixedWindow(1000, time.Minute), 64, 1000.0 / 60, 60 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &flaky{start: time.Now(), until: 30 * time.Second}
				if testing.Short() {
					f.until = 6 * time.Second
				}
				most := c.burst + int(c.rate*f.until.Seconds())
				tr := transportTo(t, f, throttle.WithLimit(c.limit))
				ctx, cancel := context.WithTimeout(t.Context(), f.until)
				defer cancel()
				var all sync.WaitGroup
				var longest atomic.Int64
				for range 64 {
					all.Go(func() {
						for ctx.Err() == nil {
							began := time.Now()
							if _, err := tr.RoundTrip(get(t, t.Context(), "http://down/")); err != nil {
								assert.ErrorIs(t, err, syscall.ECONNREFUSED)
								longest.Store(max(longest.Load(), int64(time.Since(began))))
							}
						}
					})
				}
				all.Wait()
				assert.LessOrEqual(t, len(f.dialed), most)
				assert.GreaterOrEqual(t, len(f.dialed), most/4, "it is tried all the time")
				assert.LessOrEqual(t, time.Duration(longest.Load()), 2*c.gap, "a caller gets the error soon")
				burst := 0
				for i, at := range f.dialed {
					if at == 0 {
						burst++
					} else {
						assert.GreaterOrEqual(t, at-f.dialed[i-1], c.gap)
					}
				}
				assert.LessOrEqual(t, burst, 64)
			})
		})
	}
}

func TestAfterADialSucceededTheLimitsAloneDecide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flaky{start: time.Now(), until: 30 * time.Second}
		tr := transportTo(t, f, throttle.WithLimit(throttle.TokenBucket(100, time.Second, throttle.Burst(10))))
		for range 2999 {
			_, err := tr.RoundTrip(get(t, t.Context(), "http://down/"))
			require.ErrorIs(t, err, errRefused)
		}
		require.Len(t, f.dialed, 2999)
		for b := range tr.Limiter().Buckets() {
			require.EqualValues(t, 10, b.Tokens, "nothing was charged")
		}
		require.Equal(t, uint64(2999), tr.Stats().Undone)
		f.until = time.Since(f.start)
		var all sync.WaitGroup
		for range 64 {
			all.Go(func() {
				for time.Since(f.start) < f.until+3*time.Second {
					_, err := tr.RoundTrip(get(t, t.Context(), "http://down/"))
					require.NoError(t, err)
				}
			})
		}
		all.Wait()
		require.InDelta(t, 10+300, len(f.served), 64)
		for at := f.until; at < f.until+3*time.Second; at += time.Second {
			n := 0
			for _, s := range f.served {
				if s >= at && s < at+time.Second {
					n++
				}
			}
			require.GreaterOrEqual(t, n, 95)
			require.LessOrEqual(t, n, 111, "no stampede")
		}
	})
}

// All requests of a line get the error of the attempt that they waited for, and do not fail one after the other.
func TestALineLearnsTogetherThatItsServerIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flaky{start: time.Now(), until: time.Hour}
		tr := transportTo(t, f, throttle.WithLimit(throttle.TokenBucket(1, time.Minute)))
		var all sync.WaitGroup
		for range 1000 {
			all.Go(func() {
				_, err := tr.RoundTrip(get(t, t.Context(), "http://down/"))
				assert.ErrorIs(t, err, errRefused)
			})
		}
		all.Wait()
		require.Equal(t, 100*time.Millisecond, time.Since(f.start))
		require.Len(t, f.dialed, 2)
	})
}

func TestAServerThatIsDownDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flaky{start: time.Now(), until: time.Hour}
		tr := transportTo(t, f, throttle.WithLimit(throttle.TokenBucket(100, time.Minute)))
		_, err := tr.RoundTrip(get(t, t.Context(), "http://down/"))
		require.ErrorIs(t, err, errRefused)
		_, err = tr.RoundTrip(get(t, t.Context(), "http://up/"))
		require.NoError(t, err)
		require.Equal(t, 20*time.Millisecond, time.Since(f.start))
	})
}

func TestAnAttemptAtAServerThatIsDownHeedsItsContext(t *testing.T) {
	gone := errors.New("gone")
	for name, c := range map[string]struct {
		ctx func(context.Context) context.Context
		at  time.Duration
		err error
	}{
		"deadline": {func(ctx context.Context) context.Context {
			ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			t.Cleanup(cancel)
			return ctx
		}, 0, errRefused},
		"cancel": {func(ctx context.Context) context.Context {
			ctx, cancel := context.WithCancelCause(ctx)
			time.AfterFunc(50*time.Millisecond, func() { cancel(gone) })
			return ctx
		}, 50 * time.Millisecond, gone},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &flaky{start: time.Now(), until: time.Hour}
				tr := transportTo(t, f, throttle.WithLimit(throttle.TokenBucket(2, time.Minute)))
				_, err := tr.RoundTrip(get(t, t.Context(), "http://down/"))
				require.ErrorIs(t, err, errRefused)
				req := get(t, c.ctx(t.Context()), "http://down/")
				closed := &closes{}
				req.Body = closed
				_, err = tr.RoundTrip(req)
				require.Equal(t, c.err, err)
				require.Equal(t, c.at, time.Since(f.start))
				require.True(t, closed.done)
				require.Len(t, f.dialed, 1)
				for b := range tr.Limiter().Buckets() {
					require.EqualValues(t, 2, b.Tokens)
				}
			})
		})
	}
}

// closes is an empty body that notes that it was closed.
type closes struct{ done bool }

func (c *closes) Read([]byte) (int, error) { return 0, io.EOF }
func (c *closes) Close() error             { c.done = true; return nil }

func TestWithoutALimitThatHasARateAndWithoutHintsADialIsNotPaced(t *testing.T) {
	deaf := throttle.WithoutServerHints()
	for _, opts := range [][]throttle.Option{{deaf}, {deaf, throttle.WithLimit(throttle.InFlight(3))}, {throttle.WithLimit(throttle.TokenBucket(1, time.Hour)), throttle.WithDryRun()}} {
		synctest.Test(t, func(t *testing.T) {
			f := &flaky{start: time.Now(), until: time.Hour}
			tr := transportTo(t, f, opts...)
			for range 100 {
				_, err := tr.RoundTrip(get(t, t.Context(), "http://down/"))
				require.ErrorIs(t, err, errRefused)
			}
			require.Zero(t, time.Since(f.start))
			require.Len(t, f.dialed, 100)
		})
	}
}

// A client of which only server hints limit the rate dials a server that is down five times a second, and no other waits for that.
func TestWithHintsAloneAServerThatIsDownIsDialedFiveTimesASecond(t *testing.T) {
	for _, opts := range [][]throttle.Option{nil, {throttle.WithLimit(throttle.InFlight(17))}} {
		synctest.Test(t, func(t *testing.T) {
			f := &flaky{start: time.Now(), until: 5 * time.Second}
			tr := transportTo(t, f, opts...)
			var all sync.WaitGroup
			for range 16 {
				all.Go(func() {
					for time.Since(f.start) < f.until && t.Context().Err() == nil {
						tr.RoundTrip(get(t, t.Context(), "http://down/"))
					}
				})
			}
			time.Sleep(time.Second)
			_, err := tr.RoundTrip(get(t, t.Context(), "http://up/"))
			require.NoError(t, err)
			require.Equal(t, time.Second+20*time.Millisecond, time.Since(f.start))
			all.Wait()
			require.GreaterOrEqual(t, len(f.dialed), 24)
			require.LessOrEqual(t, len(f.dialed), 16+25)
		})
	}
}

// The next Transport knows that a request ended in its line, and the one outside gets its charge back.
func TestAContextThatEndsInTheInnerLineCostsNothingOutside(t *testing.T) {
	for name, limit := range map[string]throttle.Limit{
		"bucket": throttle.TokenBucket(5, time.Hour), "window": throttle.SlidingWindow(5, time.Hour),
		"slots": throttle.InFlight(5), "adaptive": throttle.Adaptive(throttle.AIMD{Initial: 100}),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &flaky{start: time.Now()}
				inner := transportTo(t, f, throttle.WithLimit(throttle.TokenBucket(1, time.Hour)))
				middle := transportTo(t, inner)
				outer := transportTo(t, middle, throttle.WithLimit(limit))
				_, err := outer.RoundTrip(get(t, t.Context(), "http://h/"))
				require.NoError(t, err)
				left := func() (tokens float64) {
					for b := range outer.Limiter().Buckets() {
						tokens = b.Tokens
						require.Zero(t, b.InFlight)
					}
					return tokens
				}
				time.Sleep(time.Second)
				before := left()
				for i := range 4 {
					gone := errors.New("gone")
					ctx, cancel := context.WithCancelCause(t.Context())
					time.AfterFunc(time.Duration(1+i)*time.Millisecond, func() { cancel(gone) })
					_, err := outer.RoundTrip(get(t, ctx, "http://h/"))
					require.Same(t, gone, err, "the cause itself")
				}
				require.InDelta(t, before, left(), 0.01)
				require.Equal(t, uint64(4), outer.Stats().Undone)
				require.Len(t, f.served, 1)
			})
		})
	}
}

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
func TestARequestThatAServerTookBeforeItWentDownIsCharged(t *testing.T) { // slow: it takes seconds of real time
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
