package throttle

import (
	"math"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A controller finds the rate of one key of an Adaptive limit. It is arithmetic: it has no lock and no clock, and is
// told the time, which must not run backwards. All its clocks are lazy: they move when it is asked or told something.
//
// This file is how the rate moves; failures.go and latency.go are the signs of too much that the server does not spell
// out. A server can be seen to be faster only by sending too much, so each rule is a choice of how often to try.
type controller struct {
	cfg  AIMD
	dice meter.Dice
	mode mode

	current   float64 // tokens per second
	ceiling   float64 // where the last sign of too much came
	threshold float64 // where start ends, should nothing end it before
	stretch   float64 // share of a step that is taken, the ceiling having stayed where it is
	grownAt   instant // current is as of then
	heldUntil instant // no growth before

	seq       uint64 // of the last request
	cutSeq    uint64 // of the last request before the last cut
	cutAt     instant
	descended bool // see descends
	inFlight  int
	cost      float64 // of a request, on average
	used      meter.MeanRate

	pausedUntil instant // nothing goes before
	workedFrom  instant // since the last pause or silence
	worked      float64 // tokens accepted since
	whole       bool    // there was such a pause: what was worked is all that the server gave since
	okAt        instant // of the last success
	dearHold    float64 // seconds for which the rate was held after the last dear touch; see holdDear
	dearUntil   instant

	row      float64 // failures without a success
	silence  silence
	failures failures
	latency  latency

	why   cause   // of the last change that was not growth; "": told
	shown float64 // the rate when it was last told
}

type mode uint8

const (
	modeStart mode = iota // doubling, until the first sign of too much
	modeAvoid             // in steps, towards the ceiling and past it
	modeQuiet             // nothing but probes
)

const (
	beta        = 0.9  // of the rate is left by a cut: 0.5 costs a fifth of the goodput, 0.95 twice the refusals
	near        = 0.1  // the relative distance within which two ceilings are one
	usedEnough  = 0.5  // share of the rate that must be used for it to grow; anything from 0.3 to 0.8 does
	leastStep   = 0.26 // of a step, while the ceiling stays where it is
	pastCeiling = 2    // times the step beyond the ceiling: the sooner it is known whether it is gone
	rowOfDead   = 10   // failures in a row after which nothing is sent but probes
	rowIfDear   = 2    // and where each touch of the limit is dear
	dearFor     = 600 * second
	dearPause   = 3 * second      // the shortest that counts as dear
	longestHold = 3600.0          // seconds for which a rate is held at most, or two cycles
	growEvery   = second / 10_000 // no more often is it worth the trouble
	second      = int64(time.Second)
)

// A ticket is what the controller has to know of a request when its answer comes.
type ticket struct {
	seq   uint64
	at    instant
	cost  float64
	probe bool
}

// A retune is a change of the rate that is worth to be told, and why.
type retune struct {
	cause    cause
	from, to float64
}

// A cause is why a rate was changed.
type cause string

const (
	causeGrowth    cause = "growth"         // it was used, and nothing spoke against more
	causeThrottled cause = "throttled"      // 429, or 503 with Retry-After
	causeErrors    cause = "errors"         // more failures than usual
	causeNotLoad   cause = "errors stayed"  // so they were not load: the cut is taken back
	causeLatency   cause = "latency"        // a queue
	causeDrained   cause = "queue drained"  // and so back to just below what was completed
	causeSlower    cause = "latency stayed" // so it was not a queue: the cuts are taken back
	causeSilence   cause = "silence"        // a row of failures: nothing but probes
	causeAlive     cause = "probe answered"
	causeRestored  cause = "restored"
)

// newController returns the controller of a new key. The configuration must be valid.
func newController(cfg AIMD, now instant, seed uint64) *controller {
	cfg = cfg.withDefaults()
	return &controller{
		cfg: cfg, dice: meter.Dice(seed), current: cfg.Initial, shown: cfg.Initial, threshold: math.Inf(1), stretch: 1,
		grownAt: now, cost: 1, used: meter.MeanRate{At: now}, workedFrom: now, okAt: -never / 4,
		silence: silence{resume: resumeAt}, failures: failures{loadUntil: now, notLoadUntil: now}, latency: newLatency(now),
	}
}

// snapshot returns what the key has learned.
func (c *controller) snapshot(now instant) Learned {
	l := Learned{Rate: c.rate(now), Ceiling: c.ceiling, Failures: c.failures.usual}
	if c.dear(now) {
		l.DearHold = c.dearHold
	}
	if m := c.latency.means.value(); !math.IsInf(m, 1) {
		l.Latency = m
	}
	return l
}

// restore makes a new controller go on with what another has learned, cautiously, since that is long ago: from half
// the rate by doubling up to what it was, or, where touching the limit is dear, a little below it and held there.
// It reports whether the snapshot was one.
func (c *controller) restore(now instant, l Learned) bool {
	if !l.valid() {
		return false
	}
	if l.Ceiling > 0 {
		l.Rate = min(l.Rate, l.Ceiling)
	}
	c.threshold = l.Rate
	c.failures.usual = min(l.Failures, usualAtMost)
	c.latency.mean = l.Latency
	if l.DearHold > 0 {
		c.mode, c.ceiling = modeAvoid, c.clamp(l.Rate)
		c.holdDear(now, l.DearHold/2)
		c.set(causeRestored, beta*l.Rate)
		return true
	}
	c.set(causeRestored, l.Rate/2)
	return true
}

// rate returns the tokens per second that may be sent now.
func (c *controller) rate(now instant) float64 {
	c.grow(now)
	return c.current
}

// burst returns the tokens that may be sent at once: 50 ms worth, so that a load that comes at random rarely waits. A
// request that costs more must be let through on a full bucket, and leave a debt.
func (c *controller) burst() float64 { return max(1, 0.05*c.current) }

// gate returns the earliest instant at which the next request may go, as far as not the rate decides; never: not
// before another has been answered.
func (c *controller) gate(now instant) instant {
	switch {
	case c.mode == modeQuiet && c.silence.probing:
		return never
	case c.mode == modeQuiet:
		return max(c.pausedUntil, c.silence.probeAt)
	case c.pausedUntil <= now && c.inFlight >= c.inFlightBound():
		return never
	}
	return c.pausedUntil
}

// inFlightBound is twice what the rate needs at the latency of an idle server (BBR's cwnd_gain): where a server queues,
// a rate alone is the weaker handle, and one that hangs swallows no more than this.
func (c *controller) inFlightBound() int {
	if c.cfg.off.inFlight {
		return math.MaxInt
	}
	return int(min(max(8, 2*c.requests(c.current)*c.latency.idleMean()), 1<<30))
}

// requests turns tokens into requests of the usual cost.
func (c *controller) requests(tokens float64) float64 { return tokens / c.cost }

// tau is the time in which an effect of the rate can be seen, in ns: a second, a round trip, or ten requests.
func (c *controller) tau() float64 {
	return max(1, c.latency.smooth, 10*c.cost/c.current) * 1e9
}

// send notes that a request goes now.
func (c *controller) send(now instant, cost int64) ticket {
	c.grow(now)
	c.seq++
	c.inFlight++
	t := ticket{seq: c.seq, at: now, cost: max(1, float64(cost)), probe: c.mode == modeQuiet}
	c.silence.probing = c.silence.probing || t.probe
	c.cost += (t.cost - c.cost) / float64(min(c.seq, 64))
	c.used.Add(now, t.cost, c.tau())
	return t
}

// result notes what became of a request, after what latency, and what Retry-After said; 0: nothing.
func (c *controller) result(now instant, t ticket, o Outcome, latency, retryAfter time.Duration) {
	c.grow(now)
	c.inFlight--
	switch o {
	case OutcomeIgnore:
		c.used.Remove(now, t.at, t.cost, c.tau())
		if t.probe && c.mode == modeQuiet {
			c.probeAgain(now, t.at)
		}
		return
	case OutcomeOK, OutcomeClientError:
		c.succeeded(now, t)
	default:
		c.failed(now, t, o, int64(retryAfter))
	}
	if c.mode != modeQuiet && t.seq > c.cutSeq && o != OutcomeThrottled {
		c.weigh(now, o)
	}
	if o == OutcomeOK {
		c.measure(now, t, latency.Seconds())
	}
}

func (c *controller) succeeded(now instant, t ticket) {
	c.row, c.okAt = 0, now
	c.silence.okSince++
	if t.at >= c.workedFrom {
		c.worked += t.cost
	}
	if t.probe && c.mode == modeQuiet {
		c.endSilence(now)
	}
}

// failed notes a failure. One cut is enough for all requests that were in flight: what they say is old news. Without
// that rule, a round trip of half a second takes the rate to the ground.
func (c *controller) failed(now instant, t ticket, o Outcome, retryAfter int64) {
	news := t.seq > c.cutSeq
	if o != OutcomeThrottled || c.cfg.off.pause {
		retryAfter = 0
	}
	if news || retryAfter <= 0 {
		c.row += o.weight()
	}
	switch {
	case c.mode == modeQuiet:
		if t.probe {
			c.probeFailed(now, t, o)
		}
	case c.silent(now, o):
		c.beginSilence(now, o)
	case o == OutcomeThrottled && (news || c.cfg.off.round):
		c.throttled(now, retryAfter)
	}
	if retryAfter > 0 {
		c.pause(now, retryAfter)
	}
}

// pause lets nothing go for d, and a little longer, so that many clients do not come back as one.
func (c *controller) pause(now instant, d int64) {
	until := meter.AddInstant(now, min(d, never/4)+c.dice.Jitter(d))
	if until > c.pausedUntil {
		c.pausedUntil, c.workedFrom, c.worked, c.whole = until, until, 0, true
		c.used.At = max(c.used.At, until)
	}
}

// throttled cuts the rate, since the server said that it was too much. How long it wants to be left alone tells more.
func (c *controller) throttled(now instant, retryAfter int64) {
	if retryAfter <= 0 {
		c.cut(now, causeThrottled, c.current, beta*c.current)
		return
	}
	p, active := seconds(retryAfter), max(0, seconds(now-c.workedFrom))
	switch {
	case retryAfter >= dearPause && (p > active/2 || c.dear(now)) && c.known() && !c.cfg.off.quota:
		// A quota was spent too fast: what it gave, over work and pause, is what it gives.
		r := min(c.current, c.worked/(active+p))
		c.cut(now, causeThrottled, r, r)
		c.holdDear(now, active+p)
	case active >= 6*p && !c.cfg.off.steady:
		// A bucket ran dry after long work: what it gave since is its rate. The pause is worse than the refusal.
		r := min(c.current, max(c.worked/active, 0.8*c.current))
		c.cut(now, causeThrottled, r, 0.99*r)
		c.stretch, c.heldUntil = leastStep/2, now+20*retryAfter
	default:
		c.cut(now, causeThrottled, c.current, 0.8*c.current)
	}
}

// known reports whether what was worked tells what the server gives: not if others, or this program before it was started
// again, may have spent most of it.
func (c *controller) known() bool {
	return c.whole && c.worked > 0 || c.requests(c.worked) >= leastRound
}

// dear reports whether to touch the limit costs about as much time as there is work between two touches, as with
// quotas, and with servers that count what they refuse.
func (c *controller) dear(now instant) bool { return now < c.dearUntil }

// holdDear holds the rate since a touch of the limit was dear: for two of the cycles of work and waiting that the touch
// ended, and twice as long after each further one, so that in the long run it stays below.
func (c *controller) holdDear(now instant, cycle float64) {
	if !c.dear(now) {
		c.dearHold = cycle
	}
	c.dearHold = min(2*c.dearHold, max(longestHold, 2*cycle))
	c.heldUntil = now + nanos(c.dearHold)
	if !c.cfg.off.dear {
		c.dearUntil = c.heldUntil + dearFor
	}
}

// cut lowers the rate to r at most, and remembers the ceiling.
func (c *controller) cut(now instant, why cause, ceiling, r float64) {
	if c.cfg.off.mild {
		r *= 0.5 / beta
	}
	c.stretch = c.stretchAt(now, ceiling)
	c.cutAt = now
	c.mode, c.ceiling = modeAvoid, c.clamp(ceiling)
	c.cutSeq = c.seq
	c.heldUntil = max(c.heldUntil, now)
	c.failures.forget()
	c.latency.goal = 0
	c.set(why, min(c.current, r))
}

// stretchAt returns the share of a step to be taken after a cut: all of it to look for the ceiling, as long as one cut
// follows the other, and little where it has stayed in its place, but no less than what gets past it with thirty requests.
func (c *controller) stretchAt(now instant, ceiling float64) float64 {
	if c.descends(now) || c.mode != modeAvoid || math.Abs(ceiling-c.ceiling) >= near*c.ceiling || c.cfg.off.stretch {
		return 1
	}
	return min(leastStep, near*ceiling*c.requests(ceiling)/(30*c.step(ceiling)))
}

// descends reports whether one cut has followed the other since the first of all, so that where the ceiling is has yet to
// be seen, or whether this one comes so soon after another that it may be one too many: not where failures come in a row,
// as from a server that refuses whoever presses.
func (c *controller) descends(now instant) bool {
	since := now - c.cutAt
	if c.ceiling > 0 && float64(since) >= 4e9*c.latency.smooth {
		c.descended = true
	}
	return !c.descended || since < second/16 && c.row < 3 && !c.cfg.off.soon
}

func (c *controller) set(why cause, r float64) {
	if why != causeGrowth {
		if c.why == "" {
			c.shown = c.current
		}
		c.why = why
	}
	c.current = c.clamp(r)
}

func (c *controller) clamp(r float64) float64 { return max(c.cfg.Min, min(r, c.cfg.Max)) }

// retuned returns the change of the rate since it was last asked, if there is one worth to be told.
func (c *controller) retuned() (retune, bool) {
	r := retune{c.why, c.shown, c.current}
	if r.cause == "" {
		if math.Abs(c.current-c.shown) < near*c.shown {
			return r, false
		}
		r.cause = causeGrowth
	}
	c.why, c.shown = "", c.current
	return r, true
}

// growing reports whether the rate grows now.
func (c *controller) growing(now instant) bool {
	return c.free(now) && c.inUse(now)
}

// free reports whether nothing but the use forbids growth now: a server that only fails is not asked for more.
func (c *controller) free(now instant) bool {
	return c.mode != modeQuiet && now >= max(c.pausedUntil, c.heldUntil) && c.failures.trial == 0 &&
		float64(now-c.okAt) <= c.tau()
}

// inUse reports whether the rate is used (RFC 7661): one that nobody uses has not been found to be right.
func (c *controller) inUse(now instant) bool {
	return c.cfg.off.use || c.used.Of(now, c.tau()) >= usedEnough*c.current
}

// grow brings the rate up to date.
func (c *controller) grow(now instant) {
	dt := now - max(c.grownAt, c.pausedUntil)
	if dt < growEvery {
		return
	}
	c.grownAt = now
	if c.mode == modeQuiet {
		return
	}
	if !c.inUse(now) { // its clocks stand still
		if c.heldUntil > now-dt {
			c.heldUntil += dt
		}
		return
	}
	c.drained(now)
	if !c.free(now) {
		return
	}
	tau := c.tau()
	s := min(float64(dt), tau) / 1e9
	switch {
	case c.mode == modeAvoid && c.dear(now):
		c.set(causeGrowth, c.current+s*c.step(c.current)/4)
	case c.mode == modeAvoid:
		share := c.stretch
		// Beyond the ceiling it may have moved; but where refusals came row after row, each touch is dear.
		if c.current > c.ceiling && !c.cfg.off.past && (!c.silence.throttled || c.cfg.off.calm) {
			share *= pastCeiling
		}
		c.set(causeGrowth, c.current+s*c.step(c.current)*share)
		if c.current > (1+near)*c.ceiling && !c.cfg.off.ceiling {
			c.mode, c.threshold = modeStart, math.Inf(1) // the ceiling is gone
		}
	case c.cfg.off.start:
		c.set(causeGrowth, c.current+s*c.step(c.current))
	default:
		c.set(causeGrowth, c.current*math.Exp2(s*1e9/tau))
		if c.current >= c.threshold {
			c.mode, c.ceiling = modeAvoid, c.threshold
		}
	}
}

// step is how much the rate grows in a second, in tokens: less than in proportion to the rate, so that clients who
// share a server come to equal shares; more than a constant, so that large rates are found as well as small ones; and
// no more than a thirtieth with each request.
func (c *controller) step(r float64) float64 {
	if c.cfg.off.step {
		return 2
	}
	n := c.requests(r)
	return c.cost * min(0.0638*math.Pow(n, 0.8), n*n/30)
}

func seconds(d int64) float64 { return float64(d) / 1e9 }
func nanos(s float64) int64   { return int64(min(s*1e9, float64(never/4))) }
