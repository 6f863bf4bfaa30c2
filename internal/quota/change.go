package quota

import (
	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/record"
	"github.com/httpthrottle/throttle/internal/server"
)

// A Scope says whose requests a change concerns.
type Scope uint8

const (
	OfNone    Scope = iota
	OfAccount       // all requests of the account
	OfHost          // all requests to the host
)

// A Change is what a report has changed, besides what the gates of the account can pay, and when.
type Change struct {
	Late    Scope                                                  // whose waiting requests may be too late now
	Verdict server.Verdict                                         // what the response means
	Lifted  bool                                                   // a hold was taken back
	Opened  bool                                                   // the hold of the host was taken back, for its other accounts
	Until   meter.Instant                                          // the end of a new hold; 0: there is none
	Guessed bool                                                   // no server has asked for that end
	Final   error                                                  // what the server said with a final refusal, if that is news; Until is when the next request asks
	Doubt   func(now meter.Instant, as aimd.Outcome) (undone bool) // to be called once the body has been read, with what it shows, 0 if the refusal stands; nil: it is certain
	Forgot  string                                                 // the name of an account that was forgotten for lack of room, although it stopped requests
	Moved   Moved                                                  // by a response to a request that passed no gate; of others, Judge returns it
}

// A Moved is what a response has shown to belong elsewhere.
type Moved struct {
	From  *Account // the account that its gate has left; nil: it stays
	Parts []*Gate  // into which its family is divided from now on, as far as they are known: requests that wait belong to these; nil: it is not divided
}

// Unseen are the requests that passed no gate, because no server had sent hints when they left. They may have gone to any server.
type Unseen struct {
	Before record.Record // were sent before the first response with hints; of later responses, the zero Record
	Since  int64         // have left since the request of the report
}
