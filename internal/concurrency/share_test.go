package concurrency

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// The share of refusals is a mean in which each response counts one in a hundred.
func TestAResponseIsAHundredthOfTheShareOfRefusals(t *testing.T) {
	c := cruisingAt(10, math.Inf(1))
	r := &c.refusals
	r.share = 0.5
	r.succeeded(10)
	require.InDelta(t, 0.495, r.share, 1e-12)
	c.refusedAt(second, 8)
	require.InDelta(t, 0.495+0.505/100, r.share, 1e-12)
}
