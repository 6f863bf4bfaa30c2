package limiter_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// Of many requests, those that a change rejects are found by a search.
func TestFewRequestsAreCheckedToRejectAFew(t *testing.T) {
	const n = 4096
	rate := func(per time.Duration) func(*testing.T, *throttle.Limiter, *throttle.Grant) {
		return func(t *testing.T, l *throttle.Limiter, _ *throttle.Grant) {
			require.NoError(t, l.SetRate("limit", 100, per))
		}
	}
	full := func(due, cost time.Duration) time.Duration { return due + cost/2 } // as if all had the same MaxWait
	for name, c := range map[string]struct {
		maxWait  func(due, cost time.Duration) time.Duration // of a request that would be granted after due
		costs    int64
		change   func(*testing.T, *throttle.Limiter, *throttle.Grant)
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
		"a settlement, a full queue":                 {full, 1, func(t *testing.T, _ *throttle.Limiter, g *throttle.Grant) { require.NoError(t, g.Settle("limit", 101)) }, 1, 20},
		"a settlement, a full queue, unequal costs":  {full, 9, func(t *testing.T, _ *throttle.Limiter, g *throttle.Grant) { require.NoError(t, g.Settle("limit", 102)) }, 2, 40},
		"a hold, a full queue":                       {full, 1, func(_ *testing.T, l *throttle.Limiter, _ *throttle.Grant) { l.Hold("", 2*time.Second) }, 1, 20},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(100, 100*time.Second, throttle.Name("limit"))))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				grant, err := l.Acquire(ctx, throttle.Ask{Cost: 100})
				require.NoError(t, err)
				due := time.Duration(0)
				for i := range int64(n) {
					cost := 1 + i*7919%c.costs
					due += time.Duration(cost) * time.Second
					w := waiterOf(l, throttle.Ask{Cost: cost, MaxWait: new(c.maxWait(due, time.Duration(cost)*time.Second))})
					require.True(t, enqueue(ctx, l, w))
				}
				checked := 0
				*coreOf(l).AtOnce(), *coreOf(l).Pause() = 1, func() { checked++ } // after each
				c.change(t, l, grant)
				require.Equal(t, n-c.rejected, l.Stats().Waiting)
				require.LessOrEqual(t, checked, c.most)
			})
		})
	}
}

// A change of the rate rejects the requests that it moves to their deadline or past their MaxWait, and no others.
func TestAChangeRejectsAtTheExactBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, empty(1))
		late, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		just, stop := context.WithTimeout(t.Context(), 4*time.Second+1)
		defer stop()
		first, second := sendUnder(late, l, throttle.Ask{}), sendUnder(just, l, throttle.Ask{})
		third := send(t, l, throttle.Ask{MaxWait: new(4 * time.Second)})
		fourth := send(t, l, throttle.Ask{MaxWait: new(6*time.Second - 1)})
		require.NoError(t, l.SetRate("bucket", 1, 2*time.Second))
		synctest.Wait()
		requireRefused(t, first, 0, throttle.ReasonDeadline)
		requireRefused(t, fourth, 0, throttle.ReasonMaxWait)
		sleep(4 * time.Second)
		requireGranted(t, second, 2*time.Second)
		requireGranted(t, third, 4*time.Second)
	})
}

func TestCheckingFreesTheLockBetweenPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.SlidingWindow(1, time.Second, throttle.Name("window"))))
		for i := range 100 {
			send(t, l, throttle.Ask{MaxWait: new(time.Duration(i) * time.Second)})
		}
		pauses := 0
		*coreOf(l).AtOnce(), *coreOf(l).Pause() = 10, func() { pauses++ }
		require.NoError(t, l.SetRate("window", 1, time.Second))
		require.GreaterOrEqual(t, pauses, 9)
		sleep(100 * time.Second)
		require.EqualValues(t, 100, l.Stats().Granted)
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
			l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Burst(100), throttle.Initial(100), throttle.FairBy(throttle.ByHost), throttle.Name("limit"))))
			var grants []*throttle.Grant
			for range c.debts {
				g, err := l.Acquire(t.Context(), throttle.Ask{})
				require.NoError(t, err)
				grants = append(grants, g)
			}
			_, ok := l.Try(throttle.Ask{Cost: int64(100 - c.debts)})
			require.True(t, ok)
			var last *request
			for i := range c.callers {
				wait := time.Hour
				if i == c.callers-1 {
					wait = time.Duration(c.callers) * time.Second
				}
				last = send(t, l, throttle.Ask{Caller: fmt.Sprint(i), MaxWait: &wait})
			}
			for _, g := range grants {
				require.NoError(t, g.Settle("limit", 2))
			}
			synctest.Wait()
			if c.goes > 0 {
				sleep(c.goes - 1)
				require.False(t, last.done)
				sleep(1)
			}
			requireRefused(t, last, c.goes, throttle.ReasonMaxWait)
			sleep(time.Hour)
		})
	}
}
