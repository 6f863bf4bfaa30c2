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

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter/metertest"
)

// There are two buckets, with cheap requests for each of them that take all there is.
func TestCostlyRequestIsNotStarved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(10, time.Second, named("a")), tokenBucket(7, time.Second, named("b")))
		ctx, cancel := context.WithCancel(t.Context())
		served := make(map[string]*atomic.Int64)
		for _, name := range []string{"a", "b"} {
			n := new(atomic.Int64)
			served[name] = n
			other := map[string]string{"a": "b", "b": "a"}[name]
			for range 3 {
				go func() {
					for {
						if _, err := l.acquire(ctx, ask{Costs: map[string]int64{name: 1, other: 0}}); err != nil {
							return
						}
						n.Add(1)
					}
				}()
			}
		}
		sleep(10*time.Second + 1)
		for range 5 {
			start := l.now()
			costly := l.send(ask{Costs: map[string]int64{"a": 10, "b": 7}})
			sleep(20 * time.Second)
			require.True(t, costly.done, "starved")
			require.NoError(t, costly.err)
			require.Less(t, costly.at-start, 15*time.Second)
			l.check()
		}
		require.Greater(t, served["a"].Load(), int64(600), "of 1,100")
		require.Greater(t, served["b"].Load(), int64(400), "of 770")
		cancel()
		synctest.Wait()
	})
}

// Two buckets can pay in turn, and other requests take what each can
// pay. The time counts from when one bucket could first have paid, half a period after the request came.
func TestARequestPassedOverFor10sBarsBothBuckets(t *testing.T) {
	for _, c := range []struct{ period, granted time.Duration }{
		{2 * time.Second, 12 * time.Second},  // from 1 s until 11 s, when the other bucket can pay in 1 s
		{20 * time.Second, 30 * time.Second}, // from 10 s until 20 s, when the other bucket can pay in 10 s
		{22 * time.Second, 0},                // it would hold the other bucket's tokens for more than 10 s each time
	} {
		within(t, c.period.String(), func(t *testing.T) {
			l := drive(t, tokenBucket(2, c.period, withInitial(0), named("a")), tokenBucket(2, c.period, withInitial(1), named("b")))
			both := l.send(ask{Cost: 2})
			others := append(l.sendMany(9, ask{Costs: map[string]int64{"a": 2, "b": 0}}), l.sendMany(9, ask{Costs: map[string]int64{"a": 0, "b": 2}})...)
			sleep(90 * time.Second)
			if l.check(); c.granted > 0 {
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
		l := drive(t, tokenBucket(1, time.Second, withInitial(0), withBurst(3), named("a")), tokenBucket(100, time.Second, named("b")))
		both := l.send(ask{Cost: 3})
		one := l.send(ask{Costs: map[string]int64{"a": 1, "b": 0}})
		other := l.send(ask{Costs: map[string]int64{"a": 0, "b": 97}})
		requireGranted(t, other, 0)
		sleep(time.Minute)
		requireGranted(t, both, 3*time.Second)
		requireGranted(t, one, 4*time.Second)
	})
}

// There is enough for the second request, but not for the first.
func TestNoRequestPassesOneThatIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(1, time.Second, withInitial(1), withBurst(3), named("a")), tokenBucket(100, time.Second, named("b")))
		both := l.send(ask{Cost: 3})
		only := map[string]int64{"a": 1, "b": 0}
		rejected := requireRejected(t, l.send(ask{Costs: only, MaxWait: ptr(time.Duration(0))}), 0, bucket.ReasonNoTokens)
		require.Equal(t, 3*time.Second, rejected.Wait, "what the other costs is paid before")
		one, low := l.send(ask{Costs: only}), l.send(ask{Costs: only, Priority: -1})
		high := l.send(ask{Costs: only, Priority: 1})
		requireGranted(t, high, 0)
		sleep(time.Minute)
		requireGranted(t, both, 3*time.Second)
		requireGranted(t, one, 4*time.Second)
		requireGranted(t, low, 5*time.Second)
	})
}

// A request waits for one bucket, and leaves the other to later requests.
func TestRequestStoppedElsewhereBarsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(1, time.Second, withBurst(5), named("a")), tokenBucket(1, time.Hour, withBurst(2), withInitial(0), named("b")))
		both := l.send(ask{Costs: map[string]int64{"a": 5, "b": 2}})
		for i := range 300 {
			requireGranted(t, l.send(ask{Costs: map[string]int64{"a": 1, "b": 0}}), time.Duration(i)*time.Second)
			sleep(time.Second)
		}
		require.False(t, both.done)
		l.check()
		sleep(3 * time.Hour)
		requireGranted(t, both, 2*time.Hour)
	})
}

// A request that waits for another bucket comes before the one that barred a bucket:
// the request that was barred there was not late.
func TestRequestNoLongerBarredIsChargedAsOfNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(1000, time.Second, withBurst(10), named("a")), tokenBucket(1, time.Second, withBurst(10), withInitial(0), named("b")), tokenBucket(1, time.Hour, withInitial(0), named("c")))
		l.send(ask{Costs: map[string]int64{"a": 0, "b": 5, "c": 1}})
		barred := l.send(ask{Costs: map[string]int64{"a": 1, "b": 1, "c": 0}})
		sleep(2 * time.Second)
		require.False(t, barred.done)
		l.send(ask{Costs: map[string]int64{"a": 0, "b": 1, "c": 1}, Priority: 1})
		requireGranted(t, barred, 2*time.Second)
		requireRejected(t, l.send(ask{Costs: map[string]int64{"a": 10, "b": 0, "c": 0}, MaxWait: ptr(time.Duration(0))}), 2*time.Second, bucket.ReasonNoTokens)
	})
}

// One limit rejects requests for every reason there is, and the others stay as they were.
func TestARejectionLeavesAllBalances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, maxQueue(1), tokenBucket(10, time.Hour, named("a")), slidingWindow(10, time.Hour, named("b")), pace(1, time.Hour, named("c")), fixedWindow(10, time.Hour, named("d")), tokenBucket(1, time.Hour, withInitial(0), named("e")))
		tokens := func() (all []float64) {
			for _, s := range l.views() {
				all = append(all, s.Tokens)
			}
			return all
		}
		before := tokens()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		requireRejected(t, l.send(ask{Cost: 1, MaxWait: ptr(time.Duration(0))}), 0, bucket.ReasonNoTokens)
		requireRejected(t, l.send(ask{Cost: 1, MaxWait: ptr(time.Second)}), 0, bucket.ReasonMaxWait)
		requireRejected(t, l.sendUnder(ctx, ask{Cost: 1}), 0, bucket.ReasonDeadline)
		requireRejected(t, l.send(ask{Cost: 2}), 0, bucket.ReasonCost)
		requireRejected(t, l.send(ask{Cost: -1}), 0, bucket.ReasonCost)
		waits := l.send(ask{Cost: 1})
		require.Zero(t, requireRejected(t, l.send(ask{Cost: 1}), 0, bucket.ReasonQueueFull).Patience, "it has no bound")
		require.Equal(t, before, tokens())
		waits.cancel(nil)
		synctest.Wait()
		l.hold("", time.Minute)
		requireRejected(t, l.send(ask{Costs: map[string]int64{"e": 0}, Cost: 1, MaxWait: ptr(time.Second)}), 0, bucket.ReasonHeld)
		require.Equal(t, before, tokens())
		require.Equal(t, [bucket.Reasons]uint64{bucket.ReasonNoTokens: 1, bucket.ReasonMaxWait: 1, bucket.ReasonDeadline: 1, bucket.ReasonQueueFull: 1, bucket.ReasonCost: 2, bucket.ReasonHeld: 1}, l.counts().Rejected)
	})
}

// A plan over several limits is a lower bound.
func TestNoRequestIsGrantedBeforeItsPlan(t *testing.T) {
	for seed := range uint64(5) {
		synctest.Test(t, func(t *testing.T) {
			r := metertest.Seeded(t, seed)
			l := drive(t, tokenBucket(3, time.Second, named("a")), tokenBucket(2, time.Second, named("b")), slidingWindow(9, 5*time.Second, named("c")))
			var all []*request
			var least []time.Duration
			for range 100 {
				asked := ask{Cost: 1 + r.Int64N(2)}
				rejected := l.send(ask{Cost: asked.Cost, MaxWait: ptr(time.Duration(0))})
				now := l.now()
				if rejected.err == nil {
					continue
				}
				var rejection *rejection
				_ = errors.As(rejected.err, &rejection)
				least = append(least, now+rejection.Wait)
				all = append(all, l.send(asked))
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
		l := drive(t, tokenBucket(1, time.Second, withBurst(10), named("all")), tokenBucket(1000, time.Second, named("key")))
		asked := ask{Key: "k", Keys: map[string]string{"all": ""}, Costs: map[string]int64{"all": 10, "key": 1}}
		l.hold("k", 105*time.Second)
		first := l.send(asked)
		sleep(100 * time.Second)
		asked.MaxWait = ptr(time.Duration(0))
		rejected := requireRejected(t, l.send(asked), 100*time.Second, bucket.ReasonNoTokens)
		require.Equal(t, 10*time.Second, rejected.Wait)
		require.Equal(t, "all", rejected.Limit.Name)
		sleep(5 * time.Second)
		requireGranted(t, first, 105*time.Second)
	})
}

func TestOfEqualWaitsTheFirstLimitIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(1, time.Second, withInitial(0), named("a")), tokenBucket(1, time.Second, withInitial(0), named("b")))
		require.Equal(t, "a", requireRejected(t, l.send(ask{MaxWait: ptr(time.Duration(0))}), 0, bucket.ReasonNoTokens).Limit.Name)
		waits := l.send(ask{})
		sleep(time.Second)
		requireGranted(t, waits, time.Second)
		require.Equal(t, []uint64{1, 0}, []uint64{l.Limits[0].Counts.Delayed, l.Limits[1].Counts.Delayed})
	})
}

// A request that was barred by one that gives up was not late.
func TestARequestThatIsBarredNoMoreIsChargedAsOfNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(1000, time.Second, withBurst(10), named("a")), tokenBucket(1, time.Second, withBurst(10), withInitial(0), named("b")))
		bars := l.send(ask{Costs: map[string]int64{"a": 0, "b": 5}})
		barred := l.send(ask{Costs: map[string]int64{"a": 1, "b": 1}})
		sleep(2 * time.Second)
		require.False(t, barred.done)
		bars.cancel(nil)
		synctest.Wait()
		requireGranted(t, barred, 2*time.Second)
		requireRejected(t, l.send(ask{Costs: map[string]int64{"a": 10, "b": 0}, MaxWait: ptr(time.Duration(0))}), 2*time.Second, bucket.ReasonNoTokens)
	})
}
