package quota

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

// refuse has a request leave at sent and be refused immediately with a wait of a second. It returns the end of the hold.
func refuse(t *testing.T, a *Account, g *Gate, sent meter.Instant) (end meter.Instant) {
	t.Helper()
	sends(t, g, sent, 1)
	g.Answered(sent, sent, false, nil)
	a.Refused(sent, sent, second, false)
	return a.Until()
}

// burst has n requests leave at now and be accepted.
func burst(t *testing.T, g *Gate, now meter.Instant, n int) {
	t.Helper()
	for range n {
		asks(t, g, now)
	}
}

func TestPaceTrustsAKnownLimitOnceAndThenSpreadsItsBursts(t *testing.T) {
	a, g, _ := newFamilies()
	a.Cover(50, false)
	burst(t, g, second, 50)
	end := refuse(t, a, g, 2*second)
	require.Zero(t, a.pace.rate, "one refusal is no reason to slow down")
	burst(t, g, end, 50)
	end = refuse(t, a, g, end+second+1)
	require.InDelta(t, 50, a.pace.rate, 1e-9, "the burst before the rest counts as accepted")
	burst(t, g, end, 1)
	requireReady(t, g, end, end+second/50)
}

func TestPaceOfAKnownLimitWithoutAnAcceptedRequestIsHalfOfIt(t *testing.T) {
	a, g, _ := newFamilies()
	a.Cover(50, false)
	end := refuse(t, a, g, second)
	refuse(t, a, g, end)
	require.InDelta(t, 25, a.pace.rate, 1e-9)
}

func TestPaceGrowsHalfAWaitAfterItBegan(t *testing.T) {
	a, g, _ := newFamilies()
	burst(t, g, second, 10)
	end := refuse(t, a, g, 2*second)
	require.InDelta(t, 5, a.pace.at(end+second/2), 1e-9, "10 in the first two seconds")
	require.InDelta(t, 10, a.pace.at(end+second/2+2*second), 1e-9)
}
