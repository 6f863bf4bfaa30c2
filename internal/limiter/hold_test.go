package limiter_test

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
)

// waits returns a channel on which the wait of a request for that key is sent, or -1 if it was rejected. The request is in
// the queue when waits returns.
func waits(ctx context.Context, l *driven, key string) <-chan time.Duration {
	out, start := make(chan time.Duration, 1), time.Now()
	go func() {
		if err := l.wait(ctx, ask{Key: key}); err != nil {
			out <- -1
			return
		}
		out <- time.Since(start)
	}()
	synctest.Wait()
	return out
}

func TestReleaseEndsAHoldAtTheInstantItIsCalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(1, time.Second))
		l.hold("a", time.Hour)
		l.hold("b", time.Hour)
		a, second, b := waits(t.Context(), l, "a"), waits(t.Context(), l, "a"), waits(t.Context(), l, "b")
		time.Sleep(time.Minute - 1)
		l.check()
		require.Empty(t, a)
		sleep(1)
		l.Release("a")
		l.check()
		synctest.Wait()
		require.ElementsMatch(t, []time.Duration{time.Minute}, []time.Duration{<-a})
		time.Sleep(time.Second - 1)
		require.Empty(t, second, "the release gave no tokens away")
		sleep(1)
		synctest.Wait()
		require.Equal(t, time.Minute+time.Second, <-second)
		require.Empty(t, b, "another key")
		require.Equal(t, time.Hour, l.heldUntil(l.Limits[0]), "b is still held")
		l.Release("b")
		require.Equal(t, time.Minute+time.Second, <-b)
		require.Zero(t, l.heldUntil(l.Limits[0]))
		l.check()
	})
}

func TestReleaseOfAKeyWithoutABucketEndsItsHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, maxKeys(1), tokenBucket(1, time.Hour))
		_, ok := l.try(ask{Key: "busy"})
		require.True(t, ok)
		l.hold("busy", 2*time.Hour) // may not be forgotten: there is room for no other
		l.hold("new", time.Hour)
		require.Equal(t, 2*time.Hour, l.heldUntil(l.Limits[0]))
		l.Release("busy")
		require.Equal(t, time.Hour, l.heldUntil(l.Limits[0]))
		l.Release("new")
		require.Zero(t, l.heldUntil(l.Limits[0]))
		time.Sleep(time.Hour) // the bucket of busy is full, and makes room
		_, ok = l.try(ask{Key: "new"})
		require.True(t, ok)
	})
}

func TestHoldAllStopsEveryKeyUntilItsInstant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(1, time.Second))
		require.Equal(t, 1, l.drain("line"))
		early := waits(t.Context(), l, "line") // due in a second
		impatient := l.send(ask{Key: "line", MaxWait: ptr(2 * time.Second)})
		l.holdAll(time.Minute)
		l.check()
		synctest.Wait()
		requireRejected(t, impatient, 0, bucket.ReasonHeld)
		for _, key := range []string{"", "known", "new"} {
			wait, ok := l.try(ask{Key: key})
			require.False(t, ok, key)
			require.Equal(t, time.Minute, wait, key)
		}
		time.Sleep(time.Minute - 1)
		require.Empty(t, early)
		_, ok := l.try(ask{Key: "new"})
		require.False(t, ok)
		sleep(1)
		synctest.Wait()
		require.Equal(t, time.Minute, <-early)
		_, ok = l.try(ask{Key: "new"})
		require.True(t, ok)
		l.check()
		require.EqualValues(t, 1, l.counts().Holds.Caller)
		require.EqualValues(t, 1, l.Limits[0].Counts.Holds)
	})
}

func TestReleaseAllGrantsAllWaitersImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 3 * limiter.PieceSize
		l := drive(t, tokenBucket(1, time.Second))
		var all []<-chan time.Duration
		for i := range keys {
			l.hold(fmt.Sprint(i), time.Hour)
			all = append(all, waits(t.Context(), l, fmt.Sprint(i)))
		}
		l.holdAll(2 * time.Hour)
		all = append(all, waits(t.Context(), l, "no bucket"))
		time.Sleep(time.Second)
		l.check()
		require.Equal(t, keys+1, l.counts().Waiting)
		l.ReleaseAll()
		for _, waited := range all {
			require.Equal(t, time.Second, <-waited)
		}
		require.Zero(t, l.heldUntil(l.Limits[0]))
		l.check()
	})
}

func TestReleaseAllReachesRequestsWithoutAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(1, time.Second))
		l.hold("", time.Hour)
		_, ok := l.try(ask{})
		require.False(t, ok)
		l.ReleaseAll()
		_, ok = l.try(ask{})
		require.True(t, ok)
	})
}

// Requests without a key are counted by host, and a hold of the key "" is one of all of them.
func TestAHoldOfNoKeyHoldsTheRequestsOfEachHost(t *testing.T) {
	const held = time.Hour
	for name, release := range map[string]func(l *driven){
		"Release":    func(l *driven) { l.Release("") },
		"ReleaseAll": func(l *driven) { l.ReleaseAll() },
		"its end":    func(l *driven) { time.Sleep(held - l.now()) },
	} {
		within(t, name, func(t *testing.T) {
			l := drive(t, tokenBucket(1, time.Second, hosted()))
			requireGranted(t, l.send(ask{Host: "a"}), 0)
			patient := l.send(ask{Host: "a"})
			impatient := l.send(ask{Host: "a", MaxWait: ptr(3 * time.Second)})
			l.hold("", held)
			synctest.Wait()
			requireRejected(t, impatient, 0, bucket.ReasonHeld)
			other := l.send(ask{Host: "b"})
			requireGranted(t, l.send(ask{Key: "a key"}), 0)
			sleep(time.Minute)
			require.False(t, patient.done)
			require.False(t, other.done)
			l.check()
			release(l)
			synctest.Wait()
			requireGranted(t, patient, l.now())
			requireGranted(t, other, l.now())
			l.check()
		})
	}
}

// The table of holds of keys without a bucket is full.
func TestAHoldThatEndsMakesRoomForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, maxKeys(1), tokenBucket(10, time.Second))
		l.hold("kept", time.Hour)
		for i := range maxHolds {
			l.hold(strconv.Itoa(i), time.Minute)
		}
		sleep(time.Minute)
		l.hold("new", time.Minute)
		require.Zero(t, l.Limits[0].Release("0"))
		require.NotZero(t, l.Limits[0].Release("new"))
	})
}

// A hold of a key in one limit may free a request of the key in another limit, which is held, too.
func TestHoldGrantsNoRequestOfItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(1, time.Second, named("first")), tokenBucket(1, time.Second, named("second"), withBurst(2)))
		_, err := l.acquire(t.Context(), ask{Key: "k", Costs: map[string]int64{"first": 1, "second": 1}})
		require.NoError(t, err)
		var rejected, granted atomic.Int32
		acquire := func(costs map[string]int64, maxWait *time.Duration) {
			go func() {
				if _, err := l.acquire(t.Context(), ask{Key: "k", Costs: costs, MaxWait: maxWait}); err != nil {
					rejected.Add(1)
				} else {
					granted.Add(1)
				}
			}()
			synctest.Wait()
		}
		acquire(map[string]int64{"first": 1, "second": 2}, ptr(2*time.Second)) // it bars the second limit
		acquire(map[string]int64{"first": 0, "second": 1}, nil)                // which could pay this one
		l.hold("k", time.Minute)
		synctest.Wait()
		assert.EqualValues(t, 1, rejected.Load())
		assert.EqualValues(t, 0, granted.Load())
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.EqualValues(t, 1, granted.Load())
	})
}
