package quota

import (
	"cmp"
	"slices"
	"unsafe"

	"github.com/httpthrottle/throttle/internal/meter"
)

// This file bounds how many bytes are kept of what one server said.

// MaxSize is how many bytes an account takes at most, with its gates, as they are counted here. Together with what the allocator
// adds it takes no more than 16 KiB.
const MaxSize = 12 << 10

// Size returns about how many bytes the account takes, without its gates.
func (a *Account) Size() int {
	n := int(unsafe.Sizeof(*a)) + cap(a.quotas)*int(unsafe.Sizeof(a)) + a.final.size()
	for _, q := range a.quotas {
		n += q.size()
	}
	return n
}

func (q *quota) size() int { return int(unsafe.Sizeof(*q)) + len(q.name) + len(q.unit) }

// Size returns about how many bytes the gate takes.
func (g *Gate) Size() int { return int(unsafe.Sizeof(*g)) + cap(g.quotas)*int(unsafe.Sizeof(g)) }

// Fit makes the account take at most n bytes. Quotas that have something left go before those that are empty, and that end first before
// others.
func (a *Account) Fit(now meter.Instant, n int) {
	for size := a.Size(); size > n && len(a.quotas) > 0; size = a.Size() {
		a.drop(slices.MinFunc(a.quotas, func(x, y *quota) int {
			return cmp.Or(cmp.Compare(x.worth(now), y.worth(now)), cmp.Compare(x.known(), y.known()))
		}))
	}
}

// known returns until when what is known of the quota counts.
func (q *quota) known() meter.Instant {
	if q.reset < meter.Never {
		return max(q.reset, q.held)
	}
	return max(q.newest.sent, q.held)
}

// stops reports whether the quota stops requests until a known time.
func (q *quota) stops(now meter.Instant) bool {
	return now < q.held || q.believed() && q.empty() && q.reset < meter.Never && now < q.end()
}

// worth is higher for a quota that stops requests.
func (q *quota) worth(now meter.Instant) int {
	if q.stops(now) {
		return 1
	}
	return 0
}

// drop forgets a quota.
func (a *Account) drop(q *quota) {
	is := func(other *quota) bool { return other == q }
	a.quotas = slices.DeleteFunc(a.quotas, is)
	for _, g := range a.gates {
		g.quotas = slices.DeleteFunc(g.quotas, is)
	}
}

// Stops reports whether what the server reported stops requests: a hold, a final refusal or an empty quota.
func (a *Account) Stops(now meter.Instant) bool {
	return a.Until() > now || a.final != nil || slices.ContainsFunc(a.quotas, func(q *quota) bool { return q.stops(now) })
}
