package limiter_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/quota"
)

func TestAKeyWithARequestInFlightIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.Adaptive(throttle.AIMD{})), throttle.WithMaxKeys(2))
		g, err := l.Acquire(t.Context(), throttle.Ask{Key: "slow", Cost: 1})
		require.NoError(t, err)
		for i := range 30 { // swept, and evicted
			sleep(time.Second)
			_, ok := l.Try(throttle.Ask{Key: strconv.Itoa(i)})
			require.True(t, ok)
		}
		report(l, g, &limiter.Answer{Outcome: aimd.Throttled, Hints: waitHint(time.Minute)})
		wait, ok := l.Try(throttle.Ask{Key: "slow"})
		require.False(t, ok)
		require.GreaterOrEqual(t, wait, time.Minute)
		sleep(2 * time.Hour)
		require.Zero(t, l.Stats().Buckets)
		checkInvariants(t, l)
	})
}

// The sweeper's timer is set for the instant at which the first bucket is full.
func TestAKeyIsForgottenWhenItsBucketIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, 10*time.Second)))
		sleep(time.Minute)
		_, ok := l.Try(throttle.Ask{Key: "k"})
		require.True(t, ok)
		sleep(10*time.Second - 1)
		require.Equal(t, 1, l.Stats().Buckets)
		sleep(1)
		require.Zero(t, l.Stats().Buckets)
	})
}

// waitHint is what a server reported that wants to be left alone for d.
func waitHint(d time.Duration) *quota.Hints {
	return &quota.Hints{Limited: true, Wait: d}
}

func TestAServerThatHangsGetsNoMoreThanMayBeInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.Adaptive(throttle.AIMD{})))
		granted := 0
		for range 600 {
			if _, err := l.Acquire(t.Context(), throttle.Ask{Key: "k", Cost: 1, MaxWait: new(time.Duration(0))}); err == nil {
				granted++
			}
			sleep(time.Second)
		}
		require.LessOrEqual(t, granted, 10, "twice what the rate needs at a latency of half a second")
	})
}

// A client that is told nothing but 429s backs off as long as it would if its bucket were never forgotten.
func TestRefusalsCountAsLongAsTheyMatter(t *testing.T) {
	sent := func(every time.Duration) (n int) {
		synctest.Test(t, func(t *testing.T) {
			tr := throttle.Must(throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
				n++
				return reply(429)
			}), throttle.WithFailFast()))
			for range 20 * time.Minute / every {
				_, _ = tr.RoundTrip(get(t.Context(), "http://h/"))
				sleep(every)
			}
			sleep(time.Hour)
			require.Zero(t, gateCount(tr.Limiter()))
		})
		return n
	}
	for _, every := range []time.Duration{time.Second / 4, 7 * time.Second, 11 * time.Second} {
		require.LessOrEqual(t, sent(every), 30, "%v", every)
	}
}

func TestAServerThatIsSilentIsAskedNoMoreForBeingForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.Adaptive(throttle.AIMD{})))
		asked := 0
		for range 10 * 60 * 4 {
			if g, err := l.Acquire(t.Context(), throttle.Ask{Key: "dead", Cost: 1, MaxWait: new(time.Duration(0))}); err == nil {
				asked++
				time.AfterFunc(2*time.Second, func() { g.Report(throttle.OutcomeUnavailable) })
			}
			sleep(time.Second / 4)
		}
		require.LessOrEqual(t, asked, 300)
	})
}

func TestAnIdleKeyAmongManyBusyOnesMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 3000
		l := limiterOf(t, throttle.WithLimit(throttle.InFlight(1, throttle.Name("slot")), throttle.TokenBucket(10, time.Hour)), throttle.WithMaxKeys(n))
		var busy, free []*throttle.Grant
		for i := range n / 2 { // two buckets each; the first half is busy
			g, err := l.Acquire(t.Context(), throttle.Ask{Key: strconv.Itoa(i), Cost: 1})
			require.NoError(t, err)
			if i%100 > 0 {
				busy = append(busy, g)
			} else {
				free = append(free, g)
			}
		}
		require.Equal(t, n, l.Stats().Buckets)
		for _, g := range free {
			g.Done()
		}
		for i := range n/2 - len(busy) { // as many keys without a slot as there are free ones
			require.NotNil(t, send(t, l, throttle.Ask{Key: fmt.Sprint("new", i), Cost: 1}).grant, "key %d", i)
		}
		checkInvariants(t, l)
		for _, g := range busy {
			g.Done()
		}
		for i := range n / 2 {
			require.NotNil(t, send(t, l, throttle.Ask{Key: fmt.Sprint("newer", i), Costs: map[string]int64{"slot": 0}, Cost: 1}).grant, "key %d", i)
		}
		checkInvariants(t, l)
	})
}

func TestAHoldOfANewKeyIsKeptWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.Pace(1, time.Second)), throttle.WithMaxKeys(1))
		_, ok := l.Try(throttle.Ask{Key: "debt", Cost: 10})
		require.True(t, ok)
		l.Hold("new", time.Minute)
		sleep(12 * time.Second)
		wait, ok := l.Try(throttle.Ask{Key: "new"})
		require.False(t, ok, "its bucket is made now")
		require.Equal(t, 48*time.Second, wait)
		sleep(wait)
		_, ok = l.Try(throttle.Ask{Key: "new"})
		require.True(t, ok)
		require.Zero(t, coreOf(l).Limits[0].Release("new"), "the bucket has the hold")
	})
}

const maxHolds = 1024 // of keys without a bucket, in a limit

func TestHoldsThatFindNoRoomHoldMoreAndAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		l := limiterOf(t, throttle.WithLimit(throttle.Pace(1, time.Second)), throttle.WithMaxKeys(1), throttle.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		_, ok := l.Try(throttle.Ask{Key: "debt", Cost: 10})
		require.True(t, ok)
		for i := range maxHolds {
			l.Hold(strconv.Itoa(i), time.Hour)
		}
		require.NotContains(t, log.String(), "no room")
		l.Hold("one more", time.Minute)
		require.Contains(t, log.String(), "no room")
		require.Zero(t, coreOf(l).Limits[0].Release("one more"))
		sleep(12 * time.Second)
		wait, ok := l.Try(throttle.Ask{Key: "another"})
		require.False(t, ok)
		require.Equal(t, 48*time.Second, wait)
		sleep(time.Hour)
		l.Hold("another", time.Minute)
		_, ok = l.Try(throttle.Ask{Key: "one more"})
		require.False(t, ok, "the bucket that is held can't be forgotten")
		l.Hold("one more", 2*time.Minute)
		require.Zero(t, coreOf(l).Limits[0].Release("0"), "the holds that have ended have made room")
		sleep(time.Minute)
		wait, _ = l.Try(throttle.Ask{Key: "one more"})
		require.Equal(t, time.Minute, wait)
	})
}

// A debt that is told after its bucket was forgotten is owed by the next one.
func TestADebtOfAForgottenBucketIsOwedWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.Pace(1, time.Second)), throttle.WithMaxKeys(1))
		g, err := l.Acquire(t.Context(), throttle.Ask{Key: "k", Cost: 1})
		require.NoError(t, err)
		sleep(3 * time.Second)
		_, ok := l.Try(throttle.Ask{Key: "other", Cost: 10})
		require.True(t, ok)
		require.NoError(t, g.Settle("pace", 31))
		sleep(11 * time.Second)
		wait, ok := l.Try(throttle.Ask{Key: "k"})
		require.False(t, ok)
		require.Equal(t, 19*time.Second, wait)
	})
}

func TestManyHostsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		heap := func() int64 {
			runtime.GC()
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		before := heap()
		tr := throttle.Must(throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
			return reply(429, "Retry-After", "1")
		}), throttle.WithLimit(throttle.TokenBucket(10, time.Second)), throttle.WithKey(throttle.ByHost)))
		n := 50_000 // they take about 50 MB; 64 MB are the most
		if testing.Short() {
			n = 10_000
		}
		for i := range n {
			resp, err := tr.RoundTrip(get(t.Context(), fmt.Sprintf("http://host-%d/", i)))
			require.NoError(t, err)
			_, _ = io.Copy(io.Discard, resp.Body)
		}
		require.Equal(t, n, gateCount(tr.Limiter()))
		sleep(11 * time.Minute)
		require.Zero(t, gateCount(tr.Limiter()))
		require.Less(t, heap()-before, int64(4<<20), "memory is kept for hosts that are not")
		checkInvariants(t, tr.Limiter())
		runtime.KeepAlive(tr)
	})
}

// A request has the gate of the one before, but that gate was forgotten in between.
func TestAForgottenGateIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := throttle.Must(throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
			return reply(200, "X-RateLimit-Limit", "100", "X-RateLimit-Remaining", "99", "X-RateLimit-Reset", "1")
		}), throttle.WithLimit(throttle.TokenBucket(10, time.Second))))
		send := func() {
			_, err := tr.RoundTrip(get(t.Context(), "http://host/"))
			require.NoError(t, err)
			require.Equal(t, 1, gateCount(tr.Limiter()))
			checkInvariants(t, tr.Limiter())
		}
		send()
		send()
		sleep(time.Hour)
		require.Zero(t, gateCount(tr.Limiter()))
		checkInvariants(t, tr.Limiter())
		send()
	})
}

// Buckets that are due are forgotten a thousand at a time, with a pause of a millisecond for others, and no more often than every
// second if there is no such backlog.
func TestForgettingLeavesTheLockToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1000, time.Millisecond)))
		buckets := func() int {
			synctest.Wait()
			return l.Stats().Buckets
		}
		l.Try(throttle.Ask{Key: "first"})
		require.Equal(t, int64(time.Second), *coreOf(l).SweepAt())
		for i := range 2*limiter.SweepMost + 9 {
			l.Try(throttle.Ask{Key: strconv.Itoa(i)})
		}
		time.Sleep(time.Second)
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
		l := limiterOf(t, throttle.WithLimit(throttle.InFlight(1)), throttle.WithMaxKeys(busy+1))
		for i := range busy {
			_, err := l.Acquire(t.Context(), throttle.Ask{Key: strconv.Itoa(i)})
			require.NoError(t, err)
		}
		time.Sleep(time.Millisecond)
		g, err := l.Acquire(t.Context(), throttle.Ask{Key: "idle"})
		require.NoError(t, err)
		g.Done()
		_, err = l.Acquire(t.Context(), throttle.Ask{Key: "new"})
		require.NoError(t, err)
		_, err = l.Acquire(t.Context(), throttle.Ask{Key: "one too many"})
		r, ok := errors.AsType[*throttle.Rejection](err)
		require.True(t, ok)
		require.Equal(t, throttle.ReasonKeys, r.Reason)
	})
}

// TestDebtOfAForgottenBucketIsKept settles a request after its bucket was full again and forgotten.
func TestDebtOfAForgottenBucketIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithMaxKeys(1), throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.RateFor(func(string) (int64, time.Duration) { return 10, time.Second }))))
		require.NoError(t, l.Refresh("bucket"))
		g := send(t, l, throttle.Ask{Key: "k"}).grant
		sleep(time.Minute)
		require.Zero(t, l.Stats().Buckets)
		require.NoError(t, g.Settle("bucket", 6))
		require.Equal(t, 1, l.Stats().Buckets)
		refused := requireRefused(t, send(t, l, throttle.Ask{Key: "k", Cost: 10, MaxWait: new(time.Duration(0))}), time.Minute, throttle.ReasonNoTokens)
		require.Equal(t, 500*time.Millisecond, refused.Wait)
	})
}

// TestDebtOfAForgottenBucketTakesNoRoom has another bucket in its place that may not be forgotten.
func TestDebtOfAForgottenBucketTakesNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithMaxKeys(1), throttle.WithLimit(throttle.TokenBucket(10, time.Second)))
		g := send(t, l, throttle.Ask{Key: "k"}).grant
		sleep(time.Minute)
		l.Hold("other", time.Hour)
		require.NoError(t, g.Settle("bucket", 6))
		require.Equal(t, 1, l.Stats().Buckets)
		checkInvariants(t, l)
	})
}

// TestTheBucketThatIsFullFirstMakesRoom uses the older key more, after it was last looked at.
func TestTheBucketThatIsFullFirstMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithMaxKeys(2), throttle.WithLimit(throttle.TokenBucket(10, 10*time.Second)))
		for _, use := range []struct {
			key  string
			cost int64
		}{{"older", 1}, {"newer", 2}, {"older", 5}, {"third", 1}} {
			_, ok := l.Try(throttle.Ask{Key: use.key, Cost: use.cost})
			require.True(t, ok)
		}
		require.NotNil(t, coreOf(l).Limits[0].Bucket("older"))
		require.Nil(t, coreOf(l).Limits[0].Bucket("newer"))
	})
}
