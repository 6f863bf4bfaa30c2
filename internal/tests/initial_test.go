package tests

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// With Initial, the bucket of a key holds what it would hold if it had never been forgotten.
func TestAKeyThatRestsKeepsItsBurst(t *testing.T) {
	for name, c := range map[string]struct {
		change func(l *throttle.Limiter) error // after a minute
		tokens map[time.Duration]float64       // of a key, by the time since the Limiter was made
	}{
		"no change":    {nil, map[time.Duration]float64{0: 2, time.Second: 3, 8 * time.Second: 10, time.Hour: 10}},
		"a lower rate": {func(l *throttle.Limiter) error { return l.SetRate("bucket", 1, time.Hour) }, map[time.Duration]float64{2 * time.Minute: 10, time.Hour: 10}},
		"a larger burst": {func(l *throttle.Limiter) error { return l.SetBurst("bucket", 1000) }, map[time.Duration]float64{
			61 * time.Second: 11, 10 * time.Minute: 550, time.Hour: 1000}},
	} {
		t.Run(name, func(t *testing.T) {
			for after, tokens := range c.tokens {
				synctest.Test(t, func(t *testing.T) {
					l := limiterFor(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Burst(10), throttle.Initial(2), throttle.Key(throttle.ByHost))))
					began := time.Now()
					if after > 0 {
						_, ok := l.Try(throttle.Ask{Key: "used"})
						require.True(t, ok)
					}
					if c.change != nil {
						time.Sleep(time.Minute)
						require.NoError(t, c.change(l))
					}
					time.Sleep(after - time.Since(began))
					wait, ok := l.Try(throttle.Ask{Key: "new", Cost: int64(tokens)})
					require.True(t, ok, "after %v: %v", after, wait)
					b, ok := l.Bucket("bucket", "new")
					require.True(t, ok)
					require.Zero(t, b.Tokens)
					if after >= time.Minute {
						_, ok = l.Try(throttle.Ask{Key: "used", Cost: int64(tokens)})
						require.True(t, ok, "it has rested")
					}
				})
			}
		})
	}
}

func limiterFor(t *testing.T, opts ...throttle.Option) *throttle.Limiter {
	l, err := throttle.NewLimiter(opts...)
	require.NoError(t, err)
	return l
}

// Nothing would return a slot, but an Ask may cost none.
func TestWaitAndTryNeedACostOfZeroInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterFor(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second), throttle.InFlight(1, throttle.Name("slots"))))
		require.ErrorContains(t, l.Wait(t.Context(), throttle.Ask{}), "a cost of 0")
		wait, ok := l.Try(throttle.Ask{})
		require.False(t, ok)
		require.EqualValues(t, int64(math.MaxInt64), wait)
		slotless := throttle.Ask{Costs: map[string]int64{"slots": 0}}
		_, ok = l.Try(slotless)
		require.True(t, ok)
		began := time.Now()
		require.NoError(t, l.Wait(t.Context(), slotless))
		require.Equal(t, time.Second, time.Since(began))
		require.NoError(t, l.Wait(throttle.ContextWithCost(t.Context(), 0, "slots"), throttle.Ask{}))
		require.Equal(t, 2*time.Second, time.Since(began))
		b, _ := l.Bucket("slots", "")
		require.Zero(t, b.InFlight)
	})
}

func TestLearnedLimitsWithoutAMaxHaveNoCapacity(t *testing.T) {
	for limit, capacity := range map[*throttle.Limit]float64{
		ptr(throttle.AdaptiveInFlight(throttle.Concurrency{})):         0,
		ptr(throttle.AdaptiveInFlight(throttle.Concurrency{Max: 100})): 100,
		ptr(throttle.Adaptive(throttle.AIMD{})):                        0,
		ptr(throttle.Adaptive(throttle.AIMD{Max: 100})):                0,
	} {
		l := limiterFor(t, throttle.WithLimit(*limit))
		require.Equal(t, capacity, l.Limits()[0].Capacity)
		for b := range l.Buckets() {
			require.Equal(t, capacity, b.Capacity)
		}
	}
}
