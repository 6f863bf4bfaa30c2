package limiter_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
)

// shutDown shuts a Core, or one of its Users, down in a goroutine of its own.
func shutDown(ctx context.Context, l *driven, of *limiter.User) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- l.Shutdown(ctx, of) }()
	synctest.Wait()
	return ended
}

// Requests that wait are still sent, those that come are rejected, and Shutdown returns when none is in flight.
func TestShutdownReturnsWithTheLastRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(1, time.Second))
		l.user.Flies = true
		first, second := l.send(ask{}), l.send(ask{})
		ended := shutDown(t.Context(), l, nil)
		late := l.send(ask{})
		require.Equal(t, bucket.ReasonShutdown, requireRejected(t, late, 0, bucket.ReasonShutdown).Reason)
		_, ok := l.try(ask{})
		require.False(t, ok)
		sleep(time.Second)
		requireGranted(t, second, time.Second)
		l.Finish(l.user)
		synctest.Wait()
		require.Empty(t, ended, "the other one is in flight")
		second.grant.answer(&limiter.Answer{Outcome: aimd.OK, Ended: true})
		synctest.Wait()
		require.NoError(t, <-ended)
		require.NotNil(t, first.grant)
		l.check()
	})
}

// The end of the context rejects the requests that wait at that instant.
func TestShutdownThatRunsOutOfTimeRejectsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(1, time.Second))
		errTime := errors.New("no more time")
		all := l.sendMany(4, ask{})
		ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Second-1, errTime)
		defer cancel()
		ended := shutDown(ctx, l, nil)
		sleep(2*time.Second - 2)
		require.Empty(t, ended)
		sleep(1)
		require.ErrorIs(t, <-ended, errTime)
		requireGranted(t, all[1], time.Second)
		requireRejected(t, all[2], 2*time.Second-1, bucket.ReasonShutdown)
		requireRejected(t, all[3], 2*time.Second-1, bucket.ReasonShutdown)
		require.EqualValues(t, 2, l.counts().Rejected[bucket.ReasonShutdown])
		l.check()
	})
}

// A request that is rejected lets none behind it go.
func TestShutdownRejectsTheLastRequestsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(1, time.Minute, withBurst(5)))
		requireGranted(t, l.send(ask{Cost: 4}), 0)
		all := append([]*request{l.send(ask{Cost: 3})}, l.sendMany(100, ask{})...) // they are rejected in pieces
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, <-shutDown(ctx, l, nil), context.Canceled)
		for _, r := range all {
			requireRejected(t, r, 0, bucket.ReasonShutdown)
		}
		l.check()
	})
}

// The requests of another User go on.
func TestShutdownOfOneUserLeavesTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(2, time.Second))
		apart := &limiter.User{Observer: l, Flies: true, Alone: true}
		r := l.request(ask{})
		r.User = apart
		require.True(t, l.Now(r, nil))
		ended := shutDown(t.Context(), l, apart)
		requireGranted(t, l.send(ask{}), 0)
		r = l.request(ask{})
		r.User = apart
		_, ok := l.Try(r)
		require.False(t, ok)
		require.Empty(t, ended)
		l.Finish(apart)
		synctest.Wait()
		require.NoError(t, <-ended)
		sleep(time.Second)
		requireGranted(t, l.send(ask{}), time.Second)
		l.check()
	})
}

// A request that comes before the timer of the last one that waits may be what grants it.
func TestShutdownReturnsAlthoughTheTimerIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(1, time.Second))
		first, last := l.send(ask{}), l.send(ask{})
		ended := shutDown(t.Context(), l, nil)
		l.StopTimers()
		sleep(time.Second)
		require.False(t, last.done)
		require.Empty(t, ended)
		_, ok := l.try(ask{})
		require.False(t, ok)
		synctest.Wait()
		requireGranted(t, last, time.Second)
		require.NotEmpty(t, ended)
		require.NoError(t, <-ended)
		require.NotNil(t, first.grant)
		l.check()
	})
}
