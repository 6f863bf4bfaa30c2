package concurrency

import (
	"math"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/server"
)

// refusals are what a server refuses, and the ceiling that follows from it. A refusal says how many requests were too many: those
// that were in flight with it. But some refusals are not caused by load, and cuts for these would bring n down to 1.
type refusals struct {
	ceiling float64 // no more may be in flight; +Inf: none is known
	step    float64 // by which it is raised next,
	wait    int64   // the time until then,
	tryAt   instant // and when that is
	raised  uint64  // the last request before it was raised
	cutSeq  uint64  // the last request before the last cut: one cut is enough for all that were in flight
	cutTo   float64 // n after the last cut
	passed  float64 // successes since the last cut or try

	since    float64 // successes since the last refusal
	share    float64 // of refusals, of the last 100 responses or so
	good     float64 // as many have been in flight without a refusal, again and again
	level    float64 // n at the last success,
	fine     float64 // and the successes of requests that were sent since it rose, without a refusal
	before   float64 // n before the episode
	noise    float64 // a share of refusals up to that is not caused by load,
	noiseEnd instant // which is believed until then

	until   instant
	backoff server.Backoff
	row     int32 // refusals since the last success
	pauses  int32 // in a row
	doubts  int32 // refusals in an episode that load does not explain
	tried   bool  // the ceiling was raised since the last cut
	episode bool  // there was a cut, and not yet a long time without refusals
	start   bool  // the episode began at the start
}

const (
	firstWait   = second / 4
	longWait    = 16 * second
	rareWait    = second // the wait to which refusals that are ignored shorten it
	longPassed  = 500    // successes for which a try is allowed, however short the time; 60 for each slot, if that is fewer
	slotPassed  = 60     //
	left        = 0.9    // of n, at most, by a cut
	soon        = 24     // requests after a try: a refusal among them means that it failed; successes between refusals that are sparse
	isolated    = 32     // successes before a refusal that is ignored as long as there is no ceiling
	rare        = 48     // successes before a refusal that is ignored: a few in a hundred are cheaper than a cut
	goodLeft    = 0.8    // of the good number: fewer cannot be too many
	doubtsMost  = 2      //
	longEpisode = 400    // successes that end an episode
	noiseShare  = 0.1    // the most refusals that are not caused by load; where n is 1,
	noiseAlone  = 0.5    // the same there
	noiseFor    = 120 * second
	rowAtMost   = 8
	firstPause  = second / 10
	longPause   = 2 * second
)

func newRefusals() refusals {
	return refusals{ceiling: math.Inf(1), wait: firstWait, step: 1, since: isolated, backoff: server.NewBackoff()}
}

// succeeded counts a response that was no refusal, while n may be in flight.
func (r *refusals) succeeded(n float64) {
	r.row, r.pauses = 0, 0
	r.share -= r.share / 100
	r.passed++
	r.since++
	if r.fine++; n > r.level {
		r.fine = -n // the next n responses may be to requests that were sent before
	}
	r.level = n
	if r.fine >= isolated {
		r.good = max(r.good, n)
	}
	if r.since > longEpisode {
		r.doubts, r.episode = 0, false
	}
}

// refuse takes a refusal, which may come from a server that is down.
func (c *controller) refuse(now instant, t ticket, maybeDown bool) {
	c.ignore(now, t)
	c.refused(now, t, maybeDown)
}

// refused is refuse for a request that belongs to no level.
func (c *controller) refused(now instant, t ticket, maybeDown bool) {
	r := &c.refusals
	since := r.since
	r.share += (1 - r.share) / 100
	r.since, r.fine = 0, min(r.fine, 0)
	if t.seq <= r.cutSeq {
		return
	}
	if r.row++; r.row >= rowAtMost { // of noise, too: the server is down
		c.pause(now, maybeDown)
		return
	}
	if now < r.noiseEnd && r.share < r.noise {
		return
	}
	f := float64(t.inFlight)
	if r.tries(t) {
		c.cut(now, f, true, true)
		return
	}
	sparse := since >= soon
	if f <= max(1, goodLeft*r.good) && (sparse || c.cruise() <= 1) && c.doubted(now) {
		return
	}
	if !sparse && c.cruise() > 1 {
		r.good = min(r.good, f)
	}
	if since < isolated || since < rare && !isUnknown(r.ceiling) {
		c.cut(now, f, false, sparse)
		return
	}
	r.wait = max(min(rareWait, r.wait), r.wait/2) // this many are fine, and more are tried sooner
}

// tries reports whether a request was one of those by which a higher ceiling was tried.
func (r *refusals) tries(t ticket) bool {
	return t.seq-r.raised < soon && float64(t.inFlight) > r.ceiling-r.step
}

// doubted counts a refusal that load does not explain: fewer requests were in flight than a number that was fine. It reports
// whether load is not the cause of the refusals of this episode. Then it undoes the cuts.
func (c *controller) doubted(now instant) bool {
	r := &c.refusals
	r.doubts++
	few := r.doubts > doubtsMost && r.share < noiseShare
	if !few && (c.cruise() > 1 || r.share >= noiseAlone) {
		return false
	}
	r.noise, r.noiseEnd = max(noiseShare, 2*r.share), now+noiseFor
	c.forgive()
	return true
}

// forgive undoes the cuts of this episode.
func (c *controller) forgive() {
	r := &c.refusals
	r.doubts, r.episode, r.ceiling = 0, false, math.Inf(1)
	if r.start || isUnknown(c.best) {
		c.mode, c.high = starting, level{}
	}
	c.change(aimd.CauseNotLoad, max(c.n, r.before))
	c.restart(0)
}

// cut lowers the ceiling below a number that was refused, and n by a tenth at least. After a try that failed, n may stay at the
// ceiling, which has held so far. No cut more than halves n, because the server may have others. later says that it is not one of
// several cuts for one event.
func (c *controller) cut(now instant, f float64, failed, later bool) {
	r := &c.refusals
	f = max(f, c.cruise()/2)
	r.ceiling = max(1, f-1)
	if later {
		r.wait = min(longWait, 2*r.wait)
	}
	if !r.episode {
		r.episode, r.before, r.start = true, c.n, c.mode == starting
	}
	r.cutSeq, r.step, r.tried, r.tryAt, r.passed = c.seq, 1, false, now+r.wait, 0
	c.mode, c.pending = cruising, false
	if !failed {
		c.change(aimd.CauseThrottled, math.Floor(min(f-1, left*f)))
		r.cutTo = c.n
	}
	c.restart(0)
}

// advance lets n return to the ceiling when it is time, and later raises the ceiling, if n is used. A try that is not refused
// doubles the step of the next one.
func (r *refusals) advance(c *controller, now instant) {
	back := c.n == r.cutTo && c.n < r.ceiling-0.5
	passed := min(longPassed, slotPassed*c.cruise())
	if back {
		passed = rare
	}
	wait := now < r.tryAt && r.passed < passed
	if wait || isUnknown(r.ceiling) || c.mode == visiting || c.inFlight < c.limit() {
		return
	}
	was := c.cruise()
	switch {
	case back:
		c.change(aimd.CauseGrowth, r.ceiling)
	case c.n >= r.ceiling-0.5:
		if r.tried {
			r.step, r.wait = 2*r.step, max(firstWait, r.wait/2)
		}
		r.tried, r.raised = true, c.seq
		r.ceiling += r.step
		c.change(aimd.CauseGrowth, max(c.n, r.ceiling))
	default: // latencies do not allow more
		return
	}
	r.tryAt, r.passed = now+r.wait, 0
	c.restart(c.cruise() - was)
}

// pause lets nothing go for a while after a row of refusals. Then n begins with 1. The ceiling stays: without it, n would double
// past it again.
func (c *controller) pause(now instant, maybeDown bool) {
	r := &c.refusals
	if now < r.until {
		return
	}
	r.until = r.backoff.Until(meter.AddInstant(now, r.backoff.Wait(min(longPause, firstPause<<min(r.pauses, 10)), maybeDown)), 1)
	r.pauses++
	r.cutSeq = c.seq
	c.mode, c.pending, c.high = starting, false, level{}
	c.change(aimd.CauseSilence, 1)
	c.restart(0)
}
