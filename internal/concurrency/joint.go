package concurrency

import (
	"math"

	"github.com/httpthrottle/throttle/internal/meter"
)

// joint is about visits of all clients of a server at the same time. One client of several sees an elasticity of its own share
// only, and one that starts while the others keep up a queue takes that for the idle server. So visits begin at multiples of a
// period of the wall clock, which follows from the latency. If the clocks agree within a tenth of a visit or so, the clients see
// the elasticity of all of them. A client that finds the server slower than it was makes every second of these visits, as deep as
// the server is slower, so that they empty the queue together. BBR empties queues in the same way (ProbeRTT). If the clocks do not
// agree, the visits are as good as any others.
//
// A client whose number is so small that a level takes longer than the period visits alone, sees its own share only, and grows.
// That makes shares equal: if it waited for the next multiple, Jain's index of four busy clients would be .78 instead of .89.
type joint struct {
	wall  *meter.Wall
	depth float64 // of the next visit, as a part of n
	at    instant // before which that does not begin, or this one does not end
	lasts instant // how long it lasts, at least
}

const (
	jointGoal  = 0.8 // a goal below it, whatever noise there may be, asks for a deep visit
	jointNoise = 3   // standard errors of the latency that count as noise: with 2, a mix of 1:10 loses 1 % of the goodput
	jointEvery = 8   // mean latencies, at least: the period is the next power of two, in nanoseconds, so that clients agree on it
	jointShare = 8   // of the period, that a visit takes
)

// period returns the time between two visits.
func (c *controller) period() instant {
	_, exp := math.Frexp(jointEvery * c.mean * 1e9)
	return 1 << max(0, min(exp, 61))
}

// agree decides when the next visit is, and how deep, after the latencies at two levels were compared.
func (c *controller) agree(now instant, lnHi, lnLo, errLo float64) {
	j, p := &c.joint, c.period()
	if c.goal(lnLo, jointNoise*errLo) < jointGoal {
		c.longer = 1
		j.depth = max(deepest, min(visit, math.Exp(c.best-lnHi)))
		p *= 2
	}
	unix := now + j.wall.Unix
	j.at, j.lasts = (unix/p+1)*p-j.wall.Unix, p/jointShare
}

// early reports whether the next visit should not begin yet, or this one not end. A time that is more than two periods away follows
// from a latency that the server had before.
func (c *controller) early(now instant) bool {
	wait := c.joint.at - now
	return wait > 0 && wait <= 2*c.period()
}

// departJointly begins the visit that was decided on.
func (c *controller) departJointly(now instant) {
	lasts := c.joint.lasts
	if c.depart(c.open, c.joint.depth); c.mode == visiting {
		c.joint.at = now + lasts
	}
}
