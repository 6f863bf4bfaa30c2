package aimd

import (
	"math"

	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	tollAtMost  = 5.0             // seconds
	dearFor     = 600 * second    // a touch of the limit stays dear for that long after the hold
	dearPause   = 3 * second      // the shortest pause that can be dear
	longPause   = second          // the shortest pause that may hide what was sustained before
	longestHold = 3600.0          // seconds for which a rate is held, at most; or one cycle, if that is longer
	holdPauses  = 18              // pauses for which the rate is held after one
	longestStay = 86_400 * second // a server that asks for a longer pause is asked again after that time
	mostHeld    = 120 * second    // and at most; or two pauses, if that is longer
)

// throttled cuts the rate after a refusal. Retry-After says how far too high the rate was.
func (c *controller) throttled(now instant, retryAfter int64) {
	if retryAfter <= 0 {
		c.bare(now, CauseThrottled)
		return
	}
	p, active, sustained := seconds(retryAfter), max(0.001, seconds(now-c.workedFrom)), 0.0
	if retryAfter >= longPause { // shorter ones are soon followed by others, which find a rate that has fallen
		sustained = c.sustained(now, retryAfter)
	}
	if retryAfter >= dearPause && (p > active/2 || c.dear(now)) && c.known() && !c.off.quota {
		// A quota was spent too fast. The server gives more than it gave over work and pause, and less than was asked for.
		r := Halfway(min(c.current, max(c.worked/(active+p), sustained)), c.current)
		c.cut(now, CauseThrottled, max(r, beta*min(c.current, c.worked/max(active, p))), r)
		c.holdDear(now, active+p)
	} else {
		r := max(c.gave(p, active), min(c.current, sustained))
		c.cut(now, CauseThrottled, r, 0.99*r)
		if !c.off.hold {
			c.heldUntil = now + min(holdPauses*retryAfter, max(mostHeld, 2*retryAfter))
		}
	}
	c.tollOf(2.5 * p)
	c.cycled(meter.AddInstant(now, retryAfter))
}

// Halfway returns the geometric mean of a rate that was given and one that was refused. A window gives the former, and a bucket, which
// fills during the pause, nearly the latter: the mean errs by the same factor for both.
func Halfway(given, refused float64) float64 { return math.Sqrt(given * refused) }

// sustained returns the rate that the server gave in the last cycles of work and pause, together with the pause that begins now. A
// single cycle may be short, or begin where most of a window was used up. What was sustained bounds how far a cut goes.
func (c *controller) sustained(now instant, pause int64) float64 {
	if c.off.long {
		return 0
	}
	return c.given / max(0.001, seconds(meter.AddInstant(now, pause)-c.givenFrom))
}

// cycled ends a cycle of work and pause. Those before it count half as much as it.
func (c *controller) cycled(end instant) {
	if c.worked > 0 {
		c.given, c.givenFrom = c.given/2, end-(end-c.givenFrom)/2
	}
}

// gave returns the rate that the server seems to give, when it asked for a pause of p seconds after active seconds of work:
// what it gave in that time, if half of the pause had been part of it. While the rate was doubling, that says little.
func (c *controller) gave(p, active float64) float64 {
	share, least, left := active/(active+p/2), 0.8, 0.8
	if c.ceiling == 0 {
		least, left = 0.5, 0.75
	}
	if active >= 6*p || c.off.part {
		share = 1
	}
	return min(c.current, max(c.worked/active, left*c.current)) * max(least, share)
}

// bare cuts the rate after a refusal without Retry-After: by a tenth, or by the share that was refused since the last cut
// if that is more. Where everything was refused, the ceiling stays, because a window is closed or the server is down.
func (c *controller) bare(now instant, why Cause) {
	left, ceiling := max(leastLeft, min(beta, 1-c.refused/(c.heard+4))), c.current
	if c.off.deeper {
		left = beta
	}
	if c.okAt < c.cutAt && !c.off.closed {
		ceiling = max(ceiling, c.ceiling)
	}
	c.cut(now, why, ceiling, left*c.current)
}

// tollOf sets the toll of the last overload, in seconds.
func (c *controller) tollOf(s float64) {
	if !c.off.toll {
		c.toll = min(s, tollAtMost)
	}
}

// pause lets no request go for d, and a little longer, so that many clients do not return together.
// After the longest one, requests go one at a time until one succeeds.
func (c *controller) pause(now instant, d int64) {
	c.asking = c.asking || d == longestStay
	until := meter.AddInstant(now, min(d, never/4)+c.dice.Jitter(d))
	if until > c.pausedUntil {
		c.pausedUntil, c.workedFrom, c.worked, c.whole = until, until, 0, true
		c.used.At = max(c.used.At, until)
		c.latency.begin(until, c.seq) // what is completed per second says nothing of a server that is not asked
	}
}

// known reports whether worked tells what the server gives. It does not if other clients, or an earlier run of this
// program, may have spent most of the quota.
func (c *controller) known() bool {
	return c.whole && c.worked > 0 || c.requests(c.worked) >= leastRound
}

// dear reports whether a touch of the limit costs about as much time as there is work between two touches, as with quotas
// and with servers that count what they refuse.
func (c *controller) dear(now instant) bool { return now < c.dearUntil }

// holdDear holds the rate after a dear touch for as long as the cycle of work and waiting that it ended, in seconds, and
// twice as long after each further one. In the long run the rate stays below the limit.
func (c *controller) holdDear(now instant, cycle float64) {
	c.dearHold = min(2*c.dearHold, max(longestHold, cycle))
	if !c.dear(now) {
		c.dearHold = cycle
	}
	c.heldUntil = now + nanos(c.dearHold)
	if !c.off.dear {
		c.dearUntil = c.heldUntil + dearFor
	}
}
