package allowance

import "github.com/httpthrottle/throttle/internal/meter"

const (
	fewSends  = 16  // for which there is room at first
	mostSends = 512 // of which more is known than that they are in flight
)

// A total is the sums of costs up to an instant.
type total struct {
	sent  float64 // estimated, of requests that were sent
	ended float64 // estimated, of requests that have ended
	spent float64 // true, of these
	count float64 // requests that were sent
}

// charged returns what was spent if requests in flight cost what was estimated.
func (t total) charged() float64 { return t.sent - t.ended + t.spent }

// A send is a request that was sent.
type send struct {
	at     meter.Instant
	cost   int64
	before total
	by     float64 // what had ended soon after, when it may have reached the server; see back
	open   bool    // it has not ended
}

// sends are the requests that were sent last, in their order, by number, and the sums over all.
type sends struct {
	total
	ring []send  // a power of two
	next int64   // number
	kept int64   // the first number in the ring
	ripe int64   // the first number of which by is not known yet
	open int64   // that have not ended
	took float64 // from sending to the end, in ns, in the mean
}

// add adds a request, and returns its number.
func (s *sends) add(now meter.Instant, cost int64) int64 {
	switch n := s.next - s.kept; {
	case s.ring == nil:
		s.ring = make([]send, fewSends)
	case n < int64(len(s.ring)):
	case !s.at(s.kept).open || len(s.ring) == mostSends:
		s.end(s.kept, now, -1)
		s.kept++
	default:
		s.grow()
	}
	n := s.next
	s.next++
	*s.at(n) = send{at: now, cost: cost, before: s.total, open: true}
	s.sent += float64(cost)
	s.count++
	s.open++
	return n
}

func (s *sends) grow() {
	ring := make([]send, 2*len(s.ring))
	for n := s.kept; n < s.next; n++ {
		ring[n&int64(len(ring)-1)] = *s.at(n)
	}
	s.ring = ring
}

// at returns the request of a number that is kept.
func (s *sends) at(n int64) *send { return &s.ring[n&int64(len(s.ring)-1)] }

// find returns the request of a number; nil: it is too old.
func (s *sends) find(n int64) *send {
	if n < s.kept || n >= s.next {
		return nil
	}
	return s.at(n)
}

// end notes that a request has ended, and what it did cost; negative: what was estimated.
func (s *sends) end(n int64, now meter.Instant, cost int64) {
	x := s.find(n)
	if x == nil || !x.open {
		return
	}
	if cost < 0 {
		cost = x.cost
	}
	for s.ripe = max(s.ripe, s.kept); s.ripe < s.next && now-s.at(s.ripe).at >= mixed; s.ripe++ {
		s.at(s.ripe).by = s.ended
	}
	x.open = false
	s.open--
	s.ended += float64(x.cost)
	s.spent += float64(cost)
	if took := float64(now - x.at); s.took == 0 {
		s.took = took
	} else {
		s.took += (took - s.took) / 16
	}
}

// near returns the estimated costs of other requests that were sent at about the same time.
func (s *sends) near(n int64) (cost float64) {
	x := s.at(n)
	for i := n - 1; i >= s.kept && x.at-s.at(i).at < mixed; i-- {
		cost += float64(s.at(i).cost)
	}
	for i := n + 1; i < s.next && s.at(i).at-x.at < mixed; i++ {
		cost += float64(s.at(i).cost)
	}
	return cost
}

// back returns the estimated costs of requests that ended at about the time at which a request was sent, or soon after, so that the
// server may have counted their true costs when it came.
func (s *sends) back(n int64) float64 {
	x := s.at(n)
	if n < s.ripe {
		return x.by - x.before.ended
	}
	return s.ended - x.before.ended
}

// undo takes back a request that was not sent, or was refused, and returns what it was estimated to cost.
func (s *sends) undo(n int64) (cost int64) {
	x := s.find(n)
	if x == nil || !x.open {
		return 0
	}
	cost, x.open, x.cost = x.cost, false, 0
	s.open--
	s.sent -= float64(cost)
	s.count--
	for later := n + 1; later < s.next; later++ {
		before := &s.at(later).before
		before.sent -= float64(cost)
		before.count--
	}
	return cost
}

// pending returns the estimated costs of requests in flight.
func (s *sends) pending() float64 { return s.sent - s.ended }

// requests returns how many requests cost that, in the mean of all.
func (s *sends) requests(cost float64) float64 {
	if s.count <= 0 || s.sent <= 0 {
		return 0
	}
	return cost * s.count / s.sent
}
