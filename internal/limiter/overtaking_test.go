package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/meter/metertest"
)

// TestCostlyRequestIsNotStarved is over two buckets, with cheap traffic on each of them that takes all there is.
func TestCostlyRequestIsNotStarved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Name("a")), throttle.TokenBucket(7, time.Second, throttle.Name("b"))))
		ctx, cancel := context.WithCancel(t.Context())
		served := make(map[string]*atomic.Int64)
		for _, name := range []string{"a", "b"} {
			n := new(atomic.Int64)
			served[name] = n
			other := map[string]string{"a": "b", "b": "a"}[name]
			for range 3 {
				go func() {
					for {
						if _, err := l.Acquire(ctx, throttle.Ask{Costs: map[string]int64{name: 1, other: 0}}); err != nil {
							return
						}
						n.Add(1)
					}
				}()
			}
		}
		sleep(10*time.Second + 1)
		for range 5 {
			start := time.Since(coreOf(l).Start)
			costly := send(t, l, throttle.Ask{Costs: map[string]int64{"a": 10, "b": 7}})
			sleep(20 * time.Second)
			require.True(t, costly.done, "starved")
			require.NoError(t, costly.err)
			require.Less(t, costly.at-start, 15*time.Second)
			checkInvariants(t, l)
		}
		require.Greater(t, served["a"].Load(), int64(600), "of 1,100")
		require.Greater(t, served["b"].Load(), int64(400), "of 770")
		cancel()
		synctest.Wait()
	})
}

// TestARequestPassedOverFor10sBarsBothBuckets has two buckets that can pay in turn, and other requests that take what each can
// pay. The time counts from when one bucket could first have paid, half a period after the request came.
func TestARequestPassedOverFor10sBarsBothBuckets(t *testing.T) {
	for _, c := range []struct{ period, granted time.Duration }{
		{2 * time.Second, 12 * time.Second},  // from 1 s until 11 s, when the other bucket can pay in 1 s
		{20 * time.Second, 30 * time.Second}, // from 10 s until 20 s, when the other bucket can pay in 10 s
		{22 * time.Second, 0},                // it would hold the other bucket's tokens for more than 10 s each time
	} {
		within(t, c.period.String(), func(t *testing.T) {
			l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(2, c.period, throttle.Initial(0), throttle.Name("a")), throttle.TokenBucket(2, c.period, throttle.Initial(1), throttle.Name("b"))))
			both := send(t, l, throttle.Ask{Cost: 2})
			others := append(sendMany(t, l, 9, throttle.Ask{Costs: map[string]int64{"a": 2, "b": 0}}), sendMany(t, l, 9, throttle.Ask{Costs: map[string]int64{"a": 0, "b": 2}})...)
			sleep(90 * time.Second)
			if checkInvariants(t, l); c.granted > 0 {
				requireGranted(t, both, c.granted)
			}
			require.Equal(t, c.granted > 0, both.done)
			for _, r := range append(others, both) {
				r.cancel(nil)
			}
			synctest.Wait()
		})
	}
}

func TestNoRequestOvertakesAtASharedBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Initial(0), throttle.Burst(3), throttle.Name("a")), throttle.TokenBucket(100, time.Second, throttle.Name("b"))))
		both := send(t, l, throttle.Ask{Cost: 3})
		one := send(t, l, throttle.Ask{Costs: map[string]int64{"a": 1, "b": 0}})
		other := send(t, l, throttle.Ask{Costs: map[string]int64{"a": 0, "b": 97}})
		requireGranted(t, other, 0)
		sleep(time.Minute)
		requireGranted(t, both, 3*time.Second)
		requireGranted(t, one, 4*time.Second)
	})
}

// TestNoRequestPassesOneThatIsStopped has enough for the second request, but not for the first.
func TestNoRequestPassesOneThatIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Initial(1), throttle.Burst(3), throttle.Name("a")), throttle.TokenBucket(100, time.Second, throttle.Name("b"))))
		both := send(t, l, throttle.Ask{Cost: 3})
		only := map[string]int64{"a": 1, "b": 0}
		refused := requireRefused(t, send(t, l, throttle.Ask{Costs: only, MaxWait: new(time.Duration(0))}), 0, throttle.ReasonNoTokens)
		require.Equal(t, 3*time.Second, refused.Wait, "what the other costs is paid before")
		one, low := send(t, l, throttle.Ask{Costs: only}), send(t, l, throttle.Ask{Costs: only, Priority: -1})
		high := send(t, l, throttle.Ask{Costs: only, Priority: 1})
		requireGranted(t, high, 0)
		sleep(time.Minute)
		requireGranted(t, both, 3*time.Second)
		requireGranted(t, one, 4*time.Second)
		requireGranted(t, low, 5*time.Second)
	})
}

// TestRequestStoppedElsewhereBarsNoOther waits at one bucket, and leaves the other to later requests.
func TestRequestStoppedElsewhereBarsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Burst(5), throttle.Name("a")), throttle.TokenBucket(1, time.Hour, throttle.Burst(2), throttle.Initial(0), throttle.Name("b"))))
		both := send(t, l, throttle.Ask{Costs: map[string]int64{"a": 5, "b": 2}})
		for i := range 300 {
			requireGranted(t, send(t, l, throttle.Ask{Costs: map[string]int64{"a": 1, "b": 0}}), time.Duration(i)*time.Second)
			sleep(time.Second)
		}
		require.False(t, both.done)
		checkInvariants(t, l)
		sleep(3 * time.Hour)
		requireGranted(t, both, 2*time.Hour)
	})
}

// TestRequestNoLongerBarredIsChargedAsOfNow has one come first that waits elsewhere only, before one that barred a bucket:
// the request that was barred there was not late.
func TestRequestNoLongerBarredIsChargedAsOfNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(
			throttle.TokenBucket(1000, time.Second, throttle.Burst(10), throttle.Name("a")), throttle.TokenBucket(1, time.Second, throttle.Burst(10), throttle.Initial(0), throttle.Name("b")),
			throttle.TokenBucket(1, time.Hour, throttle.Initial(0), throttle.Name("c")),
		))
		send(t, l, throttle.Ask{Costs: map[string]int64{"a": 0, "b": 5, "c": 1}})
		barred := send(t, l, throttle.Ask{Costs: map[string]int64{"a": 1, "b": 1, "c": 0}})
		sleep(2 * time.Second)
		require.False(t, barred.done)
		send(t, l, throttle.Ask{Costs: map[string]int64{"a": 0, "b": 1, "c": 1}, Priority: 1})
		requireGranted(t, barred, 2*time.Second)
		requireRefused(t, send(t, l, throttle.Ask{Costs: map[string]int64{"a": 10, "b": 0, "c": 0}, MaxWait: new(time.Duration(0))}), 2*time.Second, throttle.ReasonNoTokens)
	})
}

// TestRefusalLeavesAllBalances is refused by one limit for every reason there is, and finds the others as they were.
func TestRefusalLeavesAllBalances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithMaxQueue(1), throttle.WithLimit(
			throttle.TokenBucket(10, time.Hour, throttle.Name("a")), throttle.SlidingWindow(10, time.Hour, throttle.Name("b")), throttle.Pace(1, time.Hour, throttle.Name("c")),
			throttle.FixedWindow(10, time.Hour, throttle.Name("d")), throttle.TokenBucket(1, time.Hour, throttle.Initial(0), throttle.Name("e")),
		))
		tokens := func() (all []float64) {
			for s := range l.Buckets() {
				all = append(all, s.Tokens)
			}
			return all
		}
		before := tokens()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		requireRefused(t, send(t, l, throttle.Ask{Cost: 1, MaxWait: new(time.Duration(0))}), 0, throttle.ReasonNoTokens)
		requireRefused(t, send(t, l, throttle.Ask{Cost: 1, MaxWait: new(time.Second)}), 0, throttle.ReasonMaxWait)
		requireRefused(t, sendUnder(ctx, l, throttle.Ask{Cost: 1}), 0, throttle.ReasonDeadline)
		requireRefused(t, send(t, l, throttle.Ask{Cost: 2}), 0, throttle.ReasonCost)
		requireRefused(t, send(t, l, throttle.Ask{Cost: -1}), 0, throttle.ReasonCost)
		waits := send(t, l, throttle.Ask{Cost: 1})
		require.Zero(t, requireRefused(t, send(t, l, throttle.Ask{Cost: 1}), 0, throttle.ReasonQueueFull).Patience, "it has no bound")
		require.Equal(t, before, tokens())
		waits.cancel(nil)
		synctest.Wait()
		l.Hold("", time.Minute)
		requireRefused(t, send(t, l, throttle.Ask{Costs: map[string]int64{"e": 0}, Cost: 1, MaxWait: new(time.Second)}), 0, throttle.ReasonHeld)
		require.Equal(t, before, tokens())
		require.Equal(t, throttle.Counts[throttle.Reason]{throttle.ReasonNoTokens: 1, throttle.ReasonMaxWait: 1, throttle.ReasonDeadline: 1, throttle.ReasonQueueFull: 1, throttle.ReasonCost: 2, throttle.ReasonHeld: 1}, l.Stats().Rejected)
	})
}

// TestPlanNeverPromisesTooLittle compares what was planned over several limits, a lower bound, with what came.
func TestPlanNeverPromisesTooLittle(t *testing.T) {
	for seed := range uint64(5) {
		synctest.Test(t, func(t *testing.T) {
			r := metertest.Seeded(t, seed)
			l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(3, time.Second, throttle.Name("a")), throttle.TokenBucket(2, time.Second, throttle.Name("b")), throttle.SlidingWindow(9, 5*time.Second, throttle.Name("c"))))
			var all []*request
			var least []time.Duration
			for range 100 {
				ask := throttle.Ask{Cost: 1 + r.Int64N(2)}
				refused := send(t, l, throttle.Ask{Cost: ask.Cost, MaxWait: new(time.Duration(0))})
				now := time.Since(coreOf(l).Start)
				if refused.err == nil {
					continue
				}
				rejection, _ := errors.AsType[*throttle.Rejection](refused.err)
				least = append(least, now+rejection.Wait)
				all = append(all, send(t, l, ask))
				sleep(time.Duration(r.Int64N(int64(time.Second))))
			}
			sleep(time.Hour)
			for i, r := range all {
				require.GreaterOrEqual(t, r.at, least[i], fmt.Sprint(i))
			}
		})
	}
}

// A bucket that was full saves nothing up for the requests that wait elsewhere.
func TestAPlanCountsNoMoreThanABucketHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Burst(10), throttle.Name("all")), throttle.TokenBucket(1000, time.Second, throttle.Name("key"))))
		ask := throttle.Ask{Key: "k", Keys: map[string]string{"all": ""}, Costs: map[string]int64{"all": 10, "key": 1}}
		l.Hold("k", 105*time.Second)
		first := send(t, l, ask)
		sleep(100 * time.Second)
		ask.MaxWait = new(time.Duration(0))
		refused := requireRefused(t, send(t, l, ask), 100*time.Second, throttle.ReasonNoTokens)
		require.Equal(t, 10*time.Second, refused.Wait)
		require.Equal(t, "all", refused.Limit)
		sleep(5 * time.Second)
		requireGranted(t, first, 105*time.Second)
	})
}

func TestOfEqualWaitsTheFirstLimitIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Initial(0), throttle.Name("a")), throttle.TokenBucket(1, time.Second, throttle.Initial(0), throttle.Name("b"))))
		require.Equal(t, "a", requireRefused(t, send(t, l, throttle.Ask{MaxWait: new(time.Duration(0))}), 0, throttle.ReasonNoTokens).Limit)
		waits := send(t, l, throttle.Ask{})
		sleep(time.Second)
		requireGranted(t, waits, time.Second)
		limits := l.Limits()
		require.Equal(t, []uint64{1, 0}, []uint64{limits[0].Delayed, limits[1].Delayed})
	})
}
