package aimd

import "math"

// failures distinguishes failures that load causes from others.
type failures struct {
	weight, n    float64 // of the responses since the last cut; those before the last 64 count less, except in a trial
	usual        float64 // share of failures that load cannot have caused
	loadUntil    instant // load causes failures until then, because a cut has helped: a 503 counts as a refusal, and others fully
	notLoadUntil instant // usual may exceed usualAtMost until then, because a cut has not helped
	trial        float64 // the share of failures for which the rate was cut, while it is seen whether the cut helps; 0: none
	before       float64 // the rate before that
	again        bool    // it is the second cut
	free         bool    // there was no bound before the first
	words        int     // cuts for 503s since the last that has helped
	rowShare     float64 // of failures before the first cut since the rate could grow,
	rowRate      float64 // which was that; 0: there was none
	stays        float64 // share of failures that a lower rate does not avoid, while load causes others
	staysUntil   instant // when that is tried again
	believed     int64   // how long it was believed last that failures stay
}

const (
	usualAtMost = 0.03
	mostByLoad  = 0.04 // of the responses are failures, where load causes them
	wordFor     = 300 * second
	doubtFor    = 120 * second  // at first, and twice as long each time that it is found again,
	mostDoubt   = 3600 * second // at most
	leastSeen   = 24            // responses since a cut before their share of failures counts
	leastClean  = 36            // and responses without a failure that show that a cut has helped
	trialSeen   = 48            // and before a trial ends; twice as many if they are not clear
	helped      = 0.4           // of the share of failures is left at most by a cut that has helped,
	clear       = 0.25          // and that much more or less is clear
	wordsAtMost = 7             // doubling may have overshot by a factor of two, and 0.9⁷ is a half
)

// threshold returns the share of failures above which the rate falls; 0: there is none.
func (c *controller) threshold(now instant) float64 {
	f := &c.failures
	if c.cfg.ErrorThreshold > 0 || now >= f.loadUntil || c.off.errors {
		return c.cfg.ErrorThreshold
	}
	if now >= f.staysUntil {
		return mostByLoad
	}
	return mostByLoad + 1.25*f.stays
}

func (f *failures) forget() { f.weight, f.n, f.trial, f.again = 0, 0, 0, false }

// weigh counts the response to a request that was sent since the last cut. Some servers refuse with a bare 503.
func (c *controller) weigh(now, sent instant, o Outcome) {
	f, w := &c.failures, o.weight()
	switch {
	case c.cfg.ErrorThreshold > 0:
		c.exceed(now, c.cfg.ErrorThreshold, w > 0)
		return
	case f.trial > 0 && float64(sent-c.cutAt) < c.tau(): // the effect of the cut cannot be seen yet
		return
	case w > 0 && now < f.loadUntil:
		w = 1
	}
	if f.n >= 64 && f.trial == 0 {
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
		if clearly := math.Abs(share-helped*f.trial) >= clear*f.trial; f.n >= 2*trialSeen || f.n >= trialSeen && clearly {
			c.judgeTrial(now, share)
		}
	case o != Unavailable && now < f.loadUntil:
		c.heedLoad(now, w > 0)
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

// heedLoad counts a response while load causes failures. Then each of them counts 1, and their share is kept low. Cuts to a half that do
// not make them few enough are a trial, too.
func (c *controller) heedLoad(now instant, failed bool) {
	f, threshold := &c.failures, c.threshold(now)
	if c.excess.allows(threshold) {
		f.rowRate = 0
	}
	share, rate := f.weight/f.n, c.current
	if !c.exceed(now, threshold, failed) {
		return
	}
	f.loadUntil = now + wordFor
	switch {
	case f.rowRate == 0:
		f.rowShare, f.rowRate = share, rate
	case c.current <= f.rowRate/2:
		f.trial, f.before, f.again, f.free = f.rowShare, f.rowRate, true, false
	}
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

// judgeTrial ends a trial. If a second cut has not helped either, both are undone, and the share that stayed is expected at any rate for a
// while. The second cut is for a rate of which a half was still far too high.
func (c *controller) judgeTrial(now instant, share float64) {
	f := &c.failures
	stayed, known := share > helped*f.trial && f.trial <= 0.5 && !c.off.verify, now < f.loadUntil
	if stayed && !f.again {
		c.try(now, share, f.before, true)
		return
	}
	f.believed = max(doubtFor, min(2*f.believed, mostDoubt))
	if !stayed {
		f.believed = doubtFor
	}
	f.stays, f.staysUntil = share, now
	if known && f.trial <= 0.5 {
		f.staysUntil = now + f.believed
	}
	c.excess.failures, c.excess.cutAbove = 0, 0
	if !stayed {
		f.trial, f.loadUntil = 0, now+wordFor
		return
	}
	if !known {
		f.usual, f.notLoadUntil = (share+f.trial)/2, now+f.believed
	}
	c.ceiling, f.trial = f.before, 0
	c.set(CauseNotLoad, f.before)
	if c.free = f.free; c.free {
		c.ceiling = 0
		c.set(CauseNotLoad, c.cfg.Max)
	}
}
