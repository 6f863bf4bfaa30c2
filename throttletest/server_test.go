package throttletest

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestServesOnASocket(t *testing.T) {
	for proto, opts := range map[string][]Option{"HTTP/1.1": nil, "HTTP/2.0": {WithHTTP2()}} {
		t.Run(proto, func(t *testing.T) {
			s := Start(t, append(opts, WithLimits(FixedWindow(3, 24*time.Hour, FromFirstRequest())), WithFields(Draft))...)
			for i := range 5 {
				resp, err := s.Client().Post(s.URL+"/x", "text/plain", strings.NewReader("hello"))
				require.NoError(t, err)
				body, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				assert.Equal(t, proto, resp.Proto)
				if i < 3 {
					assert.Equal(t, 200, resp.StatusCode)
					assert.Equal(t, "ok\n", string(body))
				} else {
					assert.Equal(t, 429, resp.StatusCode)
					assert.Equal(t, "429 Too Many Requests\n", string(body))
					assert.NotEmpty(t, resp.Header.Get("Retry-After"))
				}
				assert.NotEmpty(t, resp.Header.Get("RateLimit"))
			}
			most, err := s.MaxAccepted("window", time.Hour)
			require.NoError(t, err)
			assert.EqualValues(t, 3, most)
		})
	}
}

func TestUnderstandsBothProtocolsAtOnce(t *testing.T) {
	s := Start(t)
	h2 := &http.Transport{Protocols: new(http.Protocols)}
	h2.Protocols.SetUnencryptedHTTP2(true)
	defer h2.CloseIdleConnections()
	for want, c := range map[string]*http.Client{"HTTP/1.1": s.Client(), "HTTP/2.0": {Transport: h2}} {
		resp, err := c.Get(s.URL)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, want, resp.Proto)
	}
}

func TestServesManyCallersInMemory(t *testing.T) {
	for name, opts := range map[string][]Option{"HTTP/1.1": nil, "HTTP/2": {WithHTTP2()}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := Start(t, append(opts, WithInMemory(), WithLimits(TokenBucket(100, time.Second, Burst(20))),
					WithRoundTrip(40*time.Millisecond, time.Millisecond))...)
				end := time.Now().Add(3 * time.Second)
				var all sync.WaitGroup
				for range 20 {
					all.Go(func() {
						for c := s.Client(); time.Now().Before(end); {
							resp, err := c.Get(s.URL)
							if assert.NoError(t, err) {
								assert.NoError(t, resp.Body.Close())
							}
						}
					})
				}
				all.Wait()
				assert.InDelta(t, 320, s.Counts().Accepted, 5)
				most, err := s.MaxAccepted("bucket", time.Second)
				require.NoError(t, err)
				assert.LessOrEqual(t, most, int64(120))
				assert.EqualValues(t, 20, s.Counts().MaxInFlight)
			})
		})
	}
}

func TestAllHostsLeadToTheServerInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Start(t, WithInMemory(), WithLimits(FixedWindow(1, time.Minute, Key(func(r *http.Request) string { return r.Host }))))
		assert.Equal(t, "http://api.test", s.URL)
		for _, host := range []string{"a.test", "b.test:8080"} {
			for _, want := range []int{200, 429} {
				resp, err := s.Client().Get("http://" + host)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				assert.Equal(t, want, resp.StatusCode)
			}
		}
	})
}

// busy is what can be under way when a server is closed.
var busy = map[string][]Option{
	"travelling": {WithRoundTrip(time.Hour, 0)},
	"serving":    {WithServiceTime(Constant(time.Hour))},
	"waiting":    {WithWorkers(1, 1), WithServiceTime(Constant(time.Hour))},
	"refusing":   {WithLimits(TokenBucket(1, time.Hour, Cost(func(*http.Request) int64 { return 2 }))), WithRefusalTime(Constant(time.Hour))},
	"hanging":    {WithFaults(Hang())},
	"sending":    {WithFaults(SlowBody(1, time.Hour))},
}

func whileBusy(t *testing.T, test func(t *testing.T, opts []Option)) {
	for name, opts := range busy {
		t.Run(name+" HTTP/1.1", func(t *testing.T) { test(t, opts) })
		t.Run(name+" HTTP/2", func(t *testing.T) { test(t, append(opts[:len(opts):len(opts)], WithHTTP2())) })
	}
}

// hold sends two requests that the server's Close is going to break.
func hold(t *testing.T, s *Server) (over *sync.WaitGroup) {
	over = new(sync.WaitGroup)
	for range 2 {
		over.Go(func() {
			resp, err := s.Client().Post(s.URL, "text/plain", strings.NewReader("hello"))
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
			assert.Error(t, err)
		})
	}
	return over
}

func TestCloseEndsEverythingInABubble(t *testing.T) {
	whileBusy(t, func(t *testing.T, opts []Option) {
		synctest.Test(t, func(t *testing.T) { // fails if a goroutine is left
			s, err := New(append(opts[:len(opts):len(opts)], WithInMemory())...)
			require.NoError(t, err)
			start := time.Now()
			over := hold(t, s)
			synctest.Wait()
			assert.EqualValues(t, 2, s.Counts().InFlight)
			s.Close()
			assert.EqualValues(t, 0, s.Counts().InFlight)
			over.Wait()
			assert.Zero(t, time.Since(start), "no wait for the hour")
			s.Close()
			_, err = s.Client().Get(s.URL)
			assert.ErrorContains(t, err, "closed")
		})
	})
}

func TestCloseEndsEverythingOnASocket(t *testing.T) {
	whileBusy(t, func(t *testing.T, opts []Option) {
		s, err := New(opts...)
		require.NoError(t, err)
		over := hold(t, s)
		for s.Counts().Received < 2 {
			runtime.Gosched()
		}
		s.Close()
		over.Wait()
		assert.EqualValues(t, 0, s.Counts().InFlight)
		_, err = s.Client().Get(s.URL)
		assert.Error(t, err)
	})
}

func TestCloseEndsHijackedConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Start(t, WithInMemory(), WithHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, rw, err := http.NewResponseController(w).Hijack()
			assert.NoError(t, err)
			_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			_ = rw.Flush()
		})))
		resp, err := s.Client().Get(s.URL)
		require.NoError(t, err)
		assert.Equal(t, 101, resp.StatusCode)
		s.Close()
		_, err = resp.Body.Read(make([]byte, 1))
		assert.ErrorIs(t, err, io.EOF)
	})
}

func TestAClosedServerAborts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(WithInMemory())
		require.NoError(t, err)
		s.Close()
		req := httptest.NewRequest(http.MethodGet, "http://api.test/", nil)
		_, err = s.Direct().RoundTrip(req)
		assert.ErrorIs(t, err, errAborted)
	})
}

func TestDialInMemoryEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := newMemoryListener().dial(ctx, "tcp", "api.test:80") // it is never accepted
		assert.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestHandlerServesTLS(t *testing.T) {
	h, err := NewHandler(WithLimits(FixedWindow(1, 24*time.Hour, FromFirstRequest())))
	require.NoError(t, err)
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	for _, want := range []int{200, 429} {
		resp, err := s.Client().Get(s.URL)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, want, resp.StatusCode)
		assert.Equal(t, 2, resp.ProtoMajor)
	}
}

func TestNewReportsBadOptions(t *testing.T) {
	s, err := New(WithStatus(0), WithRecording(-1))
	assert.Nil(t, s)
	assert.EqualError(t, err, "throttletest: WithStatus(0) must be from 200 to 599\nthrottletest: WithRecording(-1) must not be negative")
}

// failing is a TB that notes that it was failed.
type failing struct {
	testing.TB
	fatal []any
}

func (f *failing) Helper() {}
func (f *failing) Fatal(args ...any) {
	f.fatal = args
	panic("fatal")
}

func TestStartFailsTheTestForBadOptions(t *testing.T) {
	tb := &failing{TB: t}
	assert.Panics(t, func() { Start(tb, WithStatus(0)) })
	assert.Len(t, tb.fatal, 1)
}

func BenchmarkRequest(b *testing.B) {
	for name, opts := range map[string][]Option{"memory": {WithInMemory()}, "memory h2": {WithInMemory(), WithHTTP2()}, "socket": nil} {
		b.Run(name, func(b *testing.B) { benchmark(b, opts, func(s *Server) http.RoundTripper { return s.Transport() }) })
	}
	b.Run("direct", func(b *testing.B) { benchmark(b, nil, func(s *Server) http.RoundTripper { return s.Direct() }) })
}

func benchmark(b *testing.B, opts []Option, way func(*Server) http.RoundTripper) {
	s := Start(b, append(opts, WithLimits(TokenBucket(1000, time.Second)), WithRecording(0))...)
	c := &http.Client{Transport: way(s)}
	b.ReportAllocs()
	for b.Loop() {
		resp, err := c.Get(s.URL)
		if err != nil {
			b.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
}
