package tests

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
	"github.com/httpthrottle/throttle/store"
	"github.com/httpthrottle/throttle/throttletest"
)

// inFlight returns how many slots are taken of all limits together.
func inFlight(l *throttle.Limiter) (n int) {
	for b := range l.Buckets() {
		n += b.InFlight
	}
	return n
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
		_, err = l.Acquire(t.Context(), throttle.Ask{Cost: 3, MaxWait: ptr(time.Second)})
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
	_, err := throttle.New(nil, throttle.WithLimit(throttle.InFlight(0, throttle.Burst(3)), throttle.TokenBucket(1, 1, throttle.UntilHeaders()),
		throttle.InFlight(1, throttle.Pause(0)), throttle.SlidingWindow(1, 1, throttle.Pause(2)),
		throttle.InFlight(1, throttle.RateFor(func(string) (int64, time.Duration) { return 1, 1 })),
		throttle.InFlight(1, throttle.Pause(3), throttle.Shared(store.NewMemory()))))
	for _, part := range []string{
		"InFlight(0)", "Burst(3)", "UntilHeaders", "Pause(0s) is not positive", "Pause(2ns) does not fit a limit of kind sliding-window",
		"RateFor does not fit a limit of kind in-flight without a Pause", "Pause(3ns) does not fit a limit that is Shared",
	} {
		assert.ErrorContains(t, err, part)
	}
}

// A crawler waits from the end of a response, not from its beginning.
func TestAPauseBeginsWhenTheRequestEnds(t *testing.T) {
	const service, reading, pause = time.Second, 5 * time.Second, 2 * time.Second
	read := func(t *testing.T, resp *http.Response, _ func()) {
		_, err := io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
	}
	for name, c := range map[string]struct {
		opts []throttle.LimitOption
		body string
		fail error
		over func(t *testing.T, resp *http.Response, cancel func()) // after the time to read it
		next time.Duration
	}{
		"read to its end":  {body: "some text", over: read, next: service + reading + pause},
		"closed":           {body: "some text", over: func(t *testing.T, resp *http.Response, _ func()) { require.NoError(t, resp.Body.Close()) }, next: service + reading + pause},
		"its context ends": {body: "some text", over: func(_ *testing.T, _ *http.Response, cancel func()) { cancel() }, next: service + reading + pause},
		"headers":          {opts: []throttle.LimitOption{throttle.UntilHeaders()}, body: "some text", over: read, next: service + pause},
		"no response":      {fail: errors.New("reset"), next: service + pause},
		"a pause by key": {opts: []throttle.LimitOption{throttle.RateFor(func(host string) (int64, time.Duration) {
			require.Equal(t, "api.example.com", host)
			return 1, time.Minute
		})}, body: "some text", over: read, next: service + reading + time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr, err := throttle.New(roundTripper(func(req *http.Request) (*http.Response, error) {
					time.Sleep(service)
					if c.fail != nil {
						return nil, c.fail
					}
					return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(c.body)), Request: req}, nil
				}), throttle.WithKey(throttle.ByHost), throttle.WithLimit(throttle.InFlight(1, append(c.opts, throttle.Pause(pause))...)))
				require.NoError(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				start := time.Now()
				var sent time.Duration
				var next sync.WaitGroup
				next.Go(func() {
					time.Sleep(service / 2) // while the first one is in flight
					_, _ = tr.RoundTrip(get(t, t.Context(), api))
					sent = time.Since(start) - service
				})
				resp, err := tr.RoundTrip(get(t, ctx, api))
				if c.fail != nil {
					require.ErrorIs(t, err, c.fail)
				} else {
					require.NoError(t, err)
					time.Sleep(reading)
					c.over(t, resp, cancel)
				}
				next.Wait()
				assert.Equal(t, c.next, sent)
			})
		})
	}
}

func TestSlotsThatRestAreNeitherFreeNorInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pauses := map[string]time.Duration{"slow": time.Minute}
		l := limiterWith(t, throttle.WithLimit(throttle.InFlight(2, throttle.Pause(2*time.Second), throttle.RateFor(func(key string) (int64, time.Duration) {
			if d := pauses[key]; d > 0 {
				return 1, d
			}
			return 0, 0
		}))))
		bucket := func(key string) throttle.BucketStats {
			b, ok := l.Bucket("in-flight", key)
			require.True(t, ok)
			return b
		}
		acquire := func(key string, maxWait time.Duration) (*throttle.Grant, error) {
			return l.Acquire(t.Context(), throttle.Ask{Key: key, MaxWait: &maxWait})
		}
		one, err := acquire("fast", 0)
		require.NoError(t, err)
		two, err := acquire("fast", 0)
		require.NoError(t, err)
		one.Done()
		one.Done()
		time.Sleep(time.Second)
		assert.Equal(t, 1, bucket("fast").InFlight)
		assert.Equal(t, 0.0, bucket("fast").Tokens)
		assert.Equal(t, time.Second, bucket("fast").Wait)
		two.Cancel() // it was never sent, so its slot is free
		assert.Equal(t, 1.0, bucket("fast").Tokens)
		two, err = acquire("fast", 0)
		require.NoError(t, err)
		two.Done()
		time.Sleep(time.Second)
		assert.Equal(t, 1.0, bucket("fast").Tokens, "the first slot has rested")

		slow, err := acquire("slow", 0)
		require.NoError(t, err)
		_, err = acquire("slow", time.Minute-1)
		var rejection *throttle.Rejection
		ok := errors.As(err, &rejection)
		require.True(t, ok)
		assert.Equal(t, throttle.ReasonMaxWait, rejection.Reason)
		assert.Equal(t, time.Minute, rejection.Wait, "if the request in flight ended now")
		slow.Done()
		require.NoError(t, l.SetInFlight("in-flight", 5))
		assert.Equal(t, 1.0, bucket("slow").Capacity)
		assert.Equal(t, 5.0, bucket("fast").Capacity)
		start := time.Now()
		waiting := make(chan time.Duration)
		go func() {
			_, err := acquire("slow", time.Hour)
			assert.NoError(t, err)
			waiting <- time.Since(start)
		}()
		time.Sleep(5 * time.Second)
		pauses["slow"] = 10 * time.Second
		require.NoError(t, l.Refresh("in-flight", "slow"))
		assert.Equal(t, 10*time.Second, <-waiting, "from the end of the request that rests")
	})
}

// Each of a hundred requests ends before the next one begins, and 2 s lie between them, whatever the time that a response takes.
func TestACrawlerWaitsBetweenTheEndOfAResponseAndTheNextRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		gaps, ended := []time.Duration(nil), map[string]time.Time{}
		tr, err := throttle.New(roundTripper(func(req *http.Request) (*http.Response, error) {
			mu.Lock()
			if end, ok := ended[req.URL.Host]; ok {
				gaps = append(gaps, time.Since(end))
			}
			mu.Unlock()
			time.Sleep(time.Duration(len(req.URL.Path)) * 37 * time.Millisecond)
			return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader("page")), Request: req}, nil
		}), throttle.WithKey(throttle.ByHost), throttle.WithLimit(throttle.InFlight(1, throttle.Pause(2*time.Second))))
		require.NoError(t, err)
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				host := []string{"one.example", "two.example"}[i%2]
				resp, err := tr.RoundTrip(get(t, t.Context(), "http://"+host+"/"+strings.Repeat("p", i)))
				if !assert.NoError(t, err) {
					return
				}
				time.Sleep(time.Duration(i%7) * 300 * time.Millisecond)
				mu.Lock()
				ended[host] = time.Now()
				mu.Unlock()
				assert.NoError(t, resp.Body.Close())
			})
		}
		all.Wait()
		require.Len(t, gaps, 98)
		for _, gap := range gaps {
			assert.Equal(t, 2*time.Second, gap)
		}
	})
}
