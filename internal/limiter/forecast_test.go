package limiter_test

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
)

// With one limit, requests are sent when the forecast says, behind those that wait already.
func TestRequestsAreSentAsForecast(t *testing.T) {
	const n = 10 // so that each tenth is a request
	for name, rule := range map[string]rule{
		"tokens": tokenBucket(3, time.Second, withBurst(5)), "pace": pace(7, time.Second), "sliding window": slidingWindow(4, time.Second),
		"fixed window": fixedWindow(4, time.Minute), "initial tokens": tokenBucket(3, time.Second, withInitial(1)),
	} {
		for seed := range seeds(20) {
			within(t, name, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 1))
				l := drive(t, rule)
				for range random.IntN(5) {
					l.send(ask{Cost: 1 + random.Int64N(3)})
				}
				time.Sleep(time.Duration(random.Int64N(int64(time.Second))))
				a := ask{Cost: 1 + random.Int64N(3)}
				before := l.counts()
				f, _, err := l.Forecast(l.request(a), l.waiter(a), n)
				require.NoError(t, err)
				require.Equal(t, before, l.counts(), "a forecast changes nothing")
				require.False(t, f.Least)
				require.EqualValues(t, l.now(), f.From)
				all := l.sendMany(n, a)
				sleep(time.Hour)
				for i, r := range all {
					requireGranted(t, r, time.Duration(f.Tenths[i]))
				}
			})
		}
	}
}

// With n = 0 the forecast is of those that wait, and where responses decide it is a bound.
func TestAForecastOfTheQueueAndOneThatIsABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, pace(1, time.Second, named("pace")), inFlight(100, named("slots")))
		last := l.sendMany(4, ask{Key: "a"})[3]
		f, _, err := l.Forecast(l.request(ask{Key: "a"}), l.waiter(ask{Key: "a"}), 0)
		require.NoError(t, err)
		require.True(t, f.Least, "a response may come late")
		f, _, err = l.Forecast(l.request(ask{Key: "a"}), l.waiter(ask{Key: "a"}), 2)
		require.NoError(t, err)
		require.Equal(t, "pace", f.Limit.Name)
		require.Equal(t, "a", f.Key)
		sleep(3 * time.Second)
		requireGranted(t, last, 3*time.Second)
		require.EqualValues(t, 5*time.Second, f.Tenths[9])
	})
}

// If no request waits, the forecast of those that wait is now, although it is not known when a slot is free.
func TestAForecastOfAnEmptyQueueIsNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, pace(1, time.Second, named("pace")), inFlight(1, named("slots")))
		l.send(ask{})
		sleep(time.Second)
		f, _, err := l.Forecast(l.request(ask{}), l.waiter(ask{}), 0)
		require.NoError(t, err)
		require.EqualValues(t, time.Second, f.Tenths[9])
		require.Nil(t, f.Limit)
		l.send(ask{})
		f, _, err = l.Forecast(l.request(ask{}), l.waiter(ask{}), 0)
		require.NoError(t, err)
		require.Equal(t, meter.Never, f.Tenths[9])
		require.Equal(t, "slots", f.Limit.Name)
	})
}

// A request with a key that has no bucket yet is behind none of those that wait without a key.
func TestAForecastOfANewKeyIsNotOfRequestsWithoutAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, pace(1, time.Second, named("pace")))
		l.sendMany(4, ask{})
		for key, want := range map[string]time.Duration{"": 3 * time.Second, "new": 0} {
			f, _, err := l.Forecast(l.request(ask{Key: key}), l.waiter(ask{Key: key}), 0)
			require.NoError(t, err)
			require.EqualValues(t, want, f.Tenths[9], "%q", key)
		}
	})
}

// A waiter is due when it is granted then, and says what it waits for.
func TestAWaiterSaysWhatItWaitsForAndUntilWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(1, time.Second, named("fast")), tokenBucket(1, time.Minute, named("slow")))
		requireGranted(t, l.send(ask{Key: "a"}), 0)
		sleep(time.Second)
		w := l.waiter(ask{Key: "a"})
		require.True(t, l.enqueue(t.Context(), w))
		at, _, since, due, ok := l.WaitsFor(w)
		require.True(t, ok)
		require.Equal(t, "slow", at.Limit)
		require.Equal(t, "a", at.Key)
		require.Equal(t, meter.Instant(time.Second), since)
		require.Equal(t, meter.Instant(time.Minute), due)
		require.Equal(t, due, dueOf(l, w))
		l.Hold("a", int64(time.Hour))
		require.Equal(t, meter.Instant(time.Hour+time.Second), dueOf(l, w), "a hold moves it")
		l.Release("a")
		sleep(time.Hour)
		require.True(t, isGranted(w))
		require.Equal(t, due, dueOf(l, w), "when it was granted")
		_, _, _, _, ok = l.WaitsFor(w)
		require.False(t, ok)
	})
}

// A forecast needs the rate of a key that has no bucket yet.
func TestAForecastAsksForTheRateOfANewKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, slidingWindow(1, time.Hour, withRates(func(key string) (int64, time.Duration) {
			if key == "none" {
				return -1, time.Second
			}
			return 5, time.Second
		})))
		of := func(key string) (meter.Instant, error) {
			f, _, err := l.Forecast(l.request(ask{Key: key}), l.waiter(ask{Key: key}), 10)
			return f.Tenths[9], err
		}
		at, err := of("new")
		require.NoError(t, err)
		require.Equal(t, meter.Instant(time.Second), at)
		_, err = of("none")
		require.ErrorContains(t, err, `the rate of "none"`)
		require.Zero(t, l.counts().Buckets)
		require.Equal(t, bucket.Counts{}, l.counts().Counts)
	})
}
