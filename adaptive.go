package throttle

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// AIMD says how the rate of an [Adaptive] limit is found, for each of its keys. The rule is additive increase while all
// goes well, multiplicative decrease when the server shows that it is too much (Chiu and Jain 1989: of the linear rules,
// this one makes clients who share a server end at equal shares). The zero value is ready for use.
//
// A new key starts at Initial and doubles about once a second until the first sign of too much (slow start, RFC 5681).
// From then on the rate at which the last sign came is remembered and approached in small steps, as RFC 9438 does; once
// it is passed by a tenth, it is forgotten, and doubling begins anew. The rate grows only while at least half of it is
// used (RFC 7661), and twice as much as it needs may be in flight (BBR).
//
// Too much is: a 429, or a 503 with Retry-After (see [OutcomeThrottled]); more failures than usual, if they become
// fewer at a lower rate; latency well above the lowest seen lately, if it falls at a lower rate. A server that does not
// answer, or refuses everything, is left in peace but for one request now and then.
type AIMD struct {
	// Initial is the rate of a new key, in tokens per second. 0 stands for 10, or what is nearest between Min and Max.
	Initial float64
	// Min and Max bound the rate, in tokens per second. 0 stands for a Min of 0.1 (or Max, if that is lower), and for
	// no Max. Only a silence goes below Min: when the server refuses everything, requests are minutes apart at most.
	Min, Max float64
	// LatencyThreshold is the median latency, until the headers of the answer, above which the rate is cut, however
	// fast the server has been before. 0: 1.2 times the lowest median of the last minute, plus 10 ms and what is noise,
	// and only as long as lower rates help.
	LatencyThreshold time.Duration
	// ErrorThreshold is the share of failed requests, above 0 and at most 1, above which the rate is cut; a 5xx other
	// than 503 counts as 0.4 of a failure. 0: 8 % plus one and a half times the share that is usual at low load, and
	// only as long as lower rates help. A 429 always cuts.
	ErrorThreshold float64

	off ablation
}

// An ablation switches rules of the controller off, so that tests can show what each is good for.
type ablation struct {
	round, mild, step, start, ceiling, stretch, past, calm, soon, use bool // how the rate moves
	pause, quota, steady, dear                                        bool // what Retry-After and windows add
	errors, verify, silence                                           bool // failures
	inFlight, latency, slower                                         bool // latency
}

const (
	defaultInitial = 10.0
	defaultMin     = 0.1
	maxRate        = float64(maxCount)
)

// validate returns every problem of the configuration.
func (a AIMD) validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	for _, f := range []struct {
		name  string
		value float64
	}{{"Initial", a.Initial}, {"Min", a.Min}, {"Max", a.Max}, {"ErrorThreshold", a.ErrorThreshold}} {
		if math.IsNaN(f.value) || math.IsInf(f.value, 0) || f.value < 0 {
			fault("AIMD.%s is %v: neither 0 nor a positive number", f.name, f.value)
		}
	}
	if a.Max > 0 && a.Min > a.Max {
		fault("AIMD.Min is %v: above Max, which is %v", a.Min, a.Max)
	}
	if a.Initial > 0 && a.Initial < a.Min {
		fault("AIMD.Initial is %v: below Min, which is %v", a.Initial, a.Min)
	}
	if a.Max > 0 && a.Initial > a.Max {
		fault("AIMD.Initial is %v: above Max, which is %v", a.Initial, a.Max)
	}
	if a.ErrorThreshold > 1 {
		fault("AIMD.ErrorThreshold is %v: above 1", a.ErrorThreshold)
	}
	if a.LatencyThreshold < 0 {
		fault("AIMD.LatencyThreshold is %v: negative", a.LatencyThreshold)
	}
	return errors.Join(faults...)
}

// withDefaults returns a valid configuration with nothing left open.
func (a AIMD) withDefaults() AIMD {
	if a.Max == 0 {
		a.Max = maxRate
	}
	a.Max = min(a.Max, maxRate)
	if a.Min == 0 {
		a.Min = min(defaultMin, a.Max)
		if a.Initial > 0 {
			a.Min = min(a.Min, a.Initial)
		}
	}
	if a.Initial == 0 {
		a.Initial = max(a.Min, min(defaultInitial, a.Max))
	}
	return a
}

// An Outcome is what became of a request, as far as it speaks of load.
type Outcome uint8

const (
	// OutcomeOK is an answer that shows the server at work: 1xx to 3xx. Its latency counts.
	OutcomeOK Outcome = iota + 1
	// OutcomeClientError is any other 4xx: the server let the request through, and it was the request's own fault.
	// Its latency says nothing, since a refusal of that kind is often quicker than an answer.
	OutcomeClientError
	// OutcomeThrottled is the server's word that it is too much: 429, or 503 with Retry-After.
	OutcomeThrottled
	// OutcomeUnavailable may be load or not: 503 without Retry-After, a timeout, a refused or broken connection.
	OutcomeUnavailable
	// OutcomeError is any other 5xx: rather a fault than load, but some servers speak so of load.
	OutcomeError
	// OutcomeIgnore says nothing at all: the caller cancelled, or it was never sent.
	OutcomeIgnore
)

// weight is how much of a failure an Outcome is.
func (o Outcome) weight() float64 {
	switch o {
	case OutcomeThrottled, OutcomeUnavailable:
		return 1
	case OutcomeError:
		return 0.4
	}
	return 0
}

// Learned is what is known of a key of an [Adaptive] limit, for the next process.
type Learned struct {
	Rate     float64 `json:"rate"`               // tokens per second
	Ceiling  float64 `json:"ceiling"`            // where the last sign of too much came; 0: there was none
	Failures float64 `json:"failures,omitzero"`  // share that is usual
	Latency  float64 `json:"latency,omitzero"`   // mean when idle, in seconds
	DearHold float64 `json:"dear_hold,omitzero"` // seconds for which the rate is held after a touch of the limit
}

// valid reports whether a snapshot can be one, wherever it was kept.
func (l Learned) valid() bool {
	for _, x := range []float64{l.Rate, l.Ceiling, l.Failures, l.Latency, l.DearHold} {
		if math.IsNaN(x) || math.IsInf(x, 0) || x < 0 {
			return false
		}
	}
	return l.Rate > 0
}
