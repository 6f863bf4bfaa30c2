package aimd

import (
	"unsafe"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/record"
	"github.com/httpthrottle/throttle/internal/server"
)

const (
	leastBegun = 4.0         // per second, where no rate is known
	soonest    = 0.4         // seconds in which such a rate doubles after a refusal that may be by chance
	mostKept   = 30 * second // for which a rate that has grown out of use is kept after a pause, at most
)

// A Start is what is known of an account whose rate begins to be learned because a request was refused.
type Start struct {
	Sent     instant    // when that request was sent
	Wait     int64      // for which the refusal asked; 0: it did not
	Given    record.Sum // what was accepted lately
	Number   int64      // of the last request
	InFlight int64
	Held     int64 // how long requests were held because of it
	Backoff  server.Backoff
	Bare     bool    // it did not mention a limit
	Lone     bool    // others were accepted, and no other one was refused with it: it may be by chance
	Own      float64 // the rate of the client's own limits, which is mostly right; 0: it has none
}

// Rate returns the rate to begin with, and whether that was accepted. After a burst, the server is taken to allow as
// much again once it opens.
func (s *Start) Rate(now instant) (rate float64, known bool) {
	if s.Lone {
		now = s.Sent
	}
	if s.Given.N == 0 || s.Sent-s.Given.From < second {
		return max(leastBegun, s.Given.Rate(now)), false
	}
	return s.Given.Rate(s.Sent), true
}

// Begin returns the meter of an account that has sent requests without one, until one was refused. The next one is sent now. The rate is that
// which was accepted lately, and known. What was accepted in less than a second is a burst, and no rate, so there it begins low.
func Begin(now instant, s *Start, seed uint64) (m *Meter, known bool) {
	rate, known := s.Rate(now)
	m = New(now, Config{Initial: rate}, seed)
	c := &m.control
	m.numbered, c.seq = true, uint64(s.Number)
	c.manner, c.own, c.off.inFlight = begun, s.Own, true // nothing but refusals counts
	c.inFlight, c.backoff = int(s.InFlight), s.Backoff
	if s.Lone && !known {
		c.manner.doubles = soonest
	}
	c.cutSeq, c.rowFrom, c.row = c.seq, c.seq, rowOfDead-1 // if the next request is refused, too, the server is closed
	c.used.Value, c.spared, c.asked = rate, true, s.Wait > 0
	c.silence.gap = s.Held
	if s.Given.N > 0 {
		c.workedFrom, c.givenFrom, c.okAt = s.Given.From, s.Given.From, s.Sent
		c.worked, c.given = s.Given.N, s.Given.N
		c.accepted = meter.MeanRate{Value: rate, At: now}
		m.bare.Given = true
		if !s.Lone { // what was shown is tried before more is
			c.heldUntil = now + min(s.Wait, second)
		}
	}
	if s.Bare {
		c.failures.Blame(now)
	}
	if s.Wait > 0 {
		c.cycled(now)
		c.pause(now-s.Wait, s.Wait)
	}
	m.begins = true
	return m, known
}

// Idle reports whether the rate bounds nothing any more: no refusal is fresh, and either nothing was sent for a while, or no refusal has
// bounded the rate, less than half of it is used, and the last pause is long ago.
func (m *Meter) Idle(now instant, unused bool) bool {
	c := &m.control
	c.grow(now)
	if c.row > 0 || c.silence.on || now < c.pausedUntil {
		return false
	}
	return unused || c.ceiling == 0 && !c.inUse(now) && now-c.workedFrom >= min(holdPauses*c.paused, mostKept)
}

// Number has requests numbered from the one after that of a number, unless they are already.
func (m *Meter) Number(n int64) { m.control.seq = max(m.control.seq, uint64(n)) }

// Sent counts a request that was sent before there was a meter.
func (m *Meter) Sent() { m.control.inFlight++ }

// Left takes n requests in flight out of the count, because they belong to another account now. One of them may have been the probe of a
// silence.
func (m *Meter) Left(now instant, n int64) {
	c := &m.control
	c.cutSeq = c.seq
	if c.inFlight -= int(n); n > 0 && c.silence.on && c.silence.probe > 0 {
		c.probeAgain(now, now)
	}
}

// Size returns how many bytes the meter takes.
func (m *Meter) Size() int { return int(unsafe.Sizeof(*m)) }

// Gap returns the time between two requests.
func (m *Meter) Gap() int64 { return nanos(m.control.cost / m.control.current) }

// Silent returns the time between two probes of a server that gets nothing else (0: it gets all), and when the next one is sent; 0: one is
// in flight.
func (m *Meter) Silent() (gap int64, until instant) {
	s := &m.control.silence
	if !s.on {
		return 0, 0
	}
	if s.probe == 0 {
		until = s.probeAt
	}
	return s.gap, until
}
