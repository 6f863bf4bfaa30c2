package throttle

import (
	"math"
	"time"

	"github.com/httpthrottle/throttle/internal/lease"
	"github.com/httpthrottle/throttle/internal/meter"
)

// A rule is what the core knows of a limit: how to make its meters, numbers, and what differs between limits beside their meters.
type rule struct {
	name    string
	make    func(now instant, r rate, burst int64, wall *meter.Wall) meter.Meter // Share is already applied to r and burst
	rate    rate
	burst   int64 // -1: as large as the rate's n
	initial int64 // -1: full
	share   float64
	start   time.Time // of one fixed window; zero: the epoch
	reserve float64   // the fraction that is kept back; 0: none
	urgent  int       // the lowest priority that it is kept for
	store   *sharing  // of a limit that is Shared; nil: it is not
	stored  lease.Kind

	windowed bool // no more than n in a window
	wall     bool // of the wall clock, which may be set
	reported bool // its meters need the outcome of requests
	tracked  bool // the outcome or the response of requests is needed
	rated    bool // its buckets have a rate that is set
	learns   bool // its meters are learners
	frees    bool // what was charged is given back when the request is over
	clamps   bool // costs are reduced to what can be paid
	fair     bool // callers take turns
	asks     bool // there may be a rate for each key
	open     bool // it grants everything but what is held
}

// part returns the share of n, rounded down. It tolerates the rounding of float64: 0.29 of 100 is 29.
func (l *rule) part(n int64) int64 {
	if l.share == 1 {
		return n
	}
	return int64(math.Floor(float64(n)*l.share*(1+1e-15) + 1e-9))
}

// shared returns the rate that Share leaves of r.
func (l *rule) shared(r rate) rate {
	r.N, r.Per = min(r.N, maxCount), min(r.Per, time.Duration(maxPer))
	if l.windowed {
		return rate{N: l.part(r.N), Per: r.Per}
	}
	if l.share < 1 {
		r.Per = time.Duration(math.Ceil(min(float64(r.Per)/l.share, float64(maxPer))))
	}
	return r
}

// burstOf returns the burst of a token bucket of this limit with that rate.
func (l *rule) burstOf(r rate) int64 {
	burst := l.burst
	if burst < 0 {
		burst = min(r.N, maxCount)
	}
	return max(1, l.part(burst))
}

// initialOf returns how many tokens a new token bucket of this burst has.
func (l *rule) initialOf(burst int64) int64 {
	if l.initial < 0 {
		return burst
	}
	return min(l.initial, burst)
}
