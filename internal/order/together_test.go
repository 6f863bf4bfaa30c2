package order

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTogetherIsWhatTheFirstRequestsCost(t *testing.T) {
	x := newWorld(t)
	points := []*Point{x.point(every(1<<40, 1<<40))}
	r, sum := rand.New(rand.NewPCG(1, 2)), int64(0)
	var all []*Waiter
	var through []int64 // what a request and those before it cost
	for range 40 {
		cost := r.Int64N(9) + 1
		all = append(all, x.come(0, points, cost))
		sum += cost
		through = append(through, sum)
		for range 20 {
			least, most := r.Int64N(sum+10), r.Int64N(sum+10)
			want := int64(0)
			for _, sum := range through {
				if sum > least && (sum <= most || want == 0) {
					want = sum
				}
			}
			got, last := all[0].Together(0, least, most)
			require.Equal(t, want, got, "%v: more than %d, at most %d", through, least, most)
			if i := slices.Index(through, want); i >= 0 {
				require.Same(t, all[i], last)
			} else {
				require.Nil(t, last)
			}
		}
	}
}
