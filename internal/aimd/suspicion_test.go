package aimd

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A server of which a fifth of the responses are 503, whatever its load, is not taken for one that refuses; one that refuses is.
func TestAFifthOfBareResponsesIsNoRefusal(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	refusals := func(share float64) (n int) {
		var s Suspicion
		for i := range 100_000 {
			switch now := instant(i) * second / 1000; {
			case random.Float64() >= share:
				s.Accepted()
			case s.Refuses(false, now):
				n++
			}
		}
		return n
	}
	assert.Less(t, refusals(0.2), 100, "of 20,000")
	assert.Greater(t, refusals(0.6), 30_000, "of 60,000")
}

func TestABare403CountsOnceRequestsHaveBeenAccepted(t *testing.T) {
	var s Suspicion
	for i := range 100 {
		assert.Equal(t, ClientError, s.Judge(Forbidden, instant(i)))
	}
	for range 3 {
		assert.Equal(t, OK, s.Judge(OK, 100))
	}
	s.Judge(OK, 3*second)
	row := func(believed int) {
		for i := range bareRow - 1 {
			assert.Equal(t, ClientError, s.Judge(Forbidden, 3*second+instant(i)))
		}
		for range believed {
			assert.Equal(t, Throttled, s.Judge(Forbidden, 3*second))
			assert.Equal(t, OK, s.Judge(OK, 3*second))
		}
	}
	s = Suspicion{Given: true}
	for _, believed := range []int{32, 64, 128, 256, 512, 1024, 1024} {
		row(believed)
	}
	for range 100 {
		assert.Equal(t, ClientError, s.Judge(Forbidden, 10*second))
		assert.Equal(t, ClientError, s.Judge(Forbidden, 11*second+1))
		s = Suspicion{Given: true, row: bareRow - 1, last: 10 * second}
		assert.Equal(t, ClientError, s.Judge(Forbidden, 11*second+1), "the others are too long ago")
		s = Suspicion{Given: true}
	}
	assert.Equal(t, Unavailable, s.Judge(Unavailable, 0))
}
