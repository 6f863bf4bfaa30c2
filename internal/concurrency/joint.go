package concurrency

import (
	"math"

	"github.com/httpthrottle/throttle/internal/meter"
)

// joint is about visits of all clients of a server at the same time. One client of several sees an elasticity of its own share
// only, and one that starts while the others keep up a queue takes that for the idle server. So a client that finds the server
// slower than it was makes its visits at multiples of a period of the wall clock, as deep as the server is slower. If the clocks
// agree within a tenth of a visit or so, the clients empty the queue together, and each sees the idle server and the elasticity
// of all. BBR empties queues in the same way (ProbeRTT). Otherwise these visits are ordinary ones, but deeper and rarer.
type joint struct {
	wall  *meter.Wall
	due   bool    // the next visit is joint, or the present one
	depth float64 // of n
	at    instant // when it begins or ends, at the earliest
}

const (
	jointGoal  = 0.8 // a goal below it, whatever noise there may be, asks for a joint visit
	jointNoise = 3   // standard errors of the latency that count as noise: with 2, a mix of 1:10 loses 1 % of the goodput
	jointEvery = 16  // mean latencies, at least: the period is the next power of two, in nanoseconds, so that clients agree on it
	jointShare = 8   // of the period, that a visit takes
)

// period returns the time between joint visits.
func (c *controller) period() instant {
	_, exp := math.Frexp(jointEvery * c.mean * 1e9)
	return 1 << max(0, min(exp, 62))
}

// agree decides whether the next visit is joint, after the latencies at two levels were compared.
func (c *controller) agree(now instant, lnHi, lnLo, errLo float64) {
	j := &c.joint
	if j.due = c.goal(lnLo, jointNoise*errLo) < jointGoal; !j.due {
		return
	}
	c.longer = 1
	j.depth = max(deepest, min(visit, math.Exp(c.best-lnHi)))
	p, unix := c.period(), now+j.wall.Unix
	j.at = (unix/p+1)*p - j.wall.Unix
}

// departJointly begins a joint visit.
func (c *controller) departJointly(now instant) {
	c.depart(c.open, c.joint.depth)
	if c.mode == visiting {
		c.joint.due, c.joint.at = true, now+c.period()/jointShare
	}
}
