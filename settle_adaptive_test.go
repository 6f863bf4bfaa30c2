package throttle

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAnAdaptiveLimitOwesAMinuteAtMost(t *testing.T) {
	b := newAdaptiveBucket(0, AIMD{Initial: 10}, 1)
	charged := b.Take(0, 0, 3, false)
	before := b.Tokens(0)
	b.Settle(charged, 0, 3, 5)
	require.InDelta(t, before-2, b.Tokens(0), 1e-6)
	b.Settle(charged, 0, 3, maxCount)
	require.InDelta(t, -600, b.Tokens(0), 1e-6)
	b.Settle(charged, 10*second, 3, 0)
	require.GreaterOrEqual(t, b.control.used.Value, 0.0)
}
