package pool

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/httpthrottle/throttle"
)

// Stats are the counters of a Pool, in which each request counts once, and what is known of its members. It is a plain value.
type Stats struct {
	// Gauges
	Waiting  int `json:"waiting"`   // requests that wait now, each at some members
	InFlight int `json:"in_flight"` // requests that have arrived and neither wait nor have a response yet

	// Counters
	Sent     uint64                           `json:"sent"`            // requests that members have sent, once for each member
	Moved    uint64                           `json:"moved,omitempty"` // of these, how many had been sent by another member before
	Delayed  uint64                           `json:"delayed"`         // of these, how many waited
	Waited   time.Duration                    `json:"waited"`          // their total wait, counted from their arrival; in nanoseconds as JSON
	Rejected throttle.Counts[throttle.Reason] `json:"rejected"`        // requests that no member could send in time
	Canceled uint64                           `json:"canceled"`        // requests that ended while they waited

	Members []MemberStats `json:"members"` // in the order of After
}

// MemberStats are what a Pool knows of a member.
type MemberStats struct {
	Name   string        `json:"name"`
	After  time.Duration `json:"after,omitempty"`
	Weight int           `json:"weight"`

	Out      bool           `json:"out"`             // it is left out, because requests to it fail
	Why      string         `json:"why,omitempty"`   // why it is left out, is held, or no waiting helps, in words; "": none of these
	Until    time.Time      `json:"until,omitzero"`  // when a request tries it again, or the hold ends; zero: it is used, or that is not known
	Failures int            `json:"failures"`        // in succession
	Latency  time.Duration  `json:"latency"`         // that a request is expected to take; 0: it is not known
	Sent     uint64         `json:"sent"`            // requests of the Pool that it has sent
	InFlight int            `json:"in_flight"`       // of these, those that have no response yet
	Waiting  int            `json:"waiting"`         // requests of the Pool that wait there; each waits at some members
	Stats    throttle.Stats `json:"transport_stats"` // of its Transport
}

// Stats returns the counters of the Pool.
func (p *Pool) Stats() Stats {
	s := Stats{Waiting: int(p.waiting.Load()), Moved: p.moved.Load(), Delayed: p.delayed.Load(), Waited: time.Duration(p.waited.Load()), Canceled: p.canceled.Load()}
	s.InFlight = max(0, int(p.active.Load())-s.Waiting)
	for i := range p.rejected {
		s.Rejected[i] = p.rejected[i].Load()
	}
	now := p.now()
	set := p.set.Load()
	for i := range set.members {
		m := &set.members[i]
		of := MemberStats{
			Name: m.Name, After: m.After, Weight: m.Weight, Out: m.out.Load(), Failures: int(m.failures.Load()), Sent: m.sent.Load(),
			InFlight: int(m.flying.Load()), Waiting: m.door.Waiting(), Stats: m.Transport.Stats(),
		}
		if m.known() {
			of.Latency = m.expected(now)
		}
		of.Why, of.Until = m.whyNot()
		s.Sent += of.Sent
		s.Members = append(s.Members, of)
	}
	s.Sent += p.before.Load()
	return s
}

// whyNot returns why a member sends nothing now, and until when; "": it does.
func (m *member) whyNot() (why string, until time.Time) {
	l, now := m.Transport.Limiter(), time.Now()
	if m.out.Load() {
		if last := m.last.Load(); last != nil {
			why = *last
		}
		return why, m.door.NextTrial()
	}
	for _, li := range l.Limits() {
		if !li.Keyed && li.Kind != throttle.KindServer && li.HeldUntil.After(now) && li.HeldUntil.After(until) {
			why, until = fmt.Sprintf("limit %q is held", li.Name), li.HeldUntil
		}
	}
	var held string
	var first time.Time // when a server may be asked again, if all of them stop requests
	for _, s := range l.Servers() {
		says, next := s.Host+" is held", s.HeldUntil
		switch {
		case s.Final != nil:
			says, next = s.Host+" refuses, and no waiting helps: "+s.Final.String(), s.Final.AskAt
		case !next.After(now):
			return why, until
		case s.Last != nil && !s.Guessed:
			says = s.Host + " asks to wait (" + s.Last.Verdict.String() + ")"
		case s.Last != nil:
			says += " (" + s.Last.Verdict.String() + ")"
		}
		if held == "" || next.Before(first) {
			held, first = says, next
		}
	}
	if held != "" && !first.Before(until) {
		why, until = held, first
	}
	return why, until
}

// count counts a request that no member has sent.
func (p *Pool) count(resp *http.Response, err error) {
	r, rejected := throttle.RejectionOf(resp)
	if !rejected {
		rejected = errors.As(err, &r)
	}
	if rejected {
		p.rejected[r.Reason].Add(1)
	} else {
		p.canceled.Add(1)
	}
}

// failureOf returns in words why a request failed.
func failureOf(resp *http.Response, err error) string {
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
}
