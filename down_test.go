package throttle_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
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

func TestAServerThatIsDownIsDialedNoOftenerThanItsLimitsAllow(t *testing.T) {
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
				assert.LessOrEqual(t, time.Duration(longest.Load()), 2*c.gap, "a caller is told soon")
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

// A line is told of a failure that it has waited for, rather than have each of its requests fail in turn.
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

func TestWithoutALimitThatHasARateADialIsNotPaced(t *testing.T) {
	for _, opts := range [][]throttle.Option{nil, {throttle.WithLimit(throttle.InFlight(3))}, {throttle.WithLimit(throttle.TokenBucket(1, time.Hour)), throttle.WithDryRun()}} {
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
