package queue

import (
	"math"
	"math/big"
	"math/rand/v2"
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
	r := Rate{N: 7, Per: time.Duration(MaxPer - 1)}
	require.Equal(t, r, (&Rule{Share: 1}).Shared(r))
}

func TestAQuotaIsReservedUnlessALimitKeepsToItsShareOfIt(t *testing.T) {
	whole, half := &Limit{Rule: Rule{Share: 1, Rate: Rate{N: 100}}}, &Limit{Rule: Rule{Share: .5, Rate: Rate{N: 10}}}
	l := &Core{Limits: []*Limit{whole, half}}
	require.EqualValues(t, 50, l.reserveLocked(100))
	require.EqualValues(t, 0, l.reserveLocked(10))
}

func TestTotalAgreesWithBig(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var sum total
	var all []int64
	exact := new(big.Int)
	add := func(n int64) {
		sum.add(n)
		exact.Add(exact, big.NewInt(n))
		both := new(big.Int).Lsh(big.NewInt(sum.hi), 64)
		require.Zero(t, exact.Cmp(both.Add(both, new(big.Int).SetUint64(sum.lo))))
		want := 2 * meter.MaxCount
		if exact.IsInt64() {
			want = min(want, exact.Int64())
		}
		require.Equal(t, want, sum.count())
	}
	for range 10_000 {
		if i := r.IntN(len(all) + 1); i < len(all) && r.IntN(2) == 0 {
			add(-all[i])
			all[i], all = all[len(all)-1], all[:len(all)-1]
			continue
		}
		all = append(all, r.Int64N(meter.MaxCount)>>r.IntN(64)+int64(r.IntN(2))*math.MaxInt32)
		add(all[len(all)-1])
	}
}
