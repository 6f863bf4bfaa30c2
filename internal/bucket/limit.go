package bucket

import (
	"maps"

	"github.com/httpthrottle/throttle/internal/lease"
	"github.com/httpthrottle/throttle/internal/meter"
)

// A Limit is a Limit at work in one Limiter.
type Limit struct {
	Single  *Bucket // of the key "", which most programs use alone; it is never forgotten
	Buckets map[string]*Bucket
	Gates   bool // its buckets are those of gates
	Keyed   bool // requests have keys, or some have had one
	Index   int  // in core.limits; that of gates comes after all
	Plans   bool // its meters are Planners
	holds   bool // its meters are Holders
	Rule
	Supply   *Supply       // of a limit that is Shared; nil: it is not
	Calendar lease.Windows // of a Calendar that is Shared
	Leases   *Leases       // of all such limits
	Size     int64         // the burst of keys that have no rate of their own
	Peak     int           // the most buckets since the map was made

	PerSecond float64 // the rate of keys that have none of their own, in tokens

	Refreshed uint64 // the number of its last Refresh; 0: there was none

	Holds   map[string]Instant // of keys that have no bucket, because there was no room; nil: none
	HoldNew Instant            // nothing goes before in buckets that are yet to be made

	_        [64]byte // what follows is written under the lock while requests read what stands above without it
	Held     Instant  // by HoldAll: nothing goes before in any bucket
	HeldMost Instant  // the latest end of a hold of a bucket, past ones included
	Counts   limitCounts
	_        [64]byte
}

// Look notes what the meters of the limit are, because it takes time to find out.
func (li *Limit) Look(m meter.Meter) {
	_, li.Plans = m.(meter.Planner)
	_, li.holds = m.(meter.Holder)
}

// Terms returns the rate and the burst of a key for which RateFor returned own; zero: the limit's own.
func (li *Limit) Terms(own Rate) (r Rate, burst int64) {
	switch {
	case own == Rate{}:
		return li.Shared(li.Rate), li.Size
	case li.Burst >= 0:
		return li.Shared(own), li.Size
	}
	return li.Shared(own), li.BurstOf(own)
}

// Bucket returns the bucket of a key; nil: none is kept.
func (li *Limit) Bucket(key string) *Bucket {
	if key == "" {
		return li.Single
	}
	return li.Buckets[key]
}

// MaxHolds is how many holds of keys without a bucket a limit remembers.
const MaxHolds = 1024

// KeepHold remembers a hold of a key if there is no room for its bucket. If there is no room for the hold either, all keys are
// held for which a bucket is yet to be made, and it returns false: a hold that is too wide is safer than none.
func (li *Limit) KeepHold(key string, until, now Instant) bool {
	if _, ok := li.Holds[key]; !ok && len(li.Holds) == MaxHolds {
		maps.DeleteFunc(li.Holds, func(_ string, until Instant) bool { return until <= now })
		if len(li.Holds) == MaxHolds {
			li.HoldNew = max(li.HoldNew, until)
			li.HeldMost = max(li.HeldMost, until)
			return false
		}
	}
	if li.Holds == nil {
		li.Holds = make(map[string]Instant)
	}
	li.Holds[key] = max(li.Holds[key], until)
	li.HeldMost = max(li.HeldMost, until)
	return true
}

// TakeHold returns until when a new bucket of that key is held.
func (li *Limit) TakeHold(key string) Instant {
	until := max(li.Holds[key], li.HoldNew)
	delete(li.Holds, key)
	return until
}
