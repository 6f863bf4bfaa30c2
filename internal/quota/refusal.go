package quota

import (
	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
)

// A refusal is one of a request because of a limit, which waiting ends.
type refusal struct {
	at   meter.Instant // when it came
	wait int64         // for which it asks; 0: it does not say
	kind Kind          // Refused, Exhausted or ByChance
	host bool          // it may concern the other accounts of the server, too
	all  bool          // it says that it concerns all requests with the same keys, also those that are counted separately
}

// A LastRefusal is the last refusal of an account because of a limit, for people.
type LastRefusal struct {
	At     meter.Instant
	Asked  int64 // the wait that it asked for; 0: it did not say
	Status int   // of the response; 0: there was no refusal
}

// A Cause is why requests wait at a gate, for people.
type Cause struct {
	Refusal     LastRefusal // with Status 0 if no refusal is the reason
	Rate        float64     // that is learned after it; 0: none is
	Why         Why         // at that rate
	Quota       string      // of which nothing may be sent for longer than all else; "": none is
	Left, Limit int64       // of that quota, as in State
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
	asking  bool
	even    evenly
	rate    *aimd.Meter
	first   first
	shown   *shown
}
