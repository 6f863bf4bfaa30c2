// Package lease is the arithmetic of budgets that several processes share.
//
// A process sends an [Ask] to a store and gets a [Lease] back: tokens that it may use without asking again. A [Book] holds
// the rules by which a store decides. A [Leased] is the meter of a bucket that is filled by leases instead of by time.
//
// Like package meter it has no lock and no clock, and does no I/O. The time is a parameter.
package lease

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A Kind is the algorithm of a budget.
type Kind string

const (
	Bucket  Kind = "bucket"
	Pace    Kind = "pace" // a bucket of one token, in which a request of any cost is due with its first token
	Sliding Kind = "sliding-window"
	Fixed   Kind = "fixed-window"
	Slots   Kind = "in-flight"
)

// A Budget names a state in the store (Kind, Limit, Key) and the rule by which the store computes it. If processes disagree about the
// rule, the stricter one counts until no process has asked by it for 10 s: the lower rate, and of equal rates the smaller burst, n or
// number of slots. The others are told so, and get no promises.
type Budget struct {
	Kind       Kind
	Limit, Key string // the name of the limit and the key that it is counted by; either may be empty or of any length

	N       int64         // tokens per Per; slots in all
	Per     time.Duration // not for Slots; a store may round a window up to a whole microsecond
	Burst   int64         // of a Bucket: the most that it holds
	Initial int64         // of a Bucket: the tokens it holds while the store has no state of it
	Start   time.Time     // of a Fixed window: an instant at which one begins; zero: the Unix epoch
}

// An Ask asks for the tokens of one request, or of all requests in one queue. The store grants either every part or none.
type Ask struct{ Parts []Part }

// A Part asks for tokens of one budget.
type Part struct {
	Budget Budget

	Need  int64 // the store grants at least so many tokens, or none; at most the burst, n or slots
	Want  int64 // the store grants at most so many; at least Need
	Ahead int64 // if it grants Want, it adds up to so many, but no more than a quarter of the rest

	// A Bucket or a Pace may promise tokens that come in later. A promised token may be used once it is due. Tokens are
	// promised up to Horizon ahead, and those of Need up to Within, if that is further. All processes share the horizon;
	// each ask gets at most half of the rest of it, beyond its Need.
	Horizon, Within time.Duration

	Back []Return      // leased tokens that were not used, or that were refunded
	Owe  int64         // tokens used beyond the leased ones; the store charges them even if it goes into debt
	Hold time.Duration // blocks the budget for all processes for so long; negative: ends every hold

	Replace bool // the rule of Budget counts from now on, even if a stricter one did: it was changed while the process runs

	Since  time.Duration // the time since the previous ask of this process about this budget, at most SinceMost; SinceMost for the first
	Holder string        // of Slots: names the process, in 1 to 64 bytes. Its slots become free LeaseOfSlots after its last ask
	Held   int64         // of Slots: the number of slots this process has and keeps
}

// A Return gives tokens of one lease back.
type Return struct{ Tokens, Lease int64 }

// A Lease is the response to an [Ask]: a part for each of its parts, in order, or an error.
type Lease struct {
	Parts []LeasedPart
	Err   error // except for ErrApart, the ask may still have been carried out, or will be
}

// A LeasedPart tells which tokens of one budget were granted.
//
// AtOnce of the Tokens may be used now. The others are promised one by one: the first is due Next after the response
// arrived, the k-th after it k·Per/N later.
type LeasedPart struct {
	ID             int64 // for Return
	Tokens, AtOnce int64
	Next           time.Duration
	Until          time.Duration // the tokens expire so long after the ask was sent; 0: never
	Wait           time.Duration // if nothing was granted: until Need can be; of a Sliding window without tokens: until the next one comes in
	Left           float64       // tokens in the store after this ask, negative if promised or owed; of Slots: less those that others wait for
	Hold           time.Duration // how long the budget is still blocked
	Processes      int           // estimates how many processes use the budget; at least 1
	Differs        bool          // another process asks by a stricter rule, which counts
}

// Check returns an error if no store that decides by the rules of this package can have sent p in response to asked.
func (p *LeasedPart) Check(asked *Part) error {
	most := meter.AddCount(max(0, asked.Need, asked.Want), max(0, asked.Ahead))
	if p.Tokens < 0 || p.Tokens > most || p.AtOnce < 0 || p.AtOnce > p.Tokens || min(p.Next, p.Until, p.Wait, p.Hold) < 0 || math.IsNaN(p.Left) {
		return fmt.Errorf("%w: limit %q: no response to an ask for %d tokens can be %+v", ErrSetup, asked.Budget.Limit, most, *p)
	}
	return nil
}

const (
	// SinceMost is the longest Since of a Part.
	SinceMost = 10 * time.Second
	// LeaseOfSlots is how long a process that does not ask again keeps its slots.
	LeaseOfSlots = 10 * time.Second
)

var (
	// ErrSetup is in the chain of an error that retrying does not fix: missing permissions, a key that holds something
	// else, a server that runs no scripts.
	ErrSetup = errors.New("the store of shared limits is set up wrongly")

	// ErrRule says that another process shares a budget by a stricter rule, which counts.
	ErrRule = errors.New("another process shares the budget by a lower rate, or a smaller burst, n or number of slots, which counts")

	// ErrApart is the error of a Lease whose parts are in different places, so that the store cannot grant them together.
	// Nothing was carried out. The caller asks for each part alone.
	ErrApart = errors.New("the store keeps the parts of this ask in different places: ask for each alone")
)
