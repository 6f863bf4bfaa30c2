package limiter_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/quota"
)

func TestARequestThatExpiresLetsTheNextGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, inFlight(2, named("slots")))
		asked := func(n int64) ask { return ask{Costs: map[string]int64{"slots": n}} }
		requireGranted(t, l.send(asked(1)), 0)
		both := asked(2)
		both.MaxWait = new(time.Second)
		expires, next := l.send(both), l.send(asked(1))
		require.False(t, next.done)
		sleep(time.Second)
		requireRejected(t, expires, time.Second, bucket.ReasonMaxWait)
		requireGranted(t, next, time.Second)
		l.check()
	})
}

func TestWhatIsStoppedByItsGateIsNotAheadOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, empty(1, withBurst(1)))
		hints := &quota.Hints{Quotas: []quota.QuotaHint{{Name: "core", Limit: 100, Known: true, Ends: true, Reset: 1000 * time.Second}}}
		l.ReportUngated(&limiter.Request{User: l.user}, &quota.Key{Host: "h", Family: 1}, &limiter.Answer{Outcome: aimd.OK, Hints: hints})
		ctx, cancel := context.WithCancel(t.Context())
		for range 10 {
			l.sendBy(ctx, 1, ask{Cost: 1})
		}
		soon, stop := context.WithTimeout(t.Context(), 5*time.Second)
		defer stop()
		free := l.sendBy(soon, 2, ask{Cost: 1})
		l.setRate("bucket", 1, time.Second)
		synctest.Wait()
		require.False(t, free.done, "%v", free.err)
		sleep(time.Second)
		requireGranted(t, free, time.Second)
		cancel()
		synctest.Wait()
		l.check()
	})
}

func TestABucketThatIsKeptAgainHasTheBurstOfToday(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(10, time.Second))
		g := l.send(ask{Key: "k", Cost: 1}).grant
		sleep(3 * time.Second)
		require.Zero(t, l.counts().Buckets)
		l.setBurst("bucket", 3)
		require.NoError(t, g.settle("bucket", 2))
		require.Equal(t, 2, l.drain("k"))
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
		requireRejected(t, l.send(ask{Costs: map[string]int64{"a": 10, "b": 0}, MaxWait: new(time.Duration(0))}), 2*time.Second, bucket.ReasonNoTokens)
	})
}

// A queue has a line for each path family that a server may count apart.
func TestDeadlinesAreCheckedOnArrivalWhateverTheNumberOfFamilies(t *testing.T) {
	within(t, "last", func(t *testing.T) { deadlinesOfManyFamilies(t, false) })
	within(t, "before another", func(t *testing.T) { deadlinesOfManyFamilies(t, true) })
}

// deadlinesOfManyFamilies checks requests that come last, or before one that waits.
func deadlinesOfManyFamilies(t *testing.T, before bool) {
	l := drive(t, empty(1, withBurst(1)))
	ctx, cancel := context.WithCancel(t.Context())
	const families = 200
	for i := range families {
		l.sendBy(ctx, uint64(i), ask{Cost: 1})
	}
	if before {
		l.sendBy(ctx, 0, ask{Cost: 1, Priority: -1000})
	}
	soon, stop := context.WithTimeout(t.Context(), 100*time.Second)
	defer stop()
	for _, family := range []uint64{0, families - 1, families} { // with a line of its own or without
		rejection := requireRejected(t, l.sendBy(soon, family, ask{Cost: 1}), 0, bucket.ReasonDeadline)
		require.Equal(t, (families+1)*time.Second, rejection.Wait)
		rejection = requireRejected(t, l.sendBy(ctx, family, ask{Cost: 1, MaxWait: new(families * time.Second)}), 0, bucket.ReasonMaxWait)
		require.Equal(t, (families+1)*time.Second, rejection.Wait)
	}
	late := l.sendBy(ctx, families, ask{Cost: 1, MaxWait: new((families + 1) * time.Second)})
	sleep((families + 1) * time.Second)
	requireGranted(t, late, (families+1)*time.Second)
	cancel()
	synctest.Wait()
}

// A server holds several families of requests, and those of one family leave the queue.
func TestAQueueOfAHeldFamilyThatIsEmptyBarsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(1, time.Hour))
		refused := &limiter.Answer{Outcome: aimd.Throttled, Hints: &quota.Hints{Limited: true, Wait: time.Minute, Asked: true}}
		g, err := l.acquire(t.Context(), ask{})
		require.NoError(t, err)
		l.ReportUngated(g.Request, &quota.Key{Host: "h"}, refused)
		first, second, third := l.sendBy(t.Context(), 1, ask{}), l.sendBy(t.Context(), 2, ask{}), l.sendBy(t.Context(), 3, ask{})
		for _, r := range []*request{second, first, third} {
			l.check()
			r.cancel(nil)
			synctest.Wait()
		}
		l.check()
		require.Zero(t, l.counts().Waiting)
	})
}
