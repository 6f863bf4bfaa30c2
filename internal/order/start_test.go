package order

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A caller that comes starts where later is, but before it would be finished if it started now; and not before now, even if the
// request costs nothing, as one of a dry run does here after it was charged.
func TestWhereANewCallerStarts(t *testing.T) {
	const now = 10 * tagScale
	for _, c := range []struct {
		later, cost, weight, want int64
		rank                      Instant
	}{
		{later: now, cost: 3, weight: 1, want: now, rank: second},
		{later: now, cost: 0, weight: 1, want: now, rank: second},
		{later: now + tagScale, cost: 3, weight: 1, want: now + tagScale, rank: second},
		{later: now + tagScale, cost: 3, weight: 1, want: now, rank: second - 1},
		{later: now + 9*tagScale, cost: 3, weight: 1, want: now + 3*tagScale - 1, rank: second},
		{later: now + 9*tagScale, cost: 3, weight: 2, want: now + 3*tagScale/2 - 1, rank: second},
		{later: now + 9*tagScale, cost: 0, weight: 1, want: now, rank: second},
	} {
		x := &turns{now: now, later: c.later, since: second}
		require.Equal(t, c.want, x.startOf(nil, &Waiter{Rank: c.rank, Weight: c.weight}, c.cost), "%+v", c)
	}
}
