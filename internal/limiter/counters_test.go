package limiter_test

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/http"
	"reflect"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// A watch finds counters that fall.
type watch struct {
	last   throttle.Stats
	limits []throttle.LimitStats
}

// check compares the counters with those of the last call.
func (w *watch) check(t testing.TB, s throttle.Stats) {
	t.Helper()
	requireNoFall(t, "Stats", reflect.ValueOf(w.last), reflect.ValueOf(s))
	require.LessOrEqual(t, s.Undone, s.Granted)
	w.last = s
}

// look is check for all counters of a Limiter.
func (w *watch) look(t testing.TB, l *throttle.Limiter) {
	t.Helper()
	w.check(t, l.Stats())
	limits := l.Limits()
	for i := range w.limits {
		requireNoFall(t, w.limits[i].Name, reflect.ValueOf(w.limits[i]), reflect.ValueOf(limits[i]))
	}
	w.limits = limits
}

// requireNoFall compares all counters: fields of type uint64, and durations.
func requireNoFall(t testing.TB, name string, last, now reflect.Value) {
	t.Helper()
	if path := fallen(last, now); path != "" {
		require.Fail(t, "a counter fell", "%s%s, from %+v to %+v", name, path, last, now)
	}
}

// fallen returns the path of a counter that fell; "": none did. Many tests call it after every step, so it formats nothing
// otherwise.
func fallen(last, now reflect.Value) string {
	switch now.Kind() {
	case reflect.Uint64:
		if now.Uint() < last.Uint() {
			return ": "
		}
	case reflect.Int64:
		if now.Int() < last.Int() {
			return ": "
		}
	case reflect.Array:
		for i := range now.Len() {
			if path := fallen(last.Index(i), now.Index(i)); path != "" {
				return fmt.Sprintf("[%d]%s", i, path)
			}
		}
	case reflect.Struct:
		for i := range now.NumField() {
			if now.Type() == reflect.TypeFor[time.Time]() {
				break
			}
			if path := fallen(last.Field(i), now.Field(i)); path != "" {
				return "." + now.Type().Field(i).Name + path
			}
		}
	}
	return ""
}

func TestNoCounterFallsWhenContextsEndAsAHoldDoes(t *testing.T) {
	// On one processor the waiters that a hold lets go run only after their context is cancelled.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	undone := uint64(0)
	for i := range 20 {
		synctest.Test(t, func(t *testing.T) {
			const n = 50
			l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(2*n, time.Hour)))
			l.Hold("", time.Second)
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			for range n {
				all.Go(func() { _ = l.Wait(ctx, throttle.Ask{}) })
			}
			var w watch
			time.Sleep(time.Second)
			w.look(t, l)
			for range i % 3 { // some of them run
				runtime.Gosched()
				w.look(t, l)
			}
			cancel()
			all.Wait()
			w.look(t, l)
			s := l.Stats()
			undone += s.Undone
			for b := range l.Buckets() {
				require.InDelta(t, 2*n-float64(s.Granted-s.Undone), b.Tokens, 1e-9)
			}
		})
	}
	require.Positive(t, undone)
}

func TestUndoneCountsGrantsThatWereNeverUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := true
		base := roundTripper(func(r *http.Request) (*http.Response, error) {
			if fails {
				return nil, &net.OpError{Op: "dial", Err: net.ErrClosed}
			}
			return &http.Response{StatusCode: 200, Body: http.NoBody, Request: r}, nil
		})
		panics := true
		transport := throttle.Must(throttle.New(base, throttle.WithLimit(throttle.TokenBucket(10, time.Hour)), throttle.WithHooks(throttle.Hooks{OnGrant: func(throttle.GrantEvent) {
			if panics {
				panic("user")
			}
		}})))
		l := transport.Limiter()
		check := func(granted, undone uint64, what string) {
			for _, s := range []throttle.Stats{l.Stats(), transport.Stats()} {
				require.Equal(t, granted, s.Granted, what)
				require.Equal(t, undone, s.Undone, what)
			}
			for b := range l.Buckets() {
				require.EqualValues(t, 10-(granted-undone), b.Tokens, what)
			}
		}
		send := func() { _, _ = transport.RoundTrip(get(t.Context(), "http://h/")) }
		require.PanicsWithValue(t, "user", send)
		check(1, 1, "OnGrant panicked")
		panics = false
		send()
		check(2, 2, "the dial failed")
		fails = false
		send()
		check(3, 2, "sent")
	})
	l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(10, time.Hour)))
	g, err := l.Acquire(t.Context(), throttle.Ask{Cost: 3})
	require.NoError(t, err)
	g.Cancel()
	g.Cancel()
	require.Equal(t, throttle.Stats{Granted: 1, Undone: 1, MaxQueue: 100_000, MaxKeys: 1 << 20}, l.Stats())
}

func TestTheLargestCostFitsTheLargestLimit(t *testing.T) {
	const most = math.MaxInt64
	for name, limit := range map[string]throttle.Limit{
		"bucket": throttle.TokenBucket(most, time.Second), "pace": throttle.Pace(most, time.Second), "in-flight": throttle.InFlight(most),
		"sliding-window": throttle.SlidingWindow(most, time.Second), "fixed-window": throttle.FixedWindow(most, time.Second),
	} {
		l := limiterOf(t, throttle.WithLimit(limit))
		g, err := l.Acquire(t.Context(), throttle.Ask{Costs: map[string]int64{name: most}, MaxWait: new(time.Duration(0))})
		require.NoError(t, err, name)
		g.Done()
	}
}

// For the race detector: OnWait is told a cost that a smaller burst is just clamping.
func TestOnWaitIsToldCostsThatABurstClamps(t *testing.T) {
	l := limiterOf(t, empty(1_000_000, throttle.Burst(10), throttle.ClampCost()), throttle.WithHooks(throttle.Hooks{OnWait: func(e throttle.WaitEvent) {
		require.Contains(t, []int64{5, 10}, e.Cost)
	}}))
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 500 {
				require.NoError(t, l.Wait(t.Context(), throttle.Ask{Cost: 10}))
			}
		})
	}
	all.Go(func() {
		for i := range 2000 {
			require.NoError(t, l.SetBurst("bucket", int64(5+i%2*5)))
		}
	})
	all.Wait()
}

// TestARejectionInTheQueueIsCounted has a slower rate reject what waits, in the Transport's counters and the Limiter's.
func TestARejectionInTheQueueIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, empty(1))
		tr := throttle.Must(throttle.New(rt(func(*http.Request) (*http.Response, error) { return reply(200) }), throttle.WithLimiter(l), throttle.WithMaxWait(time.Second), throttle.WithRejectionError()))
		done := make(chan error)
		go func() {
			_, err := tr.RoundTrip(get(t.Context(), "http://h/"))
			done <- err
		}()
		synctest.Wait()
		require.NoError(t, l.SetRate("bucket", 1, time.Hour))
		require.ErrorIs(t, <-done, throttle.ErrThrottled)
		require.EqualValues(t, 1, tr.Stats().Rejected[throttle.ReasonMaxWait])
		require.EqualValues(t, 1, l.Stats().Rejected[throttle.ReasonMaxWait])
		require.EqualValues(t, 1, l.Limits()[0].Rejected[throttle.ReasonMaxWait])
	})
}

func TestReturnedIsWhatASettlementGaveBack(t *testing.T) {
	l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(10, time.Hour)))
	g, err := l.Acquire(t.Context(), throttle.Ask{Cost: 10})
	require.NoError(t, err)
	require.NoError(t, g.Settle("bucket", 4))
	require.EqualValues(t, 10, l.Limits()[0].Charged)
	require.EqualValues(t, 6, l.Limits()[0].Returned)
}

func TestEvictedCountsTheBucketsThatMadeRoom(t *testing.T) {
	l := limiterOf(t, throttle.WithMaxKeys(1), throttle.WithLimit(throttle.TokenBucket(10, time.Hour)))
	for i := range 4 {
		_, ok := l.Try(throttle.Ask{Key: strconv.Itoa(i)})
		require.True(t, ok)
		require.EqualValues(t, i, l.Limits()[0].Evicted)
	}
}

func TestACancelledRequestCountsAtTheLimitThatDelayedItLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(
			throttle.TokenBucket(1, time.Second, throttle.Burst(100), throttle.Initial(0), throttle.Name("a")), throttle.TokenBucket(1, 10*time.Second, throttle.Initial(0), throttle.Name("b"))))
		first := send(t, l, throttle.Ask{Costs: map[string]int64{"a": 100, "b": 1}})
		second := send(t, l, throttle.Ask{Costs: map[string]int64{"a": 1, "b": 1}})
		for i, r := range []*request{first, second} { // without the first, b delays the second
			r.cancel(nil)
			synctest.Wait()
			require.EqualValues(t, 1, l.Limits()[i].Canceled)
		}
	})
}
