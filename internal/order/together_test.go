package order

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTogetherIsWhatTheFirstRequestsCost(t *testing.T) {
	x := newWorld(t)
	all := []*Point{x.point(every(1<<40, 1<<40))}
	r := rand.New(rand.NewPCG(1, 2))
	var first *Waiter
	var through []int64 // what a request and those before it cost
	for range 40 {
		cost := r.Int64N(9) + 1
		w := x.come(0, all, cost)
		if first == nil {
			first, through = w, []int64{cost}
		} else {
			through = append(through, through[len(through)-1]+cost)
		}
		last := through[len(through)-1]
		for range 20 {
			least, most := r.Int64N(last+10), r.Int64N(last+10)
			want := int64(0)
			for _, sum := range through {
				if sum > least && (sum <= most || want == 0) {
					want = sum
				}
			}
			require.Equal(t, want, first.Together(0, least, most), "%v: more than %d, at most %d", through, least, most)
		}
	}
}
