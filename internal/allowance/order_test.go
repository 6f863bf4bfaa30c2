package allowance

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/internal/meter"
)

// shuffled plays callers that send as soon as the meter allows it, to a bucket of 2,000 tokens a minute, in rounds that end together. A request takes
// 100 tokens, and most of them come back when all that arrived at the same time have been counted. Requests that are sent together arrive in any
// order, and so do their responses. It returns how many were refused.
func shuffled(r *rand.Rand, callers, rounds int, used float64) (refused int) {
	const trip, round = second / 100, 40
	type request struct {
		n        int64
		at       meter.Instant // when it arrives, and then its response
		figures  Figures
		reported bool
	}
	shuffle := func(s []*request) { r.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] }) }
	m := New(&meter.Wall{})
	a := account{limit: 2000, left: 2000, rate: 2000 / float64(minute)}
	var arriving, ending []*request
	now, sent, done := meter.Instant(0), 0, 0
	mayFollow := func() bool { return sent < (done/round+1)*round && sent-done < callers }
	follow := func() {
		for mayFollow() && m.Payable(now, 100) {
			arriving = append(arriving, &request{n: m.Take(now, now, 100, false), at: now + trip})
			sent++
		}
	}
	for done < rounds*round {
		a.fill(now)
		shuffle(arriving)
		back, later := 0.0, arriving[:0]
		for _, x := range arriving {
			if x.at > now {
				later = append(later, x)
				continue
			}
			if a.left >= 100 {
				a.left -= 100
				back += 100 - used
				x.figures = Figures{Name: "tokens", Limit: 2000, Left: int64(a.left), Reset: int64((a.limit - a.left) / a.rate)}
			}
			x.at += trip
			ending = append(ending, x)
		}
		arriving = later
		a.left += back
		for i := 0; i < len(ending); {
			shuffle(ending[i:])
			x := ending[i]
			switch {
			case x.at > now:
				i++
				continue
			case x.figures.Name == "":
				refused++
				m.Refused(x.n, now, second, false)
				sent--
			case !x.reported:
				m.Report(x.n, now, []Figures{x.figures}, false)
				x.reported = true
				continue
			default:
				m.Settle(x.n, now, 100, int64(used))
				done++
			}
			ending = append(ending[:i], ending[i+1:]...)
			if r.IntN(2) == 0 {
				follow()
			}
		}
		follow()
		at := meter.Never
		if mayFollow() {
			at = max(now+1, m.Ready(now, 0, 100))
		}
		for _, x := range append(arriving[:len(arriving):len(arriving)], ending...) {
			at = min(at, x.at)
		}
		now = at
	}
	return refused
}

// While as much ends as is sent, only the sum of what a request costs when it is sent and when it ends is certain, and what came back before a
// request arrived says nothing of either.
func TestRequestsThatArriveTogetherInAnyOrder(t *testing.T) {
	for _, callers := range []int{3, 8, 16} {
		refused := 0
		for seed := range uint64(300) {
			refused += shuffled(rand.New(rand.NewPCG(seed, 0)), callers, 3, 37)
		}
		assert.Zero(t, refused, "of 36,000 with %d callers", callers)
	}
}

// Of two requests that are sent together, a response says how much is left before the other one is counted, and when all will be.
func TestAResetBelongsToWhatTheSameResponseSaysIsLeft(t *testing.T) {
	m := New(&meter.Wall{})
	first, second := m.Take(0, 0, 100, false), m.Take(0, 0, 100, false)
	m.Report(first, 1, []Figures{{Name: "tokens", Limit: 2000, Left: 1400, Reset: 18e9}}, false)
	m.Report(second, 1, []Figures{{Name: "tokens", Limit: 2000, Left: 1500, Reset: 15e9}}, false)
	assert.InDelta(t, 2000.0/60, m.PerSecond(1), 1e-6)
}
