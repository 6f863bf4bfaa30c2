package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
)

var errNoRate = errors.New("no rate")

// record has every event be written down.
func (l *driven) record() (events *[]string) {
	events = new([]string)
	add := func(format string, args ...any) { *events = append(*events, fmt.Sprintf(format, args...)) }
	l.onWait = func(at limiter.Place, cost int64, wait time.Duration) {
		add("waits %s: %d in %v", at.Limit, cost, wait)
	}
	l.onGrant = func(at limiter.Place, waited time.Duration) { add("granted %s after %v", at.Limit, waited) }
	l.onReject = func(r *rejection) { add("rejected %s", r.Limit.Name) }
	return events
}

// A request is granted now, after a wait, or not at all, and its User gets one event for that.
func TestWhatBecomesOfARequestIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(2, time.Second))
		events := l.record()
		r := l.request(ask{Cost: 2})
		require.True(t, l.Now(r, nil))
		require.False(t, l.Now(l.request(ask{}), nil))
		g, err := l.acquire(t.Context(), ask{})
		require.NoError(t, err)
		require.EqualValues(t, time.Second/2, g.Waited)
		require.EqualValues(t, time.Second/2, g.At)
		_, err = l.acquire(t.Context(), ask{Cost: 2, MaxWait: ptr(time.Second - 1)})
		require.Equal(t, bucket.ReasonMaxWait, requireRejection(t, err).Reason)
		require.Equal(t, time.Second, requireRejection(t, err).Wait)
		wait, ok := l.try(ask{})
		require.False(t, ok)
		require.Equal(t, time.Second/2, wait)
		require.Equal(t, []string{"granted  after 0s", "waits bucket: 1 in 500ms", "granted bucket after 500ms", "rejected bucket", "rejected bucket"}, *events)
		l.check()
	})
}

// A request whose cancel is closed gives its place to the next one.
func TestACanceledRequestCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(1, time.Second))
		require.True(t, l.Now(l.request(ask{}), nil))
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Hour, errNoRate)
		defer cancel()
		first := make(chan error, 1)
		stop := make(chan struct{})
		go func() {
			w := l.waiter(ask{})
			waits, err := l.Enqueue(ctx, w)
			if waits {
				err = l.Await(ctx, stop, w)
			}
			first <- err
		}()
		synctest.Wait()
		go close(stop)
		require.ErrorIs(t, <-first, context.Canceled)
		g, err := l.acquire(t.Context(), ask{})
		require.NoError(t, err)
		require.EqualValues(t, time.Second, g.Waited)
		require.Zero(t, l.counts().Waiting)
		l.check()
	})
}

// If the observer panics, the request is not sent, and its charges are given back.
func TestAnObserverThatPanicsLeavesNothingCharged(t *testing.T) {
	for _, waits := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := drive(t, tokenBucket(1, time.Second), tokenBucket(3, time.Second, named("other")))
			if waits {
				require.True(t, l.Now(l.request(ask{}), nil))
				l.onWait = func(limiter.Place, int64, time.Duration) { panic("user") }
			} else {
				l.onGrant = func(limiter.Place, time.Duration) { panic("user") }
			}
			before := l.Limits[1].Single.Meter.Tokens(0)
			require.PanicsWithValue(t, "user", func() { _, _ = l.acquire(t.Context(), ask{}) })
			require.InDelta(t, before, l.Limits[1].Single.Meter.Tokens(0), 0)
			require.Zero(t, l.counts().Waiting)
			l.check()
			l.onWait, l.onGrant = nil, nil
			require.NoError(t, l.wait(t.Context(), ask{}))
		})
	}
}

// Rates are asked for once for each bucket, and a key without a rate gets no bucket.
func TestAKeyWithoutARateGetsNoBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rates := map[string]int64{"a": 5, "b": 1}
		asked := 0
		l := drive(t, tokenBucket(2, time.Second, withRates(func(key string) (int64, time.Duration) {
			asked++
			return rates[key], time.Second
		})))
		for key, n := range rates {
			require.NoError(t, l.wait(t.Context(), ask{Key: key, Cost: n, MaxWait: ptr(time.Duration(0))}))
			_, ok := l.try(ask{Key: key})
			require.False(t, ok, "the bucket holds %d", n)
		}
		require.Equal(t, 2, asked)
		require.ErrorContains(t, l.wait(t.Context(), ask{Key: "c"}), `the rate of "c"`)
		require.Nil(t, l.Limits[0].Bucket("c"))
		rates["a"] = 10
		delete(rates, "b")
		require.ErrorContains(t, l.refresh("bucket"), `the rate of "b"`)
		require.InDelta(t, 10, l.Limits[0].Bucket("a").PerSecond(0), 0)
		require.InDelta(t, 1, l.Limits[0].Bucket("b").PerSecond(0), 0, "it keeps the rate that it had")
	})
}

// What is settled, returned or freed once is not again.
func TestARequestIsSettledOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(10, time.Second))
		left := func() float64 { return l.Limits[0].Single.Meter.Tokens(0) }
		r := l.request(ask{Cost: 4})
		require.True(t, l.Now(r, nil))
		charged, err := l.Settle(r, 0, 1)
		require.NoError(t, err)
		require.EqualValues(t, 4, charged)
		require.InDelta(t, 9, left(), 0)
		_, err = l.Settle(r, 0, 2)
		require.ErrorIs(t, err, limiter.ErrSettled)
		l.Cancel(r)
		require.InDelta(t, 9, left(), 0, "something was done with it")
		l.Report(r, &limiter.Answer{Unsent: true})
		require.InDelta(t, 9, left(), 0, "what was settled is not given back, too")
		require.Less(t, l.Limits[0].Settled.Ratio(), 1.0, "it cost less than it was charged")
		r = l.request(ask{Cost: 4})
		require.True(t, l.Now(r, nil))
		l.Report(r, &limiter.Answer{Unsent: true})
		l.Cancel(r)
		require.InDelta(t, 9, left(), 0)
		_, err = l.Settle(r, 0, 1)
		require.Error(t, err)
	})
}

// The kit finds a function that is called under the lock.
func TestTheKitFindsACallUnderTheLock(t *testing.T) {
	var fails failing
	l := drive(&fails, tokenBucket(1, time.Second))
	l.Lock()
	l.Granted(limiter.Place{}, 0)
	l.Unlock()
	require.True(t, fails.failed)
}

// A failing is a test that notes that it failed.
type failing struct {
	testing.TB
	failed bool
}

func (f *failing) Error(...any) { f.failed = true }

// A rejection says the most that its limit can pay only where the cost is the reason.
func TestARejectionSaysTheMostThatALimitPaysOnlyForACost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(5, time.Second))
		for cost, most := range map[int64]int64{6: 5, 5: 0} {
			w := l.waiter(ask{Cost: cost, MaxWait: ptr(time.Millisecond)})
			l.Limits[0].Single.Meter.Take(0, 0, 1, false)
			_, err := l.Enqueue(t.Context(), w)
			require.Equal(t, most, requireRejection(t, err).Most, "cost %d: %v", cost, err)
		}
	})
}

// A request that may not wait is granted or rejected, except where Enqueue has to decide.
func TestARequestThatMayNotWaitIsDecidedOrLeftToEnqueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(1, time.Second), inFlight(2, named("slots")))
		events := l.record()
		now := func(a ask) (bool, error) { return l.NowOrNever(l.request(a), nil) }
		ok, err := now(ask{})
		require.NoError(t, err)
		require.True(t, ok)
		ok, err = now(ask{})
		require.False(t, ok)
		why := requireRejection(t, err)
		require.Equal(t, bucket.ReasonNoTokens, why.Reason)
		require.Equal(t, time.Second, why.Wait)
		require.Equal(t, []string{"granted  after 0s", "rejected bucket"}, *events)
		waits := l.send(ask{})
		ok, err = now(ask{})
		require.False(t, ok)
		require.NoError(t, err, "the queue decides")
		require.EqualValues(t, 1, l.counts().rejected())
		sleep(time.Second)
		requireGranted(t, waits, time.Second)
		l.check()
	})
}

// A report may settle charges as well, each once, as Settle does.
func TestAReportSettlesCharges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(100, time.Second, named("first")), tokenBucket(100, time.Second, named("second")))
		r := l.request(ask{Cost: 50})
		require.True(t, l.Now(r, nil))
		a := &limiter.Answer{Outcome: aimd.OK}
		require.True(t, a.Settle(1, 20))
		require.False(t, a.Settle(5, 20), "there is no room")
		l.Report(r, a)
		_, ok := a.Settled(0)
		require.False(t, ok)
		charged, ok := a.Settled(1)
		require.True(t, ok)
		require.EqualValues(t, 50, charged)
		cost, ok := l.Charged(r, 1)
		require.True(t, ok)
		require.EqualValues(t, 20, cost)
		require.InDelta(t, .5, l.RefillTime(r), 1e-9, "by the charge that is the largest for its rate")
		_, err := l.Settle(r, 1, 10)
		require.ErrorIs(t, err, limiter.ErrSettled)
		_, err = l.Settle(r, 0, 50)
		require.NoError(t, err)
		require.EqualValues(t, 30, l.limit("second").Counts.Returned)
		again := &limiter.Answer{}
		again.Settle(0, 0)
		l.Report(r, again)
		_, ok = again.Settled(0)
		require.False(t, ok, "it was settled")
		l.check()
	})
}
