package throttle

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A request is one that a goroutine of its own makes.
type request struct {
	cancel context.CancelCauseFunc
	done   bool
	at     time.Duration // when it was decided, since the Limiter was made
	grant  *Grant
	err    error
}

// send makes a request, and returns when it is decided or waits.
func send(t *testing.T, l *Limiter, ask Ask) *request {
	return sendUnder(t.Context(), l, ask)
}

func sendUnder(ctx context.Context, l *Limiter, ask Ask) *request {
	r := new(request)
	ctx, r.cancel = context.WithCancelCause(ctx)
	go func() {
		r.grant, r.err = l.Acquire(ctx, ask)
		r.at, r.done = time.Since(l.start), true
	}()
	synctest.Wait()
	return r
}

// sleep lets time pass, and all that then happens.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// sendMany makes n requests of cost 1, in order.
func sendMany(t *testing.T, l *Limiter, n int, ask Ask) []*request {
	all := make([]*request, n)
	for i := range all {
		all[i] = send(t, l, ask)
	}
	return all
}

// requireGranted checks when a request was granted.
func requireGranted(t *testing.T, r *request, at time.Duration) {
	t.Helper()
	require.True(t, r.done, "still waits")
	require.NoError(t, r.err)
	require.Equal(t, at, r.at)
}

// requireRefused checks when and why a request was refused.
func requireRefused(t *testing.T, r *request, at time.Duration, reason Reason) *Rejection {
	t.Helper()
	require.True(t, r.done, "still waits")
	rejection, ok := errors.AsType[*Rejection](r.err)
	require.True(t, ok, "%v is no refusal", r.err)
	require.Equal(t, reason, rejection.Reason, "%v", r.err)
	require.Equal(t, at, r.at)
	return rejection
}

// within runs a subtest in a bubble.
func within(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// empty is a bucket of n per second that starts empty.
func empty(n int64, opts ...LimitOption) Option {
	return WithLimit(TokenBucket(n, time.Second, append(opts, Initial(0))...))
}

func TestCancelledRequestsCostNoThroughput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 10_000
		l := limiterOf(t, empty(1000, Burst(1)))
		all := make([]*request, n)
		for i := range all {
			r := &request{}
			ctx, cancel := context.WithCancelCause(t.Context())
			r.cancel, all[i] = cancel, r
			go func() {
				r.err = l.Wait(ctx, "", 1)
				r.at = time.Since(l.start)
			}()
		}
		sleep(time.Second + time.Millisecond/2)
		require.Equal(t, n-1000, l.Stats().Waiting)
		checkInvariants(t, l)
		gone := errors.New("gone")
		waits, cancelled := 0, 0
		for _, r := range all {
			if r.at == 0 {
				if waits++; waits%2 == 0 {
					r.cancel(gone)
					cancelled++
				}
			}
		}
		synctest.Wait()
		require.Equal(t, n-1000-cancelled, l.Stats().Waiting)
		checkInvariants(t, l)
		sleep(time.Hour)
		at := make(map[time.Duration]bool, n)
		last := time.Duration(0)
		for _, r := range all {
			if r.err != nil {
				require.Equal(t, gone, r.err)
				continue
			}
			require.False(t, at[r.at], "two at one instant")
			at[r.at] = true
			last = max(last, r.at)
		}
		require.Len(t, at, n-cancelled)
		require.Equal(t, time.Duration(n-cancelled)*time.Millisecond, last)
		require.Equal(t, uint64(cancelled), l.Stats().Canceled)
		require.Equal(t, uint64(n-cancelled), l.Stats().Granted)
	})
}

func TestNewRateReachesAllWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, empty(1, Burst(1)))
		all := sendMany(t, l, 1000, Ask{Cost: 1})
		sleep(500 * time.Millisecond)
		require.NoError(t, l.SetRate("bucket", 100, time.Second))
		sleep(time.Minute)
		for k, r := range all { // half a token was there
			requireGranted(t, r, 500*time.Millisecond+time.Duration(k)*10*time.Millisecond+5*time.Millisecond)
		}
		checkInvariants(t, l)
	})
}

func TestWhoCantBeServedInTimeIsToldAtOnce(t *testing.T) {
	wait := new(10 * time.Second)
	for name, change := range map[string]func(*Limiter) (bool, Reason){
		"slower":         func(l *Limiter) (bool, Reason) { return l.SetRate("bucket", 1, time.Minute) == nil, ReasonMaxWait },
		"hold":           func(l *Limiter) (bool, Reason) { l.Hold("", time.Minute); return true, ReasonHeld },
		"a little later": func(l *Limiter) (bool, Reason) { l.Hold("", 5*time.Second+1); return true, ReasonMaxWait },
	} {
		within(t, name, func(t *testing.T) {
			l := limiterOf(t, empty(1))
			ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second+1)
			defer cancel()
			patient, first, second := send(t, l, Ask{Cost: 1}), sendUnder(ctx, l, Ask{Cost: 1}), send(t, l, Ask{Cost: 1, MaxWait: wait})
			others := sendMany(t, l, 7, Ask{Cost: 1, MaxWait: wait})
			sleep(500 * time.Millisecond)
			ok, reason := change(l)
			require.True(t, ok)
			synctest.Wait()
			require.False(t, patient.done)
			now := 500 * time.Millisecond
			if reason == ReasonMaxWait && name != "slower" { // the last of ten is late, by a nanosecond
				require.False(t, first.done)
				requireRefused(t, others[6], now, ReasonMaxWait)
				checkInvariants(t, l)
				return
			}
			rejection := requireRefused(t, first, now, ReasonDeadline)
			require.ErrorIs(t, first.err, context.DeadlineExceeded)
			require.Equal(t, 9*time.Second+1, rejection.Patience)
			requireRefused(t, second, now, reason)
			for _, r := range others {
				requireRefused(t, r, now, reason)
			}
			require.Equal(t, 1, l.Stats().Waiting)
			checkInvariants(t, l)
		})
	}
}

func TestSmallerBurstRefusesWhatCanNeverBePaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, empty(1, Burst(10)))
		large, small := send(t, l, Ask{Cost: 6}), send(t, l, Ask{Cost: 5})
		require.NoError(t, l.SetBurst("bucket", 5))
		synctest.Wait()
		require.Equal(t, time.Duration(math.MaxInt64), requireRefused(t, large, 0, ReasonCost).Wait)
		sleep(5 * time.Second)
		requireGranted(t, small, 5*time.Second)
	})
}

func TestHoldDelaysNoOtherKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, WithLimit(TokenBucket(1000, time.Second, Name("global")), TokenBucket(10, time.Second, Name("key"), Burst(1))))
		ask := func(key string) Ask { return Ask{Key: key, Keys: map[string]string{"global": ""}, Cost: 1} }
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
	slow := RateFor(func(key string) (int64, time.Duration) {
		if key == "slow" {
			return 1, time.Minute
		}
		return 1000, time.Second
	})
	for name, hold := range map[string]time.Duration{"by its rate": 0, "by a hold": time.Hour} {
		within(t, name, func(t *testing.T) {
			l := limiterOf(t, WithLimit(TokenBucket(10, time.Second, Name("global"), Burst(1)), TokenBucket(1, time.Minute, Name("key"), slow)))
			ask := func(key string) Ask { return Ask{Key: key, Keys: map[string]string{"global": ""}, Cost: 1} }
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
			require.Empty(t, l.lines)
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
			l := limiterOf(t, empty(1000, Burst(1)))
			all := sendMany(t, l, 100, Ask{Cost: 1})
			l.mu.Lock()
			l.markLocked(l.limits[0].single)
			now := int64(time.Millisecond + c.late)
			l.serveLocked(now)
			checkBucket(t, l, l.limits[0].single, now)
			l.mu.Unlock()
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
		change  func(l *Limiter, first, last *request, g *Grant)
		granted int
	}{
		"rate":          {func(l *Limiter, _, _ *request, _ *Grant) { _ = l.SetRate("bucket", 1, time.Hour) }, 10},
		"hold":          {func(l *Limiter, _, _ *request, _ *Grant) { l.Hold("", time.Hour) }, 10},
		"cancel last":   {func(_ *Limiter, _, last *request, _ *Grant) { last.cancel(nil) }, 10},
		"cancel first":  {func(_ *Limiter, first, _ *request, _ *Grant) { first.cancel(nil) }, 10},
		"expire":        {func(l *Limiter, _, _ *request, _ *Grant) { l.expire(lastIn(l)) }, 10},
		"give back":     {func(_ *Limiter, _, _ *request, g *Grant) { g.Cancel() }, 11},
		"another comes": {func(l *Limiter, _, _ *request, _ *Grant) { l.Try("", 1) }, 10},
	} {
		within(t, name, func(t *testing.T) {
			l := limiterOf(t, WithLimit(TokenBucket(1000, time.Second, Burst(2), Initial(2))))
			g := send(t, l, Ask{Cost: 2}).grant
			all := sendMany(t, l, 100, Ask{Cost: 1})
			l.mu.Lock()
			l.start = l.start.Add(-10 * time.Millisecond)
			l.mu.Unlock()
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

// lastIn returns the last of the only line.
func lastIn(l *Limiter) *waiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.limits[0].single.lines[0].line.first
	for w.next() != nil {
		w = w.next()
	}
	return w
}

// TestWhoGoesByWhatIsGivenBackIsChargedAsOfNow would otherwise find more than the burst at one instant.
func TestWhoGoesByWhatIsGivenBackIsChargedAsOfNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, WithLimit(TokenBucket(1000, time.Second, Burst(10))))
		g := send(t, l, Ask{Cost: 10}).grant
		waits := send(t, l, Ask{Cost: 10})
		sleep(5 * time.Millisecond)
		g.Cancel()
		synctest.Wait()
		requireGranted(t, waits, 5*time.Millisecond)
		_, ok := l.Try("", 1)
		require.False(t, ok, "11 at one instant")
	})
}

// TestContextWinsOverAGrant has both at one instant, before the request can see either.
func TestContextWinsOverAGrant(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, empty(1))
			r := send(t, l, Ask{Cost: 1})
			gone := errors.New("gone")
			l.mu.Lock()
			l.markLocked(l.limits[0].single)
			l.serveLocked(int64(time.Second))
			r.cancel(gone)
			l.mu.Unlock()
			synctest.Wait()
			require.Equal(t, gone, r.err)
			require.Zero(t, l.Stats().Granted)
			require.InDelta(t, 1, l.limits[0].single.meter.tokens(int64(time.Second)), 0)
		})
	}
}

func TestWindowsNeverCatchUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, WithLimit(SlidingWindow(1, time.Millisecond)))
		all := sendMany(t, l, 10, Ask{Cost: 1})
		l.mu.Lock()
		l.markLocked(l.limits[0].single)
		l.serveLocked(int64(15 * time.Millisecond))
		l.mu.Unlock()
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
		l := limiterOf(t, empty(1, Burst(1)))
		first := send(t, l, Ask{Cost: 1})
		low := send(t, l, Ask{Cost: 1, Priority: -1}) // counts as having come at 10 s
		sleep(100 * time.Millisecond)
		high := send(t, l, Ask{Cost: 1, Priority: 1})
		var later []*request
		for range 30 { // one a second, from 0.1 s on
			later = append(later, send(t, l, Ask{Cost: 1}))
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
		l := limiterOf(t, WithLimit(TokenBucket(1, time.Second, Burst(10), Initial(5))))
		costly := send(t, l, Ask{Cost: 10})
		require.False(t, send(t, l, Ask{Cost: 1}).done, "overtook")
		high := send(t, l, Ask{Cost: 5, Priority: 1, MaxWait: new(time.Duration(0))})
		requireGranted(t, high, 0)
		sleep(time.Minute)
		requireGranted(t, costly, 10*time.Second)
	})
}

func TestCancelledHeadHandsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, empty(1, Burst(10)))
		head, next := send(t, l, Ask{Cost: 10}), send(t, l, Ask{Cost: 2})
		sleep(3 * time.Second)
		gone := errors.New("gone")
		head.cancel(gone)
		synctest.Wait()
		require.Equal(t, gone, head.err)
		require.NotErrorIs(t, head.err, ErrThrottled)
		requireGranted(t, next, 3*time.Second)
		_, ok := l.Try("", 1)
		require.True(t, ok)
		wait, _ := l.Try("", 1)
		require.Equal(t, time.Second, wait)
		require.Equal(t, uint64(1), l.Stats().Canceled)
	})
}

func TestContextThatIsOverCostsNothing(t *testing.T) {
	l := limiterOf(t, WithLimit(TokenBucket(1, time.Hour)))
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	require.Equal(t, gone, l.Wait(ctx, "", 1))
	_, err := l.Acquire(ctx, Ask{Cost: 2})
	require.Equal(t, gone, err)
	_, ok := l.Try("", 1)
	require.True(t, ok)
	require.Equal(t, gone, l.Wait(ctx, "", 1))
}

// TestContextThatEndsWithTheGrantIsNotCharged has contexts end at the instant at which their requests are due.
func TestContextThatEndsWithTheGrantIsNotCharged(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, empty(1, Burst(5)))
			var all []*request
			for i := range 10 {
				r := send(t, l, Ask{Cost: 1})
				all = append(all, r)
				time.AfterFunc(time.Duration(i+1)*time.Second-time.Since(l.start), func() { r.cancel(nil) })
			}
			sleep(10 * time.Second)
			charged := 0
			for _, r := range all {
				require.True(t, r.done)
				if r.err == nil {
					charged++
				}
			}
			checkInvariants(t, l)
			require.Equal(t, uint64(charged), l.Stats().Granted)
			require.Equal(t, uint64(10-charged), l.Stats().Canceled)
			left := 0
			for ; ; left++ {
				if _, ok := l.Try("", 1); !ok {
					break
				}
			}
			require.Equal(t, min(5, 10-charged), left)
		})
	}
}

func TestMaxWaitIsKeptToTheNanosecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, empty(3, Burst(1))) // the first at 333,333,334 ns
		const due = 333_333_334
		short := requireRefused(t, send(t, l, Ask{Cost: 1, MaxWait: new(time.Duration(due - 1))}), 0, ReasonMaxWait)
		require.Equal(t, time.Duration(due), short.Wait)
		require.Equal(t, time.Duration(due-1), short.Patience)
		none := requireRefused(t, send(t, l, Ask{Cost: 1, MaxWait: new(time.Duration(-1))}), 0, ReasonNoTokens)
		require.Equal(t, time.Duration(due), none.Wait)
		enough := send(t, l, Ask{Cost: 1, MaxWait: new(time.Duration(due))})
		second := requireRefused(t, send(t, l, Ask{Cost: 1, MaxWait: new(time.Duration(due))}), 0, ReasonMaxWait)
		require.Equal(t, time.Duration(666_666_667), second.Wait)
		sleep(time.Second)
		requireGranted(t, enough, due)
	})
}

func TestDeadlineIsKeptToTheNanosecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, empty(1, Burst(1)))
		under := func(d time.Duration) *request {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			t.Cleanup(cancel)
			return sendUnder(ctx, l, Ask{Cost: 1})
		}
		r := requireRefused(t, under(time.Second), 0, ReasonDeadline)
		require.ErrorIs(t, r, context.DeadlineExceeded)
		require.ErrorIs(t, r, ErrThrottled)
		require.True(t, r.Timeout())
		enough := under(time.Second + 1)
		requireRefused(t, under(2*time.Second), 0, ReasonDeadline)
		sleep(time.Minute)
		requireGranted(t, enough, time.Second)
	})
}

// TestOvertakenRequestIsRefusedWhenItsPatienceEnds is about one whose plan was good when it came.
func TestOvertakenRequestIsRefusedWhenItsPatienceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, empty(1, Burst(1)))
		patient := send(t, l, Ask{Cost: 1, MaxWait: new(time.Second)})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second+1)
		defer cancel()
		under := sendUnder(ctx, l, Ask{Cost: 1})
		sendMany(t, l, 2, Ask{Cost: 1, Priority: 1})
		sleep(time.Minute)
		require.Equal(t, 2*time.Second, requireRefused(t, patient, time.Second, ReasonMaxWait).Wait)
		require.Equal(t, 2*time.Second+1, under.at)
		require.Equal(t, context.DeadlineExceeded, under.err)
		checkInvariants(t, l)
	})
}

func TestTryTellsTheWaitExactly(t *testing.T) {
	for name, limit := range map[string]Limit{
		"bucket": TokenBucket(7, 24*time.Hour, Burst(3)), "pace": Pace(7, 24*time.Hour),
		"sliding": SlidingWindow(7, 24*time.Hour), "fixed": FixedWindow(7, 24*time.Hour),
	} {
		within(t, name, func(t *testing.T) {
			l := limiterOf(t, WithLimit(limit))
			for range 100 {
				wait, ok := l.Try("", 1)
				if ok {
					require.Zero(t, wait)
					continue
				}
				sleep(wait - 1)
				again, ok := l.Try("", 1)
				require.False(t, ok)
				require.Equal(t, time.Duration(1), again)
				sleep(1)
				_, ok = l.Try("", 1)
				require.True(t, ok)
			}
			if name != "pace" {
				wait, ok := l.Try("", 8)
				require.False(t, ok)
				require.Equal(t, time.Duration(math.MaxInt64), wait)
			}
			wait, ok := l.Try("", -1)
			require.False(t, ok)
			require.Equal(t, time.Duration(math.MaxInt64), wait)
			_, ok = l.Try("", 0)
			require.True(t, ok, "what costs nothing is not limited")
		})
	}
}

func TestTryNeverGoesBeforeAnybody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, WithLimit(TokenBucket(1, time.Second, Burst(10), Initial(5))))
		costly := send(t, l, Ask{Cost: 10})
		wait, ok := l.Try("", 1)
		require.False(t, ok)
		require.Equal(t, 6*time.Second, wait)
		costly.cancel(nil)
		synctest.Wait()
		_, ok = l.Try("", 1)
		require.True(t, ok)
	})
}

func TestLineIsNoLongerThanMaxQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, WithLimit(TokenBucket(1, time.Second, Initial(0))), WithMaxQueue(3))
		all := sendMany(t, l, 3, Ask{Cost: 1})
		require.Equal(t, 4*time.Second, requireRefused(t, send(t, l, Ask{Cost: 1}), 0, ReasonQueueFull).Wait)
		other := send(t, l, Ask{Cost: 1, Key: "other"})
		require.False(t, other.done, "another line has room of its own")
		all[1].cancel(nil)
		synctest.Wait()
		require.False(t, send(t, l, Ask{Cost: 1}).done, "one has left")
		requireRefused(t, send(t, l, Ask{Cost: 1}), 0, ReasonQueueFull)
		sleep(time.Minute)
		checkInvariants(t, l)
	})
}

func TestGrantIsGivenBackOnce(t *testing.T) {
	for name, limit := range map[string]Limit{
		"bucket": TokenBucket(1, time.Hour, Burst(4)), "sliding": SlidingWindow(4, time.Hour), "fixed": FixedWindow(4, time.Hour),
	} {
		within(t, name, func(t *testing.T) { giveBackOnce(t, limit) })
	}
}

func giveBackOnce(t *testing.T, limit Limit) {
	l := limiterOf(t, WithLimit(limit))
	g := send(t, l, Ask{Cost: 3}).grant
	next := send(t, l, Ask{Cost: 4})
	require.False(t, next.done)
	g.Cancel()
	synctest.Wait()
	requireGranted(t, next, 0)
	for range 3 {
		g.Cancel()
	}
	_, ok := l.Try("", 1)
	require.False(t, ok)
	next.grant.Cancel()
	_, ok = l.Try("", 4)
	require.True(t, ok)
	_, ok = l.Try("", 1)
	require.False(t, ok)
}

func TestLateGiveBackMintsNothing(t *testing.T) {
	for name, limit := range map[string]Limit{
		"bucket": TokenBucket(10, time.Second), "sliding": SlidingWindow(10, time.Second), "fixed": FixedWindow(10, time.Second),
	} {
		within(t, name, func(t *testing.T) {
			l := limiterOf(t, WithLimit(limit))
			old := send(t, l, Ask{Cost: 5})
			sleep(5*time.Second + 500*time.Millisecond)
			_, ok := l.Try("", 10)
			require.True(t, ok)
			old.grant.Cancel()
			_, ok = l.Try("", 1)
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
		r := send(t, l, Ask{Cost: 1})
		require.Equal(t, 10*time.Second, requireRefused(t, send(t, l, Ask{Cost: 1, MaxWait: new(time.Second)}), 0, ReasonHeld).Wait)
		wait, ok := l.Try("", 1)
		require.False(t, ok)
		require.Equal(t, 10*time.Second, wait)
		sleep(9 * time.Second)
		l.Hold("", 2*time.Second)
		sleep(time.Minute)
		requireGranted(t, r, 11*time.Second)
		patient := send(t, l, Ask{Cost: 1, MaxWait: new(time.Duration(math.MaxInt64))})
		requireGranted(t, patient, 69*time.Second)
		l.Hold("", math.MaxInt64)
		checkInvariants(t, l)
		wait, ok = l.Try("", 1)
		require.False(t, ok)
		require.Equal(t, time.Duration(maxPer), wait)
		patient = send(t, l, Ask{Cost: 1, MaxWait: new(time.Duration(math.MaxInt64))})
		require.False(t, patient.done)
		patient.cancel(nil)
	})
}

// TestPanicInRateForLeavesTheLimiterWhole would end the process, were a mutex freed twice.
func TestPanicInRateForLeavesTheLimiterWhole(t *testing.T) {
	l := limiterOf(t, WithLimit(TokenBucket(1, time.Second, RateFor(func(string) (int64, time.Duration) { panic("user") }))))
	require.PanicsWithValue(t, "user", func() { l.Try("a", 1) })
	require.PanicsWithValue(t, "user", func() { l.Hold("a", time.Second) })
	_, ok := l.Try("", 1)
	require.True(t, ok)
}

// TestStartMayBeAnyTime is about times that don't fit an int64 of nanoseconds.
func TestStartMayBeAnyTime(t *testing.T) {
	for _, year := range []int{1, 1600, 1677, 1969, 1970, 2000, 2262, 2263, 9999} {
		synctest.Test(t, func(t *testing.T) { // begins at midnight
			l := limiterOf(t, WithLimit(FixedWindow(1, 24*time.Hour, Start(time.Date(year, 1, 1, 6, 0, 0, 0, time.UTC)))))
			l.Try("", 1)
			wait, ok := l.Try("", 1)
			require.False(t, ok)
			require.Equal(t, 6*time.Hour, wait, "year %d", year)
		})
	}
}

// TestDryRunWaitsAsTheRealOne compares what each request would have waited with what it did.
func TestDryRunWaitsAsTheRealOne(t *testing.T) {
	for name, limit := range map[string]Limit{
		"bucket": TokenBucket(7, 3*time.Second, Burst(5)), "pace": Pace(7, 3*time.Second),
		"sliding": SlidingWindow(7, 3*time.Second), "fixed": FixedWindow(7, 3*time.Second),
	} {
		within(t, name, func(t *testing.T) {
			r := seeded(t, 10)
			var would []time.Duration
			real := limiterOf(t, WithLimit(limit))
			dry := newLimiter(newConfig([]Option{WithLimit(limit), WithDryRun(), WithHooks(Hooks{
				OnGrant: func(e GrantEvent) { would = append(would, e.Waited) },
			})}))
			var did []*request
			var came []time.Duration
			for i := range 200 {
				cost := int64(1 + r.IntN(5))
				came = append(came, time.Since(real.start))
				did = append(did, send(t, real, Ask{Cost: cost}))
				require.NoError(t, dry.Wait(t.Context(), "", cost))
				require.Len(t, would, i+1)
				sleep(time.Duration(r.Int64N(1 + int64(3*time.Second)*int64(i%3))))
			}
			sleep(time.Hour)
			for i, r := range did {
				requireGranted(t, r, came[i]+would[i])
			}
		})
	}
}
