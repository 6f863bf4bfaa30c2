package pool

import (
	"errors"
	"net/http"
	"time"

	"github.com/httpthrottle/throttle"
)

// Stats are the counters of a Pool, in which each request counts once, and what is known of its members.
type Stats struct {
	Waiting  int // requests that wait now, each at some members
	InFlight int // requests that have arrived and neither wait nor have a response yet

	Sent     uint64 // requests that members have sent, once for each member
	Moved    uint64 // of these, how many had been sent by another member before
	Rejected uint64 // requests that no member could send in time
	Canceled uint64 // requests that ended while they waited

	Members []MemberStats // in the order of After
}

// MemberStats are what a Pool knows of a member.
type MemberStats struct {
	Name     string
	Out      bool          // it is left out, because requests to it fail
	Failures int           // in succession
	Latency  time.Duration // that a request is expected to take; 0: it is not known
	Sent     uint64        // requests of the Pool that it has sent
	Waiting  int           // requests of the Pool that wait there; each waits at some members
	Stats    throttle.Stats
}

// Stats returns the counters of the Pool.
func (p *Pool) Stats() Stats {
	s := Stats{Waiting: int(p.waiting.Load()), Moved: p.moved.Load(), Rejected: p.rejected.Load(), Canceled: p.canceled.Load()}
	s.InFlight = max(0, int(p.active.Load())-s.Waiting)
	now := p.now()
	set := p.set.Load()
	for i := range set.members {
		m := &set.members[i]
		of := MemberStats{
			Name: m.Name, Out: m.out.Load(), Failures: int(m.failures.Load()), Sent: m.sent.Load(),
			Waiting: m.door.Waiting(), Stats: m.Transport.Stats(),
		}
		if m.known() {
			of.Latency = m.expected(now)
		}
		s.Sent += of.Sent
		s.Members = append(s.Members, of)
	}
	s.Sent += p.before.Load()
	return s
}

// count counts a request that no member has sent.
func (p *Pool) count(resp *http.Response, err error) {
	if resp == nil && !errors.Is(err, throttle.ErrThrottled) {
		p.canceled.Add(1)
	} else {
		p.rejected.Add(1)
	}
}
