package headers

import (
	"fmt"
	"time"
)

// Ceiling is the longest duration in a [Signal]. A longer Retry-After is cut to it; a longer reset is unknown.
const Ceiling = 366 * 24 * time.Hour

// MaxBuckets is the most buckets in a [Signal]. Of more, those with the least remaining are kept.
const MaxBuckets = 32

// A Maybe is a value that the server may not have told. Unknown is not zero: nothing left is a reason to wait, and nothing
// said is none. The zero Maybe is unknown.
type Maybe[T any] struct {
	Value T // the zero of its type if unknown
	Known bool
}

// Known returns a Maybe that is known to be v.
func Known[T any](v T) Maybe[T] { return Maybe[T]{v, true} }

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
	// Limited says that the request was refused because of a limit, rather than for another reason or not at all.
	Limited bool

	// Concurrency says that it was refused for how many requests are under way, not for how many came: to send fewer at a
	// time helps, to send them more slowly may not.
	Concurrency bool

	// Saturated says that RetryAfter was longer than Ceiling, and cut to it.
	Saturated bool

	// RetryAfter is what Retry-After and its relatives say, on any status: on a redirect or a success it is no reason to
	// stay away. Zero is what the server said, and should not become a loop without a pause.
	RetryAfter Maybe[time.Duration]

	// Wait is how long to stay away before the next request that counts against the same limits: RetryAfter if Limited, else
	// the latest reset among the buckets that are empty, 0 if nothing forbids the next request. Unknown asks for a backoff of
	// one's own. Jitter belongs after it, never before.
	Wait Maybe[time.Duration]

	// Buckets are the quotas that the response tells of, by name; nil if it tells of none.
	Buckets []Bucket

	// Cost is what the request cost, in the unit of the API's quota.
	Cost Maybe[float64]

	// Reason is the server's word for why it limited, "" if it gave none.
	Reason string

	// Scope is whom or what the limit is counted for, in the server's word or the dialect's; "" if unknown.
	Scope string

	// Violated are the names of the policies that a problem document says were violated.
	Violated []string
}

// A Bucket is one quota as the server tells of it. Something of it is always known.
type Bucket struct {
	// Name is the server's name for it, "default" if it has none. Several lists in one header are called name.0, name.1, ….
	Name string

	// Limit is the quota, and Remaining what is left of it, never more than Limit; both in Unit, per Window.
	Limit, Remaining Maybe[int64]

	// Used is what was used of the quota; it may be more than Limit.
	Used Maybe[int64]

	// InFlight is how many requests the server counts as under way.
	InFlight Maybe[int64]

	// Rate is how much of it comes back, in Unit per second.
	Rate Maybe[float64]

	// Reset is how long until more is left, from the instant given to Parse. With some APIs it is full then, with others it
	// has one unit more; all that always holds is that an empty bucket gets nothing before.
	Reset Maybe[time.Duration]

	// Window is the length of time for which Limit is given, not the time until its end.
	Window Maybe[time.Duration]

	// Unit is what is counted ("requests", "tokens", "content-bytes"), "" if not told: requests, with most.
	Unit string

	// PartitionKey are the bytes by which the server tells callers apart (pk in the draft), "" if not told.
	PartitionKey string

	// Advisory says that an empty bucket is no reason to wait: running out only means a lower tier of service, or the numbers
	// are somebody else's, as on a 401.
	Advisory bool
}

// Empty says that nothing is left of the bucket, and that it is a reason to wait.
func (b Bucket) Empty() bool {
	return b.Remaining.Known && b.Remaining.Value == 0 && !b.Advisory
}

// tells says whether there is anything in the bucket to go by. A reset of nothing in particular is not.
func (b Bucket) tells() bool {
	return b.Limit.Known || b.Remaining.Known || b.Used.Known || b.InFlight.Known || b.Rate.Known
}
