package aimd

import (
	"math"

	"github.com/httpthrottle/throttle/internal/server"
)

// A place is where the rate was before what may be undone. Its rate is 0 if there is none.
type place struct {
	rate, ceiling float64
	free          bool // there was no bound
}

// threshold returns the share of failures above which the rate falls; 0: there is none.
func (c *controller) threshold(now instant) float64 {
	if c.cfg.ErrorThreshold > 0 || c.off.errors {
		return c.cfg.ErrorThreshold
	}
	return c.failures.Threshold(now)
}

// weigh counts the response to a request that was sent since the last cut. Some servers refuse with a bare 503.
func (c *controller) weigh(now, sent instant, o Outcome) {
	f, w := &c.failures, o.weight()
	trying := f.Trying()
	switch {
	case c.cfg.ErrorThreshold > 0:
		f.Count(math.Ceil(w))
		c.exceed(now, w > 0)
		return
	case trying && float64(min(sent, now-nanos(c.latency.smooth))-c.cutAt) < c.tau(): // its effect cannot be seen yet, except by failures that are quick
		return
	}
	known := f.Known(now)
	switch v := f.Take(now, w, o == Unavailable, c.near(now)); {
	case c.off.errors:
	case v != server.NoStep:
		c.follow(now, v)
	case known && !trying:
		c.heedLoad(now, sent, w > 0)
	}
}

// near reports whether load may be the cause of a failure: it is not below the ceiling, or while the rate is little used. If there is no
// ceiling, it is not after a trial has shown that.
func (c *controller) near(now instant) bool {
	if c.ceiling == 0 {
		return !c.failures.Judged()
	}
	return c.current >= 0.97*c.ceiling && c.inUse(now)
}

// exceed counts a failure or a success against the threshold, and reports whether it has cut the rate. After a cut, the next one waits until
// its effect can be seen.
func (c *controller) exceed(now instant, failed bool) bool {
	f, threshold := &c.failures, c.threshold(now)
	if !f.Add(now, threshold, failed) || float64(now-c.cutAt) < c.tau() {
		return false
	}
	c.bound(now, CauseErrors)
	share := f.Share()
	good := c.current * (1 - share)
	c.cut(now, CauseErrors, good/(1-min(threshold, share)), max(0.3*c.current, min(good, beta*c.current)))
	f.Excess.Cut(threshold)
	return true
}

// heedLoad counts a response while it is known which failures load causes. Their share is kept low. When cuts have lowered the rate to a
// half, there is a trial.
func (c *controller) heedLoad(now, sent instant, failed bool) {
	f, was := &c.failures, place{c.current, c.ceiling, false}
	if c.free { // without a bound, what was used counts: a trial would go back to Max otherwise
		was.rate = c.usedRate(now)
	}
	share := f.Share()
	switch {
	case f.Bare(now):
		if failed && !c.anotherEvent(now, sent) || !f.Refuses(now, failed) {
			return
		}
		c.bare(now, CauseErrors)
	case !c.exceed(now, failed):
		return
	}
	f.Learn(now)
	switch {
	case was.rate >= c.place.rate:
		c.place = was
	case c.current <= c.place.rate/2 && !c.off.verify:
		f.Try(share)
	}
}

// follow takes the next step of a trial.
func (c *controller) follow(now instant, v server.Step) {
	f, was, share := &c.failures, c.place, c.failures.Share()
	switch {
	case v == server.Suspected:
		was = place{0, c.ceiling, c.free}
		c.bound(now, CauseErrors)
		was.rate = c.current
		c.lower(now, share)
		f.Try(share)
	case c.off.verify:
		f.Moved(server.NoStep)
		f.Blame(now)
		was = place{}
	case v == server.TryHigher:
		c.forgetResponses()
		c.cutAt = now
		c.set(CauseNotLoad, was.rate)
		f.Moved(v)
	case v == server.TryStill && f.Higher(): // also a half of it may be too much
		was = place{c.current / 2, c.current, false}
		c.current = was.rate
		c.lower(now, 0)
		f.Moved(v)
	case v == server.TryStill:
		c.lower(now, share)
		f.Moved(v)
	case v == server.NotByLoad:
		c.ceiling = was.ceiling
		c.set(CauseNotLoad, was.rate)
		if c.free = was.free; c.free {
			c.ceiling = 0
			c.set(CauseNotLoad, c.cfg.Max)
		}
		was = place{}
	default: // the limit lies between the two rates
		c.ceiling = max(c.ceiling, halfway(c.current, was.rate))
		was = place{}
	}
	c.place = was
}

// lower cuts the rate to a half, or to the share that did not fail, to see whether the failures become fewer.
func (c *controller) lower(now instant, share float64) {
	passed := max(0.3, 1-share)
	c.cut(now, CauseErrors, c.current*passed, c.current*min(passed, 0.5))
}
