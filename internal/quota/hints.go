package quota

import (
	"strings"
	"time"

	"github.com/httpthrottle/throttle/internal/server"
)

// Hints are what a server reported about its limits in one response.
type Hints struct {
	Status     int           // of the response
	Limited    bool          // the response is a refusal because of a limit
	NotLimited bool          // a dialect says that it is none, although it looks so
	Host       bool          // they concern all requests to the host, whatever their keys
	Global     bool          // they concern more than the quotas that they name
	Bare       Bare          // it refuses without a word about limits
	Given      bool          // the host has probably accepted requests before there was an account
	Wait       time.Duration // until the server would accept the request; 0: it did not say
	Final      error         // what the server said with a refusal that no waiting ends; nil: waiting may help
	Unit       string        // what the limit counts that refused the request; "": it is not known
	Asked      bool          // Wait is its Retry-After; otherwise Wait may be the reset of an empty quota
	Explained  bool          // a limit of the client, in the unit of the server, takes the refusal
	Guessed    bool          // as a guess, because nothing says which limit refused the request
	Quotas     []QuotaHint
	After      *Hints         // those of the headers of the same response, if these are of its body
	verdict    server.Verdict // as which they were applied
	held       hold           // what they changed of the account's hold
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
	Covered    bool  // a limit of the client, in its unit, takes what is reported
	Reset      time.Duration
	Full       time.Duration // until all of it is left at the rate that the server reports; 0: unknown
}

// HasPart reports whether there is a part of a quota of that name, such as input-tokens of tokens.
func (h *Hints) HasPart(name string) bool {
	for i := range h.Quotas {
		if head, ok := strings.CutSuffix(h.Quotas[i].Name, name); ok && strings.HasSuffix(head, "-") {
			return true
		}
	}
	return false
}

// A Bare is a response that refuses without mentioning a limit, by a status that mostly means something else; see [aimd.Suspicion].
type Bare uint8

const (
	NotBare Bare = iota
	Unavailable
	Forbidden
)
