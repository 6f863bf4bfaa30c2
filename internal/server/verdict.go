package server

// A Verdict is what a response means to all that learns from it. It is decided once, before the response changes anything. Until when
// nothing may be sent is another fact, so a refusal that asks for a wait may still say that requests were sent too fast.
type Verdict uint8

const (
	NoVerdict Verdict = iota // it is not decided yet
	TooFast                  // refused because too many requests are sent in a time, as far as is known
	TooMany                  // refused because too many requests are sent together, or are in flight
	Closed                   // refused as each request is for now, whatever is sent
	Exhausted                // refused because of a quota that is known to be empty, or that the refusal names: it stops requests by itself
	ByChance                 // refused, whatever the rate of requests is: only a wait that it asks for counts
	Final                    // refused, and no waiting ends that
	Nothing                  // there is no response, or it shows nothing of limits, as far as is known
	Declined                 // the server could not do what was asked, for a reason that has nothing to do with limits
	Done                     // the server did what was asked
)

// Refusals is the number after that of the last refusal.
const Refusals = Final + 1

var verdicts = [Refusals]string{
	TooFast: "too_fast", TooMany: "too_many", Closed: "closed", Exhausted: "quota_empty", ByChance: "not_the_rate", Final: "final",
}

// String returns a refusal as an identifier for logs, which stays the same in later versions; "": it is none.
func (v Verdict) String() string {
	if v >= Refusals {
		return ""
	}
	return verdicts[v]
}

// Refused reports whether a limit stopped the request.
func (v Verdict) Refused() bool { return TooFast <= v && v <= Final }

// Accepted reports whether no limit stopped the request.
func (v Verdict) Accepted() bool { return v == Declined || v == Done }

// Teaches reports whether a refusal shows that a rate or a number is too high.
func (v Verdict) Teaches() bool { return TooFast <= v && v <= Closed }

// Explained reports whether something other than a rate or a number explains a refusal that waiting ends.
func (v Verdict) Explained() bool { return v == Exhausted || v == ByChance }
