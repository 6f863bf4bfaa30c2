// Package concurrency finds how many requests a server can work on at a time.
//
// It has no lock and no clock. The time is a parameter and must not run backwards.
package concurrency

import (
	"math"
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
)

type instant = meter.Instant

const second = int64(time.Second)

// A controller finds the number n of requests that may be in flight, for one key. It compares the latencies at two numbers, n and
// a lower one that it visits now and then, instead of the latency of now with a remembered one. By Little's law, n requests in
// flight with a latency of R are a throughput of n/R. The elasticity
//
//	e = ln(R_high/R_low) / ln(n_high/n_low)
//
// is 0 if the server worked on the requests between the two numbers, and 1 if these requests only waited. A slower service, or
// another mix of requests, changes both latencies alike.
//
// This file is how n moves. level.go is what is measured, refusals.go what is done about refusals, joint.go what is done about
// other clients.
type controller struct {
	cfg     Config
	mode    mode
	pending bool    // high and low are not complete; at the start, open is not
	eager   bool    // the last step was a large one up
	n       float64 // the requests that may be in flight, as far as latencies say
	away    float64 // and during a visit

	inFlight int64
	flying   float64 // how many were in flight with a request that was accepted, in the mean of the last 100 or so
	seq      uint64  // of the last request

	open      level   // of the requests that are sent now
	high, low level   // the last two, which are compared; at the start, high is the one before
	again     bool    // open will be high: low is known
	longer    float64 // cruising lasts for this many visits
	joint     joint

	usual, usualVar float64 // the logarithm of the latency while cruising, and its variance; 0, 0: unknown
	probe, before   level   // the last responses while cruising, and those before them
	slow            int     // of these, in a row, were slower than usual

	best     float64 // logarithm of the lowest latency of a lower level, which is forgotten slowly; +Inf: unknown
	slower   bool    // the last lower level was that of a slower server, if best is right
	judgedAt instant
	e        float64 // the last elasticity
	mean     float64 // latency in seconds, of the last 200 responses or so
	count    float64 // of them, up to 200

	refusals refusals
	reports  reports
}

// A mode is what the controller does.
type mode uint8

const (
	starting mode = iota // doubling n
	cruising
	visiting
)

const (
	goalAtMost  = 0.9         // elasticity to aim at: of ten more requests, nine would only wait
	goalAtLeast = 0.05        // and where the server is much slower than it was
	gain        = 0.35        // step of ln n for each point of distance to the goal
	doubt       = gain * gain // the noise² of e at which a step is halved
	visit       = 0.65        // of n
	leastSent   = 16          // requests of a visit, and
	mostSent    = 96          // the most that noise asks for
	precise     = 0.12        // standard error of a logarithm that a visit should reach
	longAtLeast = 4           // cruising lasts for at least this many visits,
	longAtMost  = 20          // and for at most this many while e is where it should be,
	longBound   = 60          // and where n cannot grow anyway
	calmStep    = 0.06        // of ln n
	slack       = 0.223       // ln 1.25: how much slower than the best the lower level may be
	slackRange  = 0.693       // ln 2: and after how much more n should not grow
	forgetBest  = 600.0       // seconds
	forgetFast  = 3           // times as fast where more requests are not slower
	usedEnough  = 0.8         // of n, in the mean, for n to be judged
	usedGrowth  = 1.22        // times what is in flight, that n may grow to: less than 1/usedEnough, so that it is judged again
	unusedSlow  = 0.405       // ln 1.5: an n that is not used falls where the server is slower than that
	startSpread = 0.2         // standard error of a logarithm that a level at the start should reach
	startErrors = 2           // standard errors; with one, half of the starts with exponential latencies end too early
	startE      = 0.3         // elasticity, beyond its error, that ends the start
	startSlow   = 0.262       // ln 1.3: latency, beyond its error, that ends the start
	startOver   = 1.25        // what n is then, as a multiple of what the latency says
	jump        = 0.4         // of the logarithm of the latency, that ends cruising
	jumpErrors  = 8           // standard errors that it must exceed; with 5, a mix of 1:100 loses 4 to 26 % of the goodput
	jumpsEnough = 2           // in a row
	deepest     = 0.1         // of n, of a visit after a jump
	longestStep = 10.0        // seconds between two verdicts that count for forgetting
	leastLever  = 0.1         // ln of the ratio of two numbers that can be compared
	remembers   = 200         // responses
	luck        = 4           // variances, of the square of the distance by which a latency is the lowest, that may be chance
	youngMean   = 8           // responses in the mean after a jump of the latency: twice that many show a server that is 100 times slower
	another     = 1.386       // ln 4: how much slower than the best a server is that is not the one that is remembered,
	anotherLow  = -0.5        // if e is between these two, its error included,
	anotherHigh = 0.75        // less than 1, because service times vary
	anotherDeep = 0.693       // ln 2: in a visit deeper than that, or if the visit before was as slow: it began after the change
	unlike      = 1           // distance of e from 0.5, beyond its error, of two levels that a change lies between
)

func newController(now instant, cfg Config, wall *meter.Wall) *controller {
	cfg = cfg.withDefaults()
	c := &controller{
		cfg: cfg, n: float64(cfg.Initial), open: begin(1), longer: longAtLeast, best: math.Inf(1), judgedAt: now,
		refusals: newRefusals(now), joint: joint{wall: wall, depth: visit},
	}
	c.high.to, c.low.to = 0, 0
	c.reports.shown = c.n
	return c
}

// bound returns x, no less than Min and no more than Max and the ceiling.
func (c *controller) bound(x float64) float64 {
	return math.Round(max(float64(c.cfg.Min), min(x, c.refusals.ceiling, float64(c.cfg.Max))))
}

// cruise returns how many requests may be in flight while it does not visit a lower number.
func (c *controller) cruise() float64 { return c.bound(c.n) }

// limit returns how many requests may be in flight now.
func (c *controller) limit() int64 {
	if c.mode == visiting {
		return int64(min(c.bound(c.away), c.cruise()+1))
	}
	return int64(c.cruise())
}

func (c *controller) set(n float64) {
	c.n = max(float64(c.cfg.Min), min(n, float64(c.cfg.Max)))
}

// A ticket identifies a request: its number, and how many were in flight with it.
type ticket struct {
	seq      uint64
	inFlight int64
}

// send counts a request that goes now.
func (c *controller) send(now instant, cost int64) ticket {
	c.advance(now)
	c.seq++
	c.inFlight += cost
	if c.open.has(c.seq) {
		c.open.send(now, c.inFlight)
		c.turn(now)
	}
	return ticket{c.seq, c.inFlight}
}

// free counts slots that are free again.
func (c *controller) free(cost int64) { c.inFlight -= cost }

// levelOf returns the level of a request; nil: it belongs to none.
func (c *controller) levelOf(seq uint64) *level {
	switch {
	case c.open.has(seq):
		return &c.open
	case c.high.has(seq):
		return &c.high
	case c.low.has(seq):
		return &c.low
	}
	return nil
}

// ignore takes a request out whose latency says nothing.
func (c *controller) ignore(now instant, t ticket) {
	if l := c.levelOf(t.seq); l != nil {
		l.remove(t.inFlight)
	}
	c.advance(now)
}

// measure counts for how many seconds a successful request held its slot, the reading of the body included.
func (c *controller) measure(now instant, seq uint64, s float64) {
	s = max(1e-9, s)
	if c.count == 0 {
		c.mean = s
	}
	c.count = min(c.count+1, remembers)
	c.mean += (min(s, 2*censored*c.mean) - c.mean) / c.count
	s = min(s, censored*c.mean)
	if l := c.levelOf(seq); l != nil {
		l.add(s)
	}
	if c.mode == cruising && !c.pending && !c.refusals.failures.Trying() && c.open.has(seq) {
		c.watch(now, s)
	}
	c.advance(now)
}

// turn goes on to the next phase when enough requests were sent in this one.
func (c *controller) turn(now instant) {
	switch {
	case c.pending, c.refusals.failures.Trying(), c.open.sent < c.enough(), c.early(now):
	case c.mode == visiting:
		c.comeBack()
	case c.open.number() < usedEnough*c.cruise():
		c.unused(&c.open)
	case c.mode == starting:
		c.open.to = c.seq
		c.pending = true
	case c.again:
		c.open.to = c.seq
		c.high, c.pending = c.open, true
		c.restart(0)
	default:
		c.departJointly(now)
		c.high.to = c.seq
	}
}

// enough returns how many requests this phase takes: enough that the mean latency is precise, and each slot is used once,
// because the first responses of a phase are the quickest. A deeper visit needs fewer, because e is a slope.
func (c *controller) enough() float64 {
	l, err, least := &c.high, precise, 1.0
	switch c.mode {
	case starting:
		l, err, least = &c.open, startSpread, 2
	case visiting:
		err *= max(1, math.Log(c.away/c.cruise())/math.Log(visit))
	}
	v := 1.0
	if l.done >= leastSent {
		v = l.spread()
	}
	n := max(least*leastSent, min(mostSent, v/(err*err)), c.cruise())
	if c.mode == cruising {
		n *= c.longer
	}
	return n
}

// depart begins a visit of a part of n. It will be compared with high. From 1, there is only a higher number to visit.
func (c *controller) depart(high level, part float64) {
	n := c.cruise()
	c.away = max(float64(c.cfg.Min), 1, min(n-1, math.Round(n*part)))
	if n == 1 {
		c.away = 2
	}
	if c.bound(c.away) == n { // there is none
		c.restart(0)
		return
	}
	c.high, c.mode = high, visiting
	c.restart(c.away - n)
}

// comeBack ends a visit. The requests that fill the free slots together belong to no level.
func (c *controller) comeBack() {
	c.open.to = c.seq
	c.low, c.mode, c.pending = c.open, cruising, true
	c.restart(c.cruise() - c.away)
}

// restart begins a level with the requests that are sent after the next skip ones.
func (c *controller) restart(skip float64) {
	c.open = begin(c.seq + 1 + uint64(max(0, skip)))
	c.joint.depth, c.joint.at, c.joint.lasts = visit, 0, 0
	c.probe, c.before, c.slow, c.again = level{}, level{}, 0, false
}

// advance draws the conclusions of levels that are complete.
func (c *controller) advance(now instant) {
	c.refusals.advance(c, now)
	switch {
	case !c.pending:
	case c.mode == starting:
		if c.open.complete(now, c.mean) {
			c.pending = false
			c.climb()
		}
	case c.low.complete(now, c.mean) && c.high.complete(now, c.mean):
		c.pending = false
		if c.high.finish(c.mean) && c.low.finish(c.mean) {
			c.judge(now)
		}
	}
}

// climb doubles n at the start, until the latency rises.
func (c *controller) climb() {
	l, last := c.open, c.high
	if !l.finish(c.mean) {
		c.restart(0)
		return
	}
	c.high, c.high.to = l, 0
	ln, v := l.log()
	known := !isUnknown(c.best)
	c.best = min(c.best, ln)
	slow := false
	if known {
		vLast := 0.0
		if last.done > 0 {
			var lnLast float64
			lnLast, vLast = last.log()
			if lever := math.Log(l.number() / last.number()); lever > leastLever {
				c.e = (ln - lnLast) / lever
				slow = c.e-startErrors*math.Sqrt(v+vLast)/lever > startE
			}
		}
		slow = slow || ln > c.best+startErrors*math.Sqrt(v+vLast)+startSlow
	}
	switch {
	case slow:
		c.mode = cruising
		n := startOver * l.number() * math.Exp(c.best-ln)
		if last.done > 0 { // that many were fine
			n = max(n, last.number())
		}
		c.change(aimd.CauseLatency, min(c.n, n))
		c.restart(0)
	case c.cruise() < c.n || c.n >= float64(c.cfg.Max): // the ceiling
		c.mode = cruising
		c.restart(0)
	default:
		c.change(aimd.CauseGrowth, 2*c.n)
		c.restart(c.cruise())
	}
}

// judge compares the two levels and moves n.
func (c *controller) judge(now instant) {
	hi, lo := &c.high, &c.low
	if hi.number() < lo.number() {
		hi, lo = lo, hi
	}
	lever := math.Log(hi.number() / lo.number())
	if lever < leastLever {
		c.restart(0)
		return
	}
	lnHi, vHi := hi.log()
	lnLo, vLo := lo.log()
	c.e = (lnHi - lnLo) / lever
	errLo := math.Sqrt(vLo)
	goal := c.goal(lnLo, errLo)
	noise := (vHi + vLo) / (lever * lever) // the variance of e
	if lever > anotherDeep && c.high.from < c.low.from && math.Abs(c.e-0.5)-math.Sqrt(noise) > unlike {
		c.measureAgain()
		return
	}
	step := gain * (goal - c.e)
	if c.e > goal {
		step *= max(1, lever/-math.Log(visit)) // all that lies between waited
	}
	step *= doubt / (doubt + noise)
	up := c.e < goal/2 && goal > goalAtMost/2
	if up && c.eager {
		step *= 2
	}
	c.eager = up
	c.usual, c.usualVar = lnHi, vHi
	c.remember(now, lnLo, vLo)
	c.renew(lnLo, math.Sqrt(noise), lever > anotherDeep)
	c.move(step)
	c.agree(now, lnHi, lnLo, errLo)
}

// goal returns the elasticity to aim at, given the logarithm of the latency of the lower level and its error. A server that is
// slower than it was needs more evidence. It is why several clients of one server, each of which sees an elasticity of its share
// only, do not fill the queue.
func (c *controller) goal(ln, err float64) float64 {
	over := max(0, ln-min(c.best, ln)-err-slack)
	return max(goalAtLeast, goalAtMost*(1-over/slackRange))
}

// remember moves best towards the latency of a lower level: slowly up, and down by a part, because it may be lower by chance. That
// part is the larger the less chance can explain. Of several clients, each must find the idle server in the few visits in which
// they empty the queue.
func (c *controller) remember(now instant, ln, v float64) {
	dt := min(longestStep, float64(now-c.judgedAt)/1e9)
	c.judgedAt = now
	switch {
	case isUnknown(c.best):
		c.best = ln
	case ln < c.best:
		below := c.best - ln
		c.best -= below * max(0.3, below*below/(below*below+luck*v))
	case c.e < 0.12:
		c.best += (ln - c.best) * min(1, forgetFast*dt/forgetBest)
	default:
		c.best += (ln - c.best) * min(1, dt/forgetBest)
	}
}

// measureAgain measures the higher level again, after the lower one: a change of the server lay between them.
func (c *controller) measureAgain() {
	c.restart(0)
	c.again, c.longer, c.usualVar = true, 1, 0
}

// renew replaces best by the latency of a lower level if that is of another server than the remembered one. Where e is below 1, that
// level is below the number that keeps the server busy, so that no request of it waited for another of ours. Far below 0, the server
// changed between the two. Clients like this one hold back from 2.5 times the best on. So four times is the latency of a slower server,
// or of others that do not hold back, and to hold back helps against neither.
func (c *controller) renew(ln, errE float64, deep bool) {
	slower := ln > c.best+another
	if slower && (deep || c.slower) && c.e-errE > anotherLow && c.e+errE < anotherHigh {
		c.best = ln
	}
	c.slower = slower
}

// move moves ln n by a step.
func (c *controller) move(step float64) {
	was, most := c.cruise(), float64(longAtMost)
	if step > 0 && was < math.Round(c.n) { // a ceiling keeps it from growing anyway
		step, most = 0, longBound
	}
	if c.longer = min(most, 1.5*c.longer); math.Abs(step) >= calmStep {
		c.longer = longAtLeast
	}
	why := aimd.CauseGrowth
	if step < 0 {
		why = aimd.CauseLatency
	}
	c.change(why, min(c.n*math.Exp(step), max(c.n+1, usedGrowth*c.high.number())))
	c.restart(c.cruise() - was)
}

// unused lowers an n that was not used at a level to what was used, if the server is slow. The lowest latency is not learned
// here: of many levels of few requests, some have no slow request by chance.
func (c *controller) unused(l *level) {
	if 2*l.done >= l.sent && !isUnknown(c.best) {
		if ln, _ := l.log(); ln > c.best+unusedSlow {
			c.change(aimd.CauseLatency, min(c.n, l.number()))
		}
	}
	c.restart(0)
}

// watch looks for a jump of the latency while cruising. It causes a visit, as deep as the jump is high, and the mean follows sooner.
func (c *controller) watch(now instant, s float64) {
	p := &c.probe
	p.send(now, 0)
	p.flying += c.open.number()
	p.add(s)
	if p.done < max(leastSent, c.cruise()/2) {
		return
	}
	ln, v := p.log()
	if c.usualVar > 0 && ln > c.usual+max(jump, jumpErrors*math.Sqrt(v+c.usualVar)) {
		c.slow++
	} else {
		c.slow = 0
	}
	if c.slow < jumpsEnough {
		c.before, c.probe = c.probe, level{}
		return
	}
	high := c.probe // no request belongs to it any more
	high.merge(&c.before)
	if high.number() < usedEnough*c.cruise() {
		c.unused(&high)
		return
	}
	c.longer, c.count = longAtLeast, min(c.count, youngMean)
	c.depart(high, max(deepest, min(visit, math.Exp(c.usual-ln))))
}
