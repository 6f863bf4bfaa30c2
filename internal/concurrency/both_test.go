package concurrency

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter/metertest"
	"github.com/httpthrottle/throttle/internal/scene/flight"
)

// A pair is a learned rate beside a learned number in flight.
type pair struct {
	learned
	rate    *aimd.Meter
	charged map[int64]int64 // by that of the number in flight
}

// newPair makes pairs for a scene. Its refusals are 429s where a rate is their cause, and 503s elsewhere.
func newPair(s flight.Scene) func() flight.Limiter {
	if s.Rate > 0 {
		return newPairs(aimd.Throttled)
	}
	return newPairs(aimd.Unavailable)
}

// newPairs makes pairs for a server that refuses with that.
func newPairs(refusal aimd.Outcome) func() flight.Limiter {
	return func() flight.Limiter {
		return &pair{
			learned: learned{New(0, Config{}, noon), refusal}, rate: aimd.New(0, aimd.Config{}, 1).Beside(0), charged: make(map[int64]int64),
		}
	}
}

func (p *pair) Allow(now instant) (int64, instant) {
	n, pause := p.learned.Allow(now)
	if !p.rate.Payable(now, 1) {
		pause = max(pause, min(p.rate.Ready(now, 0, 1), now+second))
	}
	return n, pause
}

func (p *pair) Sent(now instant) int64 {
	id := p.learned.Sent(now)
	p.charged[id] = p.rate.Take(now, now, 1, true)
	return id
}

// Answered passes a failure to the limit that owns it, as package limiter does.
func (p *pair) Answered(now instant, id int64, sent instant, o flight.Outcome) int64 {
	forRate := p.meaning(o)
	forNumber := forRate
	switch {
	case forRate == aimd.Unavailable:
		forRate = aimd.ClientError
	case forRate == aimd.Throttled && p.Tries(id):
		forRate = aimd.Ignore
	case forRate == aimd.Throttled:
		forNumber = aimd.Ignore
	}
	p.rate.Answered(now, p.charged[id], sent, 1, forRate, 0)
	delete(p.charged, id)
	return p.Meter.Answered(now, id, sent, 1, forNumber, 0)
}

// A rate that starts low sends few requests at first, of which often none is slow. Their latency must not become the lowest one:
// the number would stay low for a minute, and two of these six runs would reach 38 and 52 %.
func TestNumberDoesNotLearnTheLowestLatencyWhileARateLimitsIt(t *testing.T) {
	for _, s := range flight.Scenes() {
		if s.Name != flight.Mix {
			continue
		}
		f := s.Figures(6, func() flight.Limiter {
			p := newPair(s)().(*pair)
			p.rate.Answered(0, p.rate.Take(0, 0, 1, true), 0, 1, aimd.Throttled, 0) // ends the time without a bound
			assert.InDelta(t, 10, p.rate.PerSecond(0), 0.1)
			return p
		})
		assert.GreaterOrEqual(t, f.Goodput, 92.0, "%v", f)
		assert.GreaterOrEqual(t, f.Least, 85.0, "%v", f)
	}
}

// A bare refusal does not say what is limited, so both heed it. The one that is not limited has room, and grows again.
func TestBothLimitsAreAsGoodAsTheOneThatTheServerHas(t *testing.T) {
	draws := 8
	if testing.Short() {
		draws = 2
	}
	for i := range draws {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			r := metertest.Seeded(t, uint64(i))
			n, mean := 3+r.IntN(40), 0.03*math.Pow(10, r.Float64())
			s := flight.Scene{
				Best: int64(n), Connect: n, Workers: flight.Always(0), Service: flight.LogNormal(mean, r.Float64()), RTT: 0.001 * math.Pow(20, r.Float64()),
				Callers: flight.Always(n + 4 + r.IntN(4*n)), Length: 400, From: 60,
			}
			for _, refusal := range []aimd.Outcome{aimd.Throttled, aimd.Unavailable} {
				f := s.Figures(1, newPairs(refusal))
				t.Logf("%d of %.3f s, %v: %v", n, mean, refusal, f)
				assert.GreaterOrEqual(t, f.Goodput, 95.0)
				assert.LessOrEqual(t, f.Refused, 2.0)
			}
		})
	}
}

// A server that limits a number refuses requests with more in flight than usual, and one that limits a rate any of them.
func TestARefusalWithMoreInFlightThanUsualSaysNothingOfARate(t *testing.T) {
	m := New(0, Config{}, noon)
	m.control.mode, m.control.flying, m.control.seq = cruising, 10, 1000
	for _, c := range []struct {
		inFlight int64
		tries    bool
	}{{1, false}, {10, false}, {11, true}, {20, true}} {
		assert.Equal(t, c.tries, m.Tries(500<<flyingBits|c.inFlight), "%d", c.inFlight)
	}
	m.control.mode = starting
	assert.True(t, m.Tries(500<<flyingBits|20), "each doubling is more than usual")
	m.control.flying = 0.4
	assert.False(t, m.Tries(500<<flyingBits|1), "no number is less than that of one that was alone")
	assert.True(t, m.Tries(500<<flyingBits|2))
}
