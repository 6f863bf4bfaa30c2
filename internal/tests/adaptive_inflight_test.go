package tests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// A backend works on a number of requests at a time, for a random time each. It lets others wait, or refuses them.
type backend struct {
	workers chan struct{}
	refuses bool
	service time.Duration
	mu      sync.Mutex
	dice    *rand.Rand

	good, bad atomic.Int64
}

func newBackend(workers int, refuses bool) *backend {
	return &backend{workers: make(chan struct{}, workers), refuses: refuses, service: 50 * time.Millisecond, dice: rand.New(rand.NewPCG(1, 1))}
}

func (b *backend) RoundTrip(req *http.Request) (*http.Response, error) {
	time.Sleep(5 * time.Millisecond)
	resp := &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: req}
	select {
	case b.workers <- struct{}{}:
	default:
		if b.refuses {
			b.bad.Add(1)
			time.Sleep(6 * time.Millisecond)
			resp.StatusCode = http.StatusServiceUnavailable
			return resp, nil
		}
		select {
		case b.workers <- struct{}{}:
		case <-req.Context().Done():
			return nil, context.Cause(req.Context())
		}
	}
	b.mu.Lock()
	d := time.Duration(float64(b.service) * (0.5 + b.dice.Float64()))
	b.mu.Unlock()
	time.Sleep(d)
	<-b.workers
	time.Sleep(5 * time.Millisecond)
	b.good.Add(1)
	return resp, nil
}

// press keeps callers sending requests for d.
func press(t *testing.T, tr http.RoundTripper, callers int, d time.Duration, url string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context()) // a deadline would be a sign of overload
	time.AfterFunc(d, cancel)
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for ctx.Err() == nil {
				req, _ := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
				if resp, err := tr.RoundTrip(req); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
			}
		})
	}
	all.Wait()
}

func flightOf(t *testing.T, l *throttle.Limiter, key string) throttle.BucketStats {
	t.Helper()
	s, ok := l.Bucket("adaptive-in-flight", key)
	require.True(t, ok)
	require.NotNil(t, s.Learned)
	return s
}

func TestNumberInFlightOfAServerThatQueuesIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(16, false)
		tr, err := throttle.New(b, throttle.WithAdaptiveInFlight())
		require.NoError(t, err)
		press(t, tr, 64, 30*time.Second, "http://example.com/")
		s := flightOf(t, tr.Limiter(), "example.com")
		assert.InDelta(t, 26, s.Learned.InFlightMost, 10)
		assert.InDelta(t, 0.9, s.Learned.Elasticity, 0.4)
		assert.Contains(t, []string{"steady", "visit"}, s.Learned.Mode)
		assert.Zero(t, s.InFlight)
		assert.GreaterOrEqual(t, b.good.Load(), int64(0.95*30*16/0.050), "of what 16 workers can do")
	})
}

func TestNumberInFlightOfAServerThatRefusesIsFound(t *testing.T) { // slow: minutes of a server
	for _, status := range []string{"503", "429"} {
		t.Run(status, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBackend(4, true)
				base := roundTripper(func(req *http.Request) (*http.Response, error) {
					resp, err := b.RoundTrip(req)
					if resp.StatusCode == 503 && status == "429" {
						resp.StatusCode = 429
					}
					return resp, err
				})
				tr, err := throttle.New(base, throttle.WithAdaptiveInFlight())
				require.NoError(t, err)
				press(t, tr, 32, 60*time.Second, "http://example.com/")
				s := flightOf(t, tr.Limiter(), "example.com")
				assert.InDelta(t, 4, s.Learned.InFlightMost, 1)
				assert.InDelta(t, 4, s.Learned.Ceiling, 1)
				assert.Less(t, float64(b.bad.Load()), 0.015*float64(b.good.Load())) // the tries of a fifth
				assert.Greater(t, float64(b.good.Load()), 0.92*60*4/0.060)
			})
		})
	}
}

func TestKeysOfANumberInFlightDoNotDisturbEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		small, large := newBackend(2, false), newBackend(32, false)
		tr, err := throttle.New(roundTripper(func(req *http.Request) (*http.Response, error) {
			if req.URL.Host == "small.example" {
				return small.RoundTrip(req)
			}
			return large.RoundTrip(req)
		}), throttle.WithKey(throttle.ByHost), throttle.WithAdaptiveInFlight())
		require.NoError(t, err)
		var all sync.WaitGroup
		all.Go(func() { press(t, tr, 40, 30*time.Second, "http://small.example/") })
		all.Go(func() { press(t, tr, 100, 30*time.Second, "http://large.example/") })
		all.Wait()
		few, many := flightOf(t, tr.Limiter(), "small.example").Learned.InFlightMost, flightOf(t, tr.Limiter(), "large.example").Learned.InFlightMost
		assert.True(t, 1 < few && few <= 8, "2 workers: %d", few)
		assert.True(t, 25 <= many && many <= 90, "32 workers: %d", many)
	})
}

func TestSlotsOfALearnedNumberAreGivenBack(t *testing.T) {
	ways := map[string]func(t *testing.T) http.RoundTripper{
		"a body that is closed": func(*testing.T) http.RoundTripper {
			return roundTripper(func(req *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("x")), Request: req}, nil
			})
		},
		"no body": func(*testing.T) http.RoundTripper { return newBackend(100, false) },
		"an error": func(*testing.T) http.RoundTripper {
			return roundTripper(func(*http.Request) (*http.Response, error) { return nil, errors.New("reset") })
		},
	}
	for name, base := range ways {
		for _, opts := range [][]throttle.LimitOption{nil, {throttle.UntilHeaders()}} {
			t.Run(fmt.Sprint(name, len(opts)), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					tr, err := throttle.New(base(t), throttle.WithLimit(throttle.AdaptiveInFlight(throttle.Concurrency{}, opts...)))
					require.NoError(t, err)
					press(t, roundTripper(func(req *http.Request) (*http.Response, error) {
						time.Sleep(time.Millisecond)
						return tr.RoundTrip(req)
					}), 3, time.Second, "http://example.com/")
					limits := tr.Limiter().Limits()
					assert.Zero(t, limits[0].InFlight)
					assert.Equal(t, limits[0].Charged, limits[0].Returned)
				})
			})
		}
	}
}

func TestSlotOfALearnedNumberIsHeldUntilTheEndOfTheBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := roundTripper(func(req *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("x")), Request: req}, nil
		})
		tr, err := throttle.New(base, throttle.WithAdaptiveInFlight(throttle.Concurrency{Initial: 1}), throttle.WithFailFast())
		require.NoError(t, err)
		get := func() *http.Response {
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://example.com/", nil)
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			return resp
		}
		first := get()
		assert.Equal(t, http.StatusTooManyRequests, get().StatusCode)
		require.NoError(t, first.Body.Close())
		assert.Equal(t, http.StatusOK, get().StatusCode)
	})
}

func TestWorkWithoutHTTPTeachesTheNumberInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.NewLimiter(throttle.WithAdaptiveInFlight())
		require.NoError(t, err)
		workers := make(chan struct{}, 8)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				for {
					g, err := l.Acquire(ctx, throttle.Ask{})
					if err != nil {
						return
					}
					workers <- struct{}{}
					time.Sleep(50 * time.Millisecond)
					<-workers
					g.Report(throttle.OutcomeOK)
					g.Done()
				}
			})
		}
		all.Wait()
		assert.InDelta(t, 13, flightOf(t, l, "").Learned.InFlightMost, 3) // 13 to 15, as the goroutines are scheduled; eight are enough
	})
}

func TestLearnedNumberSurvivesARestartAtHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(16, false)
		tr, err := throttle.New(b, throttle.WithAdaptiveInFlight())
		require.NoError(t, err)
		press(t, tr, 64, 20*time.Second, "http://example.com/")
		text, err := json.Marshal(tr.Limiter().Snapshot())
		require.NoError(t, err)
		var saved throttle.Snapshot
		require.NoError(t, json.Unmarshal(text, &saved))
		n := stateOf(&saved).Buckets[0].Learned.InFlight
		next, err := throttle.NewLimiter(throttle.WithAdaptiveInFlight())
		require.NoError(t, err)
		require.NoError(t, next.Restore(saved))
		assert.Equal(t, int(n/2), flightOf(t, next, "example.com").Learned.InFlightMost)
		other, err := throttle.NewLimiter(throttle.WithAdaptive())
		require.NoError(t, err)
		assert.Error(t, other.Restore(saved))
	})
}

func TestChangesOfTheNumberInFlightAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := observe(t, newBackend(16, false), throttle.AdaptiveInFlight(throttle.Concurrency{}))
		press(t, o, 64, 5*time.Second, "http://example.com/")
		require.NotEmpty(t, o.retunes)
		assert.Equal(t, throttle.CauseGrowth, o.retunes[0].Reason)
		assert.Equal(t, 4.0, o.retunes[0].Old)
		assert.Equal(t, 8.0, o.retunes[0].New)
		assert.Equal(t, uint64(len(o.retunes)), o.Limiter().Limits()[0].Retunes.Total())
	})
}

// Beside a limit in flight, a rate leaves latency to it.
func TestRateBesideANumberInFlightLeavesLatencyToIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(16, false)
		tr, err := throttle.New(b, throttle.WithAdaptive(throttle.AIMD{Initial: 1000}), throttle.WithAdaptiveInFlight())
		require.NoError(t, err)
		press(t, tr, 64, 30*time.Second, "http://example.com/")
		assert.InDelta(t, 26, flightOf(t, tr.Limiter(), "example.com").Learned.InFlightMost, 10)
		limits := tr.Limiter().Limits()
		assert.Zero(t, limits[0].Retunes[throttle.CauseLatency])
		assert.GreaterOrEqual(t, b.good.Load(), int64(0.95*30*16/0.050))
	})
}

func TestCallersTakeTurnsInALearnedNumberInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type caller struct{}
		var served [2]atomic.Int64
		b := newBackend(8, false)
		tr, err := throttle.New(b, throttle.WithLimit(throttle.AdaptiveInFlight(throttle.Concurrency{}, throttle.FairBy(func(req *http.Request) string {
			return fmt.Sprint(req.Context().Value(caller{}))
		}))))
		require.NoError(t, err)
		var all sync.WaitGroup
		for who, callers := range []int{40, 12} {
			all.Go(func() {
				press(t, roundTripper(func(req *http.Request) (*http.Response, error) {
					resp, err := tr.RoundTrip(req.WithContext(context.WithValue(req.Context(), caller{}, who)))
					served[who].Add(1)
					return resp, err
				}), callers, 20*time.Second, "http://example.com/")
			})
		}
		all.Wait()
		assert.InDelta(t, 1, float64(served[0].Load())/float64(served[1].Load()), 0.1)
	})
}

func TestFaultsOfALearnedNumberInFlight(t *testing.T) {
	for name, limit := range map[string]throttle.Limit{
		"Concurrency.Min": throttle.AdaptiveInFlight(throttle.Concurrency{Min: -1}),
		"above Max":       throttle.AdaptiveInFlight(throttle.Concurrency{Initial: 5, Max: 2}),
		"Fraction(0.5)":   throttle.AdaptiveInFlight(throttle.Concurrency{}, throttle.Fraction(0.5)),
		"Shared":          throttle.AdaptiveInFlight(throttle.Concurrency{}, throttle.Shared(nil)),
		"RateFor":         throttle.AdaptiveInFlight(throttle.Concurrency{}, throttle.RateFor(func(string) (int64, time.Duration) { return 1, 1 })),
		"SettleJSON":      throttle.AdaptiveInFlight(throttle.Concurrency{}, throttle.SettleJSON("a")),
		"Burst":           throttle.AdaptiveInFlight(throttle.Concurrency{}, throttle.Burst(2)),
		"UntilHeaders":    throttle.Adaptive(throttle.AIMD{}, throttle.UntilHeaders()),
	} {
		_, err := throttle.NewLimiter(throttle.WithLimit(limit))
		assert.ErrorContains(t, err, name)
	}
	l, err := throttle.NewLimiter(throttle.WithAdaptiveInFlight())
	require.NoError(t, err)
	assert.Error(t, l.SetRate("adaptive-in-flight", 1, 1))
	assert.Error(t, l.SetInFlight("adaptive-in-flight", 1))
	assert.Error(t, l.SetBurst("adaptive-in-flight", 1))
}

// A key takes a kilobyte, and is forgotten an hour after its last request.
func TestKeysOfALearnedNumberAreSmallAndForgotten(t *testing.T) {
	keys := 100_000
	if testing.Short() {
		keys = 5000
	}
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.NewLimiter(throttle.WithAdaptiveInFlight())
		require.NoError(t, err)
		heap := func() float64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			return float64(m.HeapAlloc)
		}
		before := heap()
		for i := range keys {
			for range 3 { // what a refusal teaches is kept
				g, err := l.Acquire(t.Context(), throttle.Ask{Key: strconv.Itoa(i)})
				require.NoError(t, err)
				time.Sleep(time.Microsecond)
				g.Report(throttle.OutcomeUnavailable)
				g.Done()
			}
		}
		kept := func() int { return len(slices.Collect(l.Buckets())) }
		t.Logf("%.0f bytes a key", (heap()-before)/float64(keys))
		assert.LessOrEqual(t, (heap()-before)/float64(keys), 1024.0)
		assert.Equal(t, keys, kept())
		time.Sleep(59 * time.Minute)
		assert.Equal(t, keys, kept())
		time.Sleep(3 * time.Minute)
		assert.Zero(t, kept())
	})
}
