package throttle

import "github.com/httpthrottle/throttle/internal/meter"

// failures tells failures that are load from those that are not.
type failures struct {
	weight, n    float64 // of the answers since the last cut; what is older than 64 counts less
	usual        float64 // share where load can not be the reason
	loadUntil    instant // a 503 is taken as the server's word that it is too much, since a cut has helped
	notLoadUntil instant // usual may be more than usualAtMost, since a cut has not helped
	trial        float64 // the share for which the rate was cut, to see whether it falls; 0: none
	before       float64 // the rate before that
	again        bool    // it is the second cut
	words        int     // cuts on the server's word since one was followed by answers without failures
}

const (
	usualAtMost = 0.03
	wordFor     = 300 * second
	doubtFor    = 120 * second
	leastSeen   = 24 // answers since a cut before anything is said of a share
	trialSeen   = 48 // and before a cut is judged
	wordsInVain = 7  // start may have doubled the rate before the first sign, and 0.9⁷ is a half
)

func (f *failures) forget() { f.weight, f.n, f.trial, f.again = 0, 0, 0, false }

// weigh takes in an answer to a request that was sent since the last cut. Without it, a server that refuses with a bare
// 503 is pressed for good.
func (c *controller) weigh(now instant, o Outcome) {
	f, w := &c.failures, o.weight()
	if f.n >= 64 {
		f.n, f.weight = f.n/2, f.weight/2
	}
	f.n++
	f.weight += w
	c.learnUsual(now, w)
	share := f.weight / f.n
	if f.n >= leastSeen && f.weight <= 1 {
		f.words = 0
	}
	switch {
	case c.cfg.off.errors:
	case f.trial > 0:
		if f.n >= trialSeen {
			c.judgeTrial(now, share)
		}
	case w == 0:
	case c.cfg.ErrorThreshold > 0:
		if f.n >= leastSeen && share > c.cfg.ErrorThreshold {
			c.cut(now, causeErrors, c.current*(1-share), c.current*max(0.3, min(1-share, beta)))
		}
	case o == OutcomeUnavailable && now < f.loadUntil:
		if f.weight >= 2+2*f.n*f.usual {
			c.takeWord(now)
		}
	case f.n >= leastSeen && f.weight >= 5 && share > 0.08+1.5*f.usual:
		c.try(now, share, c.current, false)
	}
}

// try cuts the rate to the half, or to the share that did not fail, to see whether the failures become fewer.
func (c *controller) try(now instant, share, before float64, again bool) {
	c.cut(now, causeErrors, c.current*(1-share), c.current*min(1-share, 0.5))
	f := &c.failures
	f.trial, f.before, f.again = share, before, again
}

// takeWord cuts the rate for a 503, and takes the next ones for what any failure is once a row of such cuts has been in
// vain.
func (c *controller) takeWord(now instant) {
	f := &c.failures
	f.loadUntil = now + wordFor
	if f.words++; f.words > wordsInVain && !c.cfg.off.verify {
		f.loadUntil, f.words = now, 0
	}
	c.cut(now, causeErrors, c.current, beta*c.current)
}

// learnUsual learns the share of failures where load can not be the reason: well below the ceiling, or with a rate that
// is little used. Without it, a few percent of failures that have nothing to do with load halve the goodput.
func (c *controller) learnUsual(now instant, w float64) {
	f := &c.failures
	if f.trial > 0 || now < f.loadUntil || c.mode != modeAvoid || (c.current >= 0.93*c.ceiling || f.n < leastSeen) && c.inUse(now) {
		return
	}
	f.usual += (w - f.usual) / 200
	if now >= f.notLoadUntil {
		f.usual = min(f.usual, usualAtMost)
	}
}

// judgeTrial takes a cut back that has not helped, nor a second one, and has the share that stayed for the usual one.
// The second is for a rate that was so much too high that half of it still was.
func (c *controller) judgeTrial(now instant, share float64) {
	f := &c.failures
	switch stayed := share > 0.4*f.trial && f.trial <= 0.5 && !c.cfg.off.verify; {
	case !stayed:
		f.trial, f.loadUntil = 0, now+wordFor
	case !f.again:
		c.try(now, share, f.before, true)
	default:
		f.usual, f.notLoadUntil = (share+f.trial)/2, now+doubtFor
		c.ceiling, f.trial = f.before, 0
		c.set(causeNotLoad, f.before)
	}
}

// A silence is what is known of a server that answers nothing, or refuses everything: it is asked by one request now
// and then, and left alone but for that. Without it, a server that hangs takes all callers with it.
type silence struct {
	from      instant
	probeAt   instant
	gap       int64   // between probes
	probing   bool    // one is in flight
	throttled bool    // the server refuses, rather than being out of order
	resume    float64 // share of the rate to go on with
	okSince   int     // successes since the last silence
}

const (
	firstGap  = second / 4
	outageGap = 5 * second / 2 // the longest that a server stays unasked, while it may be out of order
	windowGap = 300 * second   // and when it has refused for a minute: some count whoever asks
	resumeAt  = 0.8
)

// silent reports whether the row of failures is long enough. Where a touch of the limit is dear, two refusals are.
func (c *controller) silent(now instant, o Outcome) bool {
	if c.cfg.off.silence {
		return false
	}
	return c.row >= rowOfDead || c.row >= rowIfDear && o == OutcomeThrottled && c.dear(now)
}

func (c *controller) beginSilence(now instant, o Outcome) {
	s := &c.silence
	if s.from > 0 && s.okSince < 64 {
		s.resume /= 4 // a relapse
	} else {
		s.resume = resumeAt
	}
	s.from, s.gap, s.throttled = now, max(firstGap, nanos(2*c.latency.smooth)), o == OutcomeThrottled
	c.threshold = max(c.ceiling, c.current)
	c.mode, c.cutSeq = modeQuiet, c.seq
	c.set(causeSilence, c.current)
	c.probeAgain(now, now)
}

func (c *controller) probeFailed(now instant, t ticket, o Outcome) {
	s := &c.silence
	s.throttled = o == OutcomeThrottled
	most := outageGap
	if s.throttled && now-s.from > 60*second && !c.cfg.off.dear {
		most = min(windowGap, (now-s.from)/2)
	}
	s.gap = min(2*s.gap, most)
	c.probeAgain(now, t.at)
}

// probeAgain sets the instant of the next probe, a gap after the last, which has hung for some of it if the server
// hangs. It is a little random, so that many clients do not ask as one.
func (c *controller) probeAgain(now, last instant) {
	c.silence.probing = false
	c.silence.probeAt = max(now, last+int64(float64(c.silence.gap)*(0.8+0.4*c.dice.Chance())))
}

// endSilence goes on after a probe was answered.
func (c *controller) endSilence(now instant) {
	s := &c.silence
	active, dark := max(0, seconds(s.from-c.workedFrom)), seconds(now-s.from)
	sustained := c.worked / (active + dark - seconds(s.gap)/2) // it has ended somewhere since the last probe
	c.cutSeq = c.seq
	c.failures.forget()
	if s.throttled && (seconds(dearPause) < dark && dark > active/2 || c.dear(now)) && c.known() && !c.cfg.off.quota {
		r := min(c.threshold, sustained) // current has been cut for the first refusal of the row
		c.mode, c.ceiling, c.stretch = modeAvoid, c.clamp(r), 1
		c.holdDear(now, active+dark)
		c.set(causeAlive, r)
	} else {
		c.mode, c.heldUntil = modeStart, now
		c.set(causeAlive, s.resume*c.threshold)
	}
	s.okSince, s.probing = 0, false
	c.row, c.worked, c.workedFrom, c.whole = 0, 0, now, true
	c.used = meter.MeanRate{At: now}
}
