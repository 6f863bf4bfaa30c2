package meter

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/internal/meter/metertest"

	"github.com/stretchr/testify/require"
)

// rates are odd ones, where a float64 or an int64 would err.
var rates = []Rate{
	{7, 24 * time.Hour}, {1, time.Minute}, {3, time.Second}, {10_000_000, time.Second}, {999_999_937, time.Second},
	{1, 1}, {3, 1}, {1, 7}, {MaxCount, 1}, {MaxCount, time.Duration(MaxPer)}, {1, time.Duration(MaxPer)},
	{11, 365 * 24 * time.Hour}, {1 << 40, 3 * time.Nanosecond}, {100, time.Minute}, {1_000_003, 17 * time.Hour},
}

func anyRate(r *rand.Rand) Rate {
	if r.IntN(2) == 0 {
		return rates[r.IntN(len(rates))]
	}
	return Rate{1 + r.Int64N(1<<r.IntN(60)), time.Duration(1 + r.Int64N(1<<r.IntN(62)))}
}

// dueOf returns start + ⌈k·per/n⌉.
func dueOf(start Instant, k int64, r Rate) Instant {
	x := new(big.Int).Mul(big.NewInt(k), big.NewInt(int64(r.Per)))
	x.Add(x, big.NewInt(r.N-1)).Div(x, big.NewInt(r.N))
	if x.Add(x, big.NewInt(start)); !x.IsInt64() {
		return Never
	}
	return x.Int64()
}

func TestTheKthGrantIsDueToTheNanosecond(t *testing.T) {
	const start = Instant(12_345_678_901)
	for _, r := range rates {
		for _, burst := range []int64{1, 5} {
			if r.N > int64(r.Per) {
				burst = MaxCount // no more than burst goes at one instant
			}
			b, p := NewTokenBucket(start, r, burst, 0), NewPace(start, r)
			for k := int64(1); k <= 3_000; k++ {
				want := dueOf(start, k, r)
				require.Equal(t, want, NewTokenBucket(start, r, burst, 0).Ready(0, k-1, 1), "%v: planned, k %d", r, k)
				require.Equal(t, dueOf(start, k-1, r), NewPace(start, r).Ready(0, k-1, 1), "%v paced: planned, k %d", r, k)
				due := b.Ready(0, 0, 1)
				require.Equal(t, want, due, "%v, burst %d, k %d", r, burst, k)
				if due == Never {
					break
				}
				b.Take(due, due, 1, true)
				if r.N > int64(r.Per) {
					continue
				}
				due = p.Ready(0, 0, 1)
				require.Equal(t, dueOf(start, k-1, r), due, "%v paced, k %d", r, k)
				p.Take(due, due, 1, true)
			}
		}
	}
}

func TestTheScheduleIsKeptWhateverTheCosts(t *testing.T) {
	r := metertest.Seeded(t, 2)
	for range 200 {
		rate, burst := anyRate(r), 1+r.Int64N(1000)
		if rate.N > int64(rate.Per) {
			continue // no more than burst goes at one instant
		}
		b, p := NewTokenBucket(0, rate, burst, 0), NewPace(0, rate)
		for sum := int64(0); ; {
			cost := 1 + r.Int64N(burst)
			want := dueOf(0, sum, rate)
			if want > MaxPer || sum > 100_000 {
				break
			}
			due := p.Ready(0, 0, cost)
			require.Equal(t, want, due, "%v paced after %d tokens", rate, sum)
			p.Take(due, due, cost, true)
			sum += cost
			due = b.Ready(0, 0, cost)
			require.Equal(t, dueOf(0, sum, rate), due, "%v after %d tokens", rate, sum)
			if due == Never {
				break
			}
			b.Take(due, due, cost, true)
		}
	}
}

// rational returns the level of a bucket exactly.
func (b *TokenBucket) rational() *big.Rat {
	return new(big.Rat).SetFrac(big128(b.level), new(big.Int).SetUint64(b.per))
}

// giveBackTo gives back what was taken from m at an instant, seen now.
func giveBackTo(m Meter, at, now Instant, cost int64) {
	m.Payable(now, 1)
	m.GiveBack(at, now, cost)
}

func TestTokenBucketAgreesWithRationalNumbers(t *testing.T) {
	for seed := range uint64(250) {
		r := metertest.Seeded(t, seed)
		now, rt, burst := r.Int64N(1<<40), anyRate(r), 1+r.Int64N(1<<r.IntN(60))
		b, m := NewTokenBucket(now, rt, burst, burst), metertest.NewBucket(now, rt, burst, burst)
		if seed%3 == 0 {
			b, m, burst = NewPace(now, rt), metertest.NewPace(now, rt), 1<<20
		}
		runBucket(t, r, now, burst, b, m)
		if t.Failed() {
			t.FailNow()
		}
	}
}

func runBucket(t *testing.T, r *rand.Rand, now Instant, burst int64, b *TokenBucket, m *metertest.Bucket) {
	for op := range 100 {
		what := fmt.Sprintf("op %d, rate %v, burst %d, paced %t, now %d", op, m.Rate, burst, m.Paced, now)
		cost := 1 + r.Int64N(burst)
		switch r.IntN(10) {
		case 0, 1:
			now += r.Int64N(1 << r.IntN(50))
		case 2, 3: // pay now
			ok := b.Payable(now, cost)
			require.Equal(t, m.Ready(now, cost) == now && now >= m.Last, ok, "%s: payable %d", what, cost)
			m.Settle(now)
			if ok {
				b.Take(now, now, cost, false)
				m.Take(now, cost, false)
			}
		case 4, 5, 6: // wait, then pay
			due := b.Ready(now, 0, cost)
			require.Equal(t, m.Ready(now, cost), due, "%s: ready for %d", what, cost)
			if due > MaxPer {
				continue // none can wait that long
			}
			if !m.Paced {
				require.Equal(t, Never, b.Ready(now, 0, burst+1), "%s: more than the burst", what)
				require.False(t, b.Payable(now, burst+1), "%s: more than the burst", what)
			}
			then, before := *b, *b
			require.True(t, then.Payable(due, cost), "%s: payable when ready", what)
			require.True(t, due == max(now, b.last) || !before.Payable(due-1, cost), "%s: not before", what)
			b.Take(due, due, cost, true)
			m.Take(due, cost, true)
			now = due
		case 7:
			b.GiveBack(now, now, cost)
			m.GiveBack(cost)
		case 8:
			rt := anyRate(r)
			b.Retune(now, rt)
			m.Retune(now, rt)
		case 9:
			if !m.Paced {
				burst = 1 + r.Int64N(1<<r.IntN(60))
				b.Resize(now, burst)
				m.Resize(now, burst)
			}
		}
		require.Zero(t, m.Level.Cmp(b.rational()), "%s: level", what)
		require.GreaterOrEqual(t, now, b.last, what)
		left, _ := metertest.MinRat(m.Burst, m.At(now, nil)).Float64()
		require.InDelta(t, left, b.Tokens(now), math.Abs(left)*1e-12+1e-9, "%s: tokens", what)
		require.Equal(t, m.At(now, nil).Sign() < 0, needed(b, now), "%s: indebted", what)
		if full := fullAt(b); full < Never {
			require.Zero(t, m.Burst.Cmp(metertest.MinRat(m.Burst, m.At(full, nil))), "%s: full at %d", what, full)
			require.True(t, full == m.Last || m.At(full-1, nil).Cmp(m.Burst) < 0, "%s: not full before %d", what, full)
		}
	}
}

// TestNeverMoreThanBurstAndRate counts from any grant that found no waiter.
func TestNeverMoreThanBurstAndRate(t *testing.T) {
	for seed := range uint64(5) {
		r := metertest.Seeded(t, seed)
		rt := Rate{1 + r.Int64N(1000), time.Duration(1 + r.Int64N(1e9))}
		burst := 1 + r.Int64N(20)
		b, now := NewTokenBucket(0, rt, burst, burst), Instant(0)
		var at, sums []int64
		sum := int64(0)
		for range 200 {
			now += r.Int64N(1 + 3*int64(rt.Per)/rt.N)
			cost := 1 + r.Int64N(burst)
			if b.Payable(now, cost) {
				b.Take(now, now, cost, false)
			} else {
				now = b.Ready(now, 0, cost)
				b.Take(now, now, cost, true)
			}
			at, sums, sum = append(at, now), append(sums, sum), sum+cost
			for i := range at { // burst + rate·(stretch + 1 ns), since instants are rounded up
				most := new(big.Rat).Add(metertest.Rat(burst), new(big.Rat).Mul(big.NewRat(rt.N, int64(rt.Per)), metertest.Rat(now-at[i]+1)))
				require.LessOrEqual(t, metertest.Rat(sum-sums[i]).Cmp(most), 0, "seed %d: %d from %d to %d", seed, sum-sums[i], at[i], now)
			}
		}
	}
}

// TestWhatIsGivenBackLateIsNotMinted is about tokens that came in meanwhile and were lost: had the request never been,
// they would have been lost all the same.
func TestWhatIsGivenBackLateIsNotMinted(t *testing.T) {
	const second = int64(time.Second)
	t.Run("bucket", func(t *testing.T) {
		b := NewTokenBucket(0, Rate{10, time.Second}, 10, 10)
		b.Take(0, 0, 10, false)
		require.True(t, b.Payable(100*second, 10))
		b.Take(100*second, 100*second, 10, false)
		giveBackTo(b, 0, 100*second, 10)
		require.False(t, b.Payable(100*second, 1), "20 at one instant, with a burst of 10")
	})
	t.Run("pace", func(t *testing.T) {
		b := NewPace(0, Rate{1, time.Second})
		b.Take(0, 0, 1, false)
		b.Take(10*second, 10*second, 1, false)
		giveBackTo(b, 0, 10*second, 1)
		require.False(t, b.Payable(10*second, 1), "two at one instant")
	})
}

// spend is payable and take in one go: whatever was before, both do the same.
func TestSpendIsPayableAndTake(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	paid := 0
	for range 2000 {
		n, burst := 1+r.Int64N(1<<r.IntN(40)), 1+r.Int64N(1<<r.IntN(20))
		b := NewTokenBucket(0, Rate{n, time.Duration(1 + r.Int64N(1<<r.IntN(40)))}, burst, r.Int64N(burst+1))
		if r.IntN(4) == 0 {
			b = NewPace(0, Rate{n, time.Duration(1 + r.Int64N(1<<r.IntN(40)))})
		}
		now := Instant(0)
		for range 40 {
			now = max(0, now-5+r.Int64N(1<<r.IntN(40)))
			cost := r.Int64N(burst + 2)
			other := *b
			if b.past != nil {
				other.past = &past{peaks: slices.Clone(b.peaks())}
			}
			charged, ok := b.Spend(now, cost)
			require.Equal(t, ok, other.Payable(now, cost))
			if ok {
				require.Equal(t, charged, other.Take(now, now, cost, false))
				paid++
			}
			require.Equal(t, other.peaks(), b.peaks())
			other.past = b.past
			require.Equal(t, other, *b)
			if r.IntN(5) == 0 && ok {
				b.GiveBack(charged, now, cost)
			}
		}
	}
	require.Greater(t, paid, 10_000)
}
