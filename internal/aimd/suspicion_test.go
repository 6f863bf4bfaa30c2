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
	assert.Equal(t, OK, s.Judge(OK, 100))
	assert.Equal(t, Throttled, s.Judge(Forbidden, 101), "the row of before counts now")
	assert.Equal(t, Unavailable, s.Judge(Unavailable, 103))
}

func TestBareResponsesAreBelievedLongerAfterEachRow(t *testing.T) {
	s := Suspicion{Given: true}
	for _, believed := range []int{32, 64, 128, 256, 512, 1024, 1024} {
		for range bareRow - 1 {
			assert.Equal(t, ClientError, s.Judge(Forbidden, second))
		}
		for range believed {
			assert.Equal(t, Throttled, s.Judge(Forbidden, second))
			assert.Equal(t, ClientError, s.Judge(ClientError, second), "a 404 was accepted, too")
		}
	}
}

func TestBareResponsesInARowAreNoMoreThanASecondApart(t *testing.T) {
	for gap, want := range map[int64]Outcome{bareGap: Throttled, bareGap + 1: ClientError} {
		s := Suspicion{Given: true, row: bareRow - 1, last: second}
		assert.Equal(t, want, s.Judge(Forbidden, second+gap))
	}
}
