package store

import (
	"math/big"
	"math/rand/v2"
	"testing"
	"time"
)

func TestUnitsAreExactWhereTheyFit(t *testing.T) {
	day := 24 * time.Hour
	for _, c := range []struct {
		b            Budget
		tick, n, per int64
	}{
		{Budget{Kind: Bucket, N: 10, Per: time.Second, Burst: 10}, 1, 1, 100_000},
		{Budget{Kind: Bucket, N: 7, Per: day, Burst: 7}, 1, 7, 86_400_000_000},
		{Budget{Kind: Bucket, N: 3, Per: 7, Burst: 1}, 1, 3000, 7},
		{Budget{Kind: Bucket, N: 26_041, Per: day, Burst: 26_041}, 1, 26_041, 86_400_000_000},
		{Budget{Kind: Bucket, N: 999_983, Per: day, Burst: 999_983}, 1000, 999_983, 86_400_000},
		{Budget{Kind: Bucket, N: 999_999_937, Per: day, Burst: 999_999_937}, 1_000_000, 999_999_937, 86_400},
		{Budget{Kind: Pace, N: 999_999_937, Per: day}, 1, 999_999_937, 86_400_000_000},
		{Budget{Kind: Bucket, N: 1 << 51, Per: time.Microsecond, Burst: 1 << 51}, 1, 1 << 51, 1},
	} {
		u, err := c.b.units()
		if err != nil || u.Tick != c.tick || u.N != c.n || u.Per != c.per {
			t.Errorf("%+v: %+v, %v; want %d per %d ticks of %d µs", c.b, u, err, c.n, c.per, c.tick)
		}
	}
}

func TestUnitsNeverAddToARate(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	rounded := 0
	for range 20_000 {
		b := Budget{Kind: Bucket, N: 1 + r.Int64N(1<<r.IntN(40)), Per: time.Duration(1 + r.Int64N(1<<r.IntN(58))), Burst: 1 + r.Int64N(1<<r.IntN(40))}
		u, err := b.units()
		if err != nil {
			continue
		}
		if u.Full > mostUnits || u.N > mostUnits || u.N <= 0 || u.Per <= 0 || u.Full != b.Burst*u.Per {
			t.Fatalf("%+v: %+v", b, u)
		}
		want := new(big.Rat).SetFrac64(b.N, int64(b.Per))
		got := new(big.Rat).SetFrac64(u.N, 1000*u.Tick)
		got.Quo(got, new(big.Rat).SetInt64(u.Per))
		switch got.Cmp(want) {
		case 1:
			t.Fatalf("%+v: %+v is a higher rate", b, u)
		case -1:
			rounded++
			if want.Sub(want, got).Quo(want, got).Cmp(big.NewRat(1, exactly-1)) > 0 {
				t.Fatalf("%+v: %+v is off by %v", b, u, want)
			}
		}
	}
	if rounded < 100 {
		t.Errorf("only %d rates were rounded", rounded)
	}
}

func TestUnitsThatDoNotFitAreAnError(t *testing.T) {
	for _, b := range []Budget{
		{Kind: Bucket, N: 1, Per: 1 << 62, Burst: 1 << 60},
		{Kind: Bucket, N: 1 << 60, Per: 1, Burst: 1},
		{Kind: Bucket, N: 1, Per: 24 * time.Hour, Burst: 1 << 50},
	} {
		if u, err := b.units(); err == nil {
			t.Errorf("%+v: %+v", b, u)
		}
	}
}
