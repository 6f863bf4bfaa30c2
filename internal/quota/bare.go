package quota

import "github.com/httpthrottle/throttle/internal/meter"

// A Bare is a response that refuses without mentioning a limit, by a status that mostly means something else: 503 is nginx's
// default for requests beyond a limit and that of a server that is down, 403 that of several firewalls and of every lack of rights.
type Bare uint8

const (
	NotBare Bare = iota
	Unavailable
	Forbidden
)

const (
	bareRow      = 8      // more bare responses than accepted ones make a refusal: a fifth that fails at random hardly ever does
	bareGap      = second // apart, two bare responses have nothing to do with each other
	bareBelieved = 32     // requests are accepted after the first such row until a single one is doubted again, and twice as many after each
	mostBelieved = 1024   // further row
)

// A suspicion decides whether the bare responses of an account are refusals because of a limit.
type suspicion struct {
	last     meter.Instant // when the last one came
	row      int8          // bare responses, less the accepted ones since
	believed int16         // accepted requests until the next one is doubted; 0: it is
	belief   int16         // after the last row
	given    bool          // the server has accepted requests
}

// accepted takes the response to a request that was accepted.
func (s *suspicion) accepted() {
	s.given = true
	s.row, s.believed = max(0, s.row-1), max(0, s.believed-1)
}

// refuses reports whether a bare response counts as a refusal because of a limit.
func (s *suspicion) refuses(b Bare, now meter.Instant) bool {
	if now-s.last > bareGap {
		s.row = 0
	}
	s.last = now
	if s.believed > 0 {
		return true
	}
	if s.row = min(s.row+1, bareRow); s.row < bareRow || b == Forbidden && !s.given {
		return false
	}
	s.belief = min(max(bareBelieved, 2*s.belief), mostBelieved)
	s.row, s.believed = 0, s.belief
	return true
}
