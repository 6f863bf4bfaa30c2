package allowance

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A server stops reporting what is left of a bucket. What it charges comes back all the same, but no more than the bucket holds.
func TestABucketThatIsNoLongerReportedRefills(t *testing.T) {
	m := New(new(meter.Wall))
	left := 1000.0
	for at := int64(0); at < 20*second; at += second {
		left = min(1000, left+10) - 100
		n := m.Take(at, at, 100, false)
		m.Report(n, at, []Figures{{Name: "tokens", Limit: 1000, Left: int64(left), Reset: int64((1000 - left) / 10 * 1e9)}}, false)
		m.End(n, at)
		if left < 200 {
			break
		}
	}
	require.True(t, m.parts[0].isBucket())
	now := 200 * second // it is full
	for range 100 {     // ten times what it holds
		require.True(t, m.Payable(now, 100))
		m.End(m.Take(now, now, 100, false), now)
		now += 10 * second
	}
	for range 8 {
		m.End(m.Take(now, now, 100, false), now)
	}
	require.False(t, m.Payable(now, 200))
	require.True(t, m.Payable(now+10*second, 100))
}
