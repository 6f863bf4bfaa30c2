package limiter_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/limiter"
)

// waits returns a channel on which the wait of a request for that key is sent, or -1 if it was rejected. The request is in
// the queue when waits returns.
func waits(ctx context.Context, l *throttle.Limiter, key string) <-chan time.Duration {
	out, start := make(chan time.Duration, 1), time.Now()
	go func() {
		if err := l.Wait(ctx, throttle.Ask{Key: key}); err != nil {
			out <- -1
			return
		}
		out <- time.Since(start)
	}()
	synctest.Wait()
	return out
}

func TestReleaseEndsAHoldAtTheInstantItIsCalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second)))
		l.Hold("a", time.Hour)
		l.Hold("b", time.Hour)
		a, second, b := waits(t.Context(), l, "a"), waits(t.Context(), l, "a"), waits(t.Context(), l, "b")
		time.Sleep(time.Minute - 1)
		checkInvariants(t, l)
		require.Empty(t, a)
		sleep(1)
		l.Release("a")
		checkInvariants(t, l)
		synctest.Wait()
		require.ElementsMatch(t, []time.Duration{time.Minute}, []time.Duration{<-a})
		time.Sleep(time.Second - 1)
		require.Empty(t, second, "the release gave no tokens away")
		sleep(1)
		synctest.Wait()
		require.Equal(t, time.Minute+time.Second, <-second)
		require.Empty(t, b, "another key")
		s := l.Limits()[0]
		require.Equal(t, time.Hour, s.HeldUntil.Sub(coreOf(l).Start), "b is still held")
		l.Release("b")
		require.Equal(t, time.Minute+time.Second, <-b)
		require.Zero(t, l.Limits()[0].HeldUntil)
		checkInvariants(t, l)
	})
}

func TestReleaseOfAKeyWithoutABucketEndsItsHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithMaxKeys(1), throttle.WithLimit(throttle.TokenBucket(1, time.Hour)))
		_, ok := l.Try(throttle.Ask{Key: "busy"})
		require.True(t, ok)
		l.Hold("busy", 2*time.Hour) // may not be forgotten: there is room for no other
		l.Hold("new", time.Hour)
		require.Equal(t, 2*time.Hour, l.Limits()[0].HeldUntil.Sub(coreOf(l).Start))
		l.Release("busy")
		require.Equal(t, time.Hour, l.Limits()[0].HeldUntil.Sub(coreOf(l).Start))
		l.Release("new")
		require.Zero(t, l.Limits()[0].HeldUntil)
		time.Sleep(time.Hour) // the bucket of busy is full, and makes room
		_, ok = l.Try(throttle.Ask{Key: "new"})
		require.True(t, ok)
	})
}

func TestHoldAllStopsEveryKeyUntilItsInstant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second), throttle.InFlight(5)))
		_, err := l.Acquire(t.Context(), throttle.Ask{Key: "known"})
		require.NoError(t, err)
		var l2 = limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second)))
		require.True(t, drain(l2, "line") == 1)
		early := waits(t.Context(), l2, "line") // due in a second
		impatient := waits(throttle.ContextWithMaxWait(t.Context(), 2*time.Second), l2, "line")
		synctest.Wait()
		l2.HoldAll(time.Minute)
		checkInvariants(t, l2)
		require.EqualValues(t, -1, <-impatient, "rejected as soon as it is known")
		for _, key := range []string{"", "known", "new"} {
			wait, ok := l2.Try(throttle.Ask{Key: key})
			require.False(t, ok, key)
			require.Equal(t, time.Minute, wait, key)
		}
		time.Sleep(time.Minute - 1)
		require.Empty(t, early)
		_, ok := l2.Try(throttle.Ask{Key: "new"})
		require.False(t, ok)
		sleep(1)
		synctest.Wait()
		require.Equal(t, time.Minute, <-early)
		_, ok = l2.Try(throttle.Ask{Key: "new"})
		require.True(t, ok)
		checkInvariants(t, l2)
		require.EqualValues(t, 1, l2.Stats().Holds.Caller)
		require.EqualValues(t, 1, l2.Limits()[0].Holds)
	})
}

func TestReleaseAllLetsEveryoneGoAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 3 * limiter.PieceSize
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second)))
		var all []<-chan time.Duration
		for i := range keys {
			l.Hold(fmt.Sprint(i), time.Hour)
			all = append(all, waits(t.Context(), l, fmt.Sprint(i)))
		}
		l.HoldAll(2 * time.Hour)
		all = append(all, waits(t.Context(), l, "no bucket"))
		time.Sleep(time.Second)
		checkInvariants(t, l)
		require.Equal(t, keys+1, l.Stats().Waiting)
		l.ReleaseAll()
		for _, waited := range all {
			require.Equal(t, time.Second, <-waited)
		}
		require.Zero(t, l.Limits()[0].HeldUntil)
		checkInvariants(t, l)
	})
}

func TestHoldAllOutlivesARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, next := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second))), limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second)))
		l.HoldAll(time.Minute)
		s := l.Snapshot()
		time.Sleep(20 * time.Second)
		require.NoError(t, next.Restore(s))
		wait, ok := next.Try(throttle.Ask{Key: "x"})
		require.False(t, ok)
		require.Equal(t, 40*time.Second, wait)
	})
}

func TestReleaseServerForgetsWhatAServerSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status, header := 429, http.Header{"Retry-After": {"3600"}}
		base := roundTripper(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: status, Header: header, Body: http.NoBody, Request: r}, nil
		})
		var holds []throttle.HoldEvent
		var refusals []throttle.ServerRefusalEvent
		tr := throttle.Must(throttle.New(base, throttle.WithFailFast(), throttle.WithRejectionError(), throttle.WithKey(throttle.ByHost), throttle.WithHooks(throttle.Hooks{
			OnHold:          func(e throttle.HoldEvent) { holds = append(holds, e) },
			OnServerRefusal: func(e throttle.ServerRefusalEvent) { refusals = append(refusals, e) },
		})))
		l := tr.Limiter()
		send := func() error { _, err := tr.RoundTrip(get(t.Context(), "http://api/")); return err }
		require.NoError(t, send())
		require.ErrorIs(t, send(), throttle.ErrThrottled)
		require.Len(t, holds, 1)
		require.Equal(t, throttle.SourceServer, holds[0].Source)
		require.Equal(t, t.Context(), holds[0].Context)
		require.Equal(t, []throttle.ServerRefusalEvent{{Context: t.Context(), Host: "api", Status: 429, RetryAfter: time.Hour}}, refusals)
		servers := l.Servers()
		require.Len(t, servers, 1)
		require.Equal(t, "api", servers[0].Host)
		require.EqualValues(t, 1, servers[0].Refused)
		require.Greater(t, time.Until(servers[0].HeldUntil), time.Hour-1)

		l.Release("api")
		l.ReleaseAll()
		require.ErrorIs(t, send(), throttle.ErrThrottled, "the word of a server stays")
		status, header = 200, nil
		l.ForgetServer("api")
		checkInvariants(t, l)
		require.NoError(t, send())
		require.Zero(t, l.Limits()[1].HeldUntil)
		require.EqualValues(t, 1, l.Stats().ServerRefused)
		require.EqualValues(t, 1, tr.Stats().Holds.Server)
		require.EqualValues(t, 1, l.Stats().Holds.Server)
	})
}

func TestReleaseAllReachesTheKeyThatIsNoKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second)))
		l.Hold("", time.Hour)
		_, ok := l.Try(throttle.Ask{})
		require.False(t, ok)
		l.ReleaseAll()
		_, ok = l.Try(throttle.Ask{})
		require.True(t, ok)
	})
}

func TestASnapshotTellsHowLongAllAreHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second)))
		sleep(time.Minute)
		l.HoldAll(time.Hour)
		sleep(time.Minute)
		s := l.Snapshot()
		require.Equal(t, 59*time.Minute, stateOf(t, s).Held)
	})
}

func TestAHoldEventTellsHowLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var holds []throttle.HoldEvent
		tr := throttle.Must(throttle.New(rt(func(*http.Request) (*http.Response, error) { return reply(429, "Retry-After", "60") }),
			throttle.WithLimit(throttle.Adaptive(throttle.AIMD{})), throttle.WithHooks(throttle.Hooks{OnHold: func(e throttle.HoldEvent) { holds = append(holds, e) }})))
		sleep(time.Hour)
		_, err := tr.RoundTrip(get(t.Context(), "http://h/"))
		require.NoError(t, err)
		require.NotEmpty(t, holds)
		require.Equal(t, throttle.SourceAdaptive, holds[0].Source)
		require.InDelta(t, time.Minute, holds[0].For, float64(time.Second), "a minute and jitter")
		require.EqualValues(t, 1, tr.Limiter().Stats().Holds.Adaptive)
		require.EqualValues(t, 1, tr.Stats().Holds.Adaptive)
	})
}

// TestAHoldThatEndsMakesRoomForAnother fills the table of holds of keys without a bucket.
func TestAHoldThatEndsMakesRoomForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithMaxKeys(1), throttle.WithLimit(throttle.TokenBucket(10, time.Second)))
		l.Hold("kept", time.Hour)
		for i := range maxHolds {
			l.Hold(strconv.Itoa(i), time.Minute)
		}
		sleep(time.Minute)
		l.Hold("new", time.Minute)
		require.Zero(t, coreOf(l).Limits[0].Release("0"))
		require.NotZero(t, coreOf(l).Limits[0].Release("new"))
	})
}
