package store

import (
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter/metertest"
)

// A leased event is a lease of a bucket, or a change of its rate and burst.
type leased struct {
	at, tokens, id int64
	budget         *Budget
}

// leftWithout returns what a bucket in rational numbers has left now. Time is in µs since someTime.
func leftWithout(first Budget, events []leased, now int64) float64 {
	rate := func(b *Budget) metertest.Rate { return metertest.Rate{N: b.N, Per: b.Per / time.Microsecond} }
	m := metertest.NewBucket(0, rate(&first), first.Burst, first.Initial)
	for _, e := range events {
		if e.budget != nil {
			m.Retune(e.at, rate(e.budget))
			m.Resize(e.at, e.budget.Burst)
		} else {
			m.Take(e.at, e.tokens, false)
		}
	}
	left, _ := m.At(now, nil).Float64()
	return left
}

// Tokens that are given back leave the bucket as if they had never been leased: exactly where few leases are younger, and
// else with no more than that. A new rate or burst keeps the balance.
func TestBookAgreesWithRationalNumbers(t *testing.T) { // slow: 400 histories in rational numbers
	exact := 0
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 4))
		some := func(burst int64) Budget {
			return bucket(1+r.Int64N(9), time.Duration(1+r.Int64N(100))*time.Millisecond, burst)
		}
		first := some(20 + 200*int64(seed%2))
		first.Initial = first.Burst - r.Int64N(20)
		l, now := newLessor(t), first
		var all []leased
		leases, changed := 0, false
		l.ask(Part{Budget: now})
		for range 60 {
			switch r.IntN(8) {
			case 0, 1:
				l.now += r.Int64N(2 * now.Per.Microseconds())
			case 2, 3, 4, 5:
				if got := l.ask(Part{Budget: now, Want: 1 + r.Int64N(8)}); got.Tokens > 0 {
					require.Equal(t, got.Tokens, got.AtOnce)
					require.Zero(t, got.Next, "none is promised")
					all = append(all, leased{at: l.now - someTime, tokens: got.Tokens, id: got.ID})
					leases++
				}
			case 6:
				if i := r.IntN(len(all) + 1); i < len(all) && all[i].id > 0 && all[i].tokens > 0 {
					back := 1 + r.Int64N(all[i].tokens)
					all[i].tokens -= back
					l.ask(Part{Budget: now, Back: []Return{{back, all[i].id}}})
				}
			case 7:
				if r.IntN(6) == 0 {
					now = some(1 + r.Int64N(40))
					l.ask(Part{Budget: now, Replace: true})
					all = append(all, leased{at: l.now - someTime, budget: ptr(now)})
					for i := range all {
						if all[i].budget == nil {
							all[i] = leased{at: all[i].at, tokens: all[i].tokens} // gives nothing back from now on
						}
					}
					changed = true
				}
			}
			left, want := l.ask(Part{Budget: now}).Left, leftWithout(first, all, l.now-someTime)
			require.LessOrEqual(t, left, want+1e-6, "seed %d", seed)
			if leases < maxPeaks && !changed {
				require.InDelta(t, want, left, 1e-6, "seed %d", seed)
				exact++
			}
		}
	}
	require.Greater(t, exact, 1000)
}

// A level in other units is rounded down, and by no more than the error of floats.
func TestRescaleRoundsDown(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 5))
	for range 20_000 {
		from, to := 1+r.Int64N(1<<(1+r.IntN(50))), 1+r.Int64N(1<<(1+r.IntN(50)))
		tokens := r.Int64N(2*min(1<<30, mostUnits/max(from, to))+1) - min(1<<30, mostUnits/max(from, to))
		level := tokens*from + r.Int64N(from)
		x := new(big.Int).Mul(big.NewInt(level), big.NewInt(to))
		want := x.Div(x, big.NewInt(from)).Int64() // rounds down
		got := rescale(level, from, to)
		require.LessOrEqual(t, got, want, "%d/%d in 1/%d", level, from, to)
		require.GreaterOrEqual(t, got, want-1-to>>49, "%d/%d in 1/%d", level, from, to)
	}
	require.Equal(t, int64(mostUnits), rescale(mostUnits, 1, 2), "no more than can be counted")
	require.Equal(t, -int64(mostUnits), rescale(-mostUnits, 1, 2))
	require.EqualValues(t, -2, floorDiv(-3, 2))
	require.EqualValues(t, -2, floorDiv(-4, 2))
	require.EqualValues(t, 1, floorDiv(3, 2))
}

// ptr returns a pointer to a copy of v. (Go 1.26 has new for it.)
func ptr[T any](v T) *T { return &v }
