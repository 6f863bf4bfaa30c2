package quota

import (
	"math/bits"

	"github.com/httpthrottle/throttle/internal/meter"
)

// Departures are the requests that were sent to a quota, by which their responses are put into order.
type departures struct {
	sent   int64
	recent uint64        // which of the account's last requests fall under the quota; lowest bit: the last
	last   meter.Instant // when the last request was sent
}

// next notes that the account sends a request, which may fall under another quota.
func (d *departures) next() { d.recent <<= 1 }

// take notes that the request that was noted last falls under this quota.
func (d *departures) take(due meter.Instant) {
	d.recent |= 1
	d.sent, d.last = d.sent+1, due
}

// undo takes back a request after which the account has sent that many.
func (d *departures) undo(since int64) {
	d.sent--
	d.recent &^= 1 << since
}

// before returns how many requests had been sent when the account had sent all but the last so many. If these are more than 64, it
// is about that many.
func (d *departures) before(since int64) int64 {
	since = max(0, since)
	shown := min(since, 64)
	under := int64(bits.OnesCount64(d.recent << (64 - shown)))
	return d.sent - under - (since-shown)*int64(bits.OnesCount64(d.recent))/64
}
