package quota

import "math"

const (
	flowRises   = 1.0 / 16 // weight of a response in the mean
	flowFalls   = 1.0 / 32 // and of one that shows less than the mean
	onlyRefused = -2
	flowLeast   = 0.15 // what reordered responses seem to show is less
)

// A flow is how a server that names a quota in accepted responses gives what it gives. In a fixed window, a response tells one
// less than the one before, until the window turns. In a bucket, a sliding window or a log, something has come back meanwhile. Then
// "nothing is left until the reset" is no forecast: the next request may be accepted long before, or be refused after it.
type flow struct {
	left  int32   // told by the last accepted response; -1: there was none; onlyRefused: there were refusals
	share float32 // mean share of an accepted request that had come back before the next
}

// hear takes what is left after an accepted request. A large step is a window that turned, or idle time.
func (f *flow) hear(left, limit int64) {
	back := left - int64(f.left) + 1
	if f.left >= 0 && back < max(2, limit/4) {
		d := float32(min(max(back, -1), 1)) - f.share
		if d > 0 {
			d *= flowRises
		} else {
			d *= flowFalls
		}
		f.share = max(0, f.share+d)
	}
	f.left = int32(min(left, math.MaxInt32))
}

// contradicted takes a response that no fixed window would send.
func (f *flow) contradicted() { f.share = 1 }

// forecasts reports whether what the server tells has been seen to say when it accepts requests.
func (f *flow) forecasts() bool { return f.left >= 0 && f.share <= flowLeast }

// refills reports whether responses have shown that something comes back before the reset.
func (f *flow) refills() bool { return f.left >= 0 && f.share > flowLeast }
