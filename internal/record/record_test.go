package record

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A client of a week ago, or in a pause of an hour, was accepted no slower than it was lately.
func TestARecordIsOfTheLastOneToTwoScalesOfUse(t *testing.T) {
	var r Record
	now := meter.Instant(0)
	add := func(n int, gap int64, cost float64) {
		for range n {
			now += gap
			r.Add(now, cost, 0)
		}
	}
	add(1_000_000, second/2, 1)
	for _, d := range scales {
		require.InDelta(t, 2, r.Over(d).Rate(now), 2, "over %d s", d/second)
	}
	add(401, second/20, 3)
	for _, d := range scales[:2] {
		sum := r.Over(d)
		require.InDelta(t, 60, sum.Rate(now), 3)
		require.GreaterOrEqual(t, now-sum.From, d)
		require.Less(t, now-sum.From, 2*d+second/20)
		require.InDelta(t, 60*float64(now-sum.From)/1e9, sum.N, 6)
	}
	require.Equal(t, now, r.Last())
	before := r.Over(10 * second).Rate(now)
	now += 3600 * second
	add(1, 0, 3)
	require.InDelta(t, before, r.Over(10*second).Rate(now), before/10+1, "of a rest, a second counts")
}

func TestOverTakesTheShortestScaleThatIsLongEnough(t *testing.T) {
	var r Record
	for now := meter.Instant(0); now < 2000*second; now += second / 2 {
		r.Add(now, 1, 0)
	}
	now := 2000 * second
	for d, scale := range map[int64]int64{0: second, second: second, second + 1: 10 * second, 60 * second: 60 * second, 60*second + 1: 600 * second, 3600 * second: 600 * second} {
		sum := r.Over(d)
		require.GreaterOrEqual(t, now-sum.From, scale, d)
		require.LessOrEqual(t, now-sum.From, 2*scale, d)
	}
}

func TestLessThanASecondShowsNoHigherRateThanASecond(t *testing.T) {
	var r Record
	require.Zero(t, r.Over(0).Rate(5*second), "nothing was counted")
	for now := range meter.Instant(30) {
		r.Add(now, 1, 0)
	}
	require.InDelta(t, 30, r.Over(0).Rate(30), 0)
	require.InDelta(t, 30, r.Over(0).Rate(second), 0)
	require.InDelta(t, 15, r.Over(0).Rate(2*second), 0)
}

// What was counted may not have been accepted yet.
func TestWithoutTheLast(t *testing.T) {
	var r Record
	for now := range meter.Instant(30) {
		r.Add(now, 1, 0)
	}
	for _, d := range scales {
		require.InDelta(t, 20, r.Without(10).Over(d).N, 0)
		require.Zero(t, r.Without(31).Over(d).N)
		require.InDelta(t, 30, r.Over(d).N, 0, "the record itself stays")
		none := r.Without(30)
		none.Add(second/2, 3, 0)
		require.Equal(t, Sum{3, second / 2}, none.Over(d))
	}
}

// A request that was sent before one that was counted moves no part of a record back.
func TestRequestsMayBeCountedOutOfOrder(t *testing.T) {
	var r Record
	r.Add(5*second, 1, 0)
	r.Add(4*second, 1, 0)
	require.Equal(t, 5*second, r.Last())
	require.Equal(t, Sum{2, 5 * second}, r.Over(10*second))
}

// Most requests only add to what is recent. That changes nothing of what is counted.
func TestWhatIsRecentCountsInEachStretch(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		var r, at Record
		now := meter.Instant(0)
		for range 2_000 {
			now += random.Int64N(2 << random.IntN(31))
			cost := float64(1 + random.IntN(5))
			r.Add(now, cost, 0)
			at.next = 0 // it sums up what is recent each time
			at.Add(now, cost, 0)
			for _, d := range scales {
				require.Equal(t, at.Over(d), r.Over(d))
			}
		}
	}
}

// Requests that are not accepted say that time has passed, also right after a stretch has ended.
func TestWhatIsNotAcceptedMakesNoStretchShorter(t *testing.T) {
	var r Record
	now := second
	for range 155 {
		r.Add(now, 1, 0)
		now += second / 10
	}
	for i := range 20 {
		require.LessOrEqual(t, r.Over(10*second).Rate(now), 10+1e-6, "after %d refusals", i)
		now += second / 2
		r.Add(now, 0, 0)
	}
}
