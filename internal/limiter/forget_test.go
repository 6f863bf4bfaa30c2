package limiter_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/quota"
)

func TestAKeyWithARequestInFlightIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, adaptive(aimd.Config{}), maxKeys(2))
		g, err := l.acquire(t.Context(), ask{Key: "slow", Cost: 1})
		require.NoError(t, err)
		for i := range 30 { // swept, and evicted
			sleep(time.Second)
			_, ok := l.try(ask{Key: strconv.Itoa(i)})
			require.True(t, ok)
		}
		g.answer(&limiter.Answer{Outcome: aimd.Throttled})
		require.True(t, slices.ContainsFunc(l.views(), func(v view) bool { return v.Key == "slow" && v.Rate < 10 }))
		sleep(2 * time.Hour)
		require.Zero(t, l.counts().Buckets)
		l.check()
	})
}

// The sweeper's timer is set for the instant at which the first bucket is full.
func TestAKeyIsForgottenWhenItsBucketIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(1, 10*time.Second))
		sleep(time.Minute)
		_, ok := l.try(ask{Key: "k"})
		require.True(t, ok)
		sleep(10*time.Second - 1)
		require.Equal(t, 1, l.counts().Buckets)
		sleep(1)
		require.Zero(t, l.counts().Buckets)
	})
}

// A key of slots is full as soon as its last request has ended. The sweeper looks at it within a second.
func TestAKeyOfSlotsIsForgottenASecondAfterItsLastRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, inFlight(2))
		g, err := l.acquire(t.Context(), ask{Key: "k", Cost: 1})
		require.NoError(t, err)
		sleep(time.Minute)
		g.done()
		sleep(time.Second - 1)
		require.Equal(t, 1, l.counts().Buckets)
		sleep(1)
		require.Zero(t, l.counts().Buckets)
	})
}

// waitHint is what a server reported that wants to be left alone for d.
func waitHint(d time.Duration) *quota.Hints {
	return &quota.Hints{Limited: true, Wait: d}
}

func TestAServerThatHangsGetsNoMoreThanMayBeInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, adaptive(aimd.Config{}))
		granted := 0
		for range 600 {
			if _, err := l.acquire(t.Context(), ask{Key: "k", Cost: 1, MaxWait: ptr(time.Duration(0))}); err == nil {
				granted++
			}
			sleep(time.Second)
		}
		require.LessOrEqual(t, granted, 10, "twice what the rate needs at a latency of half a second")
	})
}

func TestAServerThatDoesNotRespondIsAskedSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, adaptive(aimd.Config{}))
		asked := 0
		for range 10 * 60 * 4 {
			if g, err := l.acquire(t.Context(), ask{Key: "dead", Cost: 1, MaxWait: ptr(time.Duration(0))}); err == nil {
				asked++
				time.AfterFunc(2*time.Second, func() { g.report(aimd.Unavailable) })
			}
			sleep(time.Second / 4)
		}
		require.LessOrEqual(t, asked, 300)
	})
}

func TestAnIdleKeyAmongManyBusyOnesMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 3000
		l := drive(t, inFlight(1, named("slot")), tokenBucket(10, time.Hour), maxKeys(n))
		var busy, free []*grant
		for i := range n / 2 { // two buckets each; the first half is busy
			g, err := l.acquire(t.Context(), ask{Key: strconv.Itoa(i), Cost: 1})
			require.NoError(t, err)
			if i%100 > 0 {
				busy = append(busy, g)
			} else {
				free = append(free, g)
			}
		}
		require.Equal(t, n, l.counts().Buckets)
		for _, g := range free {
			g.done()
		}
		for i := range n/2 - len(busy) { // as many keys without a slot as there are free ones
			require.NotNil(t, l.send(ask{Key: fmt.Sprint("new", i), Cost: 1}).grant, "key %d", i)
		}
		l.check()
		for _, g := range busy {
			g.done()
		}
		for i := range n / 2 {
			require.NotNil(t, l.send(ask{Key: fmt.Sprint("newer", i), Costs: map[string]int64{"slot": 0}, Cost: 1}).grant, "key %d", i)
		}
		l.check()
	})
}

func TestAHoldOfANewKeyIsKeptWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, pace(1, time.Second), maxKeys(1))
		_, ok := l.try(ask{Key: "debt", Cost: 10})
		require.True(t, ok)
		l.hold("new", time.Minute)
		sleep(12 * time.Second)
		wait, ok := l.try(ask{Key: "new"})
		require.False(t, ok, "its bucket is made now")
		require.Equal(t, 48*time.Second, wait)
		sleep(wait)
		_, ok = l.try(ask{Key: "new"})
		require.True(t, ok)
		require.Zero(t, l.Limits[0].Release("new"), "the bucket has the hold")
	})
}

const maxHolds = 1024 // of keys without a bucket, in a limit

func TestHoldsThatFindNoRoomHoldMoreAndAreReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, pace(1, time.Second), maxKeys(1))
		_, ok := l.try(ask{Key: "debt", Cost: 10})
		require.True(t, ok)
		for i := range maxHolds {
			require.Empty(t, l.hold(strconv.Itoa(i), time.Hour))
		}
		require.Equal(t, l.Limits, l.hold("one more", time.Minute))
		require.Zero(t, l.Limits[0].Release("one more"))
		sleep(12 * time.Second)
		wait, ok := l.try(ask{Key: "another"})
		require.False(t, ok)
		require.Equal(t, 48*time.Second, wait)
		sleep(time.Hour)
		l.hold("another", time.Minute)
		_, ok = l.try(ask{Key: "one more"})
		require.False(t, ok, "the bucket that is held can't be forgotten")
		l.hold("one more", 2*time.Minute)
		require.Zero(t, l.Limits[0].Release("0"), "the holds that have ended have made room")
		sleep(time.Minute)
		wait, _ = l.try(ask{Key: "one more"})
		require.Equal(t, time.Minute, wait)
	})
}

// If a bucket was forgotten, the next one of the key has the debt.
func TestADebtOfAForgottenBucketIsOwedWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, pace(1, time.Second), maxKeys(1))
		g, err := l.acquire(t.Context(), ask{Key: "k", Cost: 1})
		require.NoError(t, err)
		sleep(3 * time.Second)
		_, ok := l.try(ask{Key: "other", Cost: 10})
		require.True(t, ok)
		require.NoError(t, g.settle("pace", 31))
		sleep(11 * time.Second)
		wait, ok := l.try(ask{Key: "k"})
		require.False(t, ok)
		require.Equal(t, 19*time.Second, wait)
	})
}

// Buckets that are due are forgotten a thousand at a time, with a pause of a millisecond for others, and no more often than every
// second if there is no such backlog.
func TestForgettingLeavesTheLockToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(1000, time.Millisecond))
		buckets := func() int {
			synctest.Wait()
			return l.counts().Buckets
		}
		l.try(ask{Key: "first"})
		for i := range 2*limiter.SweepMost + 9 {
			l.try(ask{Key: strconv.Itoa(i)})
		}
		time.Sleep(time.Second - 1)
		require.Equal(t, 2*limiter.SweepMost+10, buckets())
		sleep(1)
		require.Equal(t, limiter.SweepMost+10, buckets())
		time.Sleep(time.Millisecond - 1)
		require.Equal(t, limiter.SweepMost+10, buckets())
		sleep(1)
		require.Equal(t, 10, buckets())
		time.Sleep(time.Millisecond)
		require.Zero(t, buckets())
	})
}

// The longest search for a bucket that may make room goes on beyond what is looked at under one lock.
func TestAKeyMakesRoomBehindThousandsThatAreBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const busy = 3 * limiter.SweepMost
		l := drive(t, inFlight(1), maxKeys(busy+1))
		for i := range busy {
			_, err := l.acquire(t.Context(), ask{Key: strconv.Itoa(i)})
			require.NoError(t, err)
		}
		time.Sleep(time.Millisecond)
		g, err := l.acquire(t.Context(), ask{Key: "idle"})
		require.NoError(t, err)
		g.done()
		_, err = l.acquire(t.Context(), ask{Key: "new"})
		require.NoError(t, err)
		_, err = l.acquire(t.Context(), ask{Key: "one too many"})
		var r *rejection
		ok := errors.As(err, &r)
		require.True(t, ok)
		require.Equal(t, bucket.ReasonKeys, r.Reason)
	})
}

// A request is settled after its bucket was full again, and forgotten.
func TestDebtOfAForgottenBucketIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, maxKeys(1), tokenBucket(1, time.Second, withRates(func(string) (int64, time.Duration) { return 10, time.Second })))
		require.NoError(t, l.refresh("bucket"))
		g := l.send(ask{Key: "k"}).grant
		sleep(time.Minute)
		require.Zero(t, l.counts().Buckets)
		require.NoError(t, g.settle("bucket", 6))
		require.Equal(t, 1, l.counts().Buckets)
		rejected := requireRejected(t, l.send(ask{Key: "k", Cost: 10, MaxWait: ptr(time.Duration(0))}), time.Minute, bucket.ReasonNoTokens)
		require.Equal(t, 500*time.Millisecond, rejected.Wait)
	})
}

// Another bucket, which may not be forgotten, has taken its place.
func TestDebtOfAForgottenBucketTakesNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, maxKeys(1), tokenBucket(10, time.Second))
		g := l.send(ask{Key: "k"}).grant
		sleep(time.Minute)
		l.hold("other", time.Hour)
		require.NoError(t, g.settle("bucket", 6))
		require.Equal(t, 1, l.counts().Buckets)
		l.check()
	})
}

// The older key is used more, after its bucket was looked at.
func TestTheBucketThatIsFullFirstMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, maxKeys(2), tokenBucket(10, 10*time.Second))
		for _, use := range []struct {
			key  string
			cost int64
		}{{"older", 1}, {"newer", 2}, {"older", 5}, {"third", 1}} {
			_, ok := l.try(ask{Key: use.key, Cost: use.cost})
			require.True(t, ok)
		}
		require.NotNil(t, l.Limits[0].Bucket("older"))
		require.Nil(t, l.Limits[0].Bucket("newer"))
	})
}
