package tests

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

func TestSetInFlightNamesWhatIsWrong(t *testing.T) {
	l := limiterWith(t, throttle.WithLimit(throttle.InFlight(3), throttle.TokenBucket(1, time.Second)))
	for want, err := range map[string]error{
		`SetInFlight("in-flight", 0)`:       l.SetInFlight("in-flight", 0),
		`SetInFlight("in-flight", -1)`:      l.SetInFlight("in-flight", -1),
		"kind bucket has no slots":          l.SetInFlight("bucket", 1),
		`no limit named "other"`:            l.SetInFlight("other", 1),
		"kind in-flight has no burst":       l.SetBurst("in-flight", 1),
		"kind in-flight has no rate to set": l.SetRate("in-flight", 1, time.Second),
	} {
		require.ErrorContains(t, err, want)
	}
	require.NoError(t, l.SetInFlight("in-flight", math.MaxInt64))
	for b := range l.Buckets() {
		if b.Limit == "in-flight" {
			require.Equal(t, float64(meter.MaxCount), b.Tokens)
		}
	}
}

// The burst is checked with the rate of the moment, because the store gets both.
func TestTheRateAndTheBurstOfASharedLimitChangeAtTheSameTime(t *testing.T) {
	l := limiterWith(t, throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Shared(new(store.Memory)))))
	var all sync.WaitGroup
	all.Go(func() { assert.NoError(t, l.SetRate("bucket", 20, time.Second)) })
	all.Go(func() { assert.NoError(t, l.SetBurst("bucket", 5)) })
	all.Wait()
	require.ErrorContains(t, l.SetBurst("bucket", math.MaxInt64), `throttle: SetBurst("bucket", 9223372036854775807): `)
	stats := l.Limits()[0]
	require.Equal(t, 20.0, stats.Rate)
	require.Equal(t, 5.0, stats.Capacity)
}

func TestAnInvalidRateChangesNothingAndIsNamed(t *testing.T) {
	n := map[string]int64{"a": 3, "b": 3, "c": 3}
	l := limiterWith(t, throttle.WithLimit(throttle.SlidingWindow(5, time.Hour, throttle.Name("x"), throttle.RateFor(func(key string) (int64, time.Duration) {
		return n[key], time.Duration(max(0, min(1, n[key]))) * time.Hour
	}))))
	for _, key := range []string{"a", "b", "c"} {
		_, ok := l.Try(throttle.Ask{Key: key})
		require.True(t, ok)
	}
	n["a"], n["b"], n["c"] = 4, -1, 6
	err := l.Refresh("x")
	require.EqualError(t, err, `throttle: Refresh("x"): RateFor("b") = -1, 0s (0, 0 keeps the limit's rate): n of -1 is not positive`+"\n"+
		`throttle: Refresh("x"): RateFor("b") = -1, 0s (0, 0 keeps the limit's rate): a period of 0s is not positive`)
	require.Equal(t, 3, drain(l, "a"))
	require.Equal(t, 2, drain(l, "b"))
	require.Equal(t, 5, drain(l, "c"))

	require.ErrorContains(t, l.Refresh("other"), `no limit named "other"`)
	require.ErrorContains(t, limiterWith(t, throttle.WithLimit(throttle.Pace(1, time.Second))).Refresh("pace"), `Refresh("pace"): the limit has no RateFor`)
}

func TestRefreshNamesAHundredKeysAtMost(t *testing.T) {
	n := int64(5)
	l := limiterWith(t, throttle.WithLimit(throttle.SlidingWindow(5, time.Hour, throttle.RateFor(func(string) (int64, time.Duration) { return n, time.Second }))))
	for i := range 700 {
		l.Try(throttle.Ask{Key: fmt.Sprint(i)})
	}
	n = 0
	err := l.Refresh("sliding-window")
	require.ErrorContains(t, err, "and 600 more keys")
	require.Len(t, err.(interface{ Unwrap() []error }).Unwrap(), 101)
}
