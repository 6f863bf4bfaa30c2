package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/meter/metertest"
)

func TestHoldDelaysNoOtherKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(1000, time.Second, named("global")), tokenBucket(10, time.Second, named("key"), withBurst(1)))
		asked := func(key string) ask {
			return ask{Key: key, Keys: map[string]string{"global": ""}, Cost: 1}
		}
		l.hold("held", time.Minute)
		held := l.sendMany(100, asked("held"))
		for i := range 100 {
			free := l.send(asked("free"))
			require.True(t, free.done)
			requireGranted(t, free, time.Duration(i)*100*time.Millisecond)
			sleep(100 * time.Millisecond)
		}
		l.check()
		sleep(time.Hour)
		for i, r := range held {
			requireGranted(t, r, time.Minute+time.Duration(i)*100*time.Millisecond)
		}
	})
}

// Many requests of one key wait, because of its hold or its rate, and those of others use up what they share with it.
func TestASlowKeyDelaysNoOther(t *testing.T) {
	slow := withRates(func(key string) (int64, time.Duration) {
		if key == "slow" {
			return 1, time.Minute
		}
		return 1000, time.Second
	})
	for name, hold := range map[string]time.Duration{"by its rate": 0, "by a hold": time.Hour} {
		within(t, name, func(t *testing.T) {
			l := drive(t, tokenBucket(10, time.Second, named("global"), withBurst(1)), tokenBucket(1, time.Minute, named("key"), slow))
			asked := func(key string) ask {
				return ask{Key: key, Keys: map[string]string{"global": ""}, Cost: 1}
			}
			l.hold("slow", hold)
			ctx, cancel := context.WithCancel(t.Context())
			var served atomic.Int64
			go func() {
				for ctx.Err() == nil {
					if _, err := l.acquire(ctx, asked("fast")); err == nil {
						served.Add(1)
					}
				}
			}()
			for second := range 100 {
				l.sendUnder(ctx, asked("slow"))
				before := served.Load()
				sleep(time.Second)
				require.GreaterOrEqual(t, served.Load()-before, int64(8), "second %d", second)
				l.check()
			}
			cancel()
			synctest.Wait()
			l.check()
			require.Zero(t, l.LineCount())
		})
	}
}

// The timer is late.
func TestLateTimerLosesNoThroughput(t *testing.T) {
	for _, c := range []struct {
		late    time.Duration
		granted int
	}{{0, 1}, {999 * time.Microsecond, 1}, {time.Millisecond, 2}, {20 * time.Millisecond, 21}, {21 * time.Millisecond, 21}, {time.Hour, 21}} {
		within(t, c.late.String(), func(t *testing.T) {
			l := drive(t, empty(1000, withBurst(1)))
			all := l.sendMany(100, ask{Cost: 1})
			now := int64(time.Millisecond + c.late)
			l.WakeLate(l.Limits[0].Single, now)
			synctest.Wait()
			require.Equal(t, uint64(c.granted), l.counts().Granted)
			for i, r := range all {
				require.Equal(t, i < c.granted, r.done)
				r.cancel(nil)
			}
		})
	}
}

// 10 of 100 are due by a timer that is late, and then something changes.
func TestWhatIsDueGoesBeforeAChange(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(l *driven, first, last *request, g *grant)
		granted int
	}{
		"rate":          {func(l *driven, _, _ *request, _ *grant) { l.setRate("bucket", 1, time.Hour) }, 10},
		"hold":          {func(l *driven, _, _ *request, _ *grant) { l.hold("", time.Hour) }, 10},
		"cancel last":   {func(_ *driven, _, last *request, _ *grant) { last.cancel(nil) }, 10},
		"cancel first":  {func(_ *driven, first, _ *request, _ *grant) { first.cancel(nil) }, 10},
		"give back":     {func(_ *driven, _, _ *request, g *grant) { g.cancel() }, 11},
		"settle less":   {func(_ *driven, _, _ *request, g *grant) { _ = g.settle("bucket", 1) }, 11},
		"settle more":   {func(_ *driven, _, _ *request, g *grant) { _ = g.settle("bucket", 3) }, 10},
		"another comes": {func(l *driven, _, _ *request, _ *grant) { l.try(ask{}) }, 10},
	} {
		within(t, name, func(t *testing.T) {
			l := drive(t, tokenBucket(1000, time.Second, withBurst(2), withInitial(2)))
			g := l.send(ask{Cost: 2}).grant
			all := l.sendMany(100, ask{Cost: 1})
			l.Lock()
			l.Start = l.Start.Add(-10 * time.Millisecond)
			l.Unlock()
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

// Otherwise there would be more than the burst at one instant.
func TestRequestThatGoesByARefundIsChargedAsOfNow(t *testing.T) {
	for name, giveBack := range map[string]func(g *grant) error{
		"cancelled": func(g *grant) error { g.cancel(); return nil },
		"settled":   func(g *grant) error { return g.settle("bucket", 0) },
	} {
		within(t, name, func(t *testing.T) {
			l := drive(t, tokenBucket(1000, time.Second, withBurst(10)))
			g := l.send(ask{Cost: 10}).grant
			waits := l.send(ask{Cost: 10})
			sleep(5 * time.Millisecond)
			require.NoError(t, giveBack(g))
			synctest.Wait()
			requireGranted(t, waits, 5*time.Millisecond)
			_, ok := l.try(ask{})
			require.False(t, ok, "11 at one instant")
		})
	}
}

// Both come at one instant, before the request looks at either.
func TestContextWinsOverAGrant(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			l := drive(t, empty(1))
			ctx, cancel := context.WithCancelCause(t.Context())
			w := l.waiter(ask{Cost: 1})
			require.True(t, l.enqueue(ctx, w))
			l.WakeLate(l.Limits[0].Single, int64(time.Second))
			require.True(t, isGranted(w))
			gone := errors.New("gone")
			cancel(gone)
			require.Equal(t, gone, l.Await(ctx, nil, w))
			require.Equal(t, l.counts().Undone, l.counts().Granted)
			c, _, _ := l.Counters(l.user)
			require.EqualValues(t, 1, c.Undone)
			require.InDelta(t, 1, l.Limits[0].Single.Meter.Tokens(int64(time.Second)), 0)
		})
	}
}

// The MaxWait of a request ends after its context.
func TestRequestThatLeftIsNotRejectedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, empty(1))
		ctx, cancel := context.WithCancel(t.Context())
		w := l.waiter(ask{Cost: 1, MaxWait: ptr(time.Hour)})
		require.True(t, l.enqueue(ctx, w))
		other := l.send(ask{Cost: 1})
		cancel()
		l.Leave(w)
		require.False(t, w.Rejected())
		require.Equal(t, 1, l.counts().Waiting)
		require.Zero(t, l.counts().rejected())
		l.check()
		sleep(time.Hour)
		requireGranted(t, other, time.Second)
		require.Zero(t, l.counts().rejected())
	})
}

func TestWindowsNeverCatchUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, slidingWindow(1, time.Millisecond))
		all := l.sendMany(10, ask{Cost: 1})
		l.WakeLate(l.Limits[0].Single, int64(15*time.Millisecond))
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
		l := drive(t, empty(1, withBurst(1)))
		first := l.send(ask{Cost: 1})
		low := l.send(ask{Cost: 1, Priority: -1}) // counts as having come at 10 s
		sleep(100 * time.Millisecond)
		high := l.send(ask{Cost: 1, Priority: 1})
		var later []*request
		for range 30 { // one a second, from 0.1 s on
			later = append(later, l.send(ask{Cost: 1}))
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
		l := drive(t, tokenBucket(1, time.Second, withBurst(10), withInitial(5)))
		costly := l.send(ask{Cost: 10})
		require.False(t, l.send(ask{Cost: 1}).done, "overtook")
		high := l.send(ask{Cost: 5, Priority: 1, MaxWait: ptr(time.Duration(0))})
		requireGranted(t, high, 0)
		sleep(time.Minute)
		requireGranted(t, costly, 10*time.Second)
	})
}

func TestGrantIsGivenBackOnce(t *testing.T) {
	for name, limit := range map[string]rule{
		"bucket": tokenBucket(1, time.Hour, withBurst(4)), "sliding": slidingWindow(4, time.Hour), "fixed": fixedWindow(4, time.Hour),
	} {
		within(t, name, func(t *testing.T) { giveBackOnce(t, limit) })
	}
}

func giveBackOnce(t *testing.T, limit rule) {
	l := drive(t, limit)
	g := l.send(ask{Cost: 3}).grant
	next := l.send(ask{Cost: 4})
	require.False(t, next.done)
	g.cancel()
	synctest.Wait()
	requireGranted(t, next, 0)
	for range 3 {
		g.cancel()
	}
	_, ok := l.try(ask{})
	require.False(t, ok)
	next.grant.cancel()
	_, ok = l.try(ask{Cost: 4})
	require.True(t, ok)
	_, ok = l.try(ask{})
	require.False(t, ok)
}

func TestLateGiveBackMintsNothing(t *testing.T) {
	for name, limit := range map[string]rule{
		"bucket": tokenBucket(10, time.Second), "sliding": slidingWindow(10, time.Second), "fixed": fixedWindow(10, time.Second),
	} {
		within(t, name, func(t *testing.T) {
			l := drive(t, limit)
			old := l.send(ask{Cost: 5})
			sleep(5*time.Second + 500*time.Millisecond)
			_, ok := l.try(ask{Cost: 10})
			require.True(t, ok)
			old.grant.cancel()
			_, ok = l.try(ask{})
			require.False(t, ok, "11 at one instant")
		})
	}
}

func TestLongestHoldCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t)
		l.hold("", 10*time.Second)
		l.hold("", time.Second)
		l.hold("", -time.Hour)
		r := l.send(ask{Cost: 1})
		require.Equal(t, 10*time.Second, requireRejected(t, l.send(ask{Cost: 1, MaxWait: ptr(time.Second)}), 0, bucket.ReasonHeld).Wait)
		wait, ok := l.try(ask{})
		require.False(t, ok)
		require.Equal(t, 10*time.Second, wait)
		sleep(9 * time.Second)
		l.hold("", 2*time.Second)
		sleep(time.Minute)
		requireGranted(t, r, 11*time.Second)
		patient := l.send(ask{Cost: 1, MaxWait: ptr(never)})
		requireGranted(t, patient, 69*time.Second)
		l.hold("", math.MaxInt64)
		l.check()
		wait, ok = l.try(ask{})
		require.False(t, ok)
		require.Equal(t, time.Duration(meter.MaxPer), wait)
		patient = l.send(ask{Cost: 1, MaxWait: ptr(never)})
		require.False(t, patient.done)
		patient.cancel(nil)
	})
}

// If the lock were freed twice, the process would end.
func TestAPanicOfAFunctionOfRatesLeavesTheCoreWhole(t *testing.T) {
	panics := false
	l := drive(t, tokenBucket(1, time.Hour, withRates(func(string) (int64, time.Duration) {
		if panics {
			panic("user")
		}
		return 0, 0
	})))
	for i := range 600 { // of which one piece after the other is refreshed
		l.try(ask{Key: fmt.Sprint(i)})
	}
	panics = true
	require.PanicsWithValue(t, "user", func() { _ = l.refresh("bucket") })
	require.PanicsWithValue(t, "user", func() { _ = l.refresh("bucket", "1") })
	require.PanicsWithValue(t, "user", func() { l.try(ask{Key: "a"}) })
	require.PanicsWithValue(t, "user", func() { l.hold("a", time.Second) })
	_, ok := l.try(ask{})
	require.True(t, ok)
}

// What requests would have waited is what they did. A window may wait for longer than was
// planned, because requests leave a rest in it that is too small for the next one.
func TestDryRunWaitsAsTheRealOne(t *testing.T) {
	for name, limit := range map[string]rule{
		"bucket": tokenBucket(7, 3*time.Second, withBurst(5)), "pace": pace(7, 3*time.Second),
		"sliding": slidingWindow(7, 3*time.Second), "fixed": fixedWindow(7, 3*time.Second),
	} {
		within(t, name, func(t *testing.T) {
			r := metertest.Seeded(t, 10)
			var would []time.Duration
			real := drive(t, limit)
			dry := drive(t, limit, dryRun())
			dry.onGrant = func(_ limiter.Place, waited time.Duration) { would = append(would, waited) }
			var did []*request
			var came []time.Duration
			for i := range 200 {
				cost := int64(1 + r.IntN(5))
				came = append(came, real.now())
				did = append(did, real.send(ask{Cost: cost}))
				require.NoError(t, dry.wait(t.Context(), ask{Cost: cost}))
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
			as, is := dry.counts(), real.counts()
			require.Equal(t, []any{is.Granted, is.Delayed, is.Waited}, []any{as.Granted, as.Delayed, as.Waited})
			require.Equal(t, real.Limits[0].Counts.Waits, dry.Limits[0].Counts.Waits)
		})
	}
}
