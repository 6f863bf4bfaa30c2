package metertest

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"
)

// Seeded returns a source of randomness whose seed is printed if the test fails.
func Seeded(t *testing.T, seed uint64) *rand.Rand {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// An ideal is the arithmetic of one bucket at its plainest.
type Meter interface {
	Ready(from instant, cost int64) instant
	Pay(due, now instant, cost int64, waited bool)
	Retune(now instant, r Rate)
	Clone() Meter
}

// A rationalBucket is a token bucket in rational numbers: what a tokenBucket is meant to be.
type Bucket struct {
	Rate  Rate
	Burst *big.Rat
	Paced bool
	Level *big.Rat
	Last  instant
}

func NewBucket(now instant, r Rate, burst, initial int64) *Bucket {
	return &Bucket{Rate: r, Burst: Rat(burst), Level: Rat(initial), Last: now}
}

func NewPace(now instant, r Rate) *Bucket {
	return &Bucket{Rate: r, Burst: Rat(0), Paced: true, Level: Rat(0), Last: now}
}

func Rat(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

func (m *Bucket) accrued(ns int64) *big.Rat {
	return new(big.Rat).Mul(Rat(ns), big.NewRat(m.Rate.N, int64(m.Rate.Per)))
}

// At returns the level at t: what is above burst is lost, except less than a nanosecond's worth above keep.
func (m *Bucket) At(t instant, keep *big.Rat) *big.Rat {
	if t <= m.Last {
		return m.Level
	}
	level := new(big.Rat).Add(m.Level, m.accrued(t-m.Last))
	if keep != nil && level.Cmp(new(big.Rat).Add(keep, m.accrued(1))) < 0 {
		return level
	}
	return MinRat(level, m.Burst)
}

func MinRat(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) < 0 {
		return a
	}
	return b
}

func (m *Bucket) need(cost int64) *big.Rat {
	if m.Paced {
		return Rat(0)
	}
	return Rat(cost)
}

// Owe takes what was charged too little, up to a burst below nothing, or a minute's worth where it is paced, n at least.
func (m *Bucket) Owe(now instant, more int64) {
	m.Level, m.Last = m.At(now, nil), max(m.Last, now)
	least := new(big.Rat).Neg(m.Burst)
	if m.Paced {
		minute := new(big.Int).Div(new(big.Int).Mul(big.NewInt(m.Rate.N), big.NewInt(int64(time.Minute))), big.NewInt(int64(m.Rate.Per)))
		least = MinRat(Rat(-m.Rate.N), new(big.Rat).SetInt(minute.Neg(minute)))
	}
	least = MinRat(least, m.Level)
	if m.Level = new(big.Rat).Sub(m.Level, Rat(more)); m.Level.Cmp(least) < 0 {
		m.Level = least
	}
}

// Ready returns the first instant from which cost can be paid, not before from.
func (m *Bucket) Ready(from instant, cost int64) instant {
	need := m.need(cost)
	if need.Cmp(m.Burst) > 0 {
		return never
	}
	from = max(from, m.Last)
	missing := new(big.Rat).Sub(need, m.At(from, nil))
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

func (m *Bucket) Clone() Meter {
	c := *m
	return &c // no Rat is ever changed in place
}

func (m *Bucket) Pay(due, _ instant, cost int64, waited bool) { m.Take(due, cost, waited) }

func (m *Bucket) Take(t instant, cost int64, waited bool) {
	var keep *big.Rat
	if waited {
		keep = m.Burst
	}
	m.Level, m.Last = new(big.Rat).Sub(m.At(t, keep), Rat(cost)), max(m.Last, t)
	if waited {
		m.Level = MinRat(m.Level, m.Burst) // for where more than burst comes in within a nanosecond
	}
}

func (m *Bucket) Settle(now instant) { m.Level, m.Last = m.At(now, nil), max(m.Last, now) }

func (m *Bucket) GiveBack(cost int64) {
	if m.Level.Cmp(m.Burst) < 0 {
		m.Level = MinRat(m.Burst, new(big.Rat).Add(m.Level, Rat(cost)))
	}
}

// Retune keeps what there is, rounded down to what the new rate can count.
func (m *Bucket) Retune(now instant, r Rate) {
	m.Settle(now)
	m.Rate = r
	units := new(big.Rat).Mul(m.Level, Rat(int64(r.Per)))
	m.Level = new(big.Rat).SetFrac(new(big.Int).Div(units.Num(), units.Denom()), big.NewInt(int64(r.Per)))
}

func (m *Bucket) Resize(now instant, burst int64) {
	m.Settle(now)
	m.Burst = Rat(burst)
	m.Level = MinRat(m.Level, m.Burst)
}

// An instant is a moment in nanoseconds, as in package meter.
type instant = int64

const never = instant(math.MaxInt64)

// A Rate is N tokens per period. It is not meter's own type, since the tests of meter import this package, but values of
// that can be assigned to it.
type Rate = struct {
	N   int64
	Per time.Duration
}
