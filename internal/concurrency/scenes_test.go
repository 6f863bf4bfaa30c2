package concurrency

import (
	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/scene/flight"
)

// noon is a wall clock.
var noon = new(meter.Wall)

func at(seconds float64) instant { return flight.At(seconds) }

// A learned limiter is a meter.
type learned struct {
	*Meter
	refusal aimd.Outcome
}

func newLearned() flight.Limiter { return learned{New(0, Config{}, noon), aimd.Unavailable} }

// meaning returns what an outcome is for controllers.
func (l learned) meaning(o flight.Outcome) aimd.Outcome {
	return [...]aimd.Outcome{flight.Good: aimd.OK, flight.Refused: l.refusal, flight.Unknown: aimd.Ignore}[o]
}

func (l learned) Allow(instant) (n, pause int64) { return l.control.limit(), l.control.refusals.until }

func (l learned) Sent(now instant) int64 { return l.Take(now, now, 1, false) }

func (l learned) Answered(now instant, charged int64, sent instant, o flight.Outcome) int64 {
	return l.Meter.Answered(now, charged, sent, 1, l.meaning(o), 0)
}

func (l learned) Ended(now instant, charged int64) { l.GiveBack(charged, now, 1) }
