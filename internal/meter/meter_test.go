package meter

import (
	"math/big"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/internal/meter/metertest"

	"github.com/stretchr/testify/require"
)

// Sums and products are exact up to their bound, and the bound above it.
func TestArithmeticSaturates(t *testing.T) {
	r := metertest.Seeded(t, 1)
	some := func() int64 { // often near an edge
		return []int64{0, 1, 2, Never, Never - 1, Never / 2, MaxCount, 2 * MaxCount, MaxPer, r.Int64N(1 << (1 + r.IntN(62)))}[r.IntN(10)]
	}
	atMost := func(most int64, x *big.Int) int64 {
		if x.Cmp(big.NewInt(most)) > 0 {
			return most
		}
		return x.Int64()
	}
	for range 20_000 {
		a, b := some(), some()
		x, y := big.NewInt(a), big.NewInt(b)
		sum := new(big.Int).Add(x, y)
		require.Equal(t, atMost(Never, sum), AddInstant(a, b), "%d + %d", a, b)
		require.Equal(t, atMost(2*MaxCount, sum), AddCount(a, b), "%d + %d", a, b)
		require.Equal(t, atMost(Never, new(big.Int).Sub(y, x)), AddInstant(-a, b), "-%d + %d", a, b)
		require.Equal(t, atMost(Never, new(big.Int).Mul(x, y)), MulCount(a, b), "%d · %d", a, b)
	}
}

func TestPerSecondIsTheRateInSeconds(t *testing.T) {
	require.Equal(t, 2.5, Rate{5, 2 * time.Second}.PerSecond())
	require.InEpsilon(t, 1e9, Rate{1, 1}.PerSecond(), 1e-12)
}
