package store

import (
	"fmt"
	"math"
	"math/bits"
	"time"
)

// Units are the numbers with which a store counts a bucket. The level is in 1/Per of a token, and N of these units come in with each
// tick. All are integers below 2^53, which a float64 represents exactly, so that a script without integers can use them.
type Units struct {
	Tick, N, Per int64 // Tick: in µs
	Full         int64 // the level of a full bucket
	Initial      int64
	Owed         int64 // the largest debt
}

const (
	mostUnits = 1 << 51                    // of a full bucket
	exactly   = 1 << 20                    // a rounded rate is off by at most one part in this many
	owedOver  = int64(time.Minute / 1000)  // a Bucket or a Pace may owe the tokens of this many µs
	mostHold  = 100 * 365 * 24 * time.Hour // longer holds are reduced to this one
	mostAhead = 365 * 24 * time.Hour       // longer horizons are reduced to this one
)

// units returns the units of a Bucket or a Pace. If neither microseconds nor milliseconds nor seconds as ticks make the
// numbers small enough, the rate is rounded down, by at most one part in 2^20. The error is for a budget that is too large.
func (b *Budget) units() (Units, error) {
	burst, initial := b.Burst, b.Initial
	if b.Kind == Pace {
		burst, initial = max(1, burst), 1
	}
	for _, round := range []bool{false, true} {
		for tick := int64(1); tick <= 1e6; tick *= 1000 {
			n, per, ok := b.perTick(tick, burst, round)
			if !ok {
				continue
			}
			u := Units{Tick: tick, N: n, Per: per, Full: burst * per, Initial: initial * per}
			least := burst
			if b.Kind == Pace {
				least = b.N
			}
			u.Owed = min(mostUnits, max(mulSat(least, per), mulSat(owedOver/tick, n)))
			return u, nil
		}
	}
	return Units{}, fmt.Errorf("a burst of %d at %d per %v is too large for a shared limit", burst, b.N, b.Per)
}

// Rate returns the rate as n tokens per period. If the period would be too long for a Duration, the rate is rounded down.
func (u *Units) Rate() (n int64, per time.Duration) {
	n, units := u.N, u.Per
	for units > 1 && mulSat(units, u.Tick*1000) == math.MaxInt64 {
		n, units = n/2, (units+1)/2
	}
	return max(1, n), time.Duration(units * u.Tick * 1000)
}

// perTick returns the rate as n/per tokens a tick, reduced or rounded, and whether that is exact enough.
func (b *Budget) perTick(tick, burst int64, round bool) (n, per int64, ok bool) {
	hi, lo := bits.Mul64(uint64(b.N), uint64(tick)*1000)
	period := uint64(b.Per)
	if hi >= period {
		return 0, 0, false // more than 2^64 tokens a tick
	}
	if !round {
		if hi > 0 {
			return 0, 0, false
		}
		g := gcd(lo, period)
		lo, period = lo/g, period/g
		return int64(lo), int64(period), lo <= mostUnits && period <= mostUnits/uint64(burst)
	}
	per = mostUnits / burst
	// ⌊tick·N·per/Per⌋, in 192 bits
	high, mid := bits.Mul64(hi, uint64(per))
	carry, low := bits.Mul64(lo, uint64(per))
	mid, c := bits.Add64(mid, carry, 0)
	if high+c > 0 || mid >= period {
		return 0, 0, false
	}
	q, _ := bits.Div64(mid, low, period)
	return int64(q), per, q >= exactly && q <= mostUnits
}

func gcd(a, b uint64) uint64 {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// mulSat returns a·b for a, b ≥ 0, at most math.MaxInt64.
func mulSat(a, b int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi > 0 || lo > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(lo)
}

// windows returns the length of a window in µs, rounded up, and the first instant of Unix time at which a window begins.
func (b *Budget) windows() (per, origin int64) {
	per = (int64(b.Per)-1)/1000 + 1
	if !b.Start.IsZero() {
		origin = floorMod(b.Start.UnixMicro(), per)
	}
	return per, origin
}

func floorMod(a, b int64) int64 { return ((a % b) + b) % b }
