package limiter_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// A request is one that a goroutine of its own makes.
type request struct {
	cancel context.CancelCauseFunc
	done   bool
	at     time.Duration // when it was decided, since the Limiter was made
	grant  *throttle.Grant
	err    error
}

// deciding orders what a test has read of a request before it lets time pass, and what the request then becomes.
var deciding sync.Mutex

func (r *request) decide(l *throttle.Limiter, g *throttle.Grant, err error) {
	deciding.Lock()
	defer deciding.Unlock()
	r.grant, r.err, r.at, r.done = g, err, time.Since(coreOf(l).Start), true
}

// send makes a request, and returns when it is decided or waits.
func send(t *testing.T, l *throttle.Limiter, ask throttle.Ask) *request {
	return sendUnder(t.Context(), l, ask)
}

func sendUnder(ctx context.Context, l *throttle.Limiter, ask throttle.Ask) *request {
	r := new(request)
	ctx, r.cancel = context.WithCancelCause(ctx)
	go func() {
		g, err := l.Acquire(ctx, ask)
		r.decide(l, g, err)
	}()
	synctest.Wait()
	return r
}

// sleep lets time pass, and all that then happens.
func sleep(d time.Duration) {
	deciding.Lock()
	//lint:ignore SA2001 what was read before happens before what is decided from now on
	deciding.Unlock()
	time.Sleep(d)
	synctest.Wait()
}

// sendMany makes n requests of cost 1, in order.
func sendMany(t *testing.T, l *throttle.Limiter, n int, ask throttle.Ask) []*request {
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
func requireRefused(t *testing.T, r *request, at time.Duration, reason throttle.Reason) *throttle.Rejection {
	t.Helper()
	require.True(t, r.done, "still waits")
	rejection, ok := errors.AsType[*throttle.Rejection](r.err)
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
func empty(n int64, opts ...throttle.LimitOption) throttle.Option {
	return throttle.WithLimit(throttle.TokenBucket(n, time.Second, append(opts, throttle.Initial(0))...))
}

func TestCancelledRequestsCostNoThroughput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 10_000
		l := limiterOf(t, empty(1000, throttle.Burst(1)))
		all := make([]*request, n)
		for i := range all {
			r := &request{}
			ctx, cancel := context.WithCancelCause(t.Context())
			r.cancel, all[i] = cancel, r
			go func() {
				r.err = l.Wait(ctx, throttle.Ask{})
				r.at = time.Since(coreOf(l).Start)
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

func TestNewRateReachesAllWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, empty(1, throttle.Burst(1)))
		all := sendMany(t, l, 1000, throttle.Ask{Cost: 1})
		sleep(500 * time.Millisecond)
		require.NoError(t, l.SetRate("bucket", 100, time.Second))
		sleep(time.Minute)
		for k, r := range all { // half a token was there
			requireGranted(t, r, 500*time.Millisecond+time.Duration(k)*10*time.Millisecond+5*time.Millisecond)
		}
		checkInvariants(t, l)
	})
}

func TestRequestThatCannotBeServedInTimeIsRejectedImmediately(t *testing.T) {
	wait := new(10 * time.Second)
	for name, change := range map[string]func(*throttle.Limiter) (bool, throttle.Reason){
		"slower": func(l *throttle.Limiter) (bool, throttle.Reason) {
			return l.SetRate("bucket", 1, time.Minute) == nil, throttle.ReasonMaxWait
		},
		"hold": func(l *throttle.Limiter) (bool, throttle.Reason) {
			l.Hold("", time.Minute)
			return true, throttle.ReasonHeld
		},
		"a little later": func(l *throttle.Limiter) (bool, throttle.Reason) {
			l.Hold("", 5*time.Second+1)
			return true, throttle.ReasonMaxWait
		},
	} {
		within(t, name, func(t *testing.T) {
			l := limiterOf(t, empty(1))
			ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second+1)
			defer cancel()
			patient, first, second := send(t, l, throttle.Ask{Cost: 1}), sendUnder(ctx, l, throttle.Ask{Cost: 1}), send(t, l, throttle.Ask{Cost: 1, MaxWait: wait})
			others := sendMany(t, l, 7, throttle.Ask{Cost: 1, MaxWait: wait})
			sleep(500 * time.Millisecond)
			ok, reason := change(l)
			require.True(t, ok)
			synctest.Wait()
			require.False(t, patient.done)
			now := 500 * time.Millisecond
			if reason == throttle.ReasonMaxWait && name != "slower" { // the last of ten is late, by a nanosecond
				require.False(t, first.done)
				requireRefused(t, others[6], now, throttle.ReasonMaxWait)
				checkInvariants(t, l)
				return
			}
			rejection := requireRefused(t, first, now, throttle.ReasonDeadline)
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
		l := limiterOf(t, empty(1, throttle.Burst(10)))
		large, small := send(t, l, throttle.Ask{Cost: 6}), send(t, l, throttle.Ask{Cost: 5})
		require.NoError(t, l.SetBurst("bucket", 5))
		synctest.Wait()
		require.Equal(t, time.Duration(math.MaxInt64), requireRefused(t, large, 0, throttle.ReasonCost).Wait)
		sleep(5 * time.Second)
		requireGranted(t, small, 5*time.Second)
	})
}

func TestCancelledHeadHandsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, empty(1, throttle.Burst(10)))
		head, next := send(t, l, throttle.Ask{Cost: 10}), send(t, l, throttle.Ask{Cost: 2})
		sleep(3 * time.Second)
		gone := errors.New("gone")
		head.cancel(gone)
		synctest.Wait()
		require.Equal(t, gone, head.err)
		require.NotErrorIs(t, head.err, throttle.ErrThrottled)
		requireGranted(t, next, 3*time.Second)
		_, ok := l.Try(throttle.Ask{})
		require.True(t, ok)
		wait, _ := l.Try(throttle.Ask{})
		require.Equal(t, time.Second, wait)
		require.Equal(t, uint64(1), l.Stats().Canceled)
	})
}

func TestContextThatIsOverCostsNothing(t *testing.T) {
	l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Hour)))
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	require.Equal(t, gone, l.Wait(ctx, throttle.Ask{}))
	_, err := l.Acquire(ctx, throttle.Ask{Cost: 2})
	require.Equal(t, gone, err)
	_, ok := l.Try(throttle.Ask{})
	require.True(t, ok)
	require.Equal(t, gone, l.Wait(ctx, throttle.Ask{}))
}

// TestContextThatEndsWithTheGrantIsNotCharged has contexts end at the instant at which their requests are due.
func TestContextThatEndsWithTheGrantIsNotCharged(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, empty(1, throttle.Burst(5)))
			var all []*request
			for i := range 10 {
				r := send(t, l, throttle.Ask{Cost: 1})
				all = append(all, r)
				time.AfterFunc(time.Duration(i+1)*time.Second-time.Since(coreOf(l).Start), func() { r.cancel(nil) })
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
			require.Equal(t, uint64(charged), l.Stats().Granted-l.Stats().Undone)
			require.Equal(t, uint64(10-charged), l.Stats().Canceled)
			left := 0
			for ; ; left++ {
				if _, ok := l.Try(throttle.Ask{}); !ok {
					break
				}
			}
			require.Equal(t, min(5, 10-charged), left)
		})
	}
}

func TestMaxWaitIsKeptToTheNanosecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, empty(3, throttle.Burst(1))) // the first at 333,333,334 ns
		const due = 333_333_334
		short := requireRefused(t, send(t, l, throttle.Ask{Cost: 1, MaxWait: new(time.Duration(due - 1))}), 0, throttle.ReasonMaxWait)
		require.Equal(t, time.Duration(due), short.Wait)
		require.Equal(t, time.Duration(due-1), short.Patience)
		none := requireRefused(t, send(t, l, throttle.Ask{Cost: 1, MaxWait: new(time.Duration(-1))}), 0, throttle.ReasonNoTokens)
		require.Equal(t, time.Duration(due), none.Wait)
		enough := send(t, l, throttle.Ask{Cost: 1, MaxWait: new(time.Duration(due))})
		second := requireRefused(t, send(t, l, throttle.Ask{Cost: 1, MaxWait: new(time.Duration(due))}), 0, throttle.ReasonMaxWait)
		require.Equal(t, time.Duration(666_666_667), second.Wait)
		sleep(time.Second)
		requireGranted(t, enough, due)
	})
}

func TestDeadlineIsKeptToTheNanosecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, empty(1, throttle.Burst(1)))
		under := func(d time.Duration) *request {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			t.Cleanup(cancel)
			return sendUnder(ctx, l, throttle.Ask{Cost: 1})
		}
		r := requireRefused(t, under(time.Second), 0, throttle.ReasonDeadline)
		require.ErrorIs(t, r, context.DeadlineExceeded)
		require.ErrorIs(t, r, throttle.ErrThrottled)
		require.True(t, r.Timeout())
		enough := under(time.Second + 1)
		requireRefused(t, under(2*time.Second), 0, throttle.ReasonDeadline)
		sleep(time.Minute)
		requireGranted(t, enough, time.Second)
	})
}

// TestOvertakenRequestIsRefusedWhenItsPatienceEnds is about a request that could go in time when it came.
func TestOvertakenRequestIsRefusedWhenItsPatienceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, empty(1, throttle.Burst(1)))
		sleep(time.Hour)
		l.Try(throttle.Ask{})
		began := time.Since(coreOf(l).Start)
		patient := send(t, l, throttle.Ask{Cost: 1, MaxWait: new(time.Second)})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second+1)
		defer cancel()
		under := sendUnder(ctx, l, throttle.Ask{Cost: 1})
		sendMany(t, l, 2, throttle.Ask{Cost: 1, Priority: 1})
		sleep(time.Minute)
		require.Equal(t, 2*time.Second, requireRefused(t, patient, began+time.Second, throttle.ReasonMaxWait).Wait)
		require.Equal(t, began+2*time.Second+1, under.at)
		require.Equal(t, context.DeadlineExceeded, under.err)
		checkInvariants(t, l)
	})
}

func TestTryTellsTheWaitExactly(t *testing.T) {
	for name, limit := range map[string]throttle.Limit{
		"bucket": throttle.TokenBucket(7, 24*time.Hour, throttle.Burst(3)), "pace": throttle.Pace(7, 24*time.Hour),
		"sliding": throttle.SlidingWindow(7, 24*time.Hour), "fixed": throttle.FixedWindow(7, 24*time.Hour),
	} {
		within(t, name, func(t *testing.T) {
			l := limiterOf(t, throttle.WithLimit(limit))
			for range 100 {
				wait, ok := l.Try(throttle.Ask{})
				if ok {
					require.Zero(t, wait)
					continue
				}
				sleep(wait - 1)
				again, ok := l.Try(throttle.Ask{})
				require.False(t, ok)
				require.Equal(t, time.Duration(1), again)
				sleep(1)
				_, ok = l.Try(throttle.Ask{})
				require.True(t, ok)
			}
			if name != "pace" {
				wait, ok := l.Try(throttle.Ask{Cost: 8})
				require.False(t, ok)
				require.Equal(t, time.Duration(math.MaxInt64), wait)
			}
			wait, ok := l.Try(throttle.Ask{Cost: -1})
			require.False(t, ok)
			require.Equal(t, time.Duration(math.MaxInt64), wait)
			_, ok = l.Try(throttle.Ask{Costs: map[string]int64{l.Limits()[0].Name: 0}})
			require.True(t, ok, "what costs nothing is not limited")
		})
	}
}

func TestTryNeverGoesBeforeAnybody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Burst(10), throttle.Initial(5))))
		costly := send(t, l, throttle.Ask{Cost: 10})
		wait, ok := l.Try(throttle.Ask{})
		require.False(t, ok)
		require.Equal(t, 6*time.Second, wait)
		costly.cancel(nil)
		synctest.Wait()
		_, ok = l.Try(throttle.Ask{})
		require.True(t, ok)
	})
}

func TestLineIsNoLongerThanMaxQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Initial(0))), throttle.WithMaxQueue(3))
		all := sendMany(t, l, 3, throttle.Ask{Cost: 1})
		require.Equal(t, 4*time.Second, requireRefused(t, send(t, l, throttle.Ask{Cost: 1}), 0, throttle.ReasonQueueFull).Wait)
		other := send(t, l, throttle.Ask{Cost: 1, Key: "other"})
		require.False(t, other.done, "another line has room of its own")
		all[1].cancel(nil)
		synctest.Wait()
		require.False(t, send(t, l, throttle.Ask{Cost: 1}).done, "one has left")
		requireRefused(t, send(t, l, throttle.Ask{Cost: 1}), 0, throttle.ReasonQueueFull)
		sleep(time.Minute)
		checkInvariants(t, l)
	})
}

func TestPanicInOnWaitLeavesNoWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, empty(1), throttle.WithHooks(throttle.Hooks{OnWait: func(throttle.WaitEvent) { panic("user") }}))
		require.PanicsWithValue(t, "user", func() { _ = l.Wait(t.Context(), throttle.Ask{}) })
		require.Zero(t, l.Stats().Waiting)
		sleep(time.Second)
		_, ok := l.Try(throttle.Ask{})
		require.True(t, ok)
	})
}
