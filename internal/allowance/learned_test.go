package allowance

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

func TestARestoredMeterGoesOnAsBefore(t *testing.T) {
	for _, silent := range []bool{false, true} {
		r := rand.New(rand.NewPCG(1, 2))
		perSecond := 600.0
		a := &account{limit: 60 * perSecond, left: 60 * perSecond, rate: perSecond / 1e9, arrive: 1, end: -0.6}
		before := New(new(meter.Wall))
		play(before, a, r, 2000, silent)
		now := before.last + 20*second // whatever was in flight is lost to the Meter
		after := New(new(meter.Wall))
		require.True(t, after.Restore(now+10*second, 10*second, before.Save(now)))
		for _, cost := range []int64{1, 1000, 5000, 20000} {
			want := before.Ready(now+10*second, 0, cost)
			got := after.Ready(now+10*second, 0, cost)
			require.InDelta(t, float64(want-now), float64(got-now), 0.02*float64(want-now), "silent: %v, cost %d", silent, cost)
		}
		if !silent {
			require.InDelta(t, 0.4, after.parts[0].fit.whole, 0.05)
		}
		_, full := after.Matters(now + 10*second)
		require.Equal(t, now+10*second+keepLearned, full)
	}
}

func TestARestoredWindowEnds(t *testing.T) {
	m := New(new(meter.Wall))
	require.True(t, m.Restore(5*second, 2*second, Learned{Parts: []Part{{Name: "tokens", Limit: 1000, Left: 10, Sent: 1, Ends: 10e9}}}))
	require.False(t, m.Payable(13*second-1, 100))
	require.True(t, m.Payable(13*second, 100))
}

func TestARestoredHoldLasts(t *testing.T) {
	m := New(new(meter.Wall))
	require.True(t, m.Restore(5*second, 2*second, Learned{Held: 10e9}))
	require.False(t, m.Payable(13*second-1, 1))
	require.True(t, m.Payable(13*second, 1))
}

func TestWhatNoMeterKnewIsNotRestored(t *testing.T) {
	for _, l := range []Learned{
		{Took: -1}, {Held: -1}, {Hidden: [2]Hidden{{Rate: math.Inf(1)}}}, {Hidden: [2]Hidden{1: {Owed: math.NaN()}}}, {Parts: make([]Part, 9)},
		{Parts: []Part{{}}}, {Parts: []Part{{Name: "a", Limit: -1}}}, {Parts: []Part{{Name: "a", Sent: 1, Ended: -2}}}, {Parts: []Part{{Name: "a", Refills: 17}}},
	} {
		require.False(t, New(new(meter.Wall)).Restore(0, 0, l), "%+v", l)
	}
}
