package throttle_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttletest"
)

// inFlight returns how many slots are taken of all limits together.
func inFlight(l *throttle.Limiter) (n int) {
	for b := range l.Buckets() {
		n += b.InFlight
	}
	return n
}

func TestNoMoreAreInFlightThanMayBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, err := throttletest.NewHandler(throttletest.WithLimits(throttletest.InFlight(4)),
			throttletest.WithServiceTime(throttletest.Constant(time.Second)))
		require.NoError(t, err)
		tr, err := throttle.New(h.Direct(), throttle.WithLimit(throttle.InFlight(4)))
		require.NoError(t, err)
		start := time.Now()
		var all sync.WaitGroup
		for range 40 {
			all.Go(func() {
				status, r := ask(t, tr, api)
				assert.Equal(t, 200, status)
				assert.Nil(t, r)
			})
		}
		all.Wait()
		assert.Equal(t, 10*time.Second, time.Since(start), "4 at a time, without a gap")
		assert.Equal(t, int64(4), h.Counts().MaxInFlight)
		assert.Zero(t, h.Counts().Refused)
		assert.Zero(t, inFlight(tr.Limiter()))
	})
}

// opened sends a request and returns the answer, whose body is still to be read.
func opened(t *testing.T, rt http.RoundTripper, ctx context.Context) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, api, nil)
	require.NoError(t, err)
	resp, err := rt.RoundTrip(req)
	require.NoError(t, err)
	return resp
}

// bodies answers with a body of its own.
type bodies func() io.ReadCloser

func (f bodies) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Body: f(), Request: req}, nil
}

func TestASlotIsHeldUntilTheBodyIsOver(t *testing.T) {
	failing := errors.New("reset")
	for name, over := range map[string]func(t *testing.T, resp *http.Response, cancel func()){
		"read to its end": func(t *testing.T, resp *http.Response, _ func()) {
			_, err := io.Copy(io.Discard, resp.Body)
			require.NoError(t, err)
		},
		"closed": func(t *testing.T, resp *http.Response, _ func()) { require.NoError(t, resp.Body.Close()) },
		"closed twice": func(t *testing.T, resp *http.Response, _ func()) {
			require.NoError(t, resp.Body.Close())
			require.NoError(t, resp.Body.Close())
		},
		"its context ends": func(_ *testing.T, _ *http.Response, cancel func()) {
			cancel()
			synctest.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base := bodies(func() io.ReadCloser { return io.NopCloser(strings.NewReader("some text")) })
				tr, err := throttle.New(base, throttle.WithLimit(throttle.InFlight(1)), throttle.WithFailFast())
				require.NoError(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				resp := opened(t, tr, ctx)
				_, err = resp.Body.Read(make([]byte, 4))
				require.NoError(t, err)
				_, r := ask(t, tr, api)
				require.NotNil(t, r)
				assert.Equal(t, throttle.ReasonNoTokens, r.Reason)
				over(t, resp, cancel)
				_, r = ask(t, tr, api)
				assert.Nil(t, r)
				assert.Zero(t, inFlight(tr.Limiter()))
			})
		})
	}
	t.Run("it fails", func(t *testing.T) {
		base := bodies(func() io.ReadCloser {
			return io.NopCloser(io.MultiReader(strings.NewReader("some"), failingReader{failing}))
		})
		tr, err := throttle.New(base, throttle.WithLimit(throttle.InFlight(1)), throttle.WithFailFast())
		require.NoError(t, err)
		resp := opened(t, tr, t.Context())
		require.Equal(t, 1, inFlight(tr.Limiter()))
		_, err = io.Copy(io.Discard, resp.Body)
		require.ErrorIs(t, err, failing)
		assert.Zero(t, inFlight(tr.Limiter()))
	})
}

type failingReader struct{ err error }

func (f failingReader) Read([]byte) (int, error) { return 0, f.err }

func TestASlotIsGivenBackWhereThereIsNoBody(t *testing.T) {
	for name, base := range map[string]http.RoundTripper{
		"no body":  bodies(func() io.ReadCloser { return http.NoBody }),
		"nil body": bodies(func() io.ReadCloser { return nil }),
		"an error": roundTripper(func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }),
	} {
		t.Run(name, func(t *testing.T) {
			tr, err := throttle.New(base, throttle.WithLimit(throttle.InFlight(1)), throttle.WithFailFast())
			require.NoError(t, err)
			for range 3 {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, api, nil)
				require.NoError(t, err)
				resp, err := tr.RoundTrip(req)
				if err == nil {
					_, local := throttle.RejectionOf(resp)
					assert.False(t, local)
				}
				assert.Zero(t, inFlight(tr.Limiter()))
			}
		})
	}
}

// An empty body is another one over HTTP/2, and a RoundTripper below may have wrapped it.
func TestASlotIsGivenBackWhereTheBodyIsEmpty(t *testing.T) {
	wrapped := func(r *http.Response) roundTripper {
		return func(req *http.Request) (*http.Response, error) {
			resp := *r
			resp.Request, resp.Body = req, io.NopCloser(http.NoBody)
			return &resp, nil
		}
	}
	for name, c := range map[string]struct {
		method string
		resp   http.Response
		want   int
	}{
		"HEAD":                        {http.MethodHead, http.Response{StatusCode: 200, ContentLength: 7}, 0},
		"no content":                  {http.MethodGet, http.Response{StatusCode: 204}, 0},
		"not modified":                {http.MethodGet, http.Response{StatusCode: 304, ContentLength: 7}, 0},
		"a length of 0, HTTP/2":       {http.MethodGet, http.Response{StatusCode: 200, ProtoMajor: 2}, 0},
		"a length of 0 in the header": {http.MethodGet, http.Response{StatusCode: 200, ProtoMajor: 1, Header: http.Header{"Content-Length": {"0"}}}, 0},
		"an unset length":             {http.MethodGet, http.Response{StatusCode: 200, ProtoMajor: 1}, 1},
		"an unknown length, HTTP/2":   {http.MethodGet, http.Response{StatusCode: 200, ProtoMajor: 2, ContentLength: -1}, 1},
		"an upgrade by HEAD":          {http.MethodHead, http.Response{StatusCode: 101}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			tr, err := throttle.New(wrapped(&c.resp), throttle.WithLimit(throttle.InFlight(1)), throttle.WithFailFast())
			require.NoError(t, err)
			req, err := http.NewRequestWithContext(t.Context(), c.method, api, nil)
			require.NoError(t, err)
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			assert.Equal(t, c.want, inFlight(tr.Limiter()))
			require.NoError(t, resp.Body.Close())
			assert.Zero(t, inFlight(tr.Limiter()))
		})
	}
}

func TestASlotUntilHeadersIsFreeWhileTheBodyIsRead(t *testing.T) {
	base := bodies(func() io.ReadCloser { return io.NopCloser(strings.NewReader("some text")) })
	tr, err := throttle.New(base, throttle.WithLimit(throttle.InFlight(1, throttle.UntilHeaders())))
	require.NoError(t, err)
	resp := opened(t, tr, t.Context())
	assert.Zero(t, inFlight(tr.Limiter()))
	_, wrapped := resp.Body.(io.Writer)
	assert.False(t, wrapped)
}

func TestAnUpgradedConnectionKeepsItsSlotAndCanBeWrittenTo(t *testing.T) {
	s := throttletest.Start(t, throttletest.WithHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_ = rw.Flush()
		line, err := rw.ReadString('\n')
		if err != nil {
			return
		}
		_, _ = rw.WriteString("echo " + line)
		_ = rw.Flush()
	})))
	tr, err := throttle.New(s.Transport(), throttle.WithLimit(throttle.InFlight(1)), throttle.WithFailFast())
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, nil)
	require.NoError(t, err)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	resp, err := tr.RoundTrip(req)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
	conn, ok := resp.Body.(io.ReadWriteCloser)
	require.True(t, ok)
	_, err = io.WriteString(conn, "hello\n")
	require.NoError(t, err)
	line, err := bufio.NewReader(conn).ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, "echo hello\n", line)
	require.NoError(t, conn.Close())
	assert.Zero(t, inFlight(tr.Limiter()))
}

func TestNoFaultOfAServerLeaksASlot(t *testing.T) {
	for name, fault := range map[string]throttletest.Fault{
		"outage": throttletest.Outage(503), "hang": throttletest.Hang(), "abort": throttletest.Abort(),
		"respond": throttletest.Respond(500, nil), "cut body": throttletest.CutBody(1), "slow body": throttletest.SlowBody(1, time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := throttletest.Start(t, throttletest.WithInMemory(), throttletest.WithFaults(fault.Chance(0.7)),
					throttletest.WithRoundTrip(10*time.Millisecond, time.Millisecond))
				tr, err := throttle.New(s.Transport(), throttle.WithLimit(throttle.InFlight(3), throttle.TokenBucket(100, time.Second)))
				require.NoError(t, err)
				var all sync.WaitGroup
				for i := range 50 {
					all.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i%7)*time.Second/2)
						defer cancel()
						req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
						if !assert.NoError(t, err) {
							return
						}
						resp, err := tr.RoundTrip(req)
						if err != nil {
							return
						}
						_, _ = io.Copy(io.Discard, resp.Body) // which some of the faults break
						if i%2 == 0 {
							assert.NoError(t, resp.Body.Close())
						}
					})
				}
				all.Wait()
				synctest.Wait()
				for b := range tr.Limiter().Buckets() {
					if b.Limit == "in-flight" {
						assert.Zero(t, b.InFlight)
						assert.Equal(t, 3.0, b.Tokens)
					}
				}
				assert.Zero(t, tr.Stats().Waiting)
			})
		})
	}
}

func TestSlotsWithoutHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.NewLimiter(throttle.WithLimit(throttle.InFlight(2), throttle.TokenBucket(10, time.Second)))
		require.NoError(t, err)
		require.Error(t, l.Wait(t.Context(), throttle.Ask{}), "nothing would give the slot back")
		_, ok := l.Try(throttle.Ask{})
		require.False(t, ok)
		one, err := l.Acquire(t.Context(), throttle.Ask{Cost: 3})
		require.NoError(t, err)
		_, err = l.Acquire(t.Context(), throttle.Ask{Cost: 3})
		require.NoError(t, err)
		_, err = l.Acquire(t.Context(), throttle.Ask{Cost: 3, MaxWait: new(time.Second)})
		var r *throttle.Rejection
		require.ErrorAs(t, err, &r)
		assert.Equal(t, "in-flight", r.Limit)
		assert.Equal(t, throttle.ReasonMaxWait, r.Reason)
		_, err = l.Acquire(t.Context(), throttle.Ask{Costs: map[string]int64{"in-flight": 3}})
		require.ErrorAs(t, err, &r)
		assert.Equal(t, throttle.ReasonCost, r.Reason)
		time.AfterFunc(5*time.Second, func() { one.Done(); one.Done(); one.Cancel() })
		start := time.Now()
		_, err = l.Acquire(t.Context(), throttle.Ask{Cost: 3})
		require.NoError(t, err)
		assert.Equal(t, 5*time.Second, time.Since(start))
		require.Error(t, l.SetRate("in-flight", 3, time.Second))
	})
}

func TestBadSlotsAreNamed(t *testing.T) {
	_, err := throttle.New(nil, throttle.WithLimit(throttle.InFlight(0, throttle.Burst(3)), throttle.TokenBucket(1, 1, throttle.UntilHeaders())))
	for _, part := range []string{"InFlight(0)", "Burst(3)", "UntilHeaders"} {
		assert.ErrorContains(t, err, part)
	}
}
