package aimd

import "github.com/httpthrottle/throttle/internal/meter"

const (
	bareRow      = 8      // more bare responses than accepted ones make a refusal: a fifth that fails at random hardly ever does
	bareGap      = second // apart, two bare responses have nothing to do with each other
	bareBelieved = 32     // accepted requests after the first such row, until a single bare response is doubted again; twice as many after the next
	mostBelieved = 1024   // after any row
)

// A Suspicion decides whether bare responses are refusals because of a limit: those that do not mention one, with a status that mostly
// means something else. 503 is nginx's default for requests beyond a limit and that of a server that is down, 403 that of several
// firewalls and of every lack of rights.
//
// Every key of a limit that learns has one, so its fields are in an order that takes 16 bytes.
type Suspicion struct {
	last     instant // when the last bare response came
	believed int16   // accepted requests until the next one is doubted; 0: it is
	belief   int16   // after the last row
	row      int8    // bare responses, less the accepted ones since
	Given    bool    // the server has accepted requests
}

// Accepted takes the response to a request that was accepted.
func (s *Suspicion) Accepted() {
	s.Given = true
	s.row, s.believed = max(0, s.row-1), max(0, s.believed-1)
}

// Refuses reports whether a bare response counts as a refusal because of a limit. A 403 does so only if requests have been accepted.
func (s *Suspicion) Refuses(forbidden bool, now instant) bool {
	if now-s.last > bareGap {
		s.row = 0
	}
	s.last = now
	if s.believed > 0 {
		return true
	}
	if s.row = min(s.row+1, bareRow); s.row < bareRow || forbidden && !s.Given {
		return false
	}
	s.belief = min(max(bareBelieved, 2*s.belief), mostBelieved)
	s.row, s.believed = 0, s.belief
	return true
}

// Matters returns until when it matters that there was a bare response.
func (s *Suspicion) Matters() instant {
	if s.row == 0 && s.believed == 0 {
		return 0
	}
	return meter.AddInstant(s.last, bareGap)
}

// Judge returns Throttled or ClientError for Forbidden, and any other outcome as it is.
func (s *Suspicion) Judge(o Outcome, now instant) Outcome {
	switch o {
	case OK, ClientError:
		s.Accepted()
	case Forbidden:
		if o = ClientError; s.Refuses(true, now) {
			o = Throttled
		}
	}
	return o
}
