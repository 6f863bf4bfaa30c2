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
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
)

// What is granted and not undone may be on the way to the server, and the first response of a server holds as long as it took for these.
func TestUndoneGrantsAreNotOnTheWay(t *testing.T) {
	for granted, held := range map[uint64]time.Duration{2: 0, 6: 5} { // the second is this one, and the first was abandoned
		synctest.Test(t, func(t *testing.T) {
			l := drive(t)
			sleep(10)
			l.Counts().Granted, l.Counts().Undone = granted, 1
			few := quota.QuotaHint{Name: quota.Unnamed, Limit: 5000, Left: 3, Known: true, Ends: true, Reset: time.Second}
			a := &limiter.Answer{Outcome: aimd.OK, Hints: &quota.Hints{Quotas: []quota.QuotaHint{few}}}
			l.ReportUngated(&limiter.Request{User: l.user, Mark: limiter.Mark{At: 5, Nth: 2}}, &quota.Key{Host: "h"}, a)
			until := time.Duration(0)
			l.LookAtServer("h", func(a *quota.Account, now meter.Instant) { until = time.Duration(max(0, a.Until()-now)) }, func() {})
			require.Equal(t, held, until, "as long as the first response took, if another request is on the way")
		})
	}
}

// The body of a response may report what its headers did not: a refusal or a quota makes the server known, and nothing does not.
func TestABodyMakesAServerKnownOnlyIfItSaysSomething(t *testing.T) {
	quotas := []quota.QuotaHint{{Name: quota.Unnamed, Limit: 9, Left: 3, Known: true, Ends: true, Reset: time.Second}}
	for _, c := range []struct {
		hints   quota.Hints
		servers int
	}{
		{quota.Hints{}, 0},
		{quota.Hints{Limited: true, Wait: time.Minute, Asked: true}, 1},
		{quota.Hints{Quotas: quotas}, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := drive(t)
			c.hints.After = new(quota.Hints)
			l.ReportUngated(&limiter.Request{User: l.user}, &quota.Key{Host: "h"}, &limiter.Answer{Outcome: aimd.OK, Hints: &c.hints})
			require.Equal(t, c.servers, l.accounts(), "%+v", c.hints)
		})
	}
}

func TestARequestThatItsGateStopsIsNotAheadOfOthers(t *testing.T) {
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

// A server may count path families apart, so their requests wait apart.
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
	for _, family := range []uint64{0, families - 1, families} { // with other waiters or without
		rejection := requireRejected(t, l.sendBy(soon, family, ask{Cost: 1}), 0, bucket.ReasonDeadline)
		require.Equal(t, (families+1)*time.Second, rejection.Wait)
		rejection = requireRejected(t, l.sendBy(ctx, family, ask{Cost: 1, MaxWait: ptr(families * time.Second)}), 0, bucket.ReasonMaxWait)
		require.Equal(t, (families+1)*time.Second, rejection.Wait)
	}
	late := l.sendBy(ctx, families, ask{Cost: 1, MaxWait: ptr((families + 1) * time.Second)})
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

// A limit of the caller's own that has a rate spares requests the even spread of a server's quota.
func TestOwnRateIsThatOfTheSlowestLimit(t *testing.T) {
	for name, c := range map[string]struct {
		limits   []rule
		own      float64 // in requests of cost 2
		adaptive bool
	}{
		"bucket":          {[]rule{tokenBucket(10, time.Second)}, 5, false},
		"pace":            {[]rule{pace(10, time.Second)}, 5, false},
		"sliding window":  {[]rule{slidingWindow(10, time.Second)}, 5, false},
		"fixed window":    {[]rule{fixedWindow(10, time.Second)}, 5, false},
		"calendar window": {[]rule{calendarWindow(864_000, meter.Day, time.UTC)}, 5, false},
		"slots":           {[]rule{inFlight(10)}, 0, false},
		"adaptive":        {[]rule{adaptive(aimd.Config{})}, 0, true},
		"several": {[]rule{
			adaptive(aimd.Config{}), tokenBucket(10, time.Second), pace(4, time.Second), inFlight(10), calendarWindow(864_000, meter.Day, time.UTC),
		}, 2, true},
		"none": {nil, 0, false},
	} {
		l := drive(t, limits(c.limits...))
		g, err := l.acquire(t.Context(), ask{Cost: 2})
		require.NoError(t, err, name)
		own := limiter.OwnOf(g.Request.Charges())
		require.InDelta(t, c.own, own.Rate, 1e-9, name)
		require.Equal(t, c.adaptive, own.Adaptive, name)
	}
}
