// Package aimd finds the rate that a server allows: a controller of one rate, and the token bucket that follows it.
//
// It has no lock and no clock. The time is a parameter and must not run backwards.
package aimd

import (
	"math"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/server"
)

type instant = meter.Instant

const (
	never  = meter.Never
	second = int64(time.Second)
)

// A controller finds the rate of one key of an adaptive limit. Its clocks are lazy: they move when it is called.
//
// This file is how the rate moves. refusals.go, failures.go, silence.go and latency.go are the signs of overload. A server
// can be found to be faster only by sending too much, so each rule is a choice of how often to try.
type controller struct {
	cfg  Config
	off  ablation
	dice meter.Dice

	current   float64 // tokens per second, as of grownAt
	manner    manner
	own       float64 // of the client's own limits, which is mostly right; 0: it has none
	free      bool    // there was no sign of overload yet, and the rate has no bound but Max
	ceiling   float64 // the rate at the last sign of overload; 0: there was none
	toll      float64 // seconds in which the distance to the ceiling changes, at least: a multiple of what the last overload cost
	grownAt   instant
	heldUntil instant // no growth before
	roomy     bool    // the server reports that it allows a higher rate
	asked     bool    // the last refusal had a Retry-After, which is what it costs to cross the ceiling
	crowded   int     // the last refusals, as many in a row, came below the ceiling: other clients use the server, too, or it allows less than it did

	seq            uint64 // of the last request
	cutSeq         uint64 // of the last request before the last cut
	firstSeq       uint64 // of the first request after it
	cutAt          instant
	heard, refused float64 // responses to requests that were sent since the last cut, and refusals among them
	inFlight       int
	rowFrom        uint64  // requests up to that say nothing of a silence
	rowSeq         uint64  // of the first request of the row: a success of an earlier one does not end it
	shutSeq        uint64  // of the last request before the first failure of the row came,
	shut           float64 // and refusals of later ones
	cost           float64 // mean of a request
	used           meter.MeanRate

	pausedUntil instant // a server has asked to wait until then, which the caller does: no request is expected before
	workedFrom  instant // the end of the last pause or silence
	worked      float64 // tokens accepted since
	paused      int64   // how long that was; 0: there was none. After one, worked is all that the server gave
	quick       bool    // the last refusal with Retry-After came soon after a pause
	spared      bool    // only a handful was accepted before the last refusal
	accepted    meter.MeanRate
	given       float64 // tokens accepted since givenFrom, pauses or not
	givenFrom   instant // the beginning, or a time in the middle of the last cycles of work and pause
	okAt        instant // of the last success
	dearHold    float64 // seconds for which the rate was held after the last dear refusal; see holdDear
	dearUntil   instant
	backoff     server.Backoff

	row      float64 // failures since the last success
	silence  silence
	closures closures
	failures server.Failures
	place    place // where the rate was before a trial, or before the cuts since which it has not been as high again
	latency  latency

	why   Cause   // of the last change that was not growth, if it has not been reported
	shown float64 // the rate that was reported last
}

const (
	beta       = 0.9                // of the rate is left by a cut: 0.5 costs 8 % of the goodput, 0.95 doubles the refusals
	leastLeft  = 0.6                // of the rate is left by a cut that follows another
	oneEvent   = 40 * second / 1000 // refusals within that time of a cut are of the same event,
	stillEmpty = 5 * second / 1000  // and those of requests that were sent within that time of it
	usedEnough = 0.5                // share of the rate that must be used for it to grow; 0.3 to 0.8 give the same
	usedInPart = 0.1                // and where the server reports that it allows more
	confirmed  = 0.96               // of the ceiling: a refusal at that rate or more confirms it
	testEvery  = 13.0               // requests in a time constant on the way to a ceiling that was confirmed, at least
	growOver   = 6.0                // and elsewhere
	evenBelow  = 5.0                // requests per second, down to 1, of clients that share a server and grow by equal amounts
	reported   = 0.1                // growth by that share is reported
	restAtMost = 10 * second        // counts of a rest
	growEvery  = second / 10_000    // smaller steps of time are not worth their cost
)

// A manner is how a rate is found.
type manner struct {
	finds   float64 // requests in which a rate doubles that is not known,
	doubles float64 // or seconds, if that is longer
	gap     int64   // the longest between probes of a server that is down
	shut    float64 // refusals after the first of a row, of all requests sent since: the server is closed
	asked   float64 // how much a refusal that asks for a wait counts in a row: a wait that is too short each time shows that the server is closed
}

var (
	chosen = manner{10, 1, 9 * second / 4, rowOfDead, 1} // of a limit that the user has chosen to be learned
	begun  = manner{4, 1, second, 3, 0}                  // and of one that a refusal has begun: the client obeys what it is asked for
)

// A ticket identifies a request when its response arrives.
type ticket struct {
	seq  uint64
	at   instant
	cost float64
}

// newController returns the controller of a new key. The configuration must be valid.
func newController(cfg Config, now instant, seed uint64) *controller {
	cfg = cfg.withDefaults()
	c := &controller{
		cfg: cfg, manner: chosen, dice: meter.Dice(seed), current: cfg.Initial, shown: cfg.Initial, cost: 1, used: meter.MeanRate{At: now},
		grownAt: now, workedFrom: now, givenFrom: now, backoff: server.NewBackoff(), okAt: -never / 4, cutAt: -never / 4,
		silence: silence{resume: beta}, latency: newLatency(now, cfg),
	}
	c.failures.Forget(now)
	return c
}

// rate returns the tokens per second that may be sent now.
func (c *controller) rate(now instant) float64 {
	c.grow(now)
	return max(c.current, c.least())
}

// least returns the rate at which the bound of unasked waits is kept: a request in the longest of them, except that no rate is higher
// because of it than the first one or Max.
func (c *controller) least() float64 {
	if c.current >= c.cost*1e9/float64(server.Longest) {
		return 0
	}
	return min(c.cost*1e9/float64(c.backoff.Most()), c.cfg.Initial, c.cfg.Max)
}

// burst returns the tokens that may be sent together: 50 ms worth, so that a random load rarely waits.
func (c *controller) burst() float64 { return max(1, 0.05*c.current) }

// gate returns the earliest instant at which the next request may go if the rate allows it; never if that depends on a
// response that has not arrived.
func (c *controller) gate(now instant) instant {
	switch {
	case c.silence.on && c.silence.probe > 0:
		return never
	case c.silence.on:
		return c.silence.probeAt
	case c.inFlight >= c.inFlightBound(now):
		return never
	}
	return 0
}

// inFlightBound returns how many requests may be in flight. It also bounds what a server that hangs swallows.
func (c *controller) inFlightBound(now instant) int {
	l := &c.latency
	switch {
	case c.off.inFlight:
		return math.MaxInt
	case l.step < 1 || l.full || c.cfg.LatencyThreshold > 0 || c.inFlight < int(l.most):
		return int(l.most)
	}
	// No queue has shown for a while, so the rate is what limits requests, and not the number. If that did, it would release bursts.
	return int(min(max(l.most, 2*c.requests(min(c.current, 1.5*c.used.Of(now, c.tau())))*l.base), 1<<30))
}

// requests converts tokens to requests of the mean cost.
func (c *controller) requests(tokens float64) float64 { return tokens / c.cost }

// tau returns the time in ns in which an effect of the rate can be seen: a second, a round trip, or ten requests.
func (c *controller) tau() float64 {
	return max(1, c.latency.smooth, 10*c.cost/c.current) * 1e9
}

// rest takes whether a request waited that is sent now. A rest before it is no time in which the server gave less, except that some of it
// counts.
func (c *controller) rest(now instant, waited bool) {
	if s := &c.silence; s.on && !waited { // it could not be sent before
		c.backoff.Rested(max(0, now-max(s.probeAt, c.backoff.Last())))
		waited = true
	}
	if d := min(c.backoff.Sent(now, waited), now-c.workedFrom) - restAtMost; d > 0 {
		c.workedFrom, c.givenFrom = c.workedFrom+d, c.givenFrom+d
	}
}

// send counts a request that goes now.
func (c *controller) send(now instant, cost int64) ticket {
	c.grow(now)
	c.seq++
	c.inFlight++
	c.latency.count(c.inFlight)
	if c.firstSeq <= c.cutSeq {
		c.firstSeq = c.seq
	}
	t := ticket{seq: c.seq, at: now, cost: max(1, float64(cost))}
	if s := &c.silence; s.on && s.probe == 0 {
		s.probe = c.seq
	}
	c.cost += (t.cost - c.cost) / float64(min(c.seq, 64))
	c.used.Add(now, t.cost, c.tau())
	return t
}

// result takes the outcome of a request, its latency, and the Retry-After of the response, or 0.
func (c *controller) result(now instant, t ticket, o Outcome, latency, retryAfter time.Duration) {
	c.grow(now)
	c.inFlight--
	if o == Ignore {
		c.ignore(now, t)
		return
	}
	if t.seq > c.cutSeq {
		c.heard++
		if o == Throttled || o == Unavailable {
			c.refused++
		}
	}
	if o == OK || o == ClientError {
		c.succeeded(now, t)
	} else {
		c.failed(now, t, o, int64(retryAfter))
	}
	if !c.silence.on && t.seq > c.cutSeq && o != Throttled {
		c.weigh(now, t.at, o)
	}
	if o == OK {
		c.measure(now, t, latency.Seconds())
	}
}

func (c *controller) ignore(now instant, t ticket) {
	c.used.Remove(now, t.at, t.cost, c.tau())
	if c.probed(t) {
		c.probeAgain(now, t.at)
	}
}

func (c *controller) succeeded(now instant, t ticket) {
	c.okAt = now
	c.backoff.Accepted(t.at)
	if t.seq > c.rowSeq {
		c.row = 0
	}
	c.silence.okSince++
	if t.at < c.pausedUntil && t.at > c.pausedUntil-c.paused {
		c.unpause(now)
	}
	if t.at >= c.workedFrom {
		c.worked += t.cost
	}
	c.given += t.cost
	c.accepted.Add(now, t.cost, latelyOver)
	if c.probed(t) {
		c.endSilence(now)
	}
}

// failed counts a failure. One cut is enough for all requests that were in flight: what their responses say is old news.
func (c *controller) failed(now instant, t ticket, o Outcome, retryAfter int64) {
	news, retryAfter := t.seq > c.cutSeq || c.off.round, min(retryAfter, longestStay)
	if o != Throttled || c.off.pause {
		retryAfter = 0
	}
	if news || retryAfter <= 0 && t.seq > c.rowFrom {
		if c.row == 0 {
			c.rowSeq, c.shutSeq, c.shut = t.seq, c.seq, 0
		}
		if o == Throttled && t.seq > c.shutSeq {
			c.shut++
		}
		if retryAfter <= 0 {
			c.row += o.weight()
		} else {
			c.row += c.manner.asked
		}
	}
	switch {
	case c.silence.on:
		if c.probed(t) {
			c.probeFailed(now, t, o)
		}
	case c.dead(now, o), retryAfter <= 0 && o == Throttled && c.closed(t):
		c.beginSilence(now, o)
	case o == Throttled && news && c.anotherEvent(now, t.at):
		c.throttled(now, t, retryAfter)
	}
	if retryAfter > 0 {
		c.pause(now, retryAfter)
	}
}

// anotherEvent reports whether the last cut is so long ago that the refusal of a request is of another event, however short the round
// trip. A request that left right after the cut met a server that had just given out all it had, at whatever rate.
func (c *controller) anotherEvent(now, sent instant) bool {
	return now-c.cutAt >= oneEvent && (sent-c.cutAt >= stillEmpty || c.off.round) || c.off.event
}

// bound makes a rate without a bound start with what was used.
func (c *controller) bound(now instant, why Cause) {
	if c.free {
		c.free = false
		c.set(why, c.usedRate(now))
	}
}

// usedRate returns the rate that was used, but no lower one than the first.
func (c *controller) usedRate(now instant) float64 {
	return max(c.cfg.Initial, c.used.Of(now, c.tau()))
}

// cut lowers the rate to r at most, and remembers the ceiling.
func (c *controller) cut(now instant, why Cause, ceiling, r float64) {
	if c.off.mild {
		r *= 0.5 / beta
	}
	c.cutAt = now
	c.ceiling = c.clamp(max(ceiling, c.own))
	c.heldUntil = max(c.heldUntil, now)
	c.roomy, c.crowded = false, 0
	c.forgetResponses()
	c.set(why, min(c.current, r))
}

// forgetResponses makes what is in flight old news, and begins the counts of responses again.
func (c *controller) forgetResponses() {
	c.cutSeq = c.seq
	c.heard, c.refused, c.toll = 0, 0, 0
	if c.failures.Trying() {
		c.place = place{}
	}
	c.failures.Moved(server.NoStep)
}

func (c *controller) set(why Cause, r float64) {
	if why != CauseGrowth {
		if c.why == 0 {
			c.shown = c.current
		}
		c.why = why
	}
	c.current = c.clamp(r)
}

func (c *controller) clamp(r float64) float64 { return max(c.cfg.Min, min(r, c.cfg.Max)) }

// retuned returns the change of the rate since the last call, if it is worth a report.
func (c *controller) retuned() (Retune, bool) {
	r := Retune{c.why, c.shown, c.current}
	if c.why == 0 {
		if math.Abs(c.current-c.shown) < reported*c.shown {
			return r, false
		}
		r.Cause = CauseGrowth
	}
	c.why, c.shown = 0, c.current
	return r, true
}

// mayGrow reports whether nothing but a lack of use forbids growth. A server that only fails is not asked for more.
func (c *controller) mayGrow(now instant) bool {
	return !c.silence.on && now >= max(c.pausedUntil, c.heldUntil) && !c.failures.Trying() && c.failures.Allows(c.threshold(now)) &&
		float64(now-c.okAt) <= c.tau()
}

// inUse reports whether the rate is used (RFC 7661). A rate that is not used has not been shown to be right. What the server reports shows
// it, too, and of a window that others use up soon a client uses its rate at the beginning only.
func (c *controller) inUse(now instant) bool {
	enough := usedEnough
	if c.roomy {
		enough = usedInPart
	}
	return c.off.use || c.used.Of(now, c.tau()) >= enough*c.current
}

// grow brings the rate up to date.
func (c *controller) grow(now instant) {
	dt := now - max(c.grownAt, c.pausedUntil)
	if dt < growEvery {
		return
	}
	c.grownAt = now
	if c.silence.on {
		return
	}
	if !c.inUse(now) { // its clocks stand still
		if c.heldUntil > now-dt {
			c.heldUntil += dt
		}
		return
	}
	if c.mayGrow(now) {
		c.climb(now, min(float64(dt), c.tau())/1e9)
	}
}

// climb lets the rate grow for s seconds. While the server reports that there is room, it doubles as fast as an effect can be seen.
// Until the first sign of overload it doubles about once a second. Then it approaches the ceiling ever slower and leaves it ever
// faster, as CUBIC does (RFC 9438): to cross the ceiling is the test of whether it is still there. Slow rates are tested rarely, because
// a test costs more of what there is, and below one request per second more rarely still. But clients which share a server come to equal
// shares only if the small ones grow by more in proportion, so the time constants fall with the square root of the rate where rare tests
// save nothing: such clients are refused below their ceilings anyway. Where refusals are dear, the rate creeps beyond the ceiling.
func (c *controller) climb(now instant, s float64) {
	switch {
	case c.roomy:
		c.set(CauseGrowth, c.current*math.Exp2(s/max(0.25, 2*c.latency.smooth, 4*c.cost/c.current)))
		return
	case c.ceiling == 0:
		c.set(CauseGrowth, c.current*math.Exp2(s/max(c.manner.doubles, c.latency.smooth, c.manner.finds*c.cost/c.current)))
		return
	}
	n := c.requests(c.current)
	below, rare := c.ceiling-c.current, testEvery/(n*math.Sqrt(math.Sqrt(min(1, n))))
	if c.crowded > 0 || below < 0 && !c.asked {
		rare = min(rare, growOver/(n*math.Sqrt(min(1, n))))
	}
	x := s / max(1.35, c.latency.smooth, 8/math.Sqrt(n), rare, c.toll)
	up := x * c.creep(n)
	switch {
	case c.off.curve:
	case c.dear(now):
		up = max(up, below*math.Expm1(2*x))
	case below > 0:
		up += below * math.Expm1(x/3)
	default:
		up -= below * math.Expm1(x/0.7)
	}
	c.set(CauseGrowth, c.current+up)
}

// creep returns how far n requests per second move the rate in one time constant, at the ceiling: less than in proportion
// to n, so that clients which share a server come to equal shares; more than a constant, so that large limits are tested as
// often as small ones. Slow clients that share a server grow by equal amounts, down to one request per second. One refusal below the
// ceiling does not show that they share it: alone, at less than that, faster growth after each such refusal would cause the next one.
func (c *controller) creep(n float64) float64 {
	if c.off.creep {
		n = 100
	}
	if c.crowded > 1 {
		n = max(n, evenBelow*min(1, n*math.Sqrt(n)))
	}
	return c.cost * 0.035 * math.Pow(n, 0.72)
}

func seconds(d int64) float64 { return float64(d) / 1e9 }
func nanos(s float64) int64   { return int64(min(s*1e9, float64(never/4))) }
