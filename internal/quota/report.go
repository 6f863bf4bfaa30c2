package quota

import (
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/server"
)

// A Report is a response, or that there is none.
type Report struct {
	Reading
	Sent     meter.Instant // when the request was granted
	Number   int64         // of the request; see [Gate.Take]
	Accepted bool          // the server did what was asked, or could not for a reason that has nothing to do with limits
	Done     bool          // the server did what was asked
	Doubtful bool          // the body of the response may say that it is no refusal
	Own      Own
	Traits   Traits // as in Key

	Verdict server.Verdict // as [Gate.Judge] has decided
	Chance  server.Finding // whether refusals are by chance, if it shows that
	Parts   bool           // the server counts some of the requests separately for which a limit learns one rate, so the account decides about a refusal
	wall    *meter.Wall    // the client's; nil: it is not known
	lacks   bool           // too little of a unit explains the refusal
	Wait    time.Duration  // for which the refusal asks, beyond what an empty quota asks for by itself; 0: it does not say
}

// tooMuch returns the verdict on a refusal that nothing explains which the server has reported.
func (r *Report) tooMuch() server.Verdict {
	switch {
	case r.Wait == 0 && r.Own.Number:
		return server.TooMany
	case r.Wait > 0 && r.Hints.Host:
		return server.Closed
	}
	return server.TooFast
}

// Learned takes what a learner has found of a refusal that [Gate.Judge] could not know.
func (r *Report) Learned(v server.Verdict) {
	if r.Verdict.Teaches() {
		r.Verdict = max(r.Verdict, v)
	}
}

// OfPart reports whether no rate of all requests follows from the response, because the server counts its request separately.
func (r *Report) OfPart() bool {
	return r.Parts && (r.Verdict.Refused() || r.Hints != nil && r.Hints.Bare != NotBare)
}

// Own says what limits requests besides the server.
type Own struct {
	Rate     float64 // the lowest rate of the client's own limits, in such requests per second; 0: none has a rate
	Fastest  float64 // the highest
	Adaptive bool    // a limit learns its rate, and decides about a refusal of the request itself
	Slots    bool    // a limit learns how many requests may be in flight
	Number   bool    // and a refusal without a wait says that these were too many
}

// Learns reports whether a limit learns from refusals.
func (o *Own) Learns() bool { return o.Adaptive || o.Slots }

// trusted reports whether the client has limits of its own, and none that learns a rate. They are taken for right until a request is
// refused: only then do quotas stop requests.
func (o *Own) trusted() bool { return o.Rate > 0 && !o.Adaptive }

// Covered reports whether an own limit or an Adaptive one decides how fast requests are sent.
func (o *Own) Covered() bool { return o.Rate > 0 || o.Adaptive }
