package aimd

import (
	"math"
	"slices"
)

// latency distinguishes a queue from the server's own service time. It looks at rounds: the responses to requests that were sent
// after the round began.
type latency struct {
	smooth float64 // seconds, as TCP's srtt
	mean   float64 // of the last 64 responses or so
	count  int     // of responses, up to 64
	spread float64 // mean distance of the logarithms from that of the median

	from    instant // of the round
	fromSeq uint64
	done    int         // responses in it, those to older requests too
	n       int         // those to its own requests
	sample  [64]float32 // of those, each with the same probability

	last    float64 // median of the last round; 0: there was none
	medians lowest  // of the slower of two rounds in a row
	means   lowest

	full   bool    // the last round showed a queue
	goal   float64 // the rate after the queue has drained; 0: there is none
	clear  instant // when it will have drained
	row    int     // cuts that did not lower the latency
	worst  float64 // median at the first of them
	before float64 // rate before it
}

const (
	leastRound = 16
	roundTrips = 2    // in a round, at least: of the requests that are sent in a shorter one, mostly the quick ones return in it
	queueAt    = 1.03 // times the lowest median
	queueSlack = 0.01 // seconds on top
	queueToll  = 2
	cutsAtMost = 4 // cuts in a row that do not lower the latency of a queue; then the service is slower
)

func newLatency(now instant) latency {
	none := lowest{math.Inf(1), math.Inf(1), now}
	return latency{from: now, medians: none, means: none}
}

// idleMean returns the mean latency of a request on an idle server: half a second at least while too little is known.
func (l *latency) idleMean() float64 {
	if m := l.means.value(); !math.IsInf(m, 1) {
		return m
	}
	return max(0.5, l.mean)
}

// measure counts the latency of a response, and decides at the end of a round.
func (c *controller) measure(now instant, t ticket, s float64) {
	l := &c.latency
	if l.smooth == 0 {
		l.smooth = s
	}
	l.smooth += (s - l.smooth) / 16
	l.count = min(l.count+1, 64)
	l.mean += (s - l.mean) / float64(l.count)
	l.done++
	if t.seq <= l.fromSeq {
		return
	}
	l.n++
	if i := l.n - 1; i < len(l.sample) {
		l.sample[i] = float32(s)
	} else if i = int(c.dice.Chance() * float64(l.n)); i < len(l.sample) {
		l.sample[i] = float32(s)
	}
	least := 0.5
	if c.ceiling == 0 {
		least = 0.25
	}
	if took := seconds(now - l.from); l.n >= leastRound && took >= max(least, roundTrips*l.smooth) {
		done := float64(l.done) * c.cost / took
		median, n := l.endRound(now)
		l.begin(now, c.seq)
		if !c.silence.on && !c.off.latency {
			c.judge(now, median, n, min(c.current, done))
		}
	}
}

// begin begins a round after the request of that number.
func (l *latency) begin(at instant, seq uint64) { l.from, l.fromSeq, l.done, l.n = at, seq, 0, 0 }

// endRound returns the median and the size of the sample, and learns from them.
func (l *latency) endRound(now instant) (median, n float64) {
	sample := l.sample[:min(l.n, len(l.sample))]
	slices.Sort(sample)
	median, n = float64(sample[len(sample)/2]), float64(len(sample))
	spread := 0.0
	for _, x := range sample {
		spread += math.Abs(math.Log(max(1e-9, float64(x))/max(1e-9, median))) / n
	}
	if l.spread == 0 {
		l.spread = spread
	}
	l.spread += (spread - l.spread) / 10
	l.medians.add(now, max(median, l.last))
	l.last = median
	if l.count == 64 {
		l.means.add(now, l.mean)
	}
	return median, n
}

// judge looks for a queue, given the tokens completed per second: a median above the lowest of the last minute by more than
// noise, in two rounds in a row. One round may be slow because the server, or this program, stood still for a moment, and of many
// rounds one is quick by chance, so the lowest is of two in a row, too.
func (c *controller) judge(now instant, median, n, done float64) {
	l := &c.latency
	base := l.medians.value()
	most := queueAt*base*math.Exp(3*1.57*l.spread/math.Sqrt(n)) + queueSlack // three standard errors of a median
	full := median > most
	if th := c.cfg.LatencyThreshold.Seconds(); th > 0 {
		base, full = th, median > th
	}
	again := l.full || c.off.again
	l.full = full
	switch {
	case !full:
		l.row = 0
	case again && now >= l.clear:
		c.queued(now, median, base, done)
	}
}

// queued cuts the rate below what was completed until the queue has drained, unless too many such cuts have not helped.
func (c *controller) queued(now instant, median, base, done float64) {
	l := &c.latency
	c.bound(now, CauseLatency)
	if l.row == 0 {
		l.before = c.current
	}
	if l.row == 0 || median < 0.9*l.worst {
		l.row, l.worst = 0, median
	}
	if l.row++; l.row > cutsAtMost && c.cfg.LatencyThreshold == 0 && !c.off.slower {
		c.slower(now, median)
		return
	}
	f := 0.85
	if median > 3*base {
		f = 0.7
	}
	c.cut(now, CauseLatency, done, f*done)
	c.tollOf(queueToll)
	l.goal = 0.97 * done
	l.clear = now + nanos(min(5, (median-base)/0.15))
	c.heldUntil = max(c.heldUntil, l.clear)
}

// drained returns to just below what was completed once the queue has drained, and stays there for a while.
func (c *controller) drained(now instant) {
	l := &c.latency
	if l.goal == 0 || now < l.clear {
		return
	}
	c.set(CauseDrained, max(c.current, l.goal))
	c.heldUntil = max(c.heldUntil, now+10*second)
	l.goal = 0
}

// slower takes a latency that four cuts have not lowered for the server's own, and undoes the cuts.
func (c *controller) slower(now instant, median float64) {
	l := &c.latency
	l.row, l.goal = 0, 0
	l.medians = lowest{median, math.Inf(1), now}
	c.ceiling, c.heldUntil = l.before, now
	c.set(CauseSlower, l.before)
}

// A lowest is the lowest value of the last 30 to 60 s.
type lowest struct {
	now, before float64
	since       instant
}

func (l *lowest) add(now instant, x float64) {
	if now-l.since > 30*second {
		l.before, l.now, l.since = l.now, math.Inf(1), now
	}
	l.now = min(l.now, x)
}

func (l *lowest) value() float64 { return min(l.now, l.before) }
