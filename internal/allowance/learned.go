package allowance

import (
	"math"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A Learned is what a Meter knows, for the next process.
type Learned struct {
	Parts  []Part
	Hidden [2]Hidden     // of what requests cost, and of their number
	Took   float64       // seconds from the sending of a request to its end, in the mean
	Held   time.Duration // for how long yet, because a refusal says so
}

// A Part is what is known of a quota that responses report.
type Part struct {
	Name        string
	Limit, Left float64
	Sent, Ended float64       // what is charged for each token of an estimate, when a request is sent and when it ends
	Rate        float64       // per second
	Refills     float64       // responses that speak for a bucket, less those that speak for a window
	Ends        time.Duration // of the window
	Dry, Tight  bool
}

// A Hidden is what refusals have shown of a limit that is not reported.
type Hidden struct {
	Rate   float64 // per second; 0: nothing
	Sure   bool
	Owed   float64       // what was spent beyond the rate, or in the window
	Window float64       // 0: it is none
	More   float64       // by what part the next window is larger
	Ends   time.Duration // of the window
}

// Save returns what is known now. What requests in flight are going to cost counts as spent.
func (m *Meter) Save(now meter.Instant) (l Learned) {
	l.Took, l.Held = m.sends.took/1e9, time.Duration(max(0, m.held-now))
	for _, p := range m.parts {
		l.Parts = append(l.Parts, Part{
			Name: p.name, Limit: p.limit, Left: p.free(now, &m.sends), Sent: p.fit.sent, Ended: p.fit.ended,
			Rate: p.rate * 1e9, Refills: p.refills, Ends: time.Duration(p.turns() - now), Dry: p.dry, Tight: p.tight,
		})
	}
	for i := range m.hidden {
		if h := &m.hidden[i]; h.rate > 0 {
			l.Hidden[i] = h.save(now, m.sends.total)
		}
	}
	return l
}

func (h *hidden) save(now meter.Instant, t total) Hidden {
	x := Hidden{Rate: h.rate * 1e9, Sure: h.sure, Window: h.window, More: h.more, Ends: time.Duration(h.ends - now)}
	if h.window > 0 {
		x.Owed = h.charged(t) - h.from
	} else {
		_, back := h.trial().at(float64(now - h.at))
		x.Owed = h.charged(t) - h.then - h.rate*back
	}
	return x
}

func (h *hidden) restore(then meter.Instant, x *Hidden) {
	*h = hidden{
		counts: h.counts, begun: then, rate: x.Rate / 1e9, sure: x.Sure, at: then, then: -x.Owed, stops: then,
		window: x.Window, more: x.More, ends: meter.AddInstant(then, int64(x.Ends)), from: -x.Owed,
	}
}

// Restore continues from what a Meter knew some time ago, in ns. It reports false, and changes nothing, if no Meter can have known that.
func (m *Meter) Restore(now meter.Instant, since int64, l Learned) bool {
	if !l.isPossible() {
		return false
	}
	then := now - since
	m.last, m.sends.took = now, l.Took*1e9
	m.held = max(m.held, meter.AddInstant(then, int64(l.Held)))
	m.parts = nil
	for i := range l.Parts {
		x := &l.Parts[i]
		m.parts = append(m.parts, &part{
			name: x.Name, limit: x.Limit, now: sample{left: x.Left, at: then, n: -1}, said: -1, first: -1, fit: newFit(x.Sent, x.Ended),
			ends: meter.AddInstant(then, int64(x.Ends)), rate: x.Rate / 1e9, refills: x.Refills, dry: x.Dry, tight: x.Tight,
		})
	}
	for i := range l.Hidden {
		if x := &l.Hidden[i]; x.Rate > 0 {
			m.hidden[i].restore(then, x)
		}
	}
	return true
}

// isPossible reports whether a Meter can have known that.
func (l *Learned) isPossible() bool {
	ok := len(l.Parts) <= mostParts && l.Held >= 0 && areCounts(l.Took)
	for i := range l.Hidden {
		h := &l.Hidden[i]
		ok = ok && areCounts(h.Rate, h.Window, h.More) && isNumber(h.Owed)
	}
	for i := range l.Parts {
		p := &l.Parts[i]
		ok = ok && p.Name != "" && areCounts(p.Limit, p.Sent, p.Rate) && isNumber(p.Left) && p.Ended >= -p.Sent && isNumber(p.Ended) && math.Abs(p.Refills) <= mostWeighed
	}
	return ok
}

// areCounts reports whether all are numbers of at least 0.
func areCounts(all ...float64) bool {
	for _, x := range all {
		if x < 0 || !isNumber(x) {
			return false
		}
	}
	return true
}

func isNumber(x float64) bool { return math.Abs(x) <= math.MaxFloat64 }
