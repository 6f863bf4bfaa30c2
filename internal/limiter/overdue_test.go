package limiter_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
)

// Of many requests, those that a change rejects are found by a search.
func TestFewRequestsAreCheckedToRejectAFew(t *testing.T) {
	const n = 4096
	rate := func(per time.Duration) func(*testing.T, *driven, *grant) {
		return func(t *testing.T, l *driven, _ *grant) {
			l.setRate("limit", 100, per)
		}
	}
	full := func(due, cost time.Duration) time.Duration { return due + cost/2 } // as if all had the same MaxWait
	for name, c := range map[string]struct {
		maxWait  func(due, cost time.Duration) time.Duration // of a request that would be granted after due
		costs    int64
		change   func(*testing.T, *driven, *grant)
		rejected int
		most     int // requests checked
	}{
		"a slower rate, one in 64 has a MaxWait": {func(due, _ time.Duration) time.Duration {
			if due/time.Second%64 != 32 {
				return -1
			}
			return due * 3 / 2
		}, 1, rate(200 * time.Second), n / 64, n / 64 * 12},
		"a slower rate, all could go 256 later":      {func(due, _ time.Duration) time.Duration { return due + 256*time.Second }, 1, rate(105 * time.Second), 0, 20},
		"a slower rate, a full queue":                {full, 1, rate(101 * time.Second), n/101 + 1, n / 101 * 12},
		"a slower rate, a full queue, unequal costs": {full, 9, rate(101 * time.Second), 203, 203 * 12},
		"a settlement, a full queue":                 {full, 1, func(t *testing.T, _ *driven, g *grant) { require.NoError(t, g.settle("limit", 101)) }, 1, 20},
		"a settlement, a full queue, unequal costs":  {full, 9, func(t *testing.T, _ *driven, g *grant) { require.NoError(t, g.settle("limit", 102)) }, 2, 40},
		"a hold, a full queue":                       {full, 1, func(_ *testing.T, l *driven, _ *grant) { l.hold("", 2*time.Second) }, 1, 20},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := drive(t, tokenBucket(100, 100*time.Second, named("limit")))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				grant, err := l.acquire(ctx, ask{Cost: 100})
				require.NoError(t, err)
				due := time.Duration(0)
				for i := range int64(n) {
					cost := 1 + i*7919%c.costs
					due += time.Duration(cost) * time.Second
					w := l.waiter(ask{Cost: cost})
					w.MaxWait = c.maxWait(due, time.Duration(cost)*time.Second)
					require.True(t, l.enqueue(ctx, w))
				}
				checked := 0
				l.SetChecks(1, func() { checked++ })
				c.change(t, l, grant)
				require.Equal(t, n-c.rejected, l.counts().Waiting)
				require.LessOrEqual(t, checked, c.most)
			})
		})
	}
}

// A change of the rate rejects the requests that it moves to their deadline or past their MaxWait, and no others.
func TestAChangeRejectsAtTheExactBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, empty(1))
		late, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		just, stop := context.WithTimeout(t.Context(), 4*time.Second+1)
		defer stop()
		first, second := l.sendUnder(late, ask{}), l.sendUnder(just, ask{})
		third := l.send(ask{MaxWait: ptr(4 * time.Second)})
		fourth := l.send(ask{MaxWait: ptr(6*time.Second - 1)})
		l.setRate("bucket", 1, 2*time.Second)
		synctest.Wait()
		requireRejected(t, first, 0, bucket.ReasonDeadline)
		requireRejected(t, fourth, 0, bucket.ReasonMaxWait)
		sleep(4 * time.Second)
		requireGranted(t, second, 2*time.Second)
		requireGranted(t, third, 4*time.Second)
	})
}

func TestCheckingFreesTheLockBetweenPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, slidingWindow(1, time.Second, named("window")))
		for i := range 100 {
			l.send(ask{MaxWait: ptr(time.Duration(i) * time.Second)})
		}
		pauses := 0
		l.SetChecks(10, func() { pauses++ })
		l.setRate("window", 1, time.Second)
		require.GreaterOrEqual(t, pauses, 9)
		sleep(100 * time.Second)
		require.EqualValues(t, 100, l.counts().Granted)
	})
}

// Where callers take turns, a debt rejects what is too late immediately if few callers wait. If there are many, later debts do, and
// a maximum wait ends at its instant in any case.
func TestADebtRejectsWhereCallersTakeTurns(t *testing.T) {
	for _, c := range []struct {
		callers int
		debts   int
		goes    time.Duration // when the last request, which may wait for as long as its turn takes, is rejected
	}{{20, 1, 0}, {400, 1, 400 * time.Second}, {400, 20, 0}} {
		within(t, fmt.Sprintf("%d callers, %d debts", c.callers, c.debts), func(t *testing.T) {
			l := drive(t, tokenBucket(1, time.Second, withBurst(100), withInitial(100), fair(), named("limit")))
			var grants []*grant
			for range c.debts {
				g, err := l.acquire(t.Context(), ask{})
				require.NoError(t, err)
				grants = append(grants, g)
			}
			_, ok := l.try(ask{Cost: int64(100 - c.debts)})
			require.True(t, ok)
			var last *request
			for i := range c.callers {
				wait := time.Hour
				if i == c.callers-1 {
					wait = time.Duration(c.callers) * time.Second
				}
				last = l.send(ask{Caller: fmt.Sprint(i), MaxWait: &wait})
			}
			for _, g := range grants {
				require.NoError(t, g.settle("limit", 2))
			}
			synctest.Wait()
			if c.goes > 0 {
				sleep(c.goes - 1)
				require.False(t, last.done)
				sleep(1)
			}
			requireRejected(t, last, c.goes, bucket.ReasonMaxWait)
			sleep(time.Hour)
		})
	}
}

// A Try that finds requests waiting before a timer comes does what the timer would have done: all of it, however many requests are checked
// under one lock.
func TestATryBeforeALateTimerRejectsAllThatAreTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, dryRun(), tokenBucket(1, time.Second, withBurst(100), withInitial(1)))
		l.SetChecks(1, func() {})
		requireSent := func(a ask) *grant {
			g, err := l.acquire(t.Context(), a)
			require.NoError(t, err)
			return g
		}
		requireSent(ask{Key: "a"})
		dear := requireSent(ask{Key: "a"})
		for range 4 {
			requireSent(ask{Key: "a", MaxWait: ptr(10 * time.Second)})
		}
		require.NoError(t, dear.settle("bucket", 100)) // when its ghost is granted, the others are too late
		sleep(sec - 1)
		require.Equal(t, 5, l.counts().Waiting)
		l.StopTimers()
		sleep(1)
		_, ok := l.Try(l.request(ask{Key: "a"}))
		require.True(t, ok)
		require.Zero(t, l.counts().Waiting)
		require.EqualValues(t, 4, l.counts().Rejected[bucket.ReasonMaxWait])
		l.check()
	})
}
