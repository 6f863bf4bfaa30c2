package concurrency

import (
	"math"

	"github.com/httpthrottle/throttle/internal/aimd"
)

// reports are the changes of n that are worth a report.
type reports struct {
	shown float64    // the n that was reported last
	why   aimd.Cause // of a change that is to be reported; 0: there is none
}

// reported is the change by growth or latency that is reported, as a share of n: more than n moves where it is right.
const reported = 0.3

// change sets n, and remembers why.
func (c *controller) change(why aimd.Cause, n float64) {
	c.set(n)
	r := &c.reports
	switch steady := why == aimd.CauseGrowth || why == aimd.CauseLatency; {
	case steady && math.Abs(c.n-r.shown) < reported*r.shown:
	case steady && r.why != 0 && r.why != aimd.CauseGrowth && r.why != aimd.CauseLatency:
	default:
		r.why = why
	}
}

// retuned returns the change of n since the last call, if it is worth a report.
func (c *controller) retuned() (aimd.Retune, bool) {
	r := &c.reports
	if r.why == 0 || r.shown == c.cruise() {
		r.why = 0
		return aimd.Retune{}, false
	}
	change := aimd.Retune{Cause: r.why, From: r.shown, To: c.cruise()}
	r.why, r.shown = 0, change.To
	return change, true
}

// modeName returns what the controller does now.
func (c *controller) modeName(now instant) string {
	switch {
	case now < c.refusals.until:
		return "paused"
	case c.mode == starting:
		return "start"
	case c.mode == visiting:
		return "visit"
	case c.cruise() < math.Round(c.n) || c.refusals.cutTo == c.n:
		return "ceiling"
	}
	return "steady"
}
