package bucket

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheRatioOfSettledCostsIsThatOfTheLastSettlements(t *testing.T) {
	var s Settled
	require.InDelta(t, 1, s.Ratio(), 0, "nothing was settled")
	s.Add(300, 100)
	require.InDelta(t, 1.0/3, s.Ratio(), 1e-9)
	for range 200 {
		s.Add(300, 600)
	}
	require.InDelta(t, 2, s.Ratio(), 0.01)
	s = Settled{}
	s.Add(300, 0)
	require.InDelta(t, 1, s.Ratio(), 0, "what costs nothing shows no rate")
}
