package aimd

import "math"

// failures distinguishes failures that load causes from others: of these, the same share fails at a lower rate.
type failures struct {
	weight, n float64 // of the responses since the last cut; those before the last 64 count less, except in a trial
	usual     float64 // share of failures that load does not cause
	most      float64 // usual is no more than that, as the last trial has shown
	loadUntil instant // it is known until then which failures load causes: those beyond the usual share
	bare      bool    // the last failure was one with which some servers refuse
	trial     float64 // the share of failures at the rate before, while it is seen which fails at this one; 0: no trial
	again     bool    // that share was found in the trial, too, and not by chance before it
	up        bool    // the rate before was the lower one
	before    float64 // the rate before the trial
	ceiling   float64 // and its ceiling
	free      bool    // and there was no bound
	row       float64 // the rate before the cuts since which it has not been as high again; 0: there were none
	rowCeil   float64 // and its ceiling
}

const (
	usualAtMost  = 0.03  // without a trial
	mostByLoad   = 0.04  // of the responses are failures, where load causes them
	leastByLoad  = 0.001 // of them are refusals
	mostByChance = 0.5   // of the responses are failures that load does not cause
	wordFor      = 300 * second
	leastSeen    = 24   // responses since a cut before their share of failures counts
	trialSeen    = 64.0 // and before it is known what fails at a rate;
	someFail     = 0.1  // half of them where more than that fails
	fewFail      = 0.3  // of the responses at a lower rate: then the higher one is tried again, and otherwise a still lower one
	sure         = 2    // standard errors: two shares that differ by more do so not by chance
)

// knows reports whether it is known which failures load causes.
func (c *controller) knows(now instant) bool {
	return now < c.failures.loadUntil || c.failures.usual > usualAtMost
}

// threshold returns the share of failures above which the rate falls; 0: there is none. A 503 is a refusal where none of them is usual.
func (c *controller) threshold(now instant) float64 {
	f := &c.failures
	switch {
	case c.cfg.ErrorThreshold > 0 || !c.knows(now) || c.off.errors:
		return c.cfg.ErrorThreshold
	case f.bare:
		return max(leastByLoad, min(2*f.usual, mostByLoad+1.25*f.usual))
	}
	return mostByLoad + 1.25*f.usual
}

func (f *failures) forget() { f.weight, f.n, f.trial, f.again, f.up = 0, 0, 0, false, false }

// weigh counts the response to a request that was sent since the last cut. Some servers refuse with a bare 503.
func (c *controller) weigh(now, sent instant, o Outcome) {
	f, w, known := &c.failures, o.weight(), c.knows(now)
	switch {
	case c.cfg.ErrorThreshold > 0:
		c.exceed(now, c.cfg.ErrorThreshold, w > 0)
		return
	case f.trial > 0 && float64(min(sent, now-nanos(c.latency.smooth))-c.cutAt) < c.tau(): // its effect cannot be seen yet, except by failures that are quick
		return
	case w > 0 && (known || f.trial > 0):
		w = 1
	}
	if f.n >= 64 && f.trial == 0 {
		f.n, f.weight = f.n/2, f.weight/2
	}
	f.n++
	f.weight += w
	c.learnUsual(now, w)
	share := f.weight / f.n
	switch {
	case c.off.errors:
	case f.trial > 0:
		if f.n >= trialSeen || f.n >= trialSeen/2 && share > someFail {
			c.judgeTrial(now, share)
		}
	case known:
		c.heedLoad(now, sent, o)
	case w == 0:
	case o == Unavailable && f.weight >= 3 && share > 0.3+1.5*f.usual, f.n >= leastSeen && f.weight >= 5 && share > 0.08+1.5*f.usual:
		f.ceiling, f.free = c.ceiling, c.free
		c.bound(now, CauseErrors)
		f.before = c.current
		c.try(now, share, false)
	}
}

// try cuts the rate to a half, or to the share that did not fail, to see whether the failures become fewer.
func (c *controller) try(now instant, share float64, again bool) {
	c.cut(now, CauseErrors, c.current*max(0.3, 1-share), c.current*min(max(0.3, 1-share), 0.5))
	c.failures.trial, c.failures.again = share, again
}

// heedLoad counts a response while it is known which failures load causes. Then each of them counts 1, and their share is kept low. When
// cuts have lowered the rate to a half, there is another trial.
func (c *controller) heedLoad(now, sent instant, o Outcome) {
	f, rate, ceiling, failed := &c.failures, c.current, c.ceiling, o.weight() > 0
	if c.free { // without a bound, what was used counts: a trial would go back to Max otherwise
		rate = c.usedRate(now)
	}
	share := f.weight / f.n
	if failed {
		f.bare = o == Unavailable
	}
	switch threshold := c.threshold(now); {
	case threshold >= mostByLoad:
		if !c.exceed(now, threshold, failed) {
			return
		}
	case failed && !c.anotherEvent(now, sent):
		return
	default:
		if c.excess.cutAbove = 0; !c.excess.add(now, threshold, failed) {
			return
		}
		c.bare(now, CauseErrors)
		c.excess.failures = 0
	}
	f.loadUntil = now + wordFor
	switch {
	case rate >= f.row:
		f.row, f.rowCeil = rate, ceiling
	case c.current <= f.row/2 && !c.off.verify:
		f.before, f.ceiling, f.free, f.trial = f.row, f.rowCeil, false, share
	}
}

// learnUsual learns the share of failures where load cannot be the cause: below the ceiling, or while the rate is little
// used. Without it, a few percent of failures that load does not cause halve the goodput.
func (c *controller) learnUsual(now instant, w float64) {
	f := &c.failures
	near := c.current >= 0.97*c.ceiling || f.n < leastSeen
	if f.trial > 0 || c.ceiling == 0 && f.most == 0 || c.ceiling > 0 && near && c.inUse(now) {
		return
	}
	most := f.most
	if !c.knows(now) {
		most = max(most, usualAtMost)
	}
	f.usual = min(f.usual+(w-f.usual)/200, most)
}

// judgeTrial ends a trial, or has it go on with another rate. The share before it proves nothing: it was large by chance, or there would be no
// trial. So which fails at a lower rate is compared with what fails at the higher one again, or at a still lower one where that is too much.
// If it is the same, the cuts are undone.
func (c *controller) judgeTrial(now instant, share float64) {
	f := &c.failures
	switch {
	case share > mostByChance && !f.up, c.off.verify: // load causes all of them
		f.trial = 0
	case !f.up && share <= f.usual+sure*math.Sqrt(f.usual/f.n): // as usual: load causes what is beyond that
		f.expect(math.Sqrt(share * f.usual))
		f.trial = 0
	case f.up && f.more(f.trial, share):
		f.before, f.ceiling, f.free = c.current/2, c.current, false
		c.cut(now, CauseErrors, c.current/2, c.current/4)
		f.trial, f.again = share, true
		return
	case !f.up && share <= fewFail:
		f.expect(share)
		c.forgetResponses()
		c.cutAt, f.trial, f.up = now, share, true
		c.set(CauseNotLoad, f.before)
		return
	case !f.up && (!f.again || f.more(share, f.trial)):
		c.try(now, share, true)
		return
	default:
		f.expect((share + f.trial) / 2)
		f.trial, c.ceiling = 0, f.ceiling
		c.set(CauseNotLoad, f.before)
		if c.free = f.free; c.free {
			c.ceiling = 0
			c.set(CauseNotLoad, c.cfg.Max)
		}
	}
	f.loadUntil, f.row = now+wordFor, 0
	c.excess.failures, c.excess.cutAbove = 0, 0
}

// expect takes that a share of the responses of a trial are failures that load does not cause.
func (f *failures) expect(share float64) {
	f.usual, f.most = share, share+math.Sqrt(share/(2*trialSeen))
}

// more reports whether a share of the responses of a trial is larger than another, other than by chance.
func (f *failures) more(low, high float64) bool {
	return high-low > sure*math.Sqrt((low*(1-low)+high*(1-high))/f.n)
}
