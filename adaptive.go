package throttle

import (
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/concurrency"
)

// AIMD configures how the rate of an [Adaptive] limit is found, for each of its keys. The rate increases additively while
// requests succeed, and decreases multiplicatively when the server shows that it is too much. Among linear rules, this one
// gives equal shares to clients that share a server (Chiu and Jain 1989). The zero value is ready for use.
//
// A new key starts at Initial and doubles about once a second until the first sign of too much (slow start, RFC 5681). The
// rate at which that sign came is remembered as the ceiling. The rate approaches the ceiling ever slower and leaves it ever
// faster, as in RFC 9438: to cross it is the test of whether the limit is still there. The rate grows only while at least
// half of it is used (RFC 7661). At most twice the requests that the rate needs may be in flight (BBR).
//
// Signs of too much are: a 429, or a 503 with Retry-After (see [OutcomeThrottled]); more failures than usual, if they become
// fewer at a lower rate; latency well above the lowest of the last minute, if it falls at a lower rate. A server that does
// not respond, or rejects every request, gets only one probe from time to time.
type AIMD struct {
	// Initial is the rate of a new key, in tokens per second. 0 stands for 10, limited to the range from Min to Max.
	Initial float64
	// Min and Max bound the rate, in tokens per second. A Min of 0 stands for 0.1, or for Max or Initial if that is lower. A
	// Max of 0 stands for no bound. Only probes are rarer than Min: when the server rejects every request, they are minutes apart
	// at most.
	Min, Max float64
	// LatencyThreshold is the median latency, until the headers of a response, above which the rate is cut. 0 stands for a
	// threshold that is learned: 1.1 times the lowest median of the last minute, plus 10 ms and the noise, in two rounds in a
	// row. That one counts only as long as lower rates reduce the latency.
	LatencyThreshold time.Duration
	// ErrorThreshold is the share of failed requests, above 0 and at most 1, above which the rate is cut. A 5xx other than
	// 503 counts as 0.4 of a failure. 0 stands for a threshold that is learned: 8 % plus one and a half times the usual share at
	// low load. That one counts only as long as lower rates reduce the failures. A 429 always cuts the rate.
	ErrorThreshold float64
}

// Concurrency configures how the number of requests in flight of an [AdaptiveInFlight] limit is found, for each of its keys. The
// zero value is ready for use.
//
// By Little's law, n requests in flight with a latency of R are a throughput of n/R. So the limit compares the latency at n with
// that at two thirds of n, to which it goes now and then, for a few dozen requests. If the latency is equal, the server works on
// the requests between these two numbers, and n grows. If the latency is lower by as much as the number, these requests only
// wait, and n falls. It is no matter what the latency was before, so a slower service, another mix of requests or a deploy is not
// taken for a queue. Netflix's and failsafe-go's limiters compare the latency with a remembered one.
//
// A new key starts at Initial and doubles until the latency rises. n grows only while it is used. A refusal (a 429 without
// Retry-After, a 503, a timeout, a broken connection) says that as many as were in flight were too many; one more is tried again
// later. Refusals that do not become fewer with a lower n are ignored. After eight in a row, nothing is sent for 0.1 to 2 s.
type Concurrency struct {
	// Initial is the n of a new key. 0 stands for 4, limited to the range from Min to Max.
	Initial int64
	// Min and Max bound n. A Min of 0 stands for 1, and a Max of 0 for no bound.
	Min, Max int64
}

func (c Concurrency) validate() error { return concurrency.Config(c).Validate() }

// validate returns every problem of the configuration.
func (a AIMD) validate() error { return aimd.Config(a).Validate() }

// An Outcome is the result of a request, as far as it tells about load.
type Outcome uint8

const (
	// OutcomeOK is a response that shows the server at work: 1xx to 3xx. Its latency counts.
	OutcomeOK Outcome = iota + 1
	// OutcomeClientError is any other 4xx: the server let the request through. Its latency does not count, because such
	// responses are often quicker than others.
	OutcomeClientError
	// OutcomeThrottled is a response that says that it is too much: 429, or 503 with Retry-After.
	OutcomeThrottled
	// OutcomeUnavailable may be load or not: 503 without Retry-After, a timeout, a refused or broken connection.
	OutcomeUnavailable
	// OutcomeError is any other 5xx. It is more often a fault than load, and counts as 0.4 of a failure.
	OutcomeError
	// OutcomeIgnore tells nothing: the caller canceled the request, or it was never sent.
	OutcomeIgnore
)

// Learned is what was learned about a key of an [Adaptive] or [AdaptiveInFlight] limit, as part of a [Snapshot].
type Learned struct {
	InFlight float64 `json:"in_flight,omitzero"` // requests that may be in flight, of an AdaptiveInFlight limit, which has no rate
	Rate     float64 `json:"rate"`               // tokens per second
	Ceiling  float64 `json:"ceiling"`            // rate, or requests in flight, at the last sign of too much; 0: none yet
	Failures float64 `json:"failures,omitzero"`  // usual share of failed requests
	Latency  float64 `json:"latency,omitzero"`   // mean of the idle server, in seconds
	DearHold float64 `json:"dear_hold,omitzero"` // seconds for which the rate does not grow after an expensive rejection
}
