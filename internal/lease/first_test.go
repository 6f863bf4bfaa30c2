package lease

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// The tokens of the first lease of a sliding window are void as early as those of later ones, although the usual round trip is not known
// yet. A request that waits for another limit as well would use them in a period in which the store does not count them any more.
func TestTheFirstTokensOfASlidingWindowAreVoidInTime(t *testing.T) {
	budget := store.Budget{Kind: store.Sliding, Limit: "calls", N: 5, Per: 2 * time.Second}
	m := leasedOf(budget)
	d := Demand{First: 1, All: 1, Until: meter.Never - 1}
	asked := m.Ask(0, d)
	m.Booked(0, 4*ms, asked, store.LeasedPart{ID: 1, Tokens: 1, AtOnce: 1, Until: 2 * time.Second, Processes: 2})
	void := 6*ms + lateUse // one and a half round trips and 10 ms after the ask
	m.Advance(void-1, void-1)
	require.Equal(t, void-1, m.Ready(void-1, 0, 1))
	m.Advance(void, void)
	require.Equal(t, meter.Never, m.Ready(void, 0, 1))
	require.Equal(t, []store.Return{{Tokens: 1, Lease: 1}}, m.Ask(void, d).Back)
}
