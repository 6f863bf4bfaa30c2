package limiter_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
)

func TestCancelledRequestsCostNoThroughput(t *testing.T) { // slow: thousands of requests that end while they wait
	synctest.Test(t, func(t *testing.T) {
		const n = 10_000
		l := drive(t, empty(1000, withBurst(1)))
		all := make([]*request, n)
		for i := range all {
			r := &request{}
			ctx, cancel := context.WithCancelCause(t.Context())
			r.cancel, all[i] = cancel, r
			go func() {
				r.err = l.wait(ctx, ask{})
				r.at = l.now()
			}()
		}
		sleep(time.Second + time.Millisecond/2)
		require.Equal(t, n-1000, l.counts().Waiting)
		l.check()
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
		require.Equal(t, n-1000-cancelled, l.counts().Waiting)
		l.check()
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
		require.Equal(t, uint64(cancelled), l.counts().Canceled)
		require.Equal(t, uint64(n-cancelled), l.counts().Granted)
	})
}

func TestNewRateReachesAllWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, empty(1, withBurst(1)))
		all := l.sendMany(1000, ask{Cost: 1})
		sleep(500 * time.Millisecond)
		l.setRate("bucket", 100, time.Second)
		sleep(time.Minute)
		for k, r := range all { // half a token was there
			requireGranted(t, r, 500*time.Millisecond+time.Duration(k)*10*time.Millisecond+5*time.Millisecond)
		}
		l.check()
	})
}

func TestRequestThatCannotBeServedInTimeIsRejectedImmediately(t *testing.T) {
	wait := ptr(10 * time.Second)
	for name, change := range map[string]func(*driven) bucket.Reason{
		"slower": func(l *driven) bucket.Reason {
			l.setRate("bucket", 1, time.Minute)
			return bucket.ReasonMaxWait
		},
		"hold": func(l *driven) bucket.Reason {
			l.hold("", time.Minute)
			return bucket.ReasonHeld
		},
		"a little later": func(l *driven) bucket.Reason {
			l.hold("", 5*time.Second+1)
			return bucket.ReasonMaxWait
		},
	} {
		within(t, name, func(t *testing.T) {
			l := drive(t, empty(1))
			ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second+1)
			defer cancel()
			patient, first, second := l.send(ask{Cost: 1}), l.sendUnder(ctx, ask{Cost: 1}), l.send(ask{Cost: 1, MaxWait: wait})
			others := l.sendMany(7, ask{Cost: 1, MaxWait: wait})
			sleep(500 * time.Millisecond)
			reason := change(l)
			synctest.Wait()
			require.False(t, patient.done)
			now := 500 * time.Millisecond
			if reason == bucket.ReasonMaxWait && name != "slower" { // the last of ten is late, by a nanosecond
				require.False(t, first.done)
				requireRejected(t, others[6], now, bucket.ReasonMaxWait)
				l.check()
				return
			}
			rejection := requireRejected(t, first, now, bucket.ReasonDeadline)
			require.Equal(t, 9*time.Second+1, rejection.Patience)
			requireRejected(t, second, now, reason)
			for _, r := range others {
				requireRejected(t, r, now, reason)
			}
			require.Equal(t, 1, l.counts().Waiting)
			l.check()
		})
	}
}

func TestASmallerBurstRejectsWhatCanNeverBePaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, empty(1, withBurst(10)))
		large, small := l.send(ask{Cost: 6}), l.send(ask{Cost: 5})
		l.setBurst("bucket", 5)
		synctest.Wait()
		require.Equal(t, never, requireRejected(t, large, 0, bucket.ReasonCost).Wait)
		sleep(5 * time.Second)
		requireGranted(t, small, 5*time.Second)
	})
}

func TestACanceledRequestLeavesItsPlaceToTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, empty(1, withBurst(10)))
		head, next := l.send(ask{Cost: 10}), l.send(ask{Cost: 2})
		sleep(3 * time.Second)
		gone := errors.New("gone")
		head.cancel(gone)
		synctest.Wait()
		require.Equal(t, gone, head.err)
		require.NotErrorIs(t, head.err, errRejected)
		requireGranted(t, next, 3*time.Second)
		_, ok := l.try(ask{})
		require.True(t, ok)
		wait, _ := l.try(ask{})
		require.Equal(t, time.Second, wait)
		require.Equal(t, uint64(1), l.counts().Canceled)
	})
}

// Contexts end at the instant at which their requests are due.
func TestContextThatEndsWithTheGrantIsNotCharged(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			l := drive(t, empty(1, withBurst(5)))
			var all []*request
			for i := range 10 {
				r := l.send(ask{Cost: 1})
				all = append(all, r)
				time.AfterFunc(time.Duration(i+1)*time.Second-l.now(), func() { r.cancel(nil) })
			}
			sleep(10 * time.Second)
			charged := 0
			for _, r := range all {
				require.True(t, r.done)
				if r.err == nil {
					charged++
				}
			}
			l.check()
			require.Equal(t, uint64(charged), l.counts().Granted-l.counts().Undone)
			require.Equal(t, uint64(10-charged), l.counts().Canceled)
			left := 0
			for ; ; left++ {
				if _, ok := l.try(ask{}); !ok {
					break
				}
			}
			require.Equal(t, min(5, 10-charged), left)
		})
	}
}

func TestMaxWaitIsKeptToTheNanosecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, empty(3, withBurst(1))) // the first at 333,333,334 ns
		const due = 333_333_334
		short := requireRejected(t, l.send(ask{Cost: 1, MaxWait: ptr(time.Duration(due - 1))}), 0, bucket.ReasonMaxWait)
		require.Equal(t, time.Duration(due), short.Wait)
		require.Equal(t, time.Duration(due-1), short.Patience)
		none := requireRejected(t, l.send(ask{Cost: 1, MaxWait: ptr(time.Duration(-1))}), 0, bucket.ReasonNoTokens)
		require.Equal(t, time.Duration(due), none.Wait)
		enough := l.send(ask{Cost: 1, MaxWait: ptr(time.Duration(due))})
		second := requireRejected(t, l.send(ask{Cost: 1, MaxWait: ptr(time.Duration(due))}), 0, bucket.ReasonMaxWait)
		require.Equal(t, time.Duration(666_666_667), second.Wait)
		sleep(time.Second)
		requireGranted(t, enough, due)
	})
}

func TestDeadlineIsKeptToTheNanosecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, empty(1, withBurst(1)))
		under := func(d time.Duration) *request {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			t.Cleanup(cancel)
			return l.sendUnder(ctx, ask{Cost: 1})
		}
		r := requireRejected(t, under(time.Second), 0, bucket.ReasonDeadline)
		require.Equal(t, time.Second, r.Wait)
		require.Equal(t, time.Second, r.Patience)
		enough := under(time.Second + 1)
		requireRejected(t, under(2*time.Second), 0, bucket.ReasonDeadline)
		sleep(time.Minute)
		requireGranted(t, enough, time.Second)
	})
}

// The request could be granted in time when it came.
func TestAnOvertakenRequestIsRejectedWhenItsMaxWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, empty(1, withBurst(1)))
		sleep(time.Hour)
		l.try(ask{})
		began := l.now()
		patient := l.send(ask{Cost: 1, MaxWait: ptr(time.Second)})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second+1)
		defer cancel()
		under := l.sendUnder(ctx, ask{Cost: 1})
		l.sendMany(2, ask{Cost: 1, Priority: 1})
		sleep(time.Minute)
		require.Equal(t, 2*time.Second, requireRejected(t, patient, began+time.Second, bucket.ReasonMaxWait).Wait)
		require.Equal(t, began+2*time.Second+1, under.at)
		require.Equal(t, context.DeadlineExceeded, under.err)
		l.check()
	})
}

func TestTryReturnsTheExactWait(t *testing.T) {
	for name, limit := range map[string]rule{
		"bucket": tokenBucket(7, 24*time.Hour, withBurst(3)), "pace": pace(7, 24*time.Hour),
		"sliding": slidingWindow(7, 24*time.Hour), "fixed": fixedWindow(7, 24*time.Hour),
	} {
		within(t, name, func(t *testing.T) {
			l := drive(t, limit)
			for range 100 {
				wait, ok := l.try(ask{})
				if ok {
					require.Zero(t, wait)
					continue
				}
				sleep(wait - 1)
				again, ok := l.try(ask{})
				require.False(t, ok)
				require.Equal(t, time.Duration(1), again)
				sleep(1)
				_, ok = l.try(ask{})
				require.True(t, ok)
			}
			if name != "pace" {
				wait, ok := l.try(ask{Cost: 8})
				require.False(t, ok)
				require.Equal(t, never, wait)
			}
			wait, ok := l.try(ask{Cost: -1})
			require.False(t, ok)
			require.Equal(t, never, wait)
			_, ok = l.try(ask{Costs: map[string]int64{l.Limits[0].Name: 0}})
			require.True(t, ok, "what costs nothing is not limited")
		})
	}
}

func TestTryOvertakesNoWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(1, time.Second, withBurst(10), withInitial(5)))
		costly := l.send(ask{Cost: 10})
		wait, ok := l.try(ask{})
		require.False(t, ok)
		require.Equal(t, 6*time.Second, wait)
		costly.cancel(nil)
		synctest.Wait()
		_, ok = l.try(ask{})
		require.True(t, ok)
	})
}

func TestAQueueIsNoLongerThanMaxQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(1, time.Second, withInitial(0)), maxQueue(3))
		all := l.sendMany(3, ask{Cost: 1})
		require.Equal(t, 4*time.Second, requireRejected(t, l.send(ask{Cost: 1}), 0, bucket.ReasonQueueFull).Wait)
		other := l.send(ask{Cost: 1, Key: "other"})
		require.False(t, other.done, "another queue has room of its own")
		all[1].cancel(nil)
		synctest.Wait()
		require.False(t, l.send(ask{Cost: 1}).done, "one has left")
		requireRejected(t, l.send(ask{Cost: 1}), 0, bucket.ReasonQueueFull)
		sleep(time.Minute)
		l.check()
	})
}
