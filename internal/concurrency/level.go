package concurrency

import "math"

// A level is what was measured of requests that were sent while a certain number of requests was in flight. A request belongs to
// the level at which it was sent, whenever its response arrives. The responses of a stretch of time would be the quick ones,
// right after that number has changed.
type level struct {
	from, to     uint64  // the numbers of its first and last requests
	sent, done   float64 // requests, except those whose latency says nothing; and those with a latency
	sum, squares float64 // of the square roots of latencies, in seconds
	flying       float64 // sum of the requests in flight when each was sent, itself included
	last         instant // when the last request was sent
}

const (
	unended  = math.MaxUint64
	censored = 4 // times the mean latency: a response counts as that at most, and is not waited for any longer
)

// begin returns an empty level of the requests from that number on.
func begin(from uint64) level { return level{from: from, to: unended} }

func (l *level) has(seq uint64) bool { return l.from <= seq && seq <= l.to }

func (l *level) send(now instant, inFlight int64) {
	l.sent++
	l.flying += float64(inFlight)
	l.last = now
}

// remove takes a request out whose latency says nothing.
func (l *level) remove(inFlight int64) {
	l.sent--
	l.flying -= float64(inFlight)
}

// add counts a latency in seconds.
func (l *level) add(latency float64) {
	l.done++
	l.sum += math.Sqrt(latency)
	l.squares += latency
}

// merge counts the requests of m, too.
func (l *level) merge(m *level) {
	l.sent += m.sent
	l.done += m.done
	l.sum += m.sum
	l.squares += m.squares
	l.flying += m.flying
}

// complete reports whether no response is missing that is worth waiting for, if the mean latency is that.
func (l *level) complete(now instant, mean float64) bool {
	return l.done >= l.sent || float64(now-l.last) > censored*mean*1e9
}

// finish counts missing responses as slow, and reports whether enough has come for a verdict.
func (l *level) finish(mean float64) bool {
	missing := max(0, l.sent-l.done)
	if l.done == 0 || missing > l.done {
		return false
	}
	l.sum += missing * math.Sqrt(censored*mean)
	l.squares += missing * censored * mean
	l.done += missing
	return true
}

// number returns the mean number in flight.
func (l *level) number() float64 { return max(1, l.flying/max(1, l.sent)) }

// log returns the logarithm of the mean latency, and its variance. It is the power mean with power 1/2, which lies between the
// geometric mean and the arithmetic one: less noise than the latter, and more of what slow requests take than the former.
func (l *level) log() (ln, variance float64) {
	return 2 * math.Log(l.sum/l.done), l.spread() / l.done
}

// spread returns the variance of the logarithm of one latency, as far as its mean is concerned.
func (l *level) spread() float64 {
	mean := l.sum / l.done
	return 4 * max(0, l.squares/l.done/(mean*mean)-1)
}
