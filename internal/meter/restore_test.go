package meter

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/internal/meter/metertest"

	"github.com/stretchr/testify/require"
)

// A meter that is saved, and restored by the clock of another process some time later, has what the saved one would have had.
func TestARestoredMeterGoesOnAsTheSavedOne(t *testing.T) {
	for seed := range uint64(600) {
		r := metertest.Seeded(t, seed)
		rt, burst, unix := Rate{1 + r.Int64N(50), time.Duration(1 + r.Int64N(1<<r.IntN(50)))}, 1+r.Int64N(50), r.Int64N(1<<60)
		fresh := func(now Instant, unix int64) Meter {
			switch seed % 4 {
			case 0:
				return NewTokenBucket(now, rt, burst, burst)
			case 1:
				return NewPace(now, rt)
			case 2:
				return NewSlidingWindow(rt)
			}
			return NewFixedWindow(now, rt, time.Time{}, &Wall{Unix: unix})
		}
		now := r.Int64N(1 << 40)
		m := fresh(now, unix)
		for range r.IntN(40) {
			now += r.Int64N(1 + int64(rt.Per)/8)
			if cost := 1 + r.Int64N(min(m.Most(), rt.N)); r.IntN(2) == 0 {
				m.Spend(now, cost)
			} else if charged, ok := m.Spend(now, cost); ok {
				m.Settle(charged, now, cost, r.Int64N(4*cost))
			}
		}
		saved, since, other := m.(Saver).Save(now), r.Int64N(2*int64(rt.Per)), 1<<52+r.Int64N(1<<52)
		restored := fresh(other-r.Int64N(1000), unix+now+since-other)
		restored.Spend(other, 1) // is forgotten
		require.NoError(t, restored.(Saver).Restore(other, since, saved))
		for _, later := range []int64{0, 1, r.Int64N(int64(rt.Per)), 3 * int64(rt.Per)} {
			what := fmt.Sprintf("seed %d: %+v since %d, %d later: %+v, %+v", seed, saved, since, later, m, restored)
			m.Payable(now+since+later, 1)
			restored.Payable(other+later, 1)
			want := m.Tokens(now + since + later)
			require.InDelta(t, want, restored.Tokens(other+later), math.Abs(want)*1e-9+1.1/float64(rt.Per), what) // a balance is a number of 1/per of a token
		}
	}
}

func TestARestoredBucketTakesNothingBackOfBefore(t *testing.T) {
	b := NewTokenBucket(0, Rate{1, time.Hour}, 10, 10)
	full := b.Take(0, 0, 2, false)
	less := b.Take(0, 0, 3, false)
	require.NoError(t, b.Restore(0, 0, State{Tokens: 1}))
	b.GiveBack(less, 0, 3)
	b.GiveBack(full, 0, 2)
	require.Equal(t, 1.0, b.Tokens(0))
	b.GiveBack(b.Take(0, 0, 1, false), 0, 1)
	require.Equal(t, 1.0, b.Tokens(0))
}

// The largest state that can be right is restored, and what is larger is an error.
func TestRestoreKnowsItsBounds(t *testing.T) {
	const huge = float64(MaxCount)
	bucket := func() Meter { return NewTokenBucket(0, Rate{1, time.Hour}, 10, 10) }
	slow := func() Meter { return NewPace(0, Rate{2, time.Duration(MaxPer / MaxCount * 2)}) }
	sliding := func() Meter { return NewSlidingWindow(Rate{10, time.Hour}) }
	fixed := func() Meter { return NewFixedWindow(0, Rate{10, time.Hour}, time.Time{}, new(Wall)) }
	spent := func(ago time.Duration, cost int64) State { return State{Grants: []Granted{{ago, cost}}} }
	for name, c := range map[string]struct {
		of   func() Meter
		s    State
		left float64 // restored, at instant 0
		says string
	}{
		"full":                        {bucket, State{Tokens: 10}, 10, ""},
		"more than a burst":           {bucket, State{Tokens: 11}, 10, ""},
		"as much as can be counted":   {bucket, State{Tokens: huge}, 10, ""},
		"more than can be counted":    {bucket, State{Tokens: 2 * huge}, 10, "cannot be a balance"},
		"a debt of the burst":         {bucket, State{Tokens: -10}, -10, ""},
		"a debt of more":              {bucket, State{Tokens: -10.5}, -10, "debt of 10.5"},
		"no number":                   {bucket, State{Tokens: math.NaN()}, 10, "NaN"},
		"grants in a bucket":          {bucket, spent(0, 1), 10, "kind"},
		"a debt that drains in time":  {slow, State{Tokens: -huge}, -huge, ""},
		"a debt for ever":             {func() Meter { return NewPace(0, Rate{1, time.Duration(MaxPer / 2)}) }, State{Tokens: -3}, 0, "cannot be a balance"},
		"a cost, sliding":             {sliding, spent(0, 11), -1, ""},
		"the largest cost, sliding":   {sliding, spent(0, MaxCount), 10 - huge, ""},
		"a larger cost, sliding":      {sliding, spent(0, MaxCount+1), 10, "cost of"},
		"no cost, sliding":            {sliding, spent(0, 0), 10, "cost of 0"},
		"from the future, sliding":    {sliding, spent(-1, 1), 10, "-1ns ago"},
		"tokens in a window, sliding": {sliding, State{Tokens: 1}, 10, "kind"},
		"a cost, fixed":               {fixed, spent(0, 11), -1, ""},
		"the largest cost, fixed":     {fixed, spent(0, MaxCount), 10 - huge, ""},
		"an earlier window, fixed":    {fixed, spent(1, 5), 10, ""},
		"long ago, fixed":             {fixed, spent(math.MaxInt64, 5), 10, ""},
		"tokens in a window, fixed":   {fixed, State{Tokens: 1}, 10, "kind"},
	} {
		m := c.of()
		if err := m.(Saver).Restore(0, 0, c.s); c.says == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, c.says, name)
		}
		require.Equal(t, c.left, m.Tokens(0), name)
	}
}

// However many grants were saved, all of them count, until the last of them is a window old at the latest.
func TestARestoredSlidingWindowIsBounded(t *testing.T) {
	for _, n := range []int{exactEvents, exactEvents + 2*slots, 5 * exactEvents} {
		w, saved := NewSlidingWindow(Rate{MaxCount, time.Hour}), State{}
		for i := range n {
			saved.Grants = append(saved.Grants, Granted{time.Duration(n - i), 1})
		}
		require.NoError(t, w.Restore(0, 0, saved))
		require.Len(t, w.log, min(n, exactEvents+2*slots))
		require.EqualValues(t, n, w.used())
		now := int64(time.Hour) - 2
		require.False(t, w.Payable(now, MaxCount))
		require.True(t, w.Payable(now+1, MaxCount))
	}
	w := NewSlidingWindow(Rate{10, time.Hour})
	require.NoError(t, w.Restore(0, 0, State{Grants: []Granted{{0, 1}, {5, 2}, {0, 3}}}))
	require.Len(t, w.log, 1, "grants out of order count as long as the later one")
	require.EqualValues(t, 6, w.used())
	for range 4 {
		saved := State{Grants: []Granted{{0, MaxCount}, {0, MaxCount}, {0, MaxCount}}}
		require.NoError(t, w.Restore(0, 0, saved))
		require.Equal(t, 2*MaxCount, w.used(), "sums are bounded")
	}
}
