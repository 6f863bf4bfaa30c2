package quota

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A server of which a fifth of the responses are 503, whatever its load, is not taken for one that refuses; one that refuses is.
func TestAFifthOfBareResponsesIsNoRefusal(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	refusals := func(share float64) (n int) {
		var s suspicion
		for i := range 100_000 {
			switch now := meter.Instant(i) * milli; {
			case random.Float64() >= share:
				s.accepted()
			case s.refuses(Unavailable, now):
				n++
			}
		}
		return n
	}
	assert.Less(t, refusals(0.2), 100, "of 20,000")
	assert.Greater(t, refusals(0.6), 30_000, "of 60,000")
}
