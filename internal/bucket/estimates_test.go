package bucket

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAShareWasEnoughForAllButOneOfTwenty(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		var e estimates
		var all []Share
		for n := range 250 {
			s := 1 + Share(r.IntN(1<<r.IntN(16)))
			e.Add(int64(n), s)
			all = append(all, s)
			last := slices.Clone(all[max(0, len(all)-100):])
			slices.Sort(last)
			if len(last) < 20 {
				require.Zero(t, e.Share())
			} else {
				require.Equal(t, last[len(last)-1-len(last)/20], e.Share())
			}
		}
	}
}

func TestAShareIsThePartOfAnEstimate(t *testing.T) {
	require.Equal(t, int64(7), Share(0).Of(7))
	require.Equal(t, int64(1<<60), WholeShare.Of(1<<60))
	require.Equal(t, int64(-1), ShareOfPart(0.5).Of(-1), "what is wrong stays wrong")
	require.Equal(t, int64(1), ShareOfPart(0.01).Of(3))
	require.Equal(t, WholeShare, ShareOf(100, 300, WholeShare))
	require.InDelta(t, 0.25, ShareOf(50, 25, ShareOfPart(0.5)).Part(), 1e-4)
	require.Equal(t, Share(1), ShareOf(1<<60, 1, WholeShare), "it is known")
}

// On a machine with integers of 32 bits, a client may settle more requests of a key than an int counts.
func TestSettlementsAreCountedForAsLongAsAProcessLasts(t *testing.T) {
	var e estimates
	for now := range int64(2 * estimatesKept) {
		if now == estimatesKept {
			e.n = math.MaxInt - estimatesKept/2
		}
		e.Add(now, WholeShare/2)
	}
	require.Equal(t, WholeShare/2, e.Share())
}
