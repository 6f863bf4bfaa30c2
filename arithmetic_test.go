package throttle

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// seeded returns a source of randomness whose seed is printed if the test fails.
func seeded(t *testing.T, seed uint64) *rand.Rand {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// rates are odd ones, where a float64 or an int64 would err.
var rates = []rate{
	{7, 24 * time.Hour}, {1, time.Minute}, {3, time.Second}, {10_000_000, time.Second}, {999_999_937, time.Second},
	{1, 1}, {3, 1}, {1, 7}, {maxCount, 1}, {maxCount, time.Duration(maxPer)}, {1, time.Duration(maxPer)},
	{11, 365 * 24 * time.Hour}, {1 << 40, 3 * time.Nanosecond}, {100, time.Minute}, {1_000_003, 17 * time.Hour},
}

func anyRate(r *rand.Rand) rate {
	if r.IntN(2) == 0 {
		return rates[r.IntN(len(rates))]
	}
	return rate{1 + r.Int64N(1<<r.IntN(60)), time.Duration(1 + r.Int64N(1<<r.IntN(62)))}
}

func big128(x int128) *big.Int {
	b := new(big.Int).Lsh(big.NewInt(x.hi), 64)
	return b.Add(b, new(big.Int).SetUint64(x.lo))
}

func TestInt128AgreesWithBigInt(t *testing.T) {
	r := seeded(t, 1)
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
		{mul128(math.MaxInt64-1, 3), 3, math.MaxInt64 - 1}, {mul128(1<<63, 1), 1, math.MaxInt64},
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

// dueOf returns start + ⌈k·per/n⌉.
func dueOf(start instant, k int64, r rate) instant {
	x := new(big.Int).Mul(big.NewInt(k), big.NewInt(int64(r.per)))
	x.Add(x, big.NewInt(r.n-1)).Div(x, big.NewInt(r.n))
	if x.Add(x, big.NewInt(start)); !x.IsInt64() {
		return never
	}
	return x.Int64()
}

func TestTheKthGrantIsDueToTheNanosecond(t *testing.T) {
	const start = instant(12_345_678_901)
	for _, r := range rates {
		for _, burst := range []int64{1, 5} {
			if r.n > int64(r.per) {
				burst = maxCount // no more than burst goes at one instant
			}
			b, p := newTokenBucket(start, r, burst, 0), newPace(start, r)
			for k := int64(1); k <= 3_000; k++ {
				want := dueOf(start, k, r)
				require.Equal(t, want, newTokenBucket(start, r, burst, 0).ready(0, k-1, 1), "%v: planned, k %d", r, k)
				require.Equal(t, dueOf(start, k-1, r), newPace(start, r).ready(0, k-1, 1), "%v paced: planned, k %d", r, k)
				due := b.ready(0, 0, 1)
				require.Equal(t, want, due, "%v, burst %d, k %d", r, burst, k)
				if due == never {
					break
				}
				b.take(due, due, 1, true)
				if r.n > int64(r.per) {
					continue
				}
				due = p.ready(0, 0, 1)
				require.Equal(t, dueOf(start, k-1, r), due, "%v paced, k %d", r, k)
				p.take(due, due, 1, true)
			}
		}
	}
}

func TestTheScheduleIsKeptWhateverTheCosts(t *testing.T) {
	r := seeded(t, 2)
	for range 200 {
		rate, burst := anyRate(r), 1+r.Int64N(1000)
		if rate.n > int64(rate.per) {
			continue // no more than burst goes at one instant
		}
		b, p := newTokenBucket(0, rate, burst, 0), newPace(0, rate)
		for sum := int64(0); ; {
			cost := 1 + r.Int64N(burst)
			want := dueOf(0, sum, rate)
			if want > maxPer || sum > 100_000 {
				break
			}
			due := p.ready(0, 0, cost)
			require.Equal(t, want, due, "%v paced after %d tokens", rate, sum)
			p.take(due, due, cost, true)
			sum += cost
			due = b.ready(0, 0, cost)
			require.Equal(t, dueOf(0, sum, rate), due, "%v after %d tokens", rate, sum)
			if due == never {
				break
			}
			b.take(due, due, cost, true)
		}
	}
}

// A rationalBucket is a token bucket in rational numbers: what a tokenBucket is meant to be.
type rationalBucket struct {
	rate  rate
	burst *big.Rat
	paced bool
	level *big.Rat
	last  instant
}

func newRationalBucket(now instant, r rate, burst, initial int64) *rationalBucket {
	return &rationalBucket{rate: r, burst: rat(burst), level: rat(initial), last: now}
}

func newRationalPace(now instant, r rate) *rationalBucket {
	return &rationalBucket{rate: r, burst: rat(0), paced: true, level: rat(0), last: now}
}

func rat(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

func (m *rationalBucket) accrued(ns int64) *big.Rat {
	return new(big.Rat).Mul(rat(ns), big.NewRat(m.rate.n, int64(m.rate.per)))
}

// at returns the level at t: what is above burst is lost, but for less than a nanosecond's worth above keep.
func (m *rationalBucket) at(t instant, keep *big.Rat) *big.Rat {
	if t <= m.last {
		return m.level
	}
	level := new(big.Rat).Add(m.level, m.accrued(t-m.last))
	if keep != nil && level.Cmp(new(big.Rat).Add(keep, m.accrued(1))) < 0 {
		return level
	}
	return minRat(level, m.burst)
}

func minRat(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) < 0 {
		return a
	}
	return b
}

func (m *rationalBucket) need(cost int64) *big.Rat {
	if m.paced {
		return rat(0)
	}
	return rat(cost)
}

// owe takes what was charged too little, up to a burst below nothing, or a minute's worth where it is paced, n at least.
func (m *rationalBucket) owe(now instant, more int64) {
	m.level, m.last = m.at(now, nil), max(m.last, now)
	least := new(big.Rat).Neg(m.burst)
	if m.paced {
		minute := new(big.Int).Div(new(big.Int).Mul(big.NewInt(m.rate.n), big.NewInt(int64(time.Minute))), big.NewInt(int64(m.rate.per)))
		least = minRat(rat(-m.rate.n), new(big.Rat).SetInt(minute.Neg(minute)))
	}
	least = minRat(least, m.level)
	if m.level = new(big.Rat).Sub(m.level, rat(more)); m.level.Cmp(least) < 0 {
		m.level = least
	}
}

// ready returns the first instant from which cost can be paid, not before from.
func (m *rationalBucket) ready(from instant, cost int64) instant {
	need := m.need(cost)
	if need.Cmp(m.burst) > 0 {
		return never
	}
	from = max(from, m.last)
	missing := new(big.Rat).Sub(need, m.at(from, nil))
	if missing.Sign() <= 0 {
		return from
	}
	missing.Quo(missing, m.accrued(1))
	ns := ceilRat(missing).Add(ceilRat(missing), big.NewInt(from))
	if !ns.IsInt64() {
		return never
	}
	return ns.Int64()
}

func ceilRat(x *big.Rat) *big.Int {
	q, rest := new(big.Int).DivMod(x.Num(), x.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return q
}

func (m *rationalBucket) clone() ideal {
	c := *m
	return &c // no Rat is ever changed in place
}

func (m *rationalBucket) pay(due, _ instant, cost int64, waited bool) { m.take(due, cost, waited) }

func (m *rationalBucket) take(t instant, cost int64, waited bool) {
	var keep *big.Rat
	if waited {
		keep = m.need(cost)
	}
	m.level, m.last = new(big.Rat).Sub(m.at(t, keep), rat(cost)), max(m.last, t)
	if waited {
		m.level = minRat(m.level, m.burst) // for where more than burst comes in within a nanosecond
	}
}

func (m *rationalBucket) settle(now instant) { m.level, m.last = m.at(now, nil), max(m.last, now) }

func (m *rationalBucket) giveBack(cost int64) {
	if m.level.Cmp(m.burst) < 0 {
		m.level = minRat(m.burst, new(big.Rat).Add(m.level, rat(cost)))
	}
}

// retune keeps what there is, rounded down to what the new rate can count.
func (m *rationalBucket) retune(now instant, r rate) {
	m.settle(now)
	m.rate = r
	units := new(big.Rat).Mul(m.level, rat(int64(r.per)))
	m.level = new(big.Rat).SetFrac(new(big.Int).Div(units.Num(), units.Denom()), big.NewInt(int64(r.per)))
}

func (m *rationalBucket) resize(now instant, burst int64) {
	m.settle(now)
	m.burst = rat(burst)
	m.level = minRat(m.level, m.burst)
}

// rational returns the level of a bucket exactly.
func (b *tokenBucket) rational() *big.Rat {
	return new(big.Rat).SetFrac(big128(b.level), new(big.Int).SetUint64(b.per))
}

// giveBackTo gives back what was taken from m at an instant, seen now.
func giveBackTo(m meter, at, now instant, cost int64) {
	m.payable(now, 1)
	m.giveBack(at, now, cost)
}

func TestTokenBucketAgreesWithRationalNumbers(t *testing.T) {
	for seed := range uint64(250) {
		r := seeded(t, seed)
		now, rt, burst := r.Int64N(1<<40), anyRate(r), 1+r.Int64N(1<<r.IntN(60))
		b, m := newTokenBucket(now, rt, burst, burst), newRationalBucket(now, rt, burst, burst)
		if seed%3 == 0 {
			b, m, burst = newPace(now, rt), newRationalPace(now, rt), 1<<20
		}
		runBucket(t, r, now, burst, b, m)
		if t.Failed() {
			t.FailNow()
		}
	}
}

func runBucket(t *testing.T, r *rand.Rand, now instant, burst int64, b *tokenBucket, m *rationalBucket) {
	for op := range 100 {
		what := fmt.Sprintf("op %d, rate %v, burst %d, paced %t, now %d", op, m.rate, burst, m.paced, now)
		cost := 1 + r.Int64N(burst)
		switch r.IntN(10) {
		case 0, 1:
			now += r.Int64N(1 << r.IntN(50))
		case 2, 3: // pay now
			ok := b.payable(now, cost)
			require.Equal(t, m.ready(now, cost) == now && now >= m.last, ok, "%s: payable %d", what, cost)
			m.settle(now)
			if ok {
				b.take(now, now, cost, false)
				m.take(now, cost, false)
			}
		case 4, 5, 6: // wait, then pay
			due := b.ready(now, 0, cost)
			require.Equal(t, m.ready(now, cost), due, "%s: ready for %d", what, cost)
			if due > maxPer {
				continue // none can wait that long
			}
			if !m.paced {
				require.Equal(t, never, b.ready(now, 0, burst+1), "%s: more than the burst", what)
				require.False(t, b.payable(now, burst+1), "%s: more than the burst", what)
			}
			then, before := *b, *b
			require.True(t, then.payable(due, cost), "%s: payable when ready", what)
			require.True(t, due == max(now, b.last) || !before.payable(due-1, cost), "%s: not before", what)
			b.take(due, due, cost, true)
			m.take(due, cost, true)
			now = due
		case 7:
			b.giveBack(now, now, cost)
			m.giveBack(cost)
		case 8:
			rt := anyRate(r)
			b.retune(now, rt)
			m.retune(now, rt)
		case 9:
			if !m.paced {
				burst = 1 + r.Int64N(1<<r.IntN(60))
				b.resize(now, burst)
				m.resize(now, burst)
			}
		}
		require.Zero(t, m.level.Cmp(b.rational()), "%s: level", what)
		require.GreaterOrEqual(t, now, b.last, what)
		left, _ := minRat(m.burst, m.at(now, nil)).Float64()
		require.InDelta(t, left, b.tokens(now), math.Abs(left)*1e-12+1e-9, "%s: tokens", what)
		require.Equal(t, m.at(now, nil).Sign() < 0, b.indebted(now), "%s: indebted", what)
		if full := b.fullAt(); full < never {
			require.Zero(t, m.burst.Cmp(minRat(m.burst, m.at(full, nil))), "%s: full at %d", what, full)
			require.True(t, full == m.last || m.at(full-1, nil).Cmp(m.burst) < 0, "%s: not full before %d", what, full)
		}
	}
}

// TestNeverMoreThanBurstAndRate counts from any grant that found nobody waiting.
func TestNeverMoreThanBurstAndRate(t *testing.T) {
	for seed := range uint64(5) {
		r := seeded(t, seed)
		rt := rate{1 + r.Int64N(1000), time.Duration(1 + r.Int64N(1e9))}
		burst := 1 + r.Int64N(20)
		b, now := newTokenBucket(0, rt, burst, burst), instant(0)
		var at, sums []int64
		sum := int64(0)
		for range 200 {
			now += r.Int64N(1 + 3*int64(rt.per)/rt.n)
			cost := 1 + r.Int64N(burst)
			if b.payable(now, cost) {
				b.take(now, now, cost, false)
			} else {
				now = b.ready(now, 0, cost)
				b.take(now, now, cost, true)
			}
			at, sums, sum = append(at, now), append(sums, sum), sum+cost
			for i := range at { // burst + rate·(stretch + 1 ns), since instants are rounded up
				most := new(big.Rat).Add(rat(burst), new(big.Rat).Mul(big.NewRat(rt.n, int64(rt.per)), rat(now-at[i]+1)))
				require.LessOrEqual(t, rat(sum-sums[i]).Cmp(most), 0, "seed %d: %d from %d to %d", seed, sum-sums[i], at[i], now)
			}
		}
	}
}

// TestWhatIsGivenBackLateIsNotMinted is about tokens that came in meanwhile and were lost: had the request never been,
// they would have been lost all the same.
func TestWhatIsGivenBackLateIsNotMinted(t *testing.T) {
	const second = int64(time.Second)
	t.Run("bucket", func(t *testing.T) {
		b := newTokenBucket(0, rate{10, time.Second}, 10, 10)
		b.take(0, 0, 10, false)
		require.True(t, b.payable(100*second, 10))
		b.take(100*second, 100*second, 10, false)
		giveBackTo(b, 0, 100*second, 10)
		require.False(t, b.payable(100*second, 1), "20 at one instant, with a burst of 10")
	})
	t.Run("pace", func(t *testing.T) {
		b := newPace(0, rate{1, time.Second})
		b.take(0, 0, 1, false)
		b.take(10*second, 10*second, 1, false)
		giveBackTo(b, 0, 10*second, 1)
		require.False(t, b.payable(10*second, 1), "two at one instant")
	})
}

func TestExtremeValuesSaturate(t *testing.T) {
	r := seeded(t, 3)
	extreme := func(from int64) int64 {
		all := []int64{0, 1, 2, maxCount - 1, maxCount, maxCount + 1, maxPer, math.MaxInt64 - 1, math.MaxInt64}
		return max(from, all[r.IntN(len(all))])
	}
	var unix int64
	for range 2_000 {
		l := Limit{burst: -1, initial: -1, share: 1, kind: []limitKind{kindBucket, kindPace, kindSliding, kindFixed}[r.IntN(4)]}
		if r.IntN(3) == 0 {
			l.share = 1 - r.Float64()
		}
		rt := rate{extreme(1), time.Duration(extreme(1))}
		if l.check(rt) != nil {
			continue
		}
		unix = r.Int64N(1 << 61)
		b := bucket{meter: l.meter(0, l.shared(rt), l.burstOf(rt), &unix)}
		now := instant(0)
		for range 50 {
			now = min(now+r.Int64N(1<<r.IntN(61)), maxPer/2)
			if r.IntN(5) == 0 {
				b.held = now + extreme(1)&(maxPer-1)
			}
			cost, ahead := extreme(1), min(extreme(0), 2*maxCount)
			first, later := b.ready(now, 0, cost), b.ready(now, ahead, cost)
			require.GreaterOrEqual(t, first, now, "%s %v, cost %d", l.kind, rt, cost)
			require.GreaterOrEqual(t, later, first, "%s %v, cost %d after %d", l.kind, rt, cost, ahead)
			if b.held <= now && b.meter.payable(now, cost) {
				require.Equal(t, now, first, "%s %v, cost %d", l.kind, rt, cost)
				b.meter.take(now, now, cost, false)
			}
			require.GreaterOrEqual(t, b.meter.fullAt(), instant(0))
			require.False(t, math.IsNaN(b.meter.tokens(now)))
			if r.IntN(5) == 0 {
				if next := (rate{extreme(1), time.Duration(extreme(1))}); l.check(next) == nil {
					rt = next
					b.meter.retune(now, l.shared(rt))
				}
			}
		}
	}
}

// spend is payable and take in one go: whatever was before, both do the same.
func TestSpendIsPayableAndTake(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	paid := 0
	for range 2000 {
		n, burst := 1+r.Int64N(1<<r.IntN(40)), 1+r.Int64N(1<<r.IntN(20))
		b := newTokenBucket(0, rate{n, time.Duration(1 + r.Int64N(1<<r.IntN(40)))}, burst, r.Int64N(burst+1))
		if r.IntN(4) == 0 {
			b = newPace(0, rate{n, time.Duration(1 + r.Int64N(1<<r.IntN(40)))})
		}
		now := instant(0)
		for range 40 {
			now = max(0, now-5+r.Int64N(1<<r.IntN(40)))
			cost := r.Int64N(burst + 2)
			other := *b
			other.peaks = slices.Clone(b.peaks)
			charged, ok := b.spend(now, cost)
			require.Equal(t, ok, other.payable(now, cost))
			if ok {
				require.Equal(t, charged, other.take(now, now, cost, false))
				paid++
			}
			require.Equal(t, other, *b)
			if r.IntN(5) == 0 && ok {
				b.giveBack(charged, now, cost)
			}
		}
	}
	require.Greater(t, paid, 10_000)
}
