// Package record counts what one account accepted, so that a rate is known whenever a refusal comes, however old the client is.
//
// It has no lock and no clock.
package record

import "github.com/httpthrottle/throttle/internal/meter"

const (
	second = int64(1e9)
	rest   = second // a longer time between two requests counts as that, unless the client left more between them
)

// scales are the lengths of time over which a [Record] counts.
var scales = [...]int64{second, 10 * second, 60 * second, 600 * second}

// A Record counts what was accepted over the last second, ten seconds, minute and ten minutes of use. Without requests its time stands
// still, so it shows no lower rate than one request a second, or than that to which the client kept. The unit is that in which requests are
// charged: 1 for each, or what each did cost. The zero Record has counted nothing.
type Record struct {
	last      meter.Instant // when the last request was sent
	recent    float64       // belongs to the present part of each stretch, and is not in their sums yet
	next      meter.Instant // when the first part of a stretch ends; before that, a request only adds to recent
	stretches [len(scales)]stretch
}

// A stretch counts over at least one scale, and less than two, once it has counted for so long.
type stretch struct {
	from, earlier meter.Instant // when this part began, and the part before
	n, before     float32       // seven digits are enough for a rate
}

// A Sum is what was accepted from an instant on; Never: nothing was, as far as is known.
type Sum struct {
	N    float64
	From meter.Instant
}

// Add counts a request that was sent then, and what it cost; 0: it was not accepted, and only its time counts. Requests need not come in the
// order in which they were sent. Spacing is the time that the client left between two requests; 0: it left none. That is no rest. Add is
// inlined where requests are granted.
func (r *Record) Add(sent meter.Instant, cost float64, spacing int64) {
	if sent >= r.next { // as it is after a rest: the shortest stretch is no longer
		r.advance(sent, spacing)
	}
	r.recent += cost
	r.last = max(r.last, sent)
}

// advance ends the parts that end by then. A rest moves the stretches, so that their time stands still.
func (r *Record) advance(sent meter.Instant, spacing int64) {
	idle := max(0, sent-r.last-max(rest, spacing))
	*r = r.summed()
	r.next = meter.Never
	for i := range r.stretches {
		s := &r.stretches[i]
		if s.n+s.before == 0 {
			s.from, s.earlier = sent, sent
		} else {
			s.from, s.earlier = s.from+idle, s.earlier+idle
		}
		if sent-s.from >= scales[i] {
			s.earlier, s.before, s.from, s.n = s.from, s.n, sent, 0
		}
		r.next = min(r.next, s.from+scales[i])
	}
}

// summed returns the record with all that it has counted in the sums of its stretches.
func (r Record) summed() Record {
	for i := range r.stretches {
		r.stretches[i].n += float32(r.recent)
	}
	r.recent = 0
	return r
}

// Last returns when the last request was sent that was counted; 0: none was.
func (r *Record) Last() meter.Instant { return r.last }

// Matters returns until when the record is worth keeping: for as long after the last request as it has counted.
func (r *Record) Matters() meter.Instant {
	s := &r.stretches[len(scales)-1]
	if s.before+s.n == 0 && r.recent == 0 {
		return 0
	}
	return r.last + max(0, r.last-s.earlier)
}

// Over returns what was accepted over the shortest scale that is at least as long as d, or over the longest.
func (r Record) Over(d int64) Sum {
	i := 0
	for i < len(scales)-1 && scales[i] < d {
		i++
	}
	s := r.stretches[i]
	sum := Sum{float64(s.before) + float64(s.n) + r.recent, s.earlier}
	if sum.N == 0 {
		sum.From = meter.Never
	}
	return sum
}

// Without returns the record without the last n of what it has counted.
func (r Record) Without(n float64) Record {
	r = r.summed()
	r.next = 0 // a stretch of which nothing is left begins with the next request
	for i := range r.stretches {
		s := &r.stretches[i]
		s.n = max(0, s.n-float32(n))
	}
	return r
}

// Rate returns how much was accepted per second until now. Less than a second shows no higher rate than a second.
func (s Sum) Rate(now meter.Instant) float64 { return s.N * 1e9 / float64(max(now-s.From, second)) }
