package order

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestABlockerIsInFrontOfARequest(t *testing.T) {
	for name, c := range map[string]struct {
		at       [2][]int64 // what two points can pay
		requests [][2]int64 // their costs at two points, in order; 0: they do not wait there
		blockers []int
	}{
		"the first of a line stops those behind it": {[2][]int64{{2}, {9}}, [][2]int64{{3, 0}, {1, 0}, {1, 0}}, []int{0, 0, 0}},
		"the first at a point stops another line":   {[2][]int64{{2}, {9}}, [][2]int64{{3, 0}, {1, 1}, {1, 1}}, []int{0, 0, 1}},
		"what it costs elsewhere stops it, too":     {[2][]int64{{2}, {0}}, [][2]int64{{3, 0}, {1, 1}}, []int{0, 1}},
		"lines of other points":                     {[2][]int64{{0}, {0}}, [][2]int64{{1, 0}, {0, 1}}, []int{0, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			var o Order
			points := [2]*Point{{Payer: fixed(c.at[0][0])}, {Payer: fixed(c.at[1][0])}}
			waiters := make([]*Waiter, len(c.requests))
			for i, costs := range c.requests {
				w := &Waiter{Rank: 0, Last: Never}
				for p, cost := range costs {
					if cost > 0 {
						w.At, w.Costs = append(w.At, points[p]), append(w.Costs, cost)
					}
				}
				waiters[i] = w
				o.Join(w, 0)
			}
			granted, _ := o.Next(0)
			require.Nil(t, granted)
			for i, blocker := range c.blockers {
				require.Same(t, waiters[blocker], o.Blocker(waiters[i]), "of request %d", i)
			}
		})
	}
}

// fixed pays up to a cost now, and more never.
type fixed int64

func (f fixed) Ready(from, _ Instant, cost int64) Instant {
	if cost > int64(f) {
		return Never
	}
	return from
}
func (f fixed) Plan(from Instant, _, _ int64) Instant { return from }
func (f fixed) Interval() int64                       { return 0 }
func (f fixed) Most() int64                           { return 10 }
