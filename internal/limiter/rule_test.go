package limiter

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
)

func TestPartOfARoundNumberIsExact(t *testing.T) {
	for percent := int64(1); percent <= 100; percent++ {
		r := bucket.Rule{Share: float64(percent) / 100}
		for n := int64(100); n <= 1e14; n *= 10 {
			require.Equal(t, n/100*percent, r.Part(n), "%d %% of %d", percent, n)
		}
		require.Equal(t, percent-1, r.Part(99), "rounded down")
	}
}

func TestWithoutShareARateStaysAsItIs(t *testing.T) {
	r := meter.Rate{N: 7, Per: time.Duration(meter.MaxPer - 1)}
	require.Equal(t, r, (&bucket.Rule{Share: 1}).Shared(r))
}

func TestAQuotaIsReservedUnlessALimitKeepsToItsShareOfIt(t *testing.T) {
	whole, half := &bucket.Limit{Rule: bucket.Rule{Share: 1, Rate: meter.Rate{N: 100}}}, &bucket.Limit{Rule: bucket.Rule{Share: .5, Rate: meter.Rate{N: 10}}}
	l := &Core{Limits: []*bucket.Limit{whole, half}}
	require.EqualValues(t, 50, l.reserveLocked(100))
	require.EqualValues(t, 0, l.reserveLocked(10))
}
