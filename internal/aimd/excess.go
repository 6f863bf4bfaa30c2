package aimd

import "math"

// An excess is how many failures there were beyond a threshold, less what successes have made up for since. While it is bounded, the
// share of failures is no higher than the threshold in the long run. All failures count alike: a threshold is no guess about their cause.
type excess struct {
	failures float64
	cutAbove float64 // 0: the bound of a threshold
	at       instant
	n, bad   float64 // responses since the last cut, those before the last 64 less, and failures among them
}

const (
	excessOver  = 60e9 // the time constant in which an excess is forgotten, so that a server that has recovered is used again
	excessNoise = 2    // standard deviations of the failures among leastSeen responses that may be chance
	mostExcess  = 3    // times the bound
)

// bound returns the excess at which a rate is cut that was not cut lately.
func (*excess) bound(threshold float64) float64 {
	n := leastSeen * threshold
	return n + excessNoise*math.Sqrt(n*(1-threshold))
}

// allows reports whether the rate may grow.
func (e *excess) allows(threshold float64) bool {
	return threshold == 0 || e.failures <= e.bound(threshold)/2
}

// add counts a response, and reports whether there are too many failures.
func (e *excess) add(now instant, threshold float64, failed bool) bool {
	if e.n >= 64 {
		e.n, e.bad = e.n/2, e.bad/2
	}
	bound := e.bound(threshold)
	e.failures *= math.Exp(-float64(now-e.at) / excessOver)
	e.at = now
	e.n++
	if e.failures -= threshold; failed {
		e.failures++
		e.bad++
	}
	e.failures = max(0, min(e.failures, mostExcess*bound))
	if e.failures <= bound/2 {
		e.cutAbove = bound
	}
	return failed && e.failures > max(bound, e.cutAbove)
}

// share returns the share of failures since the last cut.
func (e *excess) share() float64 { return e.bad / max(1, e.n) }

// exceed counts the response to a request that was sent since the last cut against a threshold, and reports whether it has cut the rate.
// After a cut, the next one waits until its effect can be seen, and until there are still more failures.
func (c *controller) exceed(now instant, threshold float64, failed bool) bool {
	e := &c.excess
	if !e.add(now, threshold, failed) || float64(now-c.cutAt) < c.tau() {
		return false
	}
	c.bound(now, CauseErrors)
	share := e.share()
	good := c.current * (1 - share)
	c.cut(now, CauseErrors, good/(1-min(threshold, share)), max(0.3*c.current, min(good, beta*c.current)))
	bound := e.bound(threshold)
	e.cutAbove = min(e.failures+bound/2, (mostExcess-0.5)*bound)
	return true
}
