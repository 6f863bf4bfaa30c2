package limiter_test

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/meter/metertest"
)

func TestHoldDelaysNoOtherKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1000, time.Second, throttle.Name("global")), throttle.TokenBucket(10, time.Second, throttle.Name("key"), throttle.Burst(1))))
		ask := func(key string) throttle.Ask {
			return throttle.Ask{Key: key, Keys: map[string]string{"global": ""}, Cost: 1}
		}
		l.Hold("held", time.Minute)
		held := sendMany(t, l, 100, ask("held"))
		for i := range 100 {
			free := send(t, l, ask("free"))
			require.True(t, free.done)
			requireGranted(t, free, time.Duration(i)*100*time.Millisecond)
			sleep(100 * time.Millisecond)
		}
		checkInvariants(t, l)
		sleep(time.Hour)
		for i, r := range held {
			requireGranted(t, r, time.Minute+time.Duration(i)*100*time.Millisecond)
		}
	})
}

// TestASlowKeyDelaysNoOther has a key with a long line, by its hold or by its rate, and others that use up what they
// share with it.
func TestASlowKeyDelaysNoOther(t *testing.T) {
	slow := throttle.RateFor(func(key string) (int64, time.Duration) {
		if key == "slow" {
			return 1, time.Minute
		}
		return 1000, time.Second
	})
	for name, hold := range map[string]time.Duration{"by its rate": 0, "by a hold": time.Hour} {
		within(t, name, func(t *testing.T) {
			l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Name("global"), throttle.Burst(1)), throttle.TokenBucket(1, time.Minute, throttle.Name("key"), slow)))
			ask := func(key string) throttle.Ask {
				return throttle.Ask{Key: key, Keys: map[string]string{"global": ""}, Cost: 1}
			}
			l.Hold("slow", hold)
			ctx, cancel := context.WithCancel(t.Context())
			var served atomic.Int64
			go func() {
				for ctx.Err() == nil {
					if _, err := l.Acquire(ctx, ask("fast")); err == nil {
						served.Add(1)
					}
				}
			}()
			for second := range 100 {
				sendUnder(ctx, l, ask("slow"))
				before := served.Load()
				sleep(time.Second)
				require.GreaterOrEqual(t, served.Load()-before, int64(8), "second %d", second)
				checkInvariants(t, l)
			}
			cancel()
			synctest.Wait()
			checkInvariants(t, l)
			require.Zero(t, coreOf(l).LineCount())
		})
	}
}

// TestLateTimerLosesNoThroughput wakes a line late by hand.
func TestLateTimerLosesNoThroughput(t *testing.T) {
	for _, c := range []struct {
		late    time.Duration
		granted int
	}{{0, 1}, {999 * time.Microsecond, 1}, {time.Millisecond, 2}, {20 * time.Millisecond, 21}, {21 * time.Millisecond, 21}, {time.Hour, 21}} {
		within(t, c.late.String(), func(t *testing.T) {
			l := limiterOf(t, empty(1000, throttle.Burst(1)))
			all := sendMany(t, l, 100, throttle.Ask{Cost: 1})
			coreOf(l).Lock()
			coreOf(l).MarkLocked(coreOf(l).Limits[0].Single)
			now := int64(time.Millisecond + c.late)
			coreOf(l).ServeLocked(now)
			coreOf(l).Unlock()
			synctest.Wait()
			require.Equal(t, uint64(c.granted), l.Stats().Granted)
			for i, r := range all {
				require.Equal(t, i < c.granted, r.done)
				r.cancel(nil)
			}
		})
	}
}

// TestWhatIsDueGoesBeforeAChange has 10 of 100 due by a timer that is late, and then changes something.
func TestWhatIsDueGoesBeforeAChange(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(l *throttle.Limiter, first, last *request, g *throttle.Grant)
		granted int
	}{
		"rate":          {func(l *throttle.Limiter, _, _ *request, _ *throttle.Grant) { _ = l.SetRate("bucket", 1, time.Hour) }, 10},
		"hold":          {func(l *throttle.Limiter, _, _ *request, _ *throttle.Grant) { l.Hold("", time.Hour) }, 10},
		"cancel last":   {func(_ *throttle.Limiter, _, last *request, _ *throttle.Grant) { last.cancel(nil) }, 10},
		"cancel first":  {func(_ *throttle.Limiter, first, _ *request, _ *throttle.Grant) { first.cancel(nil) }, 10},
		"give back":     {func(_ *throttle.Limiter, _, _ *request, g *throttle.Grant) { g.Cancel() }, 11},
		"settle less":   {func(_ *throttle.Limiter, _, _ *request, g *throttle.Grant) { _ = g.Settle("bucket", 1) }, 11},
		"settle more":   {func(_ *throttle.Limiter, _, _ *request, g *throttle.Grant) { _ = g.Settle("bucket", 3) }, 10},
		"another comes": {func(l *throttle.Limiter, _, _ *request, _ *throttle.Grant) { l.Try(throttle.Ask{}) }, 10},
	} {
		within(t, name, func(t *testing.T) {
			l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1000, time.Second, throttle.Burst(2), throttle.Initial(2))))
			g := send(t, l, throttle.Ask{Cost: 2}).grant
			all := sendMany(t, l, 100, throttle.Ask{Cost: 1})
			coreOf(l).Lock()
			coreOf(l).Start = coreOf(l).Start.Add(-10 * time.Millisecond)
			coreOf(l).Unlock()
			c.change(l, all[0], all[99], g)
			synctest.Wait()
			granted := 0
			for _, r := range all {
				if r.done && r.err == nil {
					granted++
				}
				r.cancel(nil)
			}
			require.Equal(t, c.granted, granted)
		})
	}
}

// TestRequestThatGoesByARefundIsChargedAsOfNow would otherwise find more than the burst at one instant.
func TestRequestThatGoesByARefundIsChargedAsOfNow(t *testing.T) {
	for name, giveBack := range map[string]func(g *throttle.Grant) error{
		"cancelled": func(g *throttle.Grant) error { g.Cancel(); return nil },
		"settled":   func(g *throttle.Grant) error { return g.Settle("bucket", 0) },
	} {
		within(t, name, func(t *testing.T) {
			l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1000, time.Second, throttle.Burst(10))))
			g := send(t, l, throttle.Ask{Cost: 10}).grant
			waits := send(t, l, throttle.Ask{Cost: 10})
			sleep(5 * time.Millisecond)
			require.NoError(t, giveBack(g))
			synctest.Wait()
			requireGranted(t, waits, 5*time.Millisecond)
			_, ok := l.Try(throttle.Ask{})
			require.False(t, ok, "11 at one instant")
		})
	}
}

// TestContextWinsOverAGrant has both at one instant, before the request looks at either: whichever it sees first.
func TestContextWinsOverAGrant(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, empty(1))
			ctx, cancel := context.WithCancelCause(t.Context())
			w := waiterOf(l, throttle.Ask{Cost: 1})
			require.True(t, enqueue(ctx, l, w))
			coreOf(l).Lock()
			coreOf(l).MarkLocked(coreOf(l).Limits[0].Single)
			coreOf(l).ServeLocked(int64(time.Second))
			coreOf(l).Unlock()
			require.True(t, w.IsGranted())
			gone := errors.New("gone")
			cancel(gone)
			require.Equal(t, gone, coreOf(l).Await(ctx, w))
			require.Equal(t, l.Stats().Undone, l.Stats().Granted)
			require.EqualValues(t, 1, countsOf(l).Undone)
			require.InDelta(t, 1, coreOf(l).Limits[0].Single.Meter.Tokens(int64(time.Second)), 0)
		})
	}
}

// TestRequestThatLeftIsNotRejectedToo has the MaxWait of a request end after its context.
func TestRequestThatLeftIsNotRejectedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, empty(1))
		ctx, cancel := context.WithCancel(t.Context())
		w := waiterOf(l, throttle.Ask{Cost: 1, MaxWait: new(time.Hour)})
		require.True(t, enqueue(ctx, l, w))
		other := send(t, l, throttle.Ask{Cost: 1})
		cancel()
		require.True(t, coreOf(l).Abandon(w))
		require.Nil(t, w.Why())
		require.Equal(t, 1, l.Stats().Waiting)
		require.Zero(t, l.Stats().Rejected.Total())
		checkInvariants(t, l)
		sleep(time.Hour)
		requireGranted(t, other, time.Second)
		require.Zero(t, l.Stats().Rejected.Total())
	})
}

func TestWindowsNeverCatchUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.SlidingWindow(1, time.Millisecond)))
		all := sendMany(t, l, 10, throttle.Ask{Cost: 1})
		coreOf(l).Lock()
		coreOf(l).MarkLocked(coreOf(l).Limits[0].Single)
		coreOf(l).ServeLocked(int64(15 * time.Millisecond))
		coreOf(l).Unlock()
		synctest.Wait()
		require.True(t, all[1].done)
		require.False(t, all[2].done)
		for _, r := range all {
			r.cancel(nil)
		}
	})
}

func TestPriorityOvertakesAndAges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, empty(1, throttle.Burst(1)))
		first := send(t, l, throttle.Ask{Cost: 1})
		low := send(t, l, throttle.Ask{Cost: 1, Priority: -1}) // counts as having come at 10 s
		sleep(100 * time.Millisecond)
		high := send(t, l, throttle.Ask{Cost: 1, Priority: 1})
		var later []*request
		for range 30 { // one a second, from 0.1 s on
			later = append(later, send(t, l, throttle.Ask{Cost: 1}))
			sleep(time.Second)
		}
		sleep(time.Minute)
		requireGranted(t, high, time.Second)
		requireGranted(t, first, 2*time.Second)
		for i, r := range later[:10] { // they came before 10 s
			requireGranted(t, r, time.Duration(3+i)*time.Second)
		}
		requireGranted(t, low, 13*time.Second)
		requireGranted(t, later[10], 14*time.Second)
	})
}

func TestPriorityPassesACostlyRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Burst(10), throttle.Initial(5))))
		costly := send(t, l, throttle.Ask{Cost: 10})
		require.False(t, send(t, l, throttle.Ask{Cost: 1}).done, "overtook")
		high := send(t, l, throttle.Ask{Cost: 5, Priority: 1, MaxWait: new(time.Duration(0))})
		requireGranted(t, high, 0)
		sleep(time.Minute)
		requireGranted(t, costly, 10*time.Second)
	})
}

func TestGrantIsGivenBackOnce(t *testing.T) {
	for name, limit := range map[string]throttle.Limit{
		"bucket": throttle.TokenBucket(1, time.Hour, throttle.Burst(4)), "sliding": throttle.SlidingWindow(4, time.Hour), "fixed": throttle.FixedWindow(4, time.Hour),
	} {
		within(t, name, func(t *testing.T) { giveBackOnce(t, limit) })
	}
}

func giveBackOnce(t *testing.T, limit throttle.Limit) {
	l := limiterOf(t, throttle.WithLimit(limit))
	g := send(t, l, throttle.Ask{Cost: 3}).grant
	next := send(t, l, throttle.Ask{Cost: 4})
	require.False(t, next.done)
	g.Cancel()
	synctest.Wait()
	requireGranted(t, next, 0)
	for range 3 {
		g.Cancel()
	}
	_, ok := l.Try(throttle.Ask{})
	require.False(t, ok)
	next.grant.Cancel()
	_, ok = l.Try(throttle.Ask{Cost: 4})
	require.True(t, ok)
	_, ok = l.Try(throttle.Ask{})
	require.False(t, ok)
}

func TestLateGiveBackMintsNothing(t *testing.T) {
	for name, limit := range map[string]throttle.Limit{
		"bucket": throttle.TokenBucket(10, time.Second), "sliding": throttle.SlidingWindow(10, time.Second), "fixed": throttle.FixedWindow(10, time.Second),
	} {
		within(t, name, func(t *testing.T) {
			l := limiterOf(t, throttle.WithLimit(limit))
			old := send(t, l, throttle.Ask{Cost: 5})
			sleep(5*time.Second + 500*time.Millisecond)
			_, ok := l.Try(throttle.Ask{Cost: 10})
			require.True(t, ok)
			old.grant.Cancel()
			_, ok = l.Try(throttle.Ask{})
			require.False(t, ok, "11 at one instant")
		})
	}
}

func TestLongestHoldCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t)
		l.Hold("", 10*time.Second)
		l.Hold("", time.Second)
		l.Hold("", -time.Hour)
		r := send(t, l, throttle.Ask{Cost: 1})
		require.Equal(t, 10*time.Second, requireRefused(t, send(t, l, throttle.Ask{Cost: 1, MaxWait: new(time.Second)}), 0, throttle.ReasonHeld).Wait)
		wait, ok := l.Try(throttle.Ask{})
		require.False(t, ok)
		require.Equal(t, 10*time.Second, wait)
		sleep(9 * time.Second)
		l.Hold("", 2*time.Second)
		sleep(time.Minute)
		requireGranted(t, r, 11*time.Second)
		patient := send(t, l, throttle.Ask{Cost: 1, MaxWait: new(time.Duration(math.MaxInt64))})
		requireGranted(t, patient, 69*time.Second)
		l.Hold("", math.MaxInt64)
		checkInvariants(t, l)
		wait, ok = l.Try(throttle.Ask{})
		require.False(t, ok)
		require.Equal(t, time.Duration(meter.MaxPer), wait)
		patient = send(t, l, throttle.Ask{Cost: 1, MaxWait: new(time.Duration(math.MaxInt64))})
		require.False(t, patient.done)
		patient.cancel(nil)
	})
}

// TestPanicInRateForLeavesTheLimiterWhole would end the process, were a mutex freed twice.
func TestPanicInRateForLeavesTheLimiterWhole(t *testing.T) {
	l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.RateFor(func(string) (int64, time.Duration) { panic("user") }))))
	require.PanicsWithValue(t, "user", func() { l.Try(throttle.Ask{Key: "a"}) })
	require.PanicsWithValue(t, "user", func() { l.Hold("a", time.Second) })
	_, ok := l.Try(throttle.Ask{})
	require.True(t, ok)
}

// TestDryRunWaitsAsTheRealOne compares what requests would have waited with what they did. A window may wait for longer than was
// planned, because requests leave a rest in it that is too small for the next one.
func TestDryRunWaitsAsTheRealOne(t *testing.T) {
	for name, limit := range map[string]throttle.Limit{
		"bucket": throttle.TokenBucket(7, 3*time.Second, throttle.Burst(5)), "pace": throttle.Pace(7, 3*time.Second),
		"sliding": throttle.SlidingWindow(7, 3*time.Second), "fixed": throttle.FixedWindow(7, 3*time.Second),
	} {
		within(t, name, func(t *testing.T) {
			r := metertest.Seeded(t, 10)
			var would []time.Duration
			real := limiterOf(t, throttle.WithLimit(limit))
			dry := throttle.Must(throttle.New(nil, throttle.WithLimit(limit), throttle.WithDryRun(), throttle.WithHooks(throttle.Hooks{
				OnGrant: func(e throttle.GrantEvent) { would = append(would, e.Waited) },
			}))).Limiter()
			var did []*request
			var came []time.Duration
			for i := range 200 {
				cost := int64(1 + r.IntN(5))
				came = append(came, time.Since(coreOf(real).Start))
				did = append(did, send(t, real, throttle.Ask{Cost: cost}))
				require.NoError(t, dry.Wait(t.Context(), throttle.Ask{Cost: cost}))
				require.Len(t, would, i+1)
				sleep(time.Duration(r.Int64N(1 + int64(3*time.Second)*int64(i%3))))
			}
			sleep(time.Hour)
			for i, r := range did {
				if name == "bucket" || name == "pace" {
					requireGranted(t, r, came[i]+would[i])
				}
				require.LessOrEqual(t, came[i]+would[i], r.at)
			}
			as, is := dry.Stats(), real.Stats()
			require.Equal(t, []any{is.Granted, is.Delayed, is.Waited}, []any{as.Granted, as.Delayed, as.Waited})
			require.Equal(t, real.Limits()[0].Waits, dry.Limits()[0].Waits)
		})
	}
}
