package aimd

import (
	"math"
	"slices"
)

// latency finds how many requests may be in flight, because a rate alone is a weak handle on a queue. By Little's law, n requests in flight
// with a latency of R are a throughput of n/R. So for a latency of d, n·d/R may be in flight: no server whose throughput grows with n gives
// a higher latency then. It looks at rounds: the responses to requests that were sent after the round began. As the number is bounded from
// the beginning, rounds are short.
type latency struct {
	smooth float64 // seconds, as TCP's srtt
	spread float64 // mean distance of the logarithms from that of the median

	from         instant // of the round
	fromSeq      uint64
	done         int         // responses in it, those to older requests too
	n            int         // those to its own requests
	sample       [64]float32 // of those, each with the same probability
	sent, flying float64     // requests, and the sum of those that were in flight with each
	hits         float64     // requests that took the last place in flight

	most float64 // requests that may be in flight
	step float64 // by which it grows in the next round that shows no queue, as a part of it
	last float64 // median of the last round; 0: there was none
	base float64 // the lowest median of two rounds in a row, which is that of the server without a queue; 0: unknown
	full bool    // the last round showed a queue

	tried  float64 // requests in flight before there were fewer, while it is seen whether that lowers the latency; 0: it is not
	before float64 // and the median then
	deeper bool    // it is not the first time in a row
	sure   bool    // base is the latency without a queue: fewer requests were not quicker
	alone  bool    // a request alone takes longer than the threshold, which was said
}

const (
	leastRound   = 16
	roundTrips   = 2       // in a round, at least: of the requests that are sent in a shorter one, mostly the quick ones return in it
	precise      = 0.1     // standard error of the logarithm of a median
	medianError  = 1.57    // times the spread, of one response
	firstSeconds = 0.1     // of the first rate may be in flight as long as nothing is known,
	firstMost    = 8       // requests at least
	queueAt      = 1.03    // times the lowest median
	queueSlack   = 0.01    // seconds on top, at most,
	slackPart    = 0.5     // and as a part of the lowest median
	aimAt        = 0.95    // of a threshold
	quicker      = 0.8     // of the lowest median is less than chance explains
	emptied      = 0.75    // of the requests in flight, at most, show whether they wait for each other
	elastic      = 0.5     // of the change of the number is the change of the latency at least where requests wait for each other
	lastStep     = 1. / 8  // requests that the number grows by at least, so that one more is tried now and then,
	firstStep    = 1. / 32 // and as a part of it after a round that showed a queue; twice as much after each other round
	roomy        = 0.5     // of the way from the lowest median to one that shows a queue is the latency to aim at
	hitsPart     = 1. / 8  // of the requests take the last place where more could be used
	doneWithRoom = 1.25    // times what is completed is the rate at most where requests wait at the server
)

func newLatency(now instant, cfg Config) latency {
	l := latency{from: now, most: max(firstMost, firstSeconds*cfg.Initial), step: 1}
	if d := cfg.LatencyThreshold.Seconds(); d > 0 {
		l.most = max(1, min(l.most, cfg.Initial*d))
	}
	return l
}

// count counts a request that is sent with that many in flight.
func (l *latency) count(inFlight int) {
	l.sent++
	l.flying += float64(inFlight)
	if float64(inFlight) > l.most-1 {
		l.hits++
	}
}

// measure counts the latency of a response, and decides at the end of a round.
func (c *controller) measure(now instant, t ticket, s float64) {
	l := &c.latency
	if l.smooth == 0 {
		l.smooth = s
	}
	l.smooth += (s - l.smooth) / 16
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
	if took := seconds(now - l.from); l.n >= l.enough() && took >= max(least, roundTrips*l.smooth) {
		done := float64(l.done) * c.cost / took
		median, n := l.endRound()
		if !c.silence.on && !c.off.inFlight {
			c.judge(now, median, n, done)
		}
		l.begin(now, c.seq)
	}
}

// begin begins a round after the request of that number.
func (l *latency) begin(at instant, seq uint64) {
	l.from, l.fromSeq, l.done, l.n = at, seq, 0, 0
	l.sent, l.flying, l.hits = 0, 0, 0
}

// enough returns the responses that a round takes for a median as precise as that.
func (l *latency) enough() int {
	n := medianError * l.spread / precise
	return int(max(leastRound, min(n*n, float64(len(l.sample)))))
}

// endRound returns the median and the size of the sample, and learns from them.
func (l *latency) endRound() (median, n float64) {
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
	switch slower := max(median, l.last); { // of many rounds, one is quick by chance
	case l.base == 0 || slower < quicker*l.base:
		l.base = slower
	case slower < l.base:
		l.base -= (l.base - slower) / 4
	}
	l.last = median
	return median, n
}

// judge moves the number in flight at the end of a round, given the tokens that were completed per second.
func (c *controller) judge(now instant, median, n, done float64) {
	l := &c.latency
	flying := max(1, l.flying/max(1, l.sent))
	if d := c.cfg.LatencyThreshold.Seconds(); d > 0 {
		c.heed(now, median, d, flying, done)
		return
	}
	if l.tried > 0 {
		c.judgeQueue(median, flying)
		return
	}
	most := queueAt*l.base*math.Exp(3*medianError*l.spread/math.Sqrt(n)) + min(queueSlack, slackPart*l.base) // three standard errors of a median
	goal, again := l.base+roomy*(most-l.base), l.full
	switch l.full = median > most; {
	case !l.full:
		l.raise(flying*goal/median, median <= goal)
	case !again: // the server, or this program, may have stood still for a moment
	case flying < 2:
		l.base = median // nothing waits for another request
	default:
		l.tried, l.before, l.full = flying, median, false
		c.queued(now, math.Round(flying*min(goal/median, emptied)), done)
	}
}

// heed keeps the median at d.
func (c *controller) heed(now instant, median, d, flying, done float64) {
	l := &c.latency
	switch {
	case median <= aimAt*d:
		l.raise(flying*aimAt*d/median, true)
	case median <= d:
	case flying < 2 && !l.alone:
		l.alone, l.most = true, 1
		c.set(CauseAlone, c.current)
	default:
		c.queued(now, flying*aimAt*d/median, done)
	}
}

// raise raises the number if it was used: halfway to n, or by a step, which doubles while there is room.
func (l *latency) raise(n float64, room bool) {
	if l.hits < hitsPart*l.sent {
		return
	}
	step := firstStep
	if room {
		step, l.step = l.step, min(1, 2*l.step)
	}
	l.most = min(max(l.most+max(lastStep, step*l.most), (l.most+n)/2), 1<<30)
}

// queued lowers the number to n. The rate need not be much more than what is completed.
func (c *controller) queued(now instant, n, done float64) {
	c.latency.most, c.latency.step = max(1, n), firstStep
	c.bound(now, CauseLatency)
	if r := doneWithRoom * done; r < c.current {
		c.set(CauseLatency, r)
	}
}

// judgeQueue sees whether fewer requests in flight have lowered the latency. If not, it is the server's own, and they are as many as before
// again. If so, there was a queue, and unless it is known what the latency is without one, there are still fewer until it does not fall
// any more.
func (c *controller) judgeQueue(median, flying float64) {
	l := &c.latency
	fall := l.tried / flying
	if !l.deeper { // it falls no further than to base, if that is right
		fall = min(fall, l.before/l.base)
	}
	stayed := math.Log(l.before/median) < elastic*math.Log(fall)
	switch {
	case stayed && !l.deeper:
		l.base, l.most, l.sure = median, max(l.most, l.tried), false
		c.set(CauseSlower, c.current)
	case stayed:
		l.base, l.most, l.sure = min(l.base, median), max(l.most, l.tried), true
	case flying < 2:
		l.base, l.sure = min(l.base, median), true
	case !l.sure:
		l.base = min(l.base, median)
		l.tried, l.before, l.deeper, l.most = flying, median, true, max(1, math.Round(emptied*flying))
		return
	}
	l.tried, l.deeper = 0, false
}
