package tests

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/saved"
)

func TestARestoredHoldOfAHostIsForEveryAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mk := func() *throttle.Transport {
			tr, err := throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) { return reply(503, "Retry-After", "100") }),
				throttle.WithKey(throttle.ByHeader("Tenant")), throttle.WithLimit(throttle.TokenBucket(100, time.Second)), throttle.WithFailFast())
			require.NoError(t, err)
			return tr
		}
		do := func(tr *throttle.Transport, tenant string) bool {
			req := get(t, t.Context(), "http://a.com/x")
			req.Header.Set("Tenant", tenant)
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			_, ok := throttle.RejectionOf(resp)
			return ok
		}
		tr := mk()
		require.False(t, do(tr, "1"))
		require.True(t, do(tr, "2"))
		next := mk()
		require.NoError(t, next.Limiter().Restore(tr.Limiter().Snapshot()))
		assert.True(t, do(next, "3"))
	})
}

// A Limiter without limits restores what another one has saved.
func TestAHoldWithoutLimitsIsRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.NewLimiter()
		require.NoError(t, err)
		l.Hold("", time.Minute)
		next, err := throttle.NewLimiter()
		require.NoError(t, err)
		assert.NoError(t, next.Restore(l.Snapshot()))
		_, ok := next.Try(throttle.Ask{})
		assert.False(t, ok)
	})
}

func TestRestoringTwiceSpendsNothingTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.NewLimiter(throttle.WithLimit(throttle.FixedWindow(10, time.Hour)))
		require.NoError(t, err)
		l.Try(throttle.Ask{Cost: 5})
		s := l.Snapshot()
		require.NoError(t, l.Restore(s))
		_, ok := l.Try(throttle.Ask{Cost: 5})
		assert.True(t, ok, "what is restored takes the place of what there is")
	})
}

func TestNegativeDurationsOfASnapshotAreNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.NewLimiter(throttle.WithLimit(throttle.FixedWindow(10, time.Hour, throttle.Name("x"))))
		require.NoError(t, err)
		s := snapshotOf(saved.State{Taken: time.Now(), Buckets: []saved.Bucket{{Limit: "x", Held: math.MinInt64}},
			Servers: []saved.Server{{Host: "h", Held: math.MinInt64, Quotas: []saved.Quota{{Name: "default", Reset: math.MinInt64}}}}})
		time.Sleep(time.Second)
		_ = l.Restore(s)
		_, ok := l.Try(throttle.Ask{})
		assert.True(t, ok)
		s = l.Snapshot()
		assert.Empty(t, stateOf(&s).Servers)
	})
}

func TestHoldAllOutlivesARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, next := limiterWith(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second))), limiterWith(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second)))
		l.HoldAll(time.Minute)
		s := l.Snapshot()
		time.Sleep(20 * time.Second)
		require.NoError(t, next.Restore(s))
		wait, ok := next.Try(throttle.Ask{Key: "x"})
		require.False(t, ok)
		require.Equal(t, 40*time.Second, wait)
	})
}

func TestASnapshotSaysForHowLongAllAreHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterWith(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second)))
		sleep(time.Minute)
		l.HoldAll(time.Hour)
		sleep(time.Minute)
		s := l.Snapshot()
		require.Equal(t, 59*time.Minute, stateOf(&s).Held)
	})
}

// An endless hold is restored as a hold, and not as a cost that can never be paid.
func TestRestoredEndlessHoldIsAHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := func() *throttle.Limiter {
			l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Name("bucket"))))
			require.NoError(t, err)
			return l
		}
		old, l := limiter(), limiter()
		old.Hold("k", math.MaxInt64)
		old.HoldAll(math.MaxInt64)
		s := old.Snapshot()
		require.NoError(t, l.Restore(s))
		state := stateOf(&s)
		for i := range state.Buckets {
			state.Buckets[i].Held = math.MaxInt64
		}
		require.NoError(t, l.Restore(snapshotOf(*state)))
		for _, key := range []string{"k", "other"} {
			_, err := l.Acquire(context.Background(), throttle.Ask{Key: key, MaxWait: ptr(time.Duration(0))})
			var r *throttle.Rejection
			require.ErrorAs(t, err, &r)
			assert.Equal(t, throttle.ReasonHeld, r.Reason)
			assert.Less(t, r.Wait, time.Duration(math.MaxInt64))
		}
	})
}

func TestCalendarWindowIsRestored(t *testing.T) {
	for name, c := range map[string]struct {
		slept time.Duration
		left  float64
	}{"1 ns before the month ends": {31*24*time.Hour - 1, 2}, "when it ends": {31 * 24 * time.Hour, 5}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // begins at midnight UTC on 2000-01-01
				limit := throttle.WithLimit(throttle.CalendarWindow(5, throttle.CalendarMonth, time.UTC))
				l := limiterWith(t, limit)
				_, ok := l.Try(throttle.Ask{Cost: 3})
				require.True(t, ok)
				saved := l.Snapshot()
				time.Sleep(c.slept)
				restored := limiterWith(t, limit)
				require.NoError(t, restored.Restore(saved))
				for b := range restored.Buckets() {
					require.Equal(t, "calendar-window", b.Limit)
					require.InDelta(t, c.left, b.Tokens, 0)
				}
			})
		})
	}
}

// Slots in use are no part of a snapshot, nor is how many there are: the next process has requests and options of its own.
func TestASnapshotHasNoSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		take := func(l *throttle.Limiter, slots int64, most time.Duration) error {
			_, err := l.Acquire(t.Context(), throttle.Ask{Costs: map[string]int64{"in-flight": slots}, MaxWait: &most})
			return err
		}
		l := limiterWith(t, throttle.WithLimit(throttle.InFlight(2)))
		require.NoError(t, take(l, 2, 0))
		require.NoError(t, l.SetInFlight("in-flight", 1))
		saved := l.Snapshot()
		require.Empty(t, stateOf(&saved).Buckets)
		l.Hold("", 5*time.Second)
		saved = l.Snapshot()
		require.Len(t, stateOf(&saved).Buckets, 1)
		next := limiterWith(t, throttle.WithLimit(throttle.InFlight(3)))
		require.NoError(t, next.Restore(saved))
		require.NoError(t, next.SetInFlight("in-flight", 4))
		require.Error(t, take(next, 3, 5*time.Second-1))
		require.NoError(t, take(next, 3, 5*time.Second))
		require.Equal(t, 1.0, next.Limits()[0].Tokens)
	})
}

// The same while other goroutines run.
func TestASnapshotBesideOtherGoroutinesLosesNothingOfBefore(t *testing.T) {
	const keys, each = 500, 40
	l := limiterWith(t, throttle.WithLimit(throttle.TokenBucket(each, 1000*time.Hour), throttle.SlidingWindow(each, 1000*time.Hour)))
	var mu sync.Mutex
	granted := make(map[string][]time.Time)
	ctx, workers := t.Context(), sync.WaitGroup{}
	stop := make(chan struct{})
	for g := range uint64(4) {
		workers.Go(func() {
			for r := rand.New(rand.NewPCG(g, 15)); ctx.Err() == nil; {
				select {
				case <-stop:
					return
				default:
				}
				key := fmt.Sprint(r.IntN(keys))
				if _, ok := l.Try(throttle.Ask{Key: key}); ok {
					now := time.Now()
					mu.Lock()
					granted[key] = append(granted[key], now)
					mu.Unlock()
				}
			}
		})
	}
	var snapshots []throttle.Snapshot
	for range 5 {
		time.Sleep(time.Millisecond)
		snapshots = append(snapshots, l.Snapshot())
	}
	close(stop)
	workers.Wait()
	for _, s := range snapshots {
		next := limiterWith(t, throttle.WithLimit(throttle.TokenBucket(each, 1000*time.Hour), throttle.SlidingWindow(each, 1000*time.Hour)))
		require.NoError(t, next.Restore(s))
		for key, all := range granted {
			before := 0
			for _, at := range all {
				if !at.After(s.Taken()) {
					before++
				}
			}
			more := drain(next, key)
			require.LessOrEqual(t, before+more, each)
			require.GreaterOrEqual(t, len(all)+more, each)
		}
	}
}

// What a server said and what is spent is restored as of the instant at which it was read, although time has passed since Taken.
func TestRestoreCountsFromWhenABucketWasRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := roundTripper(func(r *http.Request) (*http.Response, error) {
			h := http.Header{"Retry-After": {"100"}}
			return &http.Response{StatusCode: 429, Status: "429 Too Many Requests", Header: h, Body: http.NoBody, Request: r}, nil
		})
		limit := throttle.TokenBucket(1, time.Minute, throttle.Key(throttle.ByHost))
		old, err := throttle.New(server, throttle.WithLimit(limit))
		require.NoError(t, err)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://h/", nil)
		require.NoError(t, err)
		resp, err := old.RoundTrip(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		const keys, late = 100, 5 * time.Second
		for i := range keys {
			old.Limiter().Try(throttle.Ask{Key: fmt.Sprint(i)})
		}
		began := time.Now()
		time.Sleep(late)
		s := old.Limiter().Snapshot()
		state := stateOf(&s) // as if it had taken so long to read it
		state.Taken = began
		for i := range state.Buckets {
			state.Buckets[i].After = late
		}
		for i := range state.Servers {
			state.Servers[i].After = late
		}
		next, err := throttle.New(server, throttle.WithLimit(limit))
		require.NoError(t, err)
		require.NoError(t, next.Limiter().Restore(s))
		for i := range keys {
			wait, ok := next.Limiter().Try(throttle.Ask{Key: fmt.Sprint(i)})
			require.False(t, ok)
			require.Equal(t, time.Minute, wait+time.Since(began), "from the grant on")
		}
		held := next.Limiter().Server("h")[0].HeldUntil
		require.WithinDuration(t, old.Limiter().Server("h")[0].HeldUntil, held, time.Second, "clients come back one after the other")
	})
}

// What is read later than others, because the lock is free in between, says by how much.
func TestASnapshotSaysWhenEachBucketWasRead(t *testing.T) {
	l := limiterWith(t, throttle.WithLimit(throttle.TokenBucket(1, time.Hour)))
	for i := range 3000 { // of which a third is read at once, at most
		l.Try(throttle.Ask{Key: fmt.Sprint(i)})
	}
	s := l.Snapshot()
	buckets := stateOf(&s).Buckets
	require.Len(t, buckets, 3000)
	first, last := buckets[0].After, buckets[2999].After
	require.Greater(t, last, first)
}
