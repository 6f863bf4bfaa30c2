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
	holdPauses  = 20              // pauses for which the rate is held after one that was repeated
	heldFor     = 20              // requests at least
	repeated    = 40              // pauses of work after one: a refusal in that time is repeated
	handful     = 5               // requests: fewer that were accepted are no evidence
	latelyOver  = 2e9             // the time constant of what was accepted lately
	leastLately = 0.8             // of the rate counts as that, at least
	longestStay = 86_400 * second // a server that asks for a longer pause is asked again after that time
	mostHeld    = 120 * second    // and at most; or two pauses, if that is longer
)

// throttled cuts the rate after a refusal.
func (c *controller) throttled(now instant, t ticket, retryAfter int64) {
	spared, before := c.requests(c.worked) < handful, c.spared
	if retryAfter <= 0 {
		spared = c.ceiling == 0
	}
	late := c.okAt > c.workedFrom && (c.worked == 0 || c.manner == chosen) // what was accepted since the pause may have been sent before
	afterPause := c.asked && c.paused > 0                                  // and not after a silence, which the server did not ask for
	c.spared, c.asked = spared, retryAfter > 0
	switch {
	case retryAfter > 0 && c.paused > 0 && !late && (t.at < c.workedFrom || t.seq <= c.firstSeq):
		// The server was closed for longer than it said, or it was chance, which shows nothing of the rate: the event lasts. Of a later
		// request, those before it may have been accepted, although no response has come.
		c.cutAt = now
		c.forgetResponses()
		return
	case spared && !before: // no evidence of where the limit is, until it happens again
		c.cutAt = now
		c.forgetResponses()
		c.set(CauseThrottled, beta*c.current)
	case retryAfter <= 0:
		c.bare(now, CauseThrottled)
	default:
		c.touched(now, retryAfter, afterPause)
	}
	if retryAfter > 0 {
		c.cycled(meter.AddInstant(now, retryAfter))
	}
}

// touched cuts the rate after a refusal with Retry-After. The first may have any reason, and costs little: the rate falls to what was
// accepted lately, and grows again. Caution is for those that are repeated: each would cost another pause.
func (c *controller) touched(now instant, retryAfter int64, afterPause bool) {
	p, active := seconds(retryAfter), max(0.001, seconds(now-c.workedFrom))
	again := afterPause && active < repeated*p
	quick := again && retryAfter <= 2*c.paused && p > active/2 // as long as the last, and soon after it
	row := quick && c.quick
	c.quick = quick
	short, shown := retryAfter < dearPause, quick && !c.spared // a handful that was accepted shows nothing of a quota
	if (row || shown && !short || c.dear(now)) && !c.off.quota {
		// A quota was spent too fast. The server gives more than it gave over work and pause, and less than was asked for.
		r := halfway(min(c.current, max(c.worked/(active+p), c.sustained(now, retryAfter))), c.current)
		c.cut(now, CauseThrottled, max(r, beta*min(c.current, c.worked/max(active, p))), r)
		c.tollOf(2.5 * p)
		if !short {
			c.holdDear(now, active+p)
		} else {
			c.hold(now, retryAfter)
		}
		return
	}
	r, start := c.lately(now), c.ceiling == 0
	switch {
	case start && shown:
		r = halfway(min(c.current, c.sustained(now, retryAfter)), c.current)
	case quick, start && short:
		r = max(c.gave(p, active), min(c.current, c.sustained(now, retryAfter)))
	case again: // a bucket that was full gave more lately than it fills, and while the rate grew, it gave less before
		r = halfway(min(c.current, max(c.worked/active, leastLately*c.current)), r)
	case start && p > active:
		r = halfway(min(c.current, c.worked/active), r)
	}
	c.cut(now, CauseThrottled, r, 0.99*r)
	if again || start && short {
		c.hold(now, retryAfter)
	}
	if again {
		c.tollOf(2.5 * p)
	}
}

// hold keeps the rate from growing for some pauses, and some requests.
func (c *controller) hold(now instant, pause int64) {
	if !c.off.hold {
		c.heldUntil = now + max(min(holdPauses*pause, max(mostHeld, 2*pause)), nanos(heldFor/c.requests(c.current)))
	}
}

// lately returns the rate that was accepted in the last seconds of work.
func (c *controller) lately(now instant) float64 {
	return min(c.current, max(leastLately*c.current, c.accepted.Of(now, latelyOver)))
}

// halfway returns the geometric mean of a rate that was given and one that was refused. A window gives the former, and a bucket, which
// fills during the pause, nearly the latter: the mean errs by the same factor for both.
func halfway(given, refused float64) float64 { return math.Sqrt(given * refused) }

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
	c.given, c.givenFrom = c.given/2, end-(end-c.givenFrom)/2
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
	crowded := 0
	if ceiling < confirmed*c.ceiling && !c.off.crowd {
		crowded = c.crowded + 1
	}
	c.cut(now, why, ceiling, left*c.current)
	c.crowded = crowded
}

// tollOf sets the toll of the last overload, in seconds.
func (c *controller) tollOf(s float64) {
	if !c.off.toll {
		c.toll = min(s, tollAtMost)
	}
}

// pause takes that the server asked for a wait of d, until which no request is sent, and maybe for a little longer.
func (c *controller) pause(now instant, d int64) {
	if until := meter.AddInstant(now, d); until > c.pausedUntil {
		c.pausedUntil, c.worked, c.paused = until, 0, d
		c.workFrom(until)
	}
}

// start takes that the first request after a pause is sent. The pause was longer by a random time, so that many clients do not return
// together.
func (c *controller) start(now instant) {
	if c.workedFrom == c.pausedUntil && c.paused > 0 {
		c.workFrom(min(now, meter.AddInstant(c.pausedUntil, meter.Jitter(1, c.paused))))
	}
}

// workFrom takes that nothing is sent until then.
func (c *controller) workFrom(at instant) {
	c.workedFrom, c.used.At, c.accepted.At = at, max(c.used.At, at), max(c.accepted.At, at)
	c.latency.begin(at, c.seq) // what is completed per second says nothing of a server that is not asked
}

// known reports whether worked shows what the server gives. It does not if other clients, or an earlier run of this
// program, may have spent most of the quota.
func (c *controller) known() bool {
	return c.paused > 0 && c.worked > 0 || c.requests(c.worked) >= leastRound
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
