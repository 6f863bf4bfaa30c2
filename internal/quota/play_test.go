package quota

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

// What a server would allow only after more time than can be counted is allowed never.
func TestAPlayedQuotaDoesNotOverflow(t *testing.T) {
	const hour = 3600 * int64(second)
	windows := playedQuota{left: 2, most: 1, end: hour, lasts: hour}
	require.Equal(t, meter.Instant(hour), windows.ready(0, 0, 3))
	require.Equal(t, meter.Instant(1000*hour), windows.ready(0, 0, 1002))
	require.Equal(t, meter.Never, windows.ready(0, 0, math.MaxInt32*1000))
	bucket := playedQuota{most: 1, rate: 1 / float64(24*hour)}
	require.InEpsilon(t, float64(24*hour)/flowUsed, float64(bucket.ready(0, 0, 1)), 1e-9)
	require.Equal(t, meter.Never, bucket.ready(0, 0, math.MaxInt32))
}
