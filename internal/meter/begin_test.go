package meter_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A bucket that begins again has what came in until then, but no more than it may have.
func TestABucketBeginsAgain(t *testing.T) {
	second := int64(time.Second)
	for _, c := range []struct {
		spent, most int64
		first       meter.Instant
	}{
		{0, 1, 10 * second}, {4, 1, 10 * second}, {4, 0, 11 * second}, {4, 2, 10 * second},
	} {
		b := meter.NewTokenBucket(0, meter.Rate{N: 1, Per: time.Second}, 4, 4)
		if c.spent > 0 {
			b.Take(0, 0, c.spent, false)
		}
		b.Begin(10*second, c.most)
		require.Equal(t, c.first, b.Ready(second, 0, 1), "%+v", c)
		require.True(t, c.first == 10*second || !b.Payable(c.first-1, 1))
		require.True(t, b.Payable(c.first, 1))
	}
	b := meter.NewTokenBucket(0, meter.Rate{N: 1, Per: time.Second}, 4, 4)
	b.Take(0, 0, 8, false)
	b.Begin(2*second, 1)
	require.Equal(t, 5*second, b.Ready(0, 0, 1), "a debt is paid as it was")
	b.Begin(second, 1)
	require.Equal(t, 4*second, b.Ready(0, 0, 1), "the end of a pause may be earlier than it seemed")
}
