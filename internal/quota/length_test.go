package quota

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

// lateWindows returns a gate. Its server has windows of 10 s for 50 requests, and tells each reset 4 s late. The client used
// up the first window at once, asked when that was told to be over, and kept asking: it saw windows begin at 14 s, 24 s and
// 34 s.
func lateWindows(t *testing.T) (*Account, *Gate) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(50, 0, 14*second))
	asks(t, g, 14*second, core(50, 49, 28*second))
	asks(t, g, 23*second, core(50, 16, 28*second))
	asks(t, g, 24*second, core(50, 49, 38*second))
	require.Equal(t, 38*second, a.quotas[0].reset) // it began within the last 24 s, as far as is known
	asks(t, g, 33*second, core(50, 15, 38*second))
	asks(t, g, 34*second, core(50, 49, 48*second))
	return a, g
}

func TestQuotaLearnsHowLongAWindowIsFromTwoThatBegan(t *testing.T) {
	a, g := lateWindows(t)
	require.Equal(t, 45*second, a.quotas[0].reset) // the window of 24 s began after 23 s, and the next one by 34 s
	require.True(t, a.quotas[0].scarce)
	asks(t, g, 44*second, core(50, 0, 48*second))
	requireReady(t, g, 44*second, 45*second)
	asks(t, g, 45*second, core(50, 49, 58*second))
	require.Equal(t, 56*second, a.quotas[0].reset)
}

func TestQuotaTakesAnEarlierResetThanTheLengthOfItsWindows(t *testing.T) {
	a, g := lateWindows(t)
	asks(t, g, 35*second, core(50, 48, 40*second))
	require.Equal(t, 40*second, a.quotas[0].reset)
}

func TestQuotaForgetsTheLengthOfItsWindowsWhenOneGoesOn(t *testing.T) {
	a, g := lateWindows(t)
	asks(t, g, 44*second, core(50, 1, 48*second))
	asks(t, g, 45*second, core(50, 0, 60*second)) // the server has made its windows longer
	requireReady(t, g, 45*second, 60*second)
	asks(t, g, 60*second, core(50, 49, 75*second))
	require.Equal(t, 75*second, a.quotas[0].reset)
}

// In a sliding log, what is left rises request by request, and the reset is when the next one leaves the log.
func TestQuotaLearnsNoLengthWhereLeftRisesSlowly(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(50, 1, second))
	for i := range int64(100) {
		now := second + i*100*milli
		asks(t, g, now, core(50, 1+i%40, now+second))
	}
	require.Equal(t, int64(meter.MaxCount), a.quotas[0].length.most)
}

// A window that ends before its reset leaves a part that was kept for the rest of it. That is not plenty.
func TestQuotaIsScarceUntilAWindowEndsWithPlentyLeft(t *testing.T) {
	for _, c := range []struct {
		left   int64 // when a tenth of the window was still to come
		scarce bool
	}{{5 + 6, true}, {5 + 8, false}} {
		a, g, _ := newFamilies()
		asks(t, g, 0, core(50, 0, 10*second))
		asks(t, g, 10*second, core(50, 49, 20*second))
		asks(t, g, 18*second, core(50, c.left, 20*second))
		asks(t, g, 19*second, core(50, 49, 29*second))
		require.Equal(t, c.scarce, a.quotas[0].scarce, "%d left", c.left)
	}
}
