package throttle

import (
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/concurrency"
)

// AIMD configures how the rate of an [Adaptive] limit is found, for each of its keys. The rate increases additively while
// requests succeed, and decreases multiplicatively when the server shows signs of overload. Among linear rules, this one gives
// equal shares to clients that share a server (Chiu and Jain 1989). The zero value is ready for use.
//
// The rate of a new key starts at Initial and doubles about once a second until the first sign of overload (slow start, RFC
// 5681). The rate at that moment is remembered as the ceiling. Afterwards the rate approaches the ceiling more and more
// slowly and then moves away from it faster and faster, as in RFC 9438: crossing the ceiling tests whether the limit still exists.
// The rate grows only while at least half of it is used (RFC 7661), or a tenth while quotas that the server reports have room. Latency
// bounds the requests in flight, because a rate alone is a weak handle on a queue.
//
// The signs of overload are a 429, or another refusal with Retry-After (see [OutcomeThrottled]); more failures than usual, if they become
// fewer at a lower rate; and a latency well above the lowest, if it falls with fewer requests in flight. A server that does
// not respond, or refuses every request, gets only one probe from time to time.
//
// Beside an [AdaptiveInFlight] limit, each failure counts for one of the two. The number takes a 429, 503 or 504 without
// Retry-After, a timeout or a broken connection if more requests than usual were in flight with it, unless a trial has found that some
// fail whatever the load. While the number is tested, it takes all of these. The rate takes the other failures. It has no bound but Max
// until the first failure that it takes.
type AIMD struct {
	// Initial is the rate of a new key, in tokens per second. 0 stands for 10, or for the lowest rate of the limits beside it if that
	// is higher, limited to the range from Min to Max. Only limits in which each request costs one token count.
	Initial float64
	// Min and Max bound the rate, in tokens per second. A Min of 0 stands for 0.00001, which is about one a day, or for Max or
	// Initial if that is lower. A Max of 0 stands for no bound. Only probes are rarer than Min: while the server refuses every
	// request, one is sent at least every few minutes.
	Min, Max float64
	// LatencyThreshold is the highest median latency, until the headers of a response. It bounds the requests in flight: by Little's law, n
	// in flight with a latency of R give the same throughput at the threshold if they are n times the threshold over R. If a request
	// alone takes longer, requests are sent one at a time, and [CauseLatencyAlone] is reported and logged once. 0 stands for a threshold
	// that is learned: the lowest median, and what noise explains, in two rounds in a row. It counts only while fewer requests in flight
	// reduce the latency. Beside an AdaptiveInFlight limit, nothing is learned from latency, and a threshold that is set still holds.
	LatencyThreshold time.Duration
	// ErrorThreshold is the share of requests that may fail, above 0 and at most 1. Each 5xx, timeout and broken connection counts as one
	// failure. Above the threshold the rate is cut, whatever the reason for the failures, and it grows again when successes have made up for
	// them. 0 stands for a threshold that is learned: 8 % plus one and a half times the usual share at low load, where a 5xx other than 503
	// and 504 counts as 0.4 of a failure. It counts only while lower rates reduce the failures. When one has reduced them, each counts as
	// one, and 4 % may fail in addition to those that a lower rate does not avoid. A 429 always cuts the rate.
	// If it is set beside an AdaptiveInFlight limit, all failures except those 429s that the number takes count here, and not there.
	ErrorThreshold float64
}

// Concurrency configures how the number of requests in flight of an [AdaptiveInFlight] limit is found, for each of its keys. The
// zero value is ready for use.
//
// By Little's law, n requests in flight with a latency of R are a throughput of n/R. So from time to time the limit is lowered to
// two thirds of n for a few dozen requests, and the latencies at both numbers are compared. If the latency is equal, the server
// works on the requests between these two numbers, and n grows. If the latency is lower by as much as the number, these requests
// only wait, and n falls. Earlier latencies do not matter, so a slower service, another mix of requests or a deployment is not
// mistaken for a queue. The limiters of Netflix and failsafe-go compare the latency with a remembered one.
//
// A client that shares its server with others sees only its own part of this. So while the server is slower than it was, the limit
// is lowered at multiples of a power of two of nanoseconds of the wall clock, at which other clients do the same.
//
// A new key starts at Initial and doubles until the latency rises. n grows only while it is used. A refusal (a 429 without
// Retry-After, a 503, a timeout, a broken connection) shows that the number in flight was too large, once more are refused than usual; one
// more request is tried again later. Refusals that do not become fewer with a lower n are ignored until a larger share is refused. After
// eight in a row, nothing is sent for 0.1 to 2 s.
type Concurrency struct {
	// Initial is the n of a new key. 0 stands for 4, limited to the range from Min to Max.
	Initial int64
	// Min and Max bound n. A Min of 0 stands for 1, and a Max of 0 for no bound.
	Min, Max int64
}

func (c Concurrency) validate() error { return concurrency.Config(c).Validate() }

// validate returns every problem of the configuration.
func (a AIMD) validate() error { return aimd.Config(a).Validate() }

// An Outcome is the result of a request, as far as it shows the load of the server.
type Outcome uint8

const (
	// OutcomeOK is a response that shows the server at work: 1xx to 3xx. Its latency counts.
	OutcomeOK Outcome = iota + 1
	// OutcomeClientError is any other 4xx: the server let the request through. Its latency does not count, because such
	// responses are often quicker than others. Unless the Transport has WithoutServerHints, a 403 that does not mention a
	// limit counts as OutcomeThrottled once eight more of them than accepted requests have come in a row.
	OutcomeClientError
	// OutcomeThrottled is a response that reports overload: 429, or 403, 418, 430, 503 or 509 with Retry-After; or one whose body is a
	// refusal by a rule of [WithServerHints].
	OutcomeThrottled
	// OutcomeUnavailable may or may not be caused by load: 503 without Retry-After, 504, a timeout, a refused or broken connection.
	OutcomeUnavailable
	// OutcomeError is any other 5xx. It is more often a fault than load, and counts as 0.4 of a failure, or as one if an ErrorThreshold is set
	// or a lower rate has reduced the failures.
	OutcomeError
	// OutcomeIgnore shows nothing: the caller canceled the request, or it was never sent.
	OutcomeIgnore
)
