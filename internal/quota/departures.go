package quota

import (
	"math/bits"

	"github.com/httpthrottle/throttle/internal/meter"
)

// Departures are some of the requests of an account, such as those of one quota, by which their responses are put into order.
type departures struct {
	sent   int64
	recent uint64        // which of the account's 64 requests until the one of that number they are; lowest bit: that one
	number int64         // of the last of them at the account
	last   meter.Instant // when it was sent
}

// take notes that the account's request of that number is one of them.
func (d *departures) take(number int64, due meter.Instant) {
	d.recent = d.recent<<(number-d.number) | 1
	d.sent, d.number, d.last = d.sent+1, number, due
}

// undo takes back the request of that number, if it is one of the last 64 that were noted.
func (d *departures) undo(number int64) {
	if since := d.number - number; since >= 0 && d.recent>>since&1 == 1 {
		d.sent--
		d.recent &^= 1 << since
	}
}

// before returns how many of them had been sent with the account's request of that number. If that is more than 64 requests ago, it
// is about that many.
func (d *departures) before(number int64) int64 {
	since := max(0, d.number-number)
	shown := min(since, 64)
	under := int64(bits.OnesCount64(d.recent << (64 - shown)))
	return d.sent - under - (since-shown)*int64(bits.OnesCount64(d.recent))/64
}
