package limiter

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
)

func TestAQuotaIsReservedUnlessALimitKeepsToItsShareOfIt(t *testing.T) {
	whole, half := &bucket.Limit{Rule: bucket.Rule{Share: 1, Rate: meter.Rate{N: 100}}}, &bucket.Limit{Rule: bucket.Rule{Share: .5, Rate: meter.Rate{N: 10}}}
	l := &Core{Limits: []*bucket.Limit{whole, half}}
	require.EqualValues(t, 50, l.reserveLocked(100))
	require.EqualValues(t, 0, l.reserveLocked(10))
}
