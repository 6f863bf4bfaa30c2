package bucket

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

func TestPartOfARoundNumberIsExact(t *testing.T) {
	for percent := int64(1); percent <= 100; percent++ {
		r := Rule{Share: float64(percent) / 100}
		for n := int64(100); n <= 1e14; n *= 10 {
			require.Equal(t, n/100*percent, r.Part(n), "%d %% of %d", percent, n)
		}
		require.Equal(t, percent-1, r.Part(99), "rounded down")
	}
}

func TestWithoutShareARateStaysAsItIs(t *testing.T) {
	r := meter.Rate{N: 7, Per: time.Duration(meter.MaxPer - 1)}
	require.Equal(t, r, (&Rule{Share: 1}).Shared(r))
}
