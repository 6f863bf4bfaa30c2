package bucket

import (
	"iter"
	"maps"

	"github.com/httpthrottle/throttle/internal/keep"
	"github.com/httpthrottle/throttle/internal/lease"
	"github.com/httpthrottle/throttle/internal/meter"
)

// A Limit is a Rule at work in one Limiter.
type Limit struct {
	Single   *Bucket // of the key "", which most programs use alone; it is never forgotten
	buckets  map[string]*Bucket
	recent   *Bucket // what Find returned last, since most programs call one host many times in a row; nil: it was forgotten
	Gates    bool    // its buckets are those of gates
	Index    int     // of the limit in its Limiter; that of gates comes after all
	Plans    bool    // its meters are Planners
	isHolder bool    // its meters are Holders
	Rule
	Supply   *Supply       // of a limit that is Shared; nil: it is not
	Calendar lease.Windows // of a Calendar that is Shared
	Leases   *Leases       // of all such limits
	Size     int64         // the burst of keys that have no rate of their own
	peak     int           // the most buckets since the map was made

	PerSecond float64 // the rate of keys that have none of their own, in tokens

	InitialAt meter.Instant // when a bucket without use held Initial

	Refreshed uint64 // the number of its last Refresh; 0: there was none

	holds   map[string]meter.Instant // of keys that have no bucket, because there was no room; nil: none
	holdNew meter.Instant            // the hold of buckets that are yet to be made

	held     meter.Instant // the end of HoldAll
	heldMost meter.Instant // the latest end of a hold of a bucket, past ones included
	Counts   limitCounts
	Settled  Settled // guarded by the lock, as Counts is
}

// NoteMeter notes what the meters of the limit are, because it takes time to find out.
func (li *Limit) NoteMeter(m meter.Meter) {
	_, li.Plans = m.(meter.Planner)
	_, li.isHolder = m.(meter.Holder)
}

// Terms returns the rate and the burst of a key for which RateFor returned own; zero: the limit's own.
func (li *Limit) Terms(own meter.Rate) (r meter.Rate, burst int64) {
	switch {
	case own == meter.Rate{}:
		return li.Shared(li.Rate), li.Size
	case li.Burst >= 0:
		return li.Shared(own), li.Size
	}
	return li.Shared(own), li.BurstOf(own)
}

// NewLimit returns a limit without buckets.
func NewLimit(r Rule) *Limit {
	li := &Limit{Rule: r, buckets: make(map[string]*Bucket)}
	li.Size, li.PerSecond = li.BurstOf(li.Rate), li.Shared(li.Rate).PerSecond()
	return li
}

// Age has Initial be what a bucket without use holds now. Its rate and its size change next.
func (li *Limit) Age(now meter.Instant) {
	m, ok := li.Single.Meter.(meter.Sharer)
	if li.Initial < 0 || !ok {
		return
	}
	unused := m.Another(li.InitialAt, li.Shared(li.Rate), li.Size, li.InitialOf(li.Size))
	li.Initial, li.InitialAt = int64(unused.Tokens(now)), now
}

// NewBucket returns a new bucket with that rate of its own; zero: the limit's. makes returns its meter, unless its budget is in a
// store. The bucket of the key "" is kept, and the others are when Keep is called.
func (li *Limit) NewBucket(key string, own meter.Rate, makes func(r meter.Rate, burst int64) meter.Meter) *Bucket {
	b := &Bucket{Limit: li, Key: key}
	if key == "" || li.Asks || li.Supply != nil {
		e := b.needs()
		e.own, e.asked = own, li.Refreshed
	}
	if r, burst := li.Terms(own); li.Supply != nil {
		b.lease = li.lease(b, key, r, burst)
		b.Meter = b.lease.Meter
	} else {
		b.Meter = makes(r, burst)
	}
	if key == "" {
		li.Single = b
		li.NoteMeter(b.Meter)
	} else if until := li.takeHold(key); until > 0 {
		b.needs().held = until
	}
	return b
}

// Keep keeps a bucket under its key.
func (li *Limit) Keep(b *Bucket) {
	li.buckets[b.Key] = b
	li.Keyed = li.Keyed || !li.Hosted || len(li.buckets) > 1 // one key may be the only host
	li.peak = max(li.peak, len(li.buckets))
}

// Forget forgets a bucket that was kept.
func (li *Limit) Forget(b *Bucket) {
	delete(li.buckets, b.Key)
	if li.recent == b {
		li.recent = nil
	}
	li.buckets = keep.Shrunk(li.buckets, &li.peak)
}

// Keys returns how many buckets are kept besides that of the key "".
func (li *Limit) Keys() int { return len(li.buckets) }

// All yields these buckets. If some are made or forgotten meanwhile, they may be left out.
func (li *Limit) All() iter.Seq[*Bucket] { return maps.Values(li.buckets) }

// Bucket returns the bucket of a key; nil: none is kept.
func (li *Limit) Bucket(key string) *Bucket {
	if key == "" {
		return li.Single
	}
	return li.buckets[key]
}

// Find returns the bucket of a key, which is not "", or of a host for requests without a key; nil: none is kept.
func (li *Limit) Find(key string, isHost bool) *Bucket {
	b := li.recent
	if b == nil || b.Key != key {
		if b = li.buckets[key]; b == nil {
			return nil
		}
		li.recent = b
	}
	if isHost {
		b.needs().unkeyed = true
	}
	return b
}

// Only returns the bucket of a limit that is not Keyed; nil: the limit is that of gates.
func (li *Limit) Only() *Bucket {
	for _, b := range li.buckets {
		return b
	}
	return li.Single
}

// maxHolds is how many holds of keys without a bucket a limit remembers.
const maxHolds = 1024

// KeepHold remembers a hold of a key if there is no room for its bucket. If there is no room for the hold either, all keys are
// held for which a bucket is yet to be made, and it returns false: a hold that is too wide is safer than none.
func (li *Limit) KeepHold(key string, until, now meter.Instant) bool {
	if _, ok := li.holds[key]; !ok && len(li.holds) == maxHolds {
		maps.DeleteFunc(li.holds, func(_ string, until meter.Instant) bool { return until <= now })
		if len(li.holds) == maxHolds {
			li.holdNew = max(li.holdNew, until)
			li.heldMost = max(li.heldMost, until)
			return false
		}
	}
	if li.holds == nil {
		li.holds = make(map[string]meter.Instant)
	}
	li.holds[key] = max(li.holds[key], until)
	li.heldMost = max(li.heldMost, until)
	return true
}

// takeHold returns until when a new bucket of that key is held.
func (li *Limit) takeHold(key string) meter.Instant {
	until := max(li.holds[key], li.holdNew)
	delete(li.holds, key)
	return until
}

// HoldAll holds all keys until then.
func (li *Limit) HoldAll(until meter.Instant) { li.held = max(li.held, until) }

// AllHeldUntil returns the end of the hold of all keys; 0: there was none.
func (li *Limit) AllHeldUntil() meter.Instant { return li.held }

// KeysHeldUntil returns the latest end of a hold of a key, past ones included.
func (li *Limit) KeysHeldUntil() meter.Instant { return li.heldMost }

// Release forgets the hold of a key without a bucket, and returns its end; 0: there is none.
func (li *Limit) Release(key string) meter.Instant {
	until := li.holds[key]
	delete(li.holds, key)
	return until
}

// ReleaseAll ends the holds of all keys, and of those without a bucket.
func (li *Limit) ReleaseAll(now meter.Instant) {
	li.held, li.holdNew = min(li.held, now), min(li.holdNew, now)
	clear(li.holds)
}

// Recount begins to find KeysHeldUntil again: NoteHold of each bucket ends it.
func (li *Limit) Recount() {
	li.heldMost = li.holdNew
	for _, held := range li.holds {
		li.heldMost = max(li.heldMost, held)
	}
}
