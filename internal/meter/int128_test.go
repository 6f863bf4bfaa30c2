package meter

import (
	"math"
	"math/big"
	"testing"

	"github.com/httpthrottle/throttle/internal/meter/metertest"

	"github.com/stretchr/testify/require"
)

func big128(x int128) *big.Int {
	b := new(big.Int).Lsh(big.NewInt(x.hi), 64)
	return b.Add(b, new(big.Int).SetUint64(x.lo))
}

func TestInt128AgreesWithBigInt(t *testing.T) {
	r := metertest.Seeded(t, 1)
	word := func() uint64 { return r.Uint64() >> (1 + r.IntN(63)) } // below 2⁶³
	for range 20_000 {
		x, y, z, n := mul128(word(), word()), mul128(word(), word()), mul128(word(), 1), 1+word()
		d := x.sub(y)
		bx, by := big128(x), big128(y)
		require.Zero(t, big128(x.add(z)).Cmp(new(big.Int).Add(bx, big128(z))), "%v + %v", x, z)
		require.Zero(t, big128(d).Cmp(new(big.Int).Sub(bx, by)), "%v - %v", x, y)
		require.Equal(t, bx.Cmp(by) < 0, x.less(y), "%v < %v", x, y)
		require.Equal(t, by.Cmp(bx) < 0, y.less(x), "%v < %v", y, x)

		q, rest := new(big.Int).DivMod(bx, new(big.Int).SetUint64(n), new(big.Int))
		if rest.Sign() > 0 {
			q.Add(q, big.NewInt(1))
		}
		want := int64(math.MaxInt64)
		if q.IsInt64() {
			want = q.Int64()
		}
		require.Equal(t, want, x.ceilDiv(n), "⌈%v / %d⌉", x, n)

		q, rest = new(big.Int).DivMod(big128(d), new(big.Int).SetUint64(n), rest) // rounds down for n > 0
		if q.IsInt64() {
			whole, part := d.floorDiv(n)
			require.Equal(t, q.Int64(), whole, "⌊%v / %d⌋", d, n)
			require.Equal(t, rest.Uint64(), part, "%v mod %d", d, n)
		}
		f, _ := new(big.Float).SetInt(big128(d)).Float64()
		require.InEpsilon(t, f+1e-300, d.float()+1e-300, 1e-12)
	}
}

func TestInt128AtItsEdges(t *testing.T) {
	one := mul128(1, 1)
	for _, c := range []struct {
		x    int128
		n    uint64
		want int64
	}{
		{int128{}, 1, 0}, {one, 1, 1}, {one, math.MaxInt64, 1},
		{mul128(math.MaxInt64, 1), 1, math.MaxInt64}, {mul128(math.MaxInt64-1, 2).add(one), 2, math.MaxInt64},
		{mul128(math.MaxInt64-1, 3), 3, math.MaxInt64 - 1}, {mul128(math.MaxInt64, 3).add(one), 3, math.MaxInt64}, {mul128(1<<63, 1), 1, math.MaxInt64},
		{mul128(1<<62, 1<<62), 1 << 60, math.MaxInt64}, {mul128(1<<62, 1<<62), 1 << 62, 1 << 62},
	} {
		require.Equal(t, c.want, c.x.ceilDiv(c.n), "⌈%v / %d⌉", c.x, c.n)
	}
	q, r := int128{}.sub(mul128(1<<63, 5)).floorDiv(5)
	require.Equal(t, int64(math.MinInt64), q)
	require.Zero(t, r)
	q, r = int128{}.sub(one).floorDiv(5)
	require.Equal(t, int64(-1), q)
	require.Equal(t, uint64(4), r)
}
