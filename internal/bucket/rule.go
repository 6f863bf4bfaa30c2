package bucket

import (
	"math"
	"time"

	"github.com/httpthrottle/throttle/internal/lease"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// A Rule is what the core knows of a limit: how to make its meters, numbers, and what differs between limits beside their meters.
type Rule struct {
	Name    string
	Make    func(now meter.Instant, r meter.Rate, burst int64, wall *meter.Wall) meter.Meter // Share is already applied to r and burst
	Rate    meter.Rate
	Burst   int64 // -1: as large as the rate's n
	Initial int64 // -1: full
	Share   float64
	Start   time.Time                            // of one fixed window; zero: the epoch
	Windows func(wall *meter.Wall) lease.Windows // of a Calendar that is Shared
	Store   *Sharing                             // of a limit that is Shared; nil: it is not
	Stored  store.Kind

	Keyed    bool   // requests have keys; a limit sets it once one has had a key, and a limit that learns once there were two at a time
	Windowed bool   // no more than n in a window
	Counted  bool   // a Pace in the place of a Quota, with a small burst
	Wall     bool   // of the wall clock, which may be set
	Reported bool   // its meters need the outcome of requests
	Answered bool   // its meters need the instant of responses
	Tracked  bool   // the outcome or the response of requests is needed
	Rated    bool   // its buckets have a rate that is set
	Learns   bool   // its meters are learners
	Hosted   bool   // requests without a key are counted by host
	Unit     string // in which a server reports the limit; "": users or a controller set it
	Frees    bool   // what was charged is given back at the end of the request
	Clamps   bool   // costs are reduced to what can be paid
	Fair     bool   // callers take turns
	Settles  bool   // responses have the true costs
	Lowers   bool   // estimates are lowered to what requests of the key did cost
	Asks     bool   // there may be a rate for each key
	Open     bool   // it grants everything but what is held
}

// Part returns the share of n, rounded down. It tolerates the rounding of float64: 0.29 of 100 is 29.
func (l *Rule) Part(n int64) int64 {
	if l.Share == 1 {
		return n
	}
	return int64(math.Floor(float64(n)*l.Share*(1+1e-15) + 1e-9))
}

// Shared returns the part of r that is this client's, by Share.
func (l *Rule) Shared(r meter.Rate) meter.Rate {
	r.N, r.Per = min(r.N, meter.MaxCount), min(r.Per, time.Duration(meter.MaxPer))
	if l.Windowed {
		return meter.Rate{N: l.Part(r.N), Per: r.Per}
	}
	if l.Share < 1 && !l.Frees { // the period of slots is a pause
		r.Per = time.Duration(math.Ceil(min(float64(r.Per)/l.Share, float64(meter.MaxPer))))
	}
	return r
}

// backParts bounds the burst of a Shared Quota to n/backParts: tokens that requests did not need come back up to that. With the rate, which
// is 95 %, no period has more than n.
const backParts = 40

// BurstOf returns the burst of a token bucket of this limit with that rate.
func (l *Rule) BurstOf(r meter.Rate) int64 {
	burst := l.Burst
	if burst < 0 {
		burst = min(r.N, meter.MaxCount)
	}
	if l.Counted {
		burst /= backParts
	}
	return max(1, l.Part(burst))
}

// InitialOf returns how many tokens a new token bucket of this burst has.
func (l *Rule) InitialOf(burst int64) int64 {
	if l.Initial < 0 {
		return burst
	}
	return min(l.Initial, burst)
}
