package limiter_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
)

// A request that is not sent after all leaves its turn to the next one of its caller: its context ended when it was granted, or its observer
// panicked.
func TestAGrantThatIsNotSentReturnsItsTurn(t *testing.T) {
	for name, fail := range map[string]func(t *testing.T, l *driven, w *limiter.Waiter){
		"ended": func(t *testing.T, l *driven, w *limiter.Waiter) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			require.ErrorIs(t, l.Await(ctx, nil, w), context.Canceled)
		},
		"panic": func(t *testing.T, l *driven, w *limiter.Waiter) {
			l.onGrant = func(limiter.Place, time.Duration) {
				l.onGrant = nil
				panic("user")
			}
			require.PanicsWithValue(t, "user", func() { _ = l.Await(t.Context(), nil, w) })
		},
	} {
		within(t, name, func(t *testing.T) {
			l := drive(t, fairly(1))
			w := l.waiter(ask{Caller: "a"})
			require.True(t, l.enqueue(t.Context(), w))
			next, others := l.send(ask{Caller: "a"}), l.sendMany(2, ask{Caller: "b"})
			sleep(time.Second)
			require.True(t, isGranted(w))
			fail(t, l, w)
			synctest.Wait()
			requireGranted(t, next, time.Second)
			sleep(2 * time.Second)
			requireGranted(t, others[0], 2*time.Second)
			requireGranted(t, others[1], 3*time.Second)
		})
	}
}

// A refund reorders the requests of a caller within their line, and their line among others.
func TestARefundedTurnGoesFirstAmongSeveralLines(t *testing.T) {
	for _, more := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := drive(t, tokenBucket(1, time.Second, withInitial(0), fair()), tokenBucket(10, time.Second, named("other")))
			alone := map[string]int64{"other": 0}
			a := l.sendMany(2, ask{Caller: "a", Costs: alone})
			b := l.send(ask{Caller: "b"})
			if more {
				l.send(ask{Caller: "c", Costs: alone})
			}
			sleep(time.Second)
			requireGranted(t, a[0], time.Second)
			a[0].grant.cancel()
			synctest.Wait()
			requireGranted(t, a[1], time.Second)
			require.False(t, b.done)
			l.check()
			sleep(time.Minute)
			requireGranted(t, b, 2*time.Second)
		})
	}
}

func TestTheTurnOfANewRequestCountsWhatWasCancelledBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, fairly(1))
		ctx, cancel := context.WithCancel(t.Context())
		b := make([]*request, 41)
		for i := range b {
			b[i] = l.sendUnder(ctx, ask{Caller: "b"})
		}
		first := l.sendUnder(ctx, ask{Caller: "a"})
		for range 39 {
			l.sendUnder(ctx, ask{Caller: "a"})
		}
		first.cancel(nil)
		synctest.Wait()
		var wait time.Duration
		for range 10 { // each corrects the tags of four requests
			wait = requireRejected(t, l.send(ask{Caller: "a", MaxWait: ptr(time.Duration(0))}), 0, bucket.ReasonNoTokens).Wait
		}
		require.Equal(t, 80*time.Second, wait)
		cancel()
		synctest.Wait()
	})
}

// Where a caller has many requests, some of their tags are corrected at a time.
func TestTheLastRequestsOfACallerLeaveInAnyState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, fairly(1))
		all := l.sendMany(36, ask{Caller: "a"})
		all[0].cancel(nil)
		for i := range 34 {
			synctest.Wait()
			l.check()
			all[len(all)-1-i].cancel(nil)
		}
		synctest.Wait()
		l.check()
		sleep(time.Minute)
	})
}

// A turn is over when the callers in the queue would have got two requests each in it. Callers that come later have a later turn,
// in order, except where their priority says that they came before.
func TestPriorityCountsFromWhenATurnWasOver(t *testing.T) {
	for priority, goes := range []time.Duration{212, 212, 211} {
		within(t, fmt.Sprint("priority ", priority), func(t *testing.T) {
			l := drive(t, fairly(1, withBurst(1)))
			sleep(100 * time.Second)
			var all []*request
			for i := range 111 { // the first goes immediately
				all = append(all, l.send(ask{Caller: strconv.Itoa(i)}))
			}
			sleep(98 * time.Second) // the turn was over after 96 seconds: 1/110 + 1/109 + … + 1/15 > 2
			l.send(ask{Caller: "next"})
			sleep(11 * time.Second)
			require.True(t, all[109].done)
			last := l.send(ask{Caller: "last", Priority: priority})
			sleep(time.Minute)
			requireGranted(t, last, goes*time.Second)
		})
	}
}
