package aimd

import (
	"math"

	"github.com/httpthrottle/throttle/internal/meter"
)

// silence is what is known of a server that answers nothing or refuses everything. It gets one probe now and then, and no
// other request.
type silence struct {
	on        bool
	from      instant
	again     bool // there was another before: a silence that recurs may be the rest of a window, whatever its refusals look like
	probeAt   instant
	gap       int64   // between probes
	probe     uint64  // the number of the one that is in flight; 0: none is
	throttled bool    // the server refuses; otherwise it is down
	resume    float64 // share of the rate to resume with
	okSince   int     // successes since the last silence
}

const (
	rowOfDead = 10 // failures in a row, beyond twice the usual ones, after which only probes are sent
	rowIfDear = 2  // and where each touch of the limit is dear
	relapse   = 8  // successes since a silence: the next one is not the rest of it
	firstGap  = 2 * second / 5
)

// dead reports whether the row of failures is long enough for a silence.
func (c *controller) dead(now instant, o Outcome) bool {
	if c.off.silence {
		return false
	}
	share, _ := c.failures.Usual()
	usual := math.Floor(2 * share * float64(c.seq-c.rowSeq)) // they may be quicker than successes
	return c.row >= rowOfDead+usual || c.row >= rowIfDear && o == Throttled && c.dear(now)
}

// closed reports whether the server has refused each request, up to one, that was sent since the first failure of a row came.
func (c *controller) closed(t ticket) bool {
	return c.shut >= c.manner.shut && float64(t.seq-c.shutSeq) <= c.shut && !c.off.silence
}

// probed reports whether a request is the probe of a silence.
func (c *controller) probed(t ticket) bool { return c.silence.on && t.seq == c.silence.probe }

func (c *controller) beginSilence(now instant, o Outcome) {
	s := &c.silence
	c.bound(now, CauseSilence)
	if s.from > 0 && s.okSince < relapse {
		s.resume /= 4 // a relapse
	} else {
		s.resume = 1
	}
	s.on, s.from, s.gap, s.throttled = true, now, max(firstGap, 2*s.gap, nanos(max(2*c.latency.smooth, c.cost/c.current))), o == Throttled
	switch {
	case c.failures.Higher(): // load causes them, maybe also those at the lower rate
		c.ceiling = c.place.rate / 2
		c.failures.Blame(now)
	case c.failures.Trying(): // its failures were the first of this row, not load
		c.ceiling = max(c.ceiling, c.place.rate)
	}
	c.cutSeq = c.seq
	c.set(CauseSilence, c.current)
	c.closures.begins(c.worked)
	c.closures.closed(now - c.workedFrom)
	c.probeAgain(now, now)
}

// probeFailed doubles the gap. Where the server refuses, it soon is a third of the silence, so that it outgrows a window in which refused
// requests count, or a ban that each of them prolongs. An error is none of that.
func (c *controller) probeFailed(now instant, t ticket, o Outcome) {
	s := &c.silence
	s.throttled = o == Throttled
	c.closures.closed(t.at - c.workedFrom)
	most := c.manner.gap
	if s.throttled {
		most = max(most, s.gap)
	}
	s.gap = min(2*s.gap, most)
	if o != Error && !c.off.dear {
		s.gap = c.backoff.Wait(s.gap, !s.throttled)
	}
	c.probeAgain(now, t.at)
}

// probeAgain sets the instant of the next probe, a gap after the last, part of which has passed if the server hangs. The gap
// is a little random, so that many clients do not probe together.
func (c *controller) probeAgain(now, last instant) {
	c.silence.probe = 0
	c.silence.probeAt = max(now, c.backoff.Until(max(c.closures.opens(c.workedFrom), last+int64(float64(c.silence.gap)*(1+0.2*c.dice.Chance()))), 1))
}

// endSilence resumes after a probe was answered. A server that refused is taken to give what it gave over work and silence.
func (c *controller) endSilence(now instant) {
	s := &c.silence
	active, dark := max(0.001, seconds(s.from-c.workedFrom)), seconds(now-s.from)
	sustained := max(c.worked/(active+dark-seconds(s.gap)/2), c.sustained(now, -s.gap/2)) // the refusals ended between the last two probes
	c.cycled(now)
	s.on = false
	seen := c.closures.opened(now - c.workedFrom)
	c.heldUntil = now
	c.forgetResponses()
	if s.throttled || s.again { // an outage shows nothing of the rate
		c.ceiling = max(c.ceiling, c.current)
	}
	switch {
	case s.throttled && (seconds(dearPause) < dark && dark > active/2 || c.dear(now)) && c.known() && !c.off.quota:
		r := halfway(min(c.ceiling, sustained), c.ceiling) // current was cut for the first refusals of the row
		c.ceiling = c.clamp(max(r, beta*min(c.ceiling, c.worked/max(active, dark))))
		c.holdDear(now, active+dark)
		c.set(CauseAlive, r)
	case s.throttled && seen:
		c.set(CauseAlive, sustained)
	case (s.throttled || s.again) && c.requests(c.worked) > handful:
		c.set(CauseAlive, min(s.resume*c.ceiling, sustained))
	default:
		c.set(CauseAlive, max(s.resume*max(c.ceiling, c.current), c.own))
	}
	if s.throttled {
		c.tollOf(4 * dark)
	}
	s.okSince, s.probe, s.gap, s.again = 0, 0, 0, true
	c.row, c.worked, c.workedFrom, c.paused = 0, 0, now, now-s.from
	c.used = meter.MeanRate{At: now}
}
