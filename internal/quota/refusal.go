package quota

import (
	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/server"
)

// A LastRefusal is the last refusal of an account because of a limit, for people.
type LastRefusal struct {
	At      meter.Instant
	Asked   int64          // the wait that it asked for; 0: it did not say
	Status  int32          // of the response; 0: there was no refusal
	Verdict server.Verdict // on it
}

// A Cause is why requests wait at a gate, for people.
type Cause struct {
	Verdict     server.Verdict // of the server; 0: it has refused nothing because of which they wait, and no quota is empty
	Refusal     LastRefusal    // with Status 0 if no refusal is the reason
	Rate        float64        // that is learned after it; 0: none is
	Why         Why            // at that rate
	Quota       string         // of which nothing may be sent for longer than all else; "": none is
	Left, Limit int64          // of that quota, as in State
}

// A Why is the reason for a rate after a refusal.
type Why uint8

const (
	NoRate   Why = iota
	Asking       // one request at a time asks whether the server accepts requests again
	AsBefore     // what was accepted before the refusal
	Between      // between what was refused and what was accepted
	Finding      // no rate was known, so it begins low and grows
	OwnLimit     // the client's own limit, without its bursts
)

// String returns the reason in words; "": there is no rate.
func (w Why) String() string {
	return [...]string{
		Asking:   "asking whether it accepts requests again",
		AsBefore: "as accepted before the refusal",
		Between:  "between what was refused and what was accepted",
		Finding:  "growing, because no rate was known",
		OwnLimit: "the own limit without bursts",
	}[w]
}

// A standing is what a refusal changes of an account, except for quotas.
type standing struct {
	barrier barrier
	host    barrier // of the server
	last    LastRefusal
	asking  bool
	guessed bool
	even    evenly
	rate    *aimd.Meter
	first   first
	shown   *shown
}
