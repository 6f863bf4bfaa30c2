package aimd

// failures distinguishes failures that load causes from others.
type failures struct {
	weight, n    float64 // of the responses since the last cut; those before the last 64 count less
	usual        float64 // share of failures that load cannot have caused
	loadUntil    instant // a 503 counts as a refusal until then, because a cut has helped
	notLoadUntil instant // usual may exceed usualAtMost until then, because a cut has not helped
	trial        float64 // the share of failures for which the rate was cut, while it is seen whether the cut helps; 0: none
	before       float64 // the rate before that
	again        bool    // it is the second cut
	free         bool    // there was no bound before the first
	words        int     // cuts for 503s since the last that has helped
}

const (
	usualAtMost = 0.03
	wordFor     = 300 * second
	doubtFor    = 120 * second
	leastSeen   = 24 // responses since a cut before their share of failures counts
	leastClean  = 36 // and responses without a failure that show that a cut has helped
	trialSeen   = 48 // and before a trial ends
	wordsAtMost = 7  // doubling may have overshot by a factor of two, and 0.9⁷ is a half
)

func (f *failures) forget() { f.weight, f.n, f.trial, f.again = 0, 0, 0, false }

// weigh counts the response to a request that was sent since the last cut. Some servers refuse with a bare 503.
func (c *controller) weigh(now, sent instant, o Outcome) {
	f, w := &c.failures, o.weight()
	if f.n >= 64 {
		f.n, f.weight = f.n/2, f.weight/2
	}
	f.n++
	f.weight += w
	c.learnUsual(now, w)
	share := f.weight / f.n
	if f.n >= leastClean && f.weight == 0 {
		f.words = 0
	}
	switch {
	case c.off.errors:
	case f.trial > 0:
		if f.n >= trialSeen {
			c.judgeTrial(now, share)
		}
	case w == 0:
	case o == Unavailable && now < f.loadUntil:
		if f.weight >= 1+2*f.n*f.usual && c.anotherEvent(now, sent) {
			c.takeWord(now)
		}
	case o == Unavailable && f.weight >= 3 && share > 0.3+1.5*f.usual, f.n >= leastSeen && f.weight >= 5 && share > 0.08+1.5*f.usual:
		free := c.free
		c.bound(now, CauseErrors)
		c.try(now, share, c.current, false)
		f.free = free
	}
}

// try cuts the rate to a half, or to the share that did not fail, to see whether the failures become fewer.
func (c *controller) try(now instant, share, before float64, again bool) {
	c.cut(now, CauseErrors, c.current*max(0.3, 1-share), c.current*min(max(0.3, 1-share), 0.5))
	f := &c.failures
	f.trial, f.before, f.again = share, before, again
}

// takeWord takes a 503 for a refusal. When a row of such cuts has not helped, the next 503s are failures like others.
func (c *controller) takeWord(now instant) {
	f := &c.failures
	f.loadUntil = now + wordFor
	if f.words++; f.words > wordsAtMost && !c.off.verify {
		f.loadUntil, f.words = now, 0
	}
	c.bare(now, CauseErrors)
}

// learnUsual learns the share of failures where load cannot be the cause: below the ceiling, or while the rate is little
// used. Without it, a few percent of failures that load does not cause halve the goodput.
func (c *controller) learnUsual(now instant, w float64) {
	f := &c.failures
	near := c.current >= 0.97*c.ceiling || f.n < leastSeen
	if f.trial > 0 || now < f.loadUntil || c.ceiling == 0 || near && c.inUse(now) {
		return
	}
	f.usual += (w - f.usual) / 200
	if now >= f.notLoadUntil {
		f.usual = min(f.usual, usualAtMost)
	}
}

// judgeTrial undoes a cut if a second one has not helped either, and takes the share that stayed for the usual one. The
// second cut is for a rate of which a half was still far too high.
func (c *controller) judgeTrial(now instant, share float64) {
	f := &c.failures
	switch stayed := share > 0.4*f.trial && f.trial <= 0.5 && !c.off.verify; {
	case !stayed:
		f.trial, f.loadUntil = 0, now+wordFor
	case !f.again:
		c.try(now, share, f.before, true)
	default:
		f.usual, f.notLoadUntil = (share+f.trial)/2, now+doubtFor
		c.ceiling, f.trial = f.before, 0
		c.set(CauseNotLoad, f.before)
		if c.free = f.free; c.free {
			c.ceiling = 0
			c.set(CauseNotLoad, c.cfg.Max)
		}
	}
}
