package bucket

import (
	"time"

	"github.com/httpthrottle/throttle/internal/lease"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/order"
	"github.com/httpthrottle/throttle/internal/supply"
	"github.com/httpthrottle/throttle/store"
)

// A Supply is a store as one Limiter uses it. The lock of its owner guards it.
type Supply struct {
	*supply.Supply[*Bucket]
	Store   store.Store
	Latency WaitCounts // of the calls that returned in time
}

// A Call is a call of a store. The lock guards it, except for what is asked.
type Call struct {
	*supply.Call[*Bucket]
	Supply *Supply
}

// Ask adds an ask for a bucket, and for the others that the first request there waits for. It returns the number of parts.
func (f *Call) Ask(b *Bucket, now meter.Instant) int {
	d, w := b.wants(now)
	if b.expireOthers(w, now) {
		d, w = b.wants(now)
	}
	leases, demands := []*supply.Lease[*Bucket]{b.lease}, []lease.Demand{d}
	for i := 0; w != nil && i < len(w.Costs); i++ {
		other := Of(w.Point(i))
		if other == b || !other.isAskedWith(b) {
			continue
		}
		if d, first := other.wants(now); first == w && (other.Ready(0, 0, w.Costs[i]) == meter.Never || b.follows(w, other, d, now)) {
			leases, demands = append(leases, other.lease), append(demands, d)
		}
	}
	for i, n := range leases { // a demand is as of before the ask
		if !f.Add(n, demands[i]) && i == 0 {
			break
		}
	}
	return f.End()
}

// expireOthers has other sliding windows give back tokens that will be void when the response to an ask of now comes, if the first request
// here waits for that response and is the first one there as well. Then the store is asked for both: asked for in turn, the tokens of two
// sliding windows would be void again and again. Limits of other kinds keep what they get. It reports whether there were any.
func (b *Bucket) expireOthers(first *order.Waiter, now meter.Instant) (some bool) {
	if first == nil || b.Limit.Stored != store.Sliding || b.Ready(0, 0, costAt(first, b)) < meter.Never {
		return false
	}
	for i := range first.Costs {
		other := Of(first.Point(i))
		if other == b || other.Leased() == nil {
			continue
		}
		if _, w := other.wants(now); w == first && other.lease.Expire(now) {
			other.MarkLease()
			some = true
		}
	}
	return some
}

// follows reports whether more of another bucket is to be asked for soon as well, for requests behind the first one, for which there is
// enough of both. Asked for together, both are promised in proportion; separately, each would take a call.
func (b *Bucket) follows(first *order.Waiter, other *Bucket, d lease.Demand, now meter.Instant) bool {
	soon := meter.AddInstant(now, int64(b.lease.Lead()))
	return b.isPromisedWith(other) && b.Ready(0, 0, costAt(first, b)) < meter.Never && other.lease.AskAt(now, d) <= soon
}

// A StoreState is what is known of a store.
type StoreState struct {
	Limits  []string // which never change
	Err     error    // of the latest call
	Counts  supply.Counts
	Latency WaitCounts

	Processes int           // in the latest response about a budget; 0: there was none
	Age       time.Duration // of that
}
