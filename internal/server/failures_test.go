package server

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

// takes takes n responses, of which the last ones are failures with a status that says nothing, and returns the last step.
func (f *Failures) takes(now meter.Instant, n, failed int, bare bool) (v Step) {
	for i := range n {
		if i < n-failed {
			v = f.Take(now, 0, false, true)
		} else {
			v = f.Take(now, 1, bare, true)
		}
	}
	return v
}

func TestOlderResponsesWeighLess(t *testing.T) {
	f := new(Failures)
	for range 4 {
		f.Count(0.4)
	}
	for range 60 {
		f.Count(0)
	}
	assert.Equal(t, float32(64), f.n)
	assert.InDelta(t, 1.6, f.weight, 1e-6)
	f.Count(0)
	assert.Equal(t, float32(33), f.n)
	assert.InDelta(t, 0.8, f.weight, 1e-6)
	f.Moved(TryLower)
	for range 100 {
		f.Count(0)
	}
	assert.Equal(t, float32(100), f.n, "all responses of a trial count alike")
}

func TestMoreFailuresThanUsualAreSuspected(t *testing.T) {
	for _, c := range []struct {
		n, failed int
		usual     float32
		bare      bool
		v         Step
	}{
		{24, 5, 0, true, Suspected}, {23, 5, 0, true, NoStep}, {34, 4, 0, true, NoStep},
		{62, 5, 0, true, Suspected}, {64, 5, 0, true, NoStep}, {41, 5, UsualAtMost, true, NoStep}, {39, 5, UsualAtMost, true, Suspected},
		{7, 3, 0, true, Suspected}, {10, 3, 0, true, NoStep}, {2, 2, 0, true, NoStep}, {7, 3, 0, false, NoStep},
	} {
		f := &Failures{usual: c.usual}
		assert.Equal(t, c.v, f.takes(second, c.n, c.failed, c.bare), "%+v", c)
	}
}

// tries returns what a trial tries, one after the other, if these shares of its responses fail.
func tries(f *Failures, shares ...float32) (v Step) {
	f.Try(0.25)
	for _, share := range shares {
		f.n = trialSeen
		v = f.judge(second, share)
		f.Moved(v)
	}
	return v
}

func TestATrialShowsWhetherLoadIsTheCause(t *testing.T) {
	for _, c := range []struct {
		shares []float32
		v      Step
		usual  float64
	}{
		{[]float32{0}, ByLoad, 0},        // it helped
		{[]float32{0.51}, ByLoad, 0},     // more than half failed: it is not taken for usual
		{[]float32{0.2}, TryHigher, 0.2}, // or the lower one does not matter
		{[]float32{0.2, 0.3}, NotByLoad, 0.25},
		{[]float32{0.1, 0.5}, TryStill, 0.1},    // the lower one helped, and half of the higher one may help less
		{[]float32{0.1, 0.5, 0.1}, ByLoad, 0.1}, // as usual: load causes what is beyond that
		{[]float32{0.1, 0.5, 0.25}, TryHigher, 0.25},
		{[]float32{0.4}, TryStill, 0},            // too many to try the higher one again
		{[]float32{0.4, 0.35}, NotByLoad, 0.375}, // the lower ones do not help
		{[]float32{0.4, 0.1}, TryHigher, 0.1},    // this one does
		{[]float32{0.6, 0}, ByLoad, 0},
	} {
		f := new(Failures)
		assert.Equal(t, c.v, tries(f, c.shares...), "%v", c.shares)
		usual, found := f.Usual()
		assert.InDelta(t, c.usual, usual, 1e-6, "%v", c.shares)
		assert.Equal(t, c.usual > 0, found, "%v", c.shares)
		over := c.v == ByLoad || c.v == NotByLoad
		assert.Equal(t, over, f.until == second+KnownFor, "%v", c.shares)
	}
}

func TestATrialEndsWhenItsEffectIsClear(t *testing.T) {
	f := new(Failures)
	f.Try(0.2)
	assert.Equal(t, NoStep, f.takes(second, trialSeen-1, 0, true))
	assert.Equal(t, ByLoad, f.takes(second, 1, 0, true), "64 decide")
	f.Try(0.2)
	f.takes(second, 4, 4, true)
	assert.Equal(t, NoStep, f.takes(second, trialSeen/2-5, 0, true))
	assert.Equal(t, TryHigher, f.takes(second, 1, 0, true), "32 decide where more than a tenth fails")
}

// What a trial has taken for chance is believed until more fails. A response with which some servers refuse is a refusal where none is usual.
func TestTheThresholdIsBeyondTheUsualShare(t *testing.T) {
	f := new(Failures)
	assert.Zero(t, f.Threshold(second), "nothing is known")
	tries(f, 0)
	assert.Equal(t, mostByLoad, f.Threshold(second))
	f.bare = true
	assert.Equal(t, leastByLoad, f.Threshold(second))
	assert.True(t, f.Bare(second))
	assert.True(t, f.Refuses(second, true))
	assert.False(t, f.Refuses(second, false))
	assert.True(t, f.Refuses(second, true), "each of them")
	tries(f, 0.2, 0.2)
	assert.False(t, f.Bare(second))
	assert.InDelta(t, mostByLoad+1.25*0.2, f.Threshold(second), 1e-6)
	f.usual = 0.01
	assert.InDelta(t, 0.02, f.Threshold(second), 1e-6)
	f.Blame(second)
	assert.Equal(t, leastByLoad, f.Threshold(second))
	_, found := f.Usual()
	assert.False(t, found)
}

func TestTheUsualShareIsLearnedWhereLoadIsNoCause(t *testing.T) {
	learned := func(known, near bool, before, most float32) float32 {
		f := &Failures{usual: before, most: most, n: leastSeen}
		if known {
			f.Learn(second)
		}
		f.Take(second, 1, true, near)
		return f.usual
	}
	assert.InDelta(t, 0.005, learned(false, false, 0, 0), 1e-6)
	assert.Zero(t, learned(false, true, 0, 0))
	assert.InDelta(t, UsualAtMost, learned(false, false, UsualAtMost, 0), 1e-6, "without a trial")
	assert.Zero(t, learned(true, false, 0, 0), "a trial has shown that none is usual")
	assert.InDelta(t, 0.204, learned(true, false, 0.2, 0.21), 1e-6, "a trial has shown that so many are")
	assert.InDelta(t, 0.21, learned(true, false, 0.209, 0.21), 1e-6)
	f := new(Failures)
	f.Take(second, 1, true, false)
	assert.Zero(t, f.usual, "too early")
	f.Try(0.2)
	f.n = leastSeen
	f.Take(second, 1, true, false)
	assert.Zero(t, f.usual, "a trial")
	f.Recall(0.5)
	assert.InDelta(t, UsualAtMost, f.usual, 1e-6)
}

// After a cut, the next one waits until there are still more failures. What succeeds makes up for failures.
func TestAnExcessIsCutOnce(t *testing.T) {
	e := new(Excess)
	for range 100 {
		for range 4 {
			assert.False(t, e.Add(second, 0.25, false))
		}
		assert.False(t, e.Add(second, 0.25, true), "fewer than the threshold")
	}
	failures := 0
	for ; !e.Add(second, 0.25, true); failures++ {
		require.Less(t, failures, 100)
	}
	e.Cut(0.25)
	assert.False(t, e.Allows(0.25))
	assert.True(t, e.Allows(0), "there is no threshold")
	more := 0
	for ; !e.Add(second, 0.25, true); more++ {
		require.Less(t, more, failures)
	}
	assert.Positive(t, more)
	e.excess = bound(0.25)/2 + 0.1
	assert.False(t, e.Allows(0.25))
	e.Add(second, 0.25, false)
	assert.True(t, e.Allows(0.25), "each success makes up for a quarter")
	e.excess = bound(0.25)
	e.Add(second+excessOver, 0.25, false)
	assert.Less(t, e.excess, bound(0.25)/2, "it is forgotten")
}
