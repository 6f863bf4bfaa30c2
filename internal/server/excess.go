package server

import (
	"math"

	"github.com/httpthrottle/throttle/internal/meter"
)

// An Excess is how many failures there were beyond a threshold, less what successes have made up for since. While it is bounded, the
// share of failures is no higher than the threshold in the long run. All failures count alike: a threshold is no guess about their cause.
type Excess struct {
	excess   float32
	cutAbove float32 // after a cut; 0: the bound of a threshold
	at       meter.Instant
}

const (
	excessOver  = 60e9 // the time constant in which an excess is forgotten, so that a server that has recovered is used again
	excessNoise = 2    // standard deviations of the failures among leastSeen responses that may be chance
	mostExcess  = 3    // times the bound
)

// bound returns the excess at which a load is cut that was not cut lately.
func bound(threshold float64) float32 {
	n := leastSeen * threshold
	return float32(n + excessNoise*math.Sqrt(n*(1-threshold)))
}

// Allows reports whether the load may grow.
func (e *Excess) Allows(threshold float64) bool {
	return threshold == 0 || e.excess <= bound(threshold)/2
}

// Add counts a response, and reports whether there are too many failures.
func (e *Excess) Add(now meter.Instant, threshold float64, failed bool) bool {
	bound := bound(threshold)
	e.excess *= float32(math.Exp(-float64(now-e.at) / excessOver))
	e.at = now
	if e.excess -= float32(threshold); failed {
		e.excess++
	}
	e.excess = max(0, min(e.excess, mostExcess*bound))
	if e.excess <= bound/2 {
		e.cutAbove = 0
	}
	return failed && e.excess > max(bound, e.cutAbove)
}

// Cut takes that the load was cut. The next cut waits until there are still more failures.
func (e *Excess) Cut(threshold float64) {
	bound := bound(threshold)
	e.cutAbove = min(e.excess+bound/2, (mostExcess-0.5)*bound)
}
