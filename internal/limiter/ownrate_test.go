package limiter_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/limiter"
)

// A limit of the caller's own that has a rate spares requests the even spread of a server's quota.
func TestOwnRateIsThatOfTheSlowestLimit(t *testing.T) {
	for name, c := range map[string]struct {
		limits   []throttle.Limit
		own      float64 // in requests of cost 2
		adaptive bool
	}{
		"bucket":          {[]throttle.Limit{throttle.TokenBucket(10, time.Second)}, 5, false},
		"pace":            {[]throttle.Limit{throttle.Pace(10, time.Second)}, 5, false},
		"sliding window":  {[]throttle.Limit{throttle.SlidingWindow(10, time.Second)}, 5, false},
		"fixed window":    {[]throttle.Limit{throttle.FixedWindow(10, time.Second)}, 5, false},
		"calendar window": {[]throttle.Limit{throttle.CalendarWindow(864_000, throttle.CalendarDay, time.UTC)}, 5, false},
		"slots":           {[]throttle.Limit{throttle.InFlight(10)}, 0, false},
		"adaptive":        {[]throttle.Limit{throttle.Adaptive(throttle.AIMD{})}, 0, true},
		"several": {[]throttle.Limit{
			throttle.Adaptive(throttle.AIMD{}), throttle.TokenBucket(10, time.Second), throttle.Pace(4, time.Second), throttle.InFlight(10), throttle.CalendarWindow(864_000, throttle.CalendarDay, time.UTC),
		}, 2, true},
		"none": {nil, 0, false},
	} {
		l := limiterOf(t, throttle.WithLimit(c.limits...))
		g, err := l.Acquire(t.Context(), throttle.Ask{Cost: 2})
		require.NoError(t, err, name)
		own := limiter.OwnOf(requestOf(g).Charges())
		require.InDelta(t, c.own, own.Rate, 1e-9, name)
		require.Equal(t, c.adaptive, own.Adaptive, name)
	}
}
