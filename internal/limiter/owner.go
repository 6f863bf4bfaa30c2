package limiter

import "github.com/httpthrottle/throttle/internal/aimd"

// A side is what a learned limit finds: a rate, or a number in flight.
type side uint8

const (
	ofRate side = 1 << iota
	ofNumber
	ofBoth = ofRate | ofNumber
)

func sideOf(c *Charge) side {
	if c.Limit().Frees {
		return ofNumber
	}
	return ofRate
}

// sides are what of a request's limits is learned, and what decides which side owns its failure. Exactly one does: a failure that
// both sides heeded would lower the limit that the server does not have, and one that each leaves to the other is heeded by none.
type sides struct {
	learned side
	judged  side // by Classify, whose word is about the limit that has it
	tried   bool // one more request in flight than usual was tried
	tested  bool // a number in flight has a trial
	asked   bool // the server asked for a wait
	ofPart  bool // it refused a request of one part of those for which a rate is learned
	counted bool // a rate takes each 5xx, however many requests were in flight
}

func sidesOf(charges []Charge, f *finding) (s sides) {
	s.asked, s.ofPart = f.wait > 0, f.ofPart
	for i := range charges {
		c := &charges[i]
		if !c.Limit().Learns {
			continue
		}
		s.learned |= sideOf(c)
		if c.Outcome != 0 {
			s.judged |= sideOf(c)
		}
		switch m := c.Bucket.Meter.(type) {
		case trier:
			s.tried, s.tested = s.tried || m.Tries(c.Paid), s.tested || m.Tests()
		case *aimd.Meter:
			s.counted = s.counted || m.CountsAll()
		}
	}
	return s
}

// owner returns the side that an outcome concerns. A success concerns both.
func (s sides) owner(o aimd.Outcome) side {
	switch {
	case s.learned != ofBoth:
		return s.learned
	case o != aimd.Throttled && o != aimd.Unavailable && o != aimd.Error && o != aimd.Forbidden:
		return ofBoth
	case s.judged == ofRate, s.judged == ofNumber:
		return s.judged
	case s.asked || o != aimd.Throttled && o != aimd.Unavailable:
		return ofRate
	case s.tested, s.tried && (o == aimd.Throttled || !s.counted):
		return ofNumber
	}
	return ofRate
}

// seen returns what a side takes an outcome for. One that it does not own says that its request was let through, unless it is a
// refusal, or one that a number in flight would take for a quick success.
func (s sides) seen(by side, o aimd.Outcome) aimd.Outcome {
	switch {
	case by == ofRate && s.ofPart && o != aimd.OK: // no rate of all requests follows from it
		return aimd.Ignore
	case s.owner(o)&by != 0:
		return o
	case by == ofRate && o != aimd.Throttled, o == aimd.Forbidden:
		return aimd.ClientError
	}
	return aimd.Ignore
}
