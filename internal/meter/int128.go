package meter

import (
	"math"
	"math/bits"
)

// An int128 holds a balance in token·ns: exact, where a float64 would drift and an int64 overflow.
type int128 struct {
	hi int64
	lo uint64
}

// mul128 returns a·b, which must stay below 2¹²⁷.
func mul128(a, b uint64) int128 {
	hi, lo := bits.Mul64(a, b)
	return int128{int64(hi), lo}
}

func (x int128) add(y int128) int128 {
	lo, carry := bits.Add64(x.lo, y.lo, 0)
	return int128{x.hi + y.hi + int64(carry), lo}
}

func (x int128) sub(y int128) int128 {
	lo, borrow := bits.Sub64(x.lo, y.lo, 0)
	return int128{x.hi - y.hi - int64(borrow), lo}
}

func (x int128) less(y int128) bool {
	return x.hi < y.hi || x.hi == y.hi && x.lo < y.lo
}

// half returns x halved n times, for x ≥ 0, rounded down.
func (x int128) half(n uint) int128 {
	return int128{x.hi >> n, x.lo>>n | uint64(x.hi)<<(64-n)}
}

// ceilDiv returns ⌈x/n⌉ for x ≥ 0, at most math.MaxInt64.
func (x int128) ceilDiv(n uint64) int64 {
	if uint64(x.hi) >= n {
		return math.MaxInt64
	}
	q, r := bits.Div64(uint64(x.hi), x.lo, n)
	if q >= math.MaxInt64 {
		return math.MaxInt64
	}
	if r > 0 {
		q++
	}
	return int64(q)
}

// floorDiv returns ⌊x/n⌋, which must fit an int64, and the remainder in [0, n).
func (x int128) floorDiv(n uint64) (int64, uint64) {
	if x.hi < 0 {
		// ⌊x/n⌋ = -1 - ⌊(-1-x)/n⌋, and -1-x is ^x.
		q, r := bits.Div64(uint64(^x.hi), ^x.lo, n)
		return -1 - int64(q), n - 1 - r
	}
	q, r := bits.Div64(uint64(x.hi), x.lo, n)
	return int64(q), r
}

func (x int128) float() float64 {
	if x.hi < 0 {
		return -int128{}.sub(x).float()
	}
	return float64(x.hi)*(1<<64) + float64(x.lo)
}
