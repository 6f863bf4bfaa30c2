package tests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"
)

// A distant is a Store in memory whose calls take 2 ms.
type distant struct{ store.Store }

func (s *distant) Lease(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	time.Sleep(time.Millisecond)
	leases, err := s.Store.Lease(ctx, asks)
	time.Sleep(time.Millisecond)
	return leases, err
}

// overDistant runs a test in a bubble, over a store that is some way off.
func overDistant(t *testing.T, f func(t *testing.T, s store.Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(t, &distant{store.NewMemory()})
		sleep(2 * time.Minute) // calls end
	})
}

// A fleet that shares the limit of a strict server gets it all again after one refusal, and no other.
func TestAFleetIsNotRefusedAgainAfterARefusal(t *testing.T) {
	for _, processes := range []int{1, 8, 32, 100} {
		overDistant(t, func(t *testing.T, s store.Store) {
			const rate, burst = 20, 4 // of the server; the fleet has a burst of 2
			start := time.Now()
			ctx, cancel := context.WithCancel(t.Context())
			var mu sync.Mutex
			level, at, refused, accepted := float64(burst), start, 0, 0
			server := roundTripper(func(req *http.Request) (*http.Response, error) {
				time.Sleep(10 * time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				now := time.Now()
				level, at = min(burst, level+rate*now.Sub(at).Seconds()), now
				resp := &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: req}
				if level < 1 || refused == 0 && now.Sub(start) > 10*time.Second {
					refused++
					resp.StatusCode = http.StatusTooManyRequests
					resp.Header.Set("Retry-After", "2")
					return resp, nil
				}
				level--
				if now.Sub(start) > 20*time.Second {
					accepted++
				}
				return resp, nil
			})
			for range processes {
				tr, err := throttle.New(server, throttle.WithLimit(throttle.TokenBucket(rate, time.Second, throttle.Burst(2), throttle.Shared(s))))
				require.NoError(t, err)
				for range max(2, 64/processes) {
					go func() {
						for ctx.Err() == nil {
							req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://host/", nil)
							_, _ = tr.RoundTrip(req)
						}
					}()
				}
			}
			sleep(50 * time.Second)
			cancel()
			mu.Lock()
			defer mu.Unlock()
			require.Equal(t, 1, refused, "%d processes", processes)
			require.GreaterOrEqual(t, accepted, rate*30*98/100, "%d processes", processes)
		})
	}
}

func TestRetryAfterReachesAllProcesses(t *testing.T) {
	overDistant(t, func(t *testing.T, s store.Store) {
		start := time.Now()
		limit := throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Name("calls"), throttle.Shared(s, throttle.LeaseAhead(0))))
		refuses := roundTripper(func(req *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"10"}}, Body: http.NoBody, Request: req}, nil
		})
		transport, err := throttle.New(refuses, limit)
		require.NoError(t, err)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.example.com/", nil)
		require.NoError(t, err)
		_, err = transport.RoundTrip(req)
		require.NoError(t, err)
		other := limiterWith(t, limit)
		sleep(10 * time.Millisecond)
		require.NoError(t, other.Wait(t.Context(), throttle.Ask{}))
		require.InDelta(t, 10500*time.Millisecond, time.Since(start), float64(510*time.Millisecond)) // a hold is up to a tenth longer, at most a second
	})
}

// A broken is a Store that fails until it is mended.
type broken struct {
	store.Store
	mended atomic.Bool
}

func (s *broken) Lease(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	if !s.mended.Load() {
		return nil, errors.New("connection refused")
	}
	return s.Store.Lease(ctx, asks)
}

// The goroutine that calls a store belongs to no request, so that no caller could recover a panic there.
func TestAHookThatPanicsInTheGoroutineOfAStoreIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		s := &broken{Store: store.NewMemory()}
		l := limiterWith(t, throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Shared(s))), throttle.WithLogger(slog.New(slog.NewTextHandler(&log, nil))),
			throttle.WithHooks(throttle.Hooks{OnStore: func(throttle.StoreEvent) { panic("hook") }}))
		sent := make(chan error, 1)
		go func() { sent <- l.Wait(t.Context(), throttle.Ask{}) }()
		sleep(time.Second)
		require.Empty(t, sent)
		require.Contains(t, log.String(), `msg="throttle: OnStore panicked" panic=hook`)
		s.mended.Store(true)
		sleep(time.Second)
		require.NoError(t, <-sent)
		sleep(time.Minute) // calls end
	})
}

func TestOutagesHaveNames(t *testing.T) {
	for o, want := range map[throttle.Outage]string{throttle.OutageReject: "reject", throttle.OutageLocalShare: "local share", throttle.OutagePass: "pass", 9: "Outage(9)"} {
		assert.Equal(t, want, o.String())
	}
}

func TestSharedWithWhatItDoesNotFitIsAnError(t *testing.T) {
	s := store.NewMemory()
	for text, opt := range map[string]throttle.Option{
		"Shared(nil)":           throttle.WithLimit(throttle.Pace(1, time.Second, throttle.Shared(nil))),
		"a nil *tests.distant":  throttle.WithLimit(throttle.Pace(1, time.Second, throttle.Shared((*distant)(nil)))),
		"a SharedOption is nil": throttle.WithLimit(throttle.Pace(1, time.Second, throttle.Shared(s, nil))),
		"kind adaptive":         throttle.WithLimit(throttle.Adaptive(throttle.AIMD{}, throttle.Shared(s))),
		"LeaseAhead(-1ns)":      throttle.WithLimit(throttle.Pace(1, time.Second, throttle.Shared(s, throttle.LeaseAhead(-1)))),
		"LeaseAhead(2s)":        throttle.WithLimit(throttle.Pace(1, time.Second, throttle.Shared(s, throttle.LeaseAhead(2*time.Second)))),
		"StoreTimeout(0s)":      throttle.WithLimit(throttle.Pace(1, time.Second, throttle.Shared(s, throttle.StoreTimeout(0)))),
		"StoreGrace(-1ns)":      throttle.WithLimit(throttle.Pace(1, time.Second, throttle.Shared(s, throttle.StoreGrace(-1)))),
		"WithoutStore(3)":       throttle.WithLimit(throttle.Pace(1, time.Second, throttle.Shared(s, throttle.WithoutStore(3)))),
		"ExpectProcesses(-1)":   throttle.WithLimit(throttle.Pace(1, time.Second, throttle.Shared(s, throttle.ExpectProcesses(-1)))),
		"too large":             throttle.WithLimit(throttle.TokenBucket(math.MaxInt64, time.Millisecond, throttle.Shared(s))),
		"cannot be compared":    throttle.WithLimit(throttle.Pace(1, time.Second, throttle.Shared(uncomparable{s, nil}))),
	} {
		_, err := throttle.NewLimiter(opt)
		require.ErrorContains(t, err, text)
	}
	_, err := throttle.New(nil, throttle.WithDryRun(), throttle.WithLimit(throttle.Pace(1, time.Second, throttle.Shared(s))))
	require.ErrorContains(t, err, "WithDryRun")
}

type uncomparable struct {
	store.Store
	_ []int
}

func TestSharedSlotComesBackWithTheBodyOrTheHeaders(t *testing.T) {
	for name, opts := range map[string][]throttle.LimitOption{"with the body": nil, "with the headers": {throttle.UntilHeaders()}} {
		inBubble(t, name, func(t *testing.T) {
			base := roundTripper(func(req *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader("some body")), Request: req}, nil
			})
			tr, err := throttle.New(base, throttle.WithLimit(throttle.InFlight(2, append(opts, throttle.Name("slots"), throttle.Shared(store.NewMemory()))...)))
			require.NoError(t, err)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.example.com/", nil)
			require.NoError(t, err)
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			want := 1
			if opts != nil {
				want = 0
			}
			require.Equal(t, want, tr.Limiter().Limits()[0].InFlight)
			require.NoError(t, resp.Body.Close())
			require.Zero(t, tr.Limiter().Limits()[0].InFlight)
			s := tr.Limiter().Snapshot()
			require.Empty(t, stateOf(&s).Buckets)
			sleep(time.Second)
		})
	}
}

func TestSharedSlotsWithWhatTheyDoNotFitAreAnError(t *testing.T) {
	s := store.NewMemory()
	for text, opts := range map[string][]throttle.Option{
		"LeaseAhead(10ms) does not fit a limit of kind in-flight": {throttle.WithLimit(throttle.InFlight(2, throttle.Shared(s, throttle.LeaseAhead(10*time.Millisecond))))},
		"RateFor does not fit a limit of kind in-flight":          {throttle.WithLimit(throttle.InFlight(2, throttle.Shared(s), throttle.RateFor(func(string) (int64, time.Duration) { return 0, 0 })))},
		"WithDryRun":              {throttle.WithLimit(throttle.InFlight(2, throttle.Shared(s))), throttle.WithDryRun()},
		"InFlight(0)":             {throttle.WithLimit(throttle.InFlight(0, throttle.Shared(s)))},
		"StoreTimeout(0s)":        {throttle.WithLimit(throttle.InFlight(2, throttle.Shared(s, throttle.StoreTimeout(0))))},
		"Shared(nil): a store":    {throttle.WithLimit(throttle.InFlight(2, throttle.Shared(nil)))},
		"Settle does not fit":     {throttle.WithLimit(throttle.InFlight(2, throttle.Shared(s), throttle.Settle(func(*http.Request, *http.Response) (int64, bool) { return 0, false })))},
		"Burst(3) does not fit":   {throttle.WithLimit(throttle.InFlight(2, throttle.Shared(s), throttle.Burst(3)))},
		"Initial(1) does not fit": {throttle.WithLimit(throttle.InFlight(2, throttle.Shared(s), throttle.Initial(1)))},
	} {
		_, err := throttle.New(nil, opts...)
		require.ErrorContains(t, err, text)
	}
}

func TestARejectionBecauseOfAWrongSetupDoesNotSayThatTheStoreIsOutOfReach(t *testing.T) {
	err := fmt.Errorf("%w: %w", store.ErrSetup, errors.New("NOAUTH Authentication required"))
	r := &throttle.Rejection{Reason: throttle.ReasonStore, Limit: "calls", Err: err}
	require.EqualError(t, r, `throttle: limit "calls": the store of shared limits is set up wrongly: NOAUTH Authentication required`)
}

func TestTryDoesNotWaitForAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &countedStore{Store: store.NewMemory(), oneWay: time.Millisecond}
		l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(60, time.Minute, throttle.Name("tokens"), throttle.Burst(60), throttle.Shared(st))))
		require.NoError(t, err)
		for range 2 {
			_, ok := l.Try(throttle.Ask{})
			assert.False(t, ok, "the store is asked")
			time.Sleep(50 * time.Millisecond)
			_, ok = l.Try(throttle.Ask{})
			assert.True(t, ok)
			time.Sleep(time.Second)
		}
		var none time.Duration
		began := time.Now()
		require.NoError(t, l.Wait(t.Context(), throttle.Ask{MaxWait: &none}))
		assert.Equal(t, 2*time.Millisecond, time.Since(began))
		time.Sleep(time.Second)
	})
}
