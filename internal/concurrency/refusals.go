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
	failures server.Failures
	place    float64 // n before a trial, or before the cuts since which it has not been as high again; 0: there were none
	flew     float32 // in a trial, how many were in flight with a request in the mean,
	flewThen float32 // and at the number before

	ceiling float64 // no more may be in flight; +Inf: none is known
	step    float64 // by which it is raised next,
	wait    int64   // the time until then,
	tryAt   instant // and when that is
	raised  uint64  // the last request before it was raised
	cutSeq  uint64  // the last request before the last cut: one cut is enough for all that were in flight
	cutTo   float64 // n after the last cut
	passed  float32 // successes since the last cut or try
	tried   bool    // the ceiling was raised since the last cut

	row     int8   // refusals since the last success, of requests that were sent one after the other
	pauses  int8   // in a row
	rowSeq  uint64 // the last request before the last of the row was refused
	until   instant
	backoff server.Backoff
}

const (
	firstWait  = second / 4
	longWait   = 16 * second
	longPassed = 500  // successes for which a try is allowed, however short the time; 60 for each slot, if that is fewer,
	slotPassed = 60   //
	backPassed = 48   // and to return to the ceiling
	left       = 0.9  // of n, at most, by a cut
	soon       = 24   // requests after a try: a refusal among them means that it failed
	differ     = 1.3  // times as many in flight are another load
	rare       = 0.02 // of the responses are refusals: that costs less than cuts
	rowAtMost  = 8
	firstPause = second / 10
	longPause  = 2 * second
	mostPauses = 10 // in a row are counted
)

func newRefusals(now instant) refusals {
	r := refusals{ceiling: math.Inf(1), wait: firstWait, step: 1, backoff: server.NewBackoff()}
	r.failures.Forget(now)
	return r
}

// succeeded takes a response that was no refusal.
func (c *controller) succeeded(now instant, t ticket) {
	r := &c.refusals
	r.row, r.pauses = 0, 0
	r.passed++
	c.flying += (float64(t.inFlight) - c.flying) / float64(min(t.seq, 100))
	if t.seq > r.cutSeq {
		c.heed(now, t, false)
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
	if t.seq <= r.cutSeq {
		return
	}
	if t.seq > r.rowSeq { // others were sent before the server could have accepted one
		r.row, r.rowSeq = r.row+1, c.seq
	}
	if r.row >= rowAtMost {
		c.pause(now, maybeDown)
		return
	}
	c.heed(now, t, true)
}

// heed takes the response to a request that was sent since n was changed. Cuts begin when more are refused than usual, and where a try
// failed, one refusal is enough. When they have lowered n to a half, there is a trial.
func (c *controller) heed(now instant, t ticket, refused bool) {
	r, weight := &c.refusals, 0.0
	if refused {
		weight = 1
	}
	f := &r.failures
	trying, known := f.Trying(), f.Known(now)
	r.flew += (float32(t.inFlight) - r.flew) / float32(f.Seen()+1)
	v := f.Take(now, weight, true, c.near())
	if v > server.Suspected {
		c.follow(now, v)
	}
	if trying {
		return
	}
	_, chance := f.Usual()
	failed := refused && !chance && r.tries(t)
	threshold := max(rare, f.Threshold(now))
	tooMany := known && f.Add(now, threshold, refused)
	if !tooMany && !failed && v != server.Suspected {
		return
	}
	share, was := f.Share(), c.cruise()
	c.cut(now, float64(t.inFlight), failed)
	f.Excess.Cut(threshold)
	f.Learn(now)
	switch {
	case was >= r.place:
		r.place = was
	case c.cruise() <= max(1, r.place/2):
		f.Try(share)
		c.cap(now, c.cruise())
	}
}

// near reports whether load may be the cause of a refusal: n is not below the ceiling, and it is used. If there is no ceiling, it is not
// after a trial has shown that.
func (c *controller) near() bool {
	r := &c.refusals
	if isUnknown(r.ceiling) {
		return !r.failures.Judged()
	}
	return c.cruise() >= 0.97*r.ceiling && c.flying >= usedEnough*c.cruise()
}

// tries reports whether a request was one of those by which a higher ceiling was tried.
func (r *refusals) tries(t ticket) bool {
	return t.seq-r.raised < soon && float64(t.inFlight) > r.ceiling-r.step
}

// follow takes the next step of a trial.
func (c *controller) follow(now instant, v server.Step) {
	r := &c.refusals
	f, n := &r.failures, c.cruise()
	if v == server.NotByLoad && max(r.flew, r.flewThen) < differ*min(r.flew, r.flewThen) { // something else limits what is in flight
		v = server.ByLoad
		f.Blame(now)
	}
	r.flewThen = r.flew
	switch {
	case v == server.TryHigher:
		c.change(aimd.CauseNotLoad, max(c.n, r.place))
		c.cap(now, math.Inf(1))
	case v == server.TryStill:
		if f.Higher() {
			r.place = n / 2
			n = r.place
		}
		c.cap(now, max(1, math.Floor(n/2)))
	case v == server.NotByLoad:
		c.forgive()
		return
	default:
		r.place = 0
		c.cap(now, r.ceiling)
		return
	}
	f.Moved(v)
}

// cap sets the ceiling, and what is in flight shows nothing of it.
func (c *controller) cap(now instant, ceiling float64) {
	r := &c.refusals
	r.ceiling = ceiling
	r.cutSeq, r.step, r.tried, r.tryAt, r.passed = c.seq, 1, false, now+r.wait, 0
	c.mode, c.pending = cruising, false
	c.restart(0)
}

// forgive undoes what refusals have taught. n is found as at the start.
func (c *controller) forgive() {
	r := &c.refusals
	n := max(c.n, r.place)
	r.place, r.ceiling = 0, math.Inf(1)
	r.cutSeq = c.seq
	c.mode, c.pending, c.high = starting, false, level{}
	c.change(aimd.CauseNotLoad, n)
	c.restart(0)
}

// cut lowers the ceiling below a number that was refused, and n by a tenth at least. After a try that failed, n may stay at the
// ceiling, which has held so far. No cut more than halves n, because the server may have others.
func (c *controller) cut(now instant, f float64, failed bool) {
	r := &c.refusals
	f = max(f, c.cruise()/2)
	if failed || r.passed >= soon { // it is not one of several cuts for one event
		r.wait = min(longWait, 2*r.wait)
	}
	c.cap(now, max(1, f-1))
	r.failures.Moved(server.NoStep)
	if !failed {
		c.change(aimd.CauseThrottled, math.Floor(min(f-1, left*f)))
		r.cutTo = c.n
	}
}

// advance lets n return to the ceiling when it is time, and later raises the ceiling, if n is used. A try that is not refused
// doubles the step of the next one.
func (r *refusals) advance(c *controller, now instant) {
	back := c.n == r.cutTo && c.n < r.ceiling-0.5
	passed := float32(min(longPassed, slotPassed*c.cruise()))
	if back {
		passed = backPassed
	}
	wait := now < r.tryAt && r.passed < passed
	if wait || isUnknown(r.ceiling) || r.failures.Trying() || c.mode == visiting || c.inFlight < c.limit() {
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
	r.until = r.backoff.Until(meter.AddInstant(now, r.backoff.Wait(min(longPause, firstPause<<r.pauses), maybeDown)), 1)
	r.pauses = min(r.pauses+1, mostPauses)
	if r.failures.Higher() { // load causes them
		r.ceiling = max(1, math.Floor(r.place/2))
		r.failures.Blame(now)
	}
	r.place = 0
	r.failures.Moved(server.NoStep)
	r.cutSeq = c.seq
	c.mode, c.pending, c.high = starting, false, level{}
	c.change(aimd.CauseSilence, 1)
	c.restart(0)
}
