package meter

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFixedWindowIsAsLongAsItsNewPeriod(t *testing.T) {
	for _, c := range []struct {
		start, per, ends int64
	}{
		{0, 2000, 2000}, {0, 700, 700}, {0, 601, 601}, {300, 2000, 2300}, {300, 700, 1000}, {300, 150, 750},
	} {
		w := NewFixedWindow(0, Rate{10, 1000}, time.Unix(0, c.start), new(Wall))
		w.Take(500, 500, 10, false)
		w.Retune(600, Rate{10, time.Duration(c.per)})
		require.Equal(t, c.ends, w.Ready(600, 0, 1), "%+v", c)
		require.Equal(t, c.ends, w.Turns(600), "%+v", c)
		require.False(t, w.Payable(c.ends-1, 1), "%+v", c)
		require.True(t, w.Payable(c.ends, 10), "%+v", c)
	}
}

// The first of two requests gets its response after the second one.
func TestSlidingWindowKeepsAResponseThatCameEarlier(t *testing.T) {
	w := warmWindow(Rate{N: 2, Per: 20 * time.Second}) // a grant counts for a second longer at most
	w.Take(0, 0, 1, false)
	w.Take(second/2, second/2, 1, false)
	require.True(t, w.Answered(second/2, second*12/10))
	require.True(t, w.Answered(0, second*14/10))
	require.Equal(t, 21*second, w.Ready(second*14/10, 0, 1))
	require.Equal(t, second*212/10, w.Ready(second*14/10, 1, 1))
}
