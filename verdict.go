package throttle

import (
	"strconv"

	"github.com/httpthrottle/throttle/internal/server"
)

// A Verdict is why a server refuses requests, as far as its responses show. It is decided once, when the response comes. Statistics
// ([LastRefusal]), holds ([HoldEvent]), rejections, waits ([Waiting], [Delay]) and the live page have the same one. The zero Verdict says
// that the server has refused nothing. A [Snapshot] keeps holds, but no verdicts.
//
// Until when nothing may be sent is another fact: a server that asks for a wait may refuse for any of these reasons.
type Verdict uint8

const (
	VerdictTooFast Verdict = iota + 1 // too many requests in a time, as far as is known
	VerdictTooMany                    // too many requests in flight, where their number is learned, or in a burst, where the client's own rate is taken for right
	VerdictClosed                     // whatever is sent: by a 503 or 529 with a wait, or after refusals in a row
	VerdictQuota                      // a quota that it reports has nothing left, or too little; or that of a ServerQuota, as a guess
	VerdictChance                     // as many at any rate, so no rate is lowered
	VerdictFinal                      // for a reason that no waiting ends; see ReasonFinal
)

// A verdict has the same number in the accounts of servers: the array has one element, at the index 0.
var _ = [1]struct{}{}[VerdictFinal-Verdict(server.Final)]

var verdictNames = [server.Refusals]string{
	VerdictTooFast: "too fast", VerdictTooMany: "too many at a time", VerdictClosed: "closed", VerdictQuota: "quota empty",
	VerdictChance: "not the rate", VerdictFinal: "no waiting helps",
}

// String returns the verdict in one to four words, for people; "" for the zero Verdict.
func (v Verdict) String() string {
	if v >= Verdict(server.Refusals) {
		return "Verdict(" + strconv.Itoa(int(v)) + ")"
	}
	return verdictNames[v]
}

// Label returns the verdict as an identifier for logs and JSON, which stays the same in later versions: too_fast, too_many, closed,
// quota_empty, not_the_rate or final; "" for another value.
func (v Verdict) Label() string { return server.Verdict(v).String() }

// MarshalText returns the Label.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.Label()), nil }
