package limiter_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/limiter"
)

// A limit of the caller's own that has a rate spares requests the even spread of a server's quota.
func TestOwnRateIsThatOfTheSlowestLimit(t *testing.T) {
	for name, c := range map[string]struct {
		limits   []Limit
		own      float64 // in requests of cost 2
		adaptive bool
	}{
		"bucket":          {[]Limit{TokenBucket(10, time.Second)}, 5, false},
		"pace":            {[]Limit{Pace(10, time.Second)}, 5, false},
		"sliding window":  {[]Limit{SlidingWindow(10, time.Second)}, 5, false},
		"fixed window":    {[]Limit{FixedWindow(10, time.Second)}, 5, false},
		"calendar window": {[]Limit{CalendarWindow(864_000, CalendarDay, time.UTC)}, 5, false},
		"slots":           {[]Limit{InFlight(10)}, 0, false},
		"adaptive":        {[]Limit{Adaptive(AIMD{})}, 0, true},
		"several": {[]Limit{
			Adaptive(AIMD{}), TokenBucket(10, time.Second), Pace(4, time.Second), InFlight(10), CalendarWindow(864_000, CalendarDay, time.UTC),
		}, 2, true},
		"none": {nil, 0, false},
	} {
		l := limiterOf(t, WithLimit(c.limits...))
		g, err := l.Acquire(t.Context(), Ask{Cost: 2})
		require.NoError(t, err, name)
		own := limiter.OwnOf(chargesOf(g).Charges())
		require.InDelta(t, c.own, own.Rate, 1e-9, name)
		require.Equal(t, c.adaptive, own.Adaptive, name)
	}
}
