package headers

import (
	"fmt"
	"time"
)

// ceiling is the longest duration in a [Signal]. A longer Retry-After is reduced to it; a longer reset is unknown.
const ceiling = 366 * 24 * time.Hour

// maxBuckets is the largest number of buckets in a [Signal]. If there are more, those with the least remaining are kept.
const maxBuckets = 32

// A Maybe is a value that the server may not have sent. Unknown differs from zero: an empty quota is a reason to wait, a
// missing one is not. The zero Maybe is unknown.
type Maybe[T any] struct {
	Value T // the zero of its type if unknown
	Known bool
}

// known returns a Maybe that is known to be v.
func known[T any](v T) Maybe[T] { return Maybe[T]{v, true} }

// Get returns the value, and whether it is known.
func (m Maybe[T]) Get() (value T, known bool) { return m.Value, m.Known }

// Or returns the value if it is known, otherwise v.
func (m Maybe[T]) Or(v T) T {
	if m.Known {
		return m.Value
	}
	return v
}

// String returns the value as fmt prints it, or "unknown".
func (m Maybe[T]) String() string {
	if m.Known {
		return fmt.Sprint(m.Value)
	}
	return "unknown"
}

// A Signal is what one response says about rate limits. All durations count from the instant given to Parse.
type Signal struct {
	// Limited reports that the server refused the request because of a limit.
	Limited bool

	// NotLimited reports that a Rule says that the request was not limited, although it looks so.
	NotLimited bool

	// Final reports that the server refused the request for a reason that no waiting ends, such as used-up credit. Limited is true,
	// too. A Rule or a preset says so; or the server, by x-should-retry: false without a Retry-After.
	Final bool

	// NoRetry reports that the server asks not to send the request again, by x-should-retry: false, whatever the status.
	NoRetry bool

	// Concurrency reports that the limit applies to concurrent requests. Sending fewer at a time helps; sending them more slowly
	// may not.
	Concurrency bool

	// Saturated reports that RetryAfter exceeded 366 days and was reduced to them.
	Saturated bool

	// RetryAfter is what Retry-After and similar headers say, whatever the status: on a redirect or a success it is no reason
	// to wait. Zero is possible; do not turn it into a loop without a pause.
	RetryAfter Maybe[time.Duration]

	// Wait is how long to wait before the next request that counts against the same limits: RetryAfter if Limited, otherwise
	// the latest reset among the empty buckets, and 0 if nothing prevents the next request. If it is unknown, use a backoff. Add
	// jitter after it, never before.
	Wait Maybe[time.Duration]

	// Buckets are the quotas in the response; nil if there are none. Of more than 32, those with the least remaining are kept.
	Buckets []Bucket

	// Cost is what the request cost, in the unit of the API's quota.
	Cost Maybe[float64]

	// Reason is the server's reason for limiting the request; "" if it gave none.
	Reason string

	// Message is what the server says to people about a Final refusal, on one line: the member of the body that is called message or,
	// if there is none, detail; at most 256 bytes; "" if there is neither. It may contain anything that the server knows.
	Message string

	// Unit is what the limit counts that refused the request, as the body says: "tokens", "input-tokens", "output-tokens" or "requests"; ""
	// if it does not. WantsBody does not ask for a body because of it.
	Unit string

	// Scope is what the limit is counted by, as the server reports it or the dialect defines it; "" if unknown.
	Scope string

	// Violated are the names of the policies that a problem document says were violated.
	Violated []string
}

// A Bucket is one quota as the server reports it. At least one of its values is known.
type Bucket struct {
	// Name is the server's name for it, "default" if it has none. Several lists in one header are called name.0, name.1, ….
	Name string

	// Limit is the quota, and Remaining what is left of it, never more than Limit; both in Unit, per Window.
	Limit, Remaining Maybe[int64]

	// Used is what was used of the quota; it may be more than Limit.
	Used Maybe[int64]

	// InFlight is the number of requests that the server counts as in flight.
	InFlight Maybe[int64]

	// Rate is how fast it is refilled, in Unit per second.
	Rate Maybe[float64]

	// Reset is the time until more is left, from the instant given to Parse. Some APIs then have a full quota, others one unit
	// more. An empty bucket gets nothing before that.
	Reset Maybe[time.Duration]

	// Window is the length of the period that Limit applies to, not the time until its end.
	Window Maybe[time.Duration]

	// Unit is what is counted ("requests", "tokens", "content-bytes"); "" if the server does not report it, which usually means
	// requests.
	Unit string

	// PartitionKey are the bytes by which the server distinguishes callers (pk in the draft); "" if it does not report them.
	PartitionKey string

	// Advisory reports that an empty bucket is no reason to wait: it only means a lower tier of service, or its numbers belong
	// to another caller, as on a 401.
	Advisory bool
}

// Empty reports whether nothing is left of the bucket and that is a reason to wait.
func (b Bucket) Empty() bool {
	return b.Remaining.Known && b.Remaining.Value == 0 && !b.Advisory
}

// hasValue reports whether the bucket has a value. A reset alone is none.
func (b Bucket) hasValue() bool {
	return b.Limit.Known || b.Remaining.Known || b.Used.Known || b.InFlight.Known || b.Rate.Known
}
