package limiter_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/meter"
)

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
