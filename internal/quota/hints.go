package quota

import (
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// Hints are what a server reported about its limits in one response.
type Hints struct {
	Limited    bool          // the response is a refusal because of a limit
	NotLimited bool          // a dialect says that it is none, although it looks so
	Host       bool          // they concern all requests to the host, whatever their keys
	Global     bool          // they concern more than the quotas that they name
	Bare       Bare          // it refuses without a word about limits, which Limited may become
	Given      bool          // the host has probably accepted requests before there was an account
	Wait       time.Duration // until the server would accept the request; 0: it did not say
	Final      error         // what the server said with a refusal that no waiting ends; nil: waiting may help
	Asked      bool          // Wait is its Retry-After; otherwise Wait may be the reset of an empty quota
	Quotas     []QuotaHint
	After      *Hints        // those of the headers of the same response, if these are of its body
	from, to   meter.Instant // the end of the account's hold before and after they were applied
}

// A QuotaHint is what a server reported about one of its quotas.
type QuotaHint struct {
	Name, Unit string
	Limit      int64 // -1: not known
	Left       int64
	Reserve    int64 // tokens that are left to other clients
	Known      bool  // Left is
	Ends       bool  // Reset is known
	Violated   bool  // the request exceeded it
	Advisory   bool  // the server does not enforce it
	Reset      time.Duration
}

// A Reading is what hints come to at an instant.
type Reading struct {
	Hints     *Hints // nil: there are none
	Explained bool   // they report that a quota is empty, which explains the refusal
	named     bool   // they name that quota
	claims    []Claim
}

// Read returns what hints come to now.
func (h *Hints) Read(now meter.Instant) Reading {
	r := Reading{Hints: h}
	for i := range h.Quotas {
		q := h.Quotas[i]
		if h.Limited && h.Wait > 0 && (q.Left > 0 || !q.Known) && q.Violated {
			q.Left, q.Known, q.Reset, q.Ends = 0, true, h.Wait, true // not enough is nothing, for as long as the server says
		}
		none := q.Limit == 0 && !h.Limited && h.Bare == NotBare // an accepted request contradicts a limit of 0
		if !q.Known || q.Advisory || none {
			continue
		}
		c := Claim{Name: q.Name, Unit: q.Unit, Left: q.Left, Limit: q.Limit, Counted: q.Unit == "" || q.Unit == "requests", Reserve: q.Reserve, Reset: meter.Never}
		if q.Ends {
			c.Reset = meter.AddInstant(now, int64(q.Reset))
		}
		if c.Refused = h.Limited && q.Left <= 0; c.Refused {
			r.Explained, r.named = true, r.named || q.Name != Unnamed
		}
		r.claims = append(r.claims, c)
	}
	return r
}

// A Bare is a response that refuses without mentioning a limit, by a status that mostly means something else; see [aimd.Suspicion].
type Bare uint8

const (
	NotBare Bare = iota
	Unavailable
	Forbidden
)
