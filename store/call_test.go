package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func kindOf(k Kind, n int64) Budget { return Budget{Kind: k, Limit: "l", N: n, Per: time.Second} }

func TestACallCountsInTicks(t *testing.T) {
	b := bucket(999_983, 24*time.Hour, 999_983)
	c, err := NewCall(&Part{Budget: b, Need: 1, Horizon: 50 * time.Millisecond, Within: time.Second, Back: []Return{{0, 1}, {2, 3}}})
	require.NoError(t, err)
	require.EqualValues(t, 1000, c.Tick)
	assert.EqualValues(t, 50*999_983, c.Horizon)
	assert.EqualValues(t, 1000, c.Ticks)
	assert.Equal(t, []Return{{2, 3}}, c.Back)

	slots := Part{Budget: Budget{Kind: Slots, N: 1}, Holder: string(make([]byte, 64)), Back: []Return{{2, 3}}}
	c, err = NewCall(&slots)
	require.NoError(t, err)
	assert.Empty(t, c.Back)
	slots.Holder += "x"
	_, err = NewCall(&slots)
	assert.ErrorIs(t, err, ErrSetup)
}

func TestABudgetIsChecked(t *testing.T) {
	for _, ok := range []Budget{
		bucket(1, 1, 1), {Kind: Bucket, N: 1, Per: 1, Burst: 2, Initial: 2}, {Kind: Bucket, N: 1, Per: 1, Burst: 2}, {Kind: Slots, N: 1},
		{Kind: Sliding, N: 1 << 60, Per: 1}, {Kind: Fixed, N: 1, Per: 1}, {Kind: Pace, N: 1, Per: 1},
	} {
		assert.NoError(t, ok.Check(), "%+v", ok)
	}
	for _, bad := range []Budget{
		{Kind: "x", N: 1, Per: 1}, {Kind: Sliding, Per: 1}, {Kind: Sliding, N: 1}, {Kind: Fixed, N: 1, Per: -1}, {Kind: Bucket, N: 1, Per: 1},
		{Kind: Bucket, N: 1, Per: 1, Burst: 2, Initial: 3}, {Kind: Bucket, N: 1, Per: 1, Burst: 2, Initial: -1}, {Kind: Slots},
		bucket(1, 1, 1<<60), {Kind: Pace, N: int64(1) << 60, Per: 1},
	} {
		assert.Error(t, bad.Check(), "%+v", bad)
	}
}

func TestTheMostThatARequestMayCost(t *testing.T) {
	assert.EqualValues(t, 5, ptr(bucket(10, time.Second, 5)).Most())
	assert.Equal(t, int64(mostUnits/100_000), ptr(kindOf(Pace, 10)).Most())
	assert.EqualValues(t, 10, ptr(kindOf(Sliding, 10)).Most())
	assert.Equal(t, int64(mostUnits), ptr(kindOf(Sliding, mostUnits+1)).Most())
	assert.Equal(t, int64(mostUnits), ptr(kindOf(Pace, 1<<60)).Most(), "no units")
}

func TestUnitsAtTheirBounds(t *testing.T) {
	pace := kindOf(Pace, 10)
	u, err := pace.units()
	assert.NoError(t, err)
	assert.Equal(t, Units{Tick: 1, N: 1, Per: 100_000, Full: 100_000, Initial: 100_000, Owed: 60_000_000}, u, "a minute of a pace")
	pace.Per = time.Hour
	u, err = pace.units()
	assert.NoError(t, err)
	assert.Equal(t, 10*u.Per, u.Owed, "or n")
	slow := Budget{Kind: Pace, N: 1 << 40, Per: 24 * time.Hour}
	u, err = slow.units()
	assert.NoError(t, err)
	assert.Equal(t, min(int64(mostUnits), max(mulSat(1<<40, u.Per), 60_000_000/u.Tick*u.N)), u.Owed)
	b := bucket(10, time.Second, 5)
	u, _ = b.units()
	assert.Equal(t, 600*u.Per, u.Owed, "of a minute")
	b.Per = time.Hour
	u, _ = b.units()
	assert.Equal(t, u.Full, u.Owed, "or the burst")

	for burst, ok := range map[int64]bool{1 << 51: true, 1<<51 + 1: false} {
		b := Budget{Kind: Bucket, N: 1, Per: time.Microsecond, Burst: burst}
		_, _, exact := b.perTick(1, burst, false)
		assert.Equal(t, ok, exact, burst)
	}
	for n, ok := range map[int64]bool{1 << 51: true, 1<<51 + 1: false} {
		b := Budget{Kind: Bucket, N: n, Per: time.Microsecond, Burst: 1}
		_, _, exact := b.perTick(1, 1, false)
		assert.Equal(t, ok, exact, n)
	}
	assert.Equal(t, int64(1<<62), mulSat(1<<31, 1<<31))
	assert.Equal(t, int64(1<<63-1), mulSat(1<<63-1, 1))
	assert.Equal(t, int64(1<<63-1), mulSat(1<<32, 1<<31))
	assert.Equal(t, int64(1<<63-1), mulSat(1<<62, 4))
}
