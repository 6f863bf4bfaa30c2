package quota

import (
	"unsafe"

	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	agesMarks = 64 // times that are remembered, at most
	agesSure  = 2  // responses show that requests are counted up to an age
	agesMost  = 16 // of these responses count
	agesWrong = 2  // contradictions show that the server counts in another way
	agesAgain = 8  // responses that agree show that these contradictions were of few requests, with little known of their ages
	agesSlack = 16 // of an age: by less than that it differs because some requests take longer than others
	agesTight = 4  // of an age: requests may be counted until it or not, if it is known
	agesFades = 64 // of what an age is too long, with each response
)

// Ages are how old the requests are that a quota counts. A response that reports how many are counted shows it: as many of the last
// are, and the one before is not. If responses agree on the age up to which requests are counted, then the next request is accepted
// once the oldest one that is counted has reached it. A log of requests is like that, and so is a bucket, or a window, of which all
// is used.
//
// Where responses do not agree, or most of what is counted ends together, the flow and the window show more.
type ages struct {
	marks []meter.Instant // when the first of each per accepted requests was sent; a ring once there are agesMarks
	per   int64           // 1 for a small limit
	n     int64           // accepted requests
	last  meter.Instant   // when the last of them was sent
	in    int64           // the age of the oldest request that was counted
	out   int64           // the age of the youngest that was not; 0: there was none
	agree int8            // responses after which requests were no longer counted, and that do not contradict each other
	wrong int8            // contradictions, up to agesWrong
	row   int8            // refusals since a request was accepted
}

// newAges returns those of a quota of that limit.
func newAges(limit int64) *ages { return &ages{per: (limit-1)/(agesMarks-8) + 1} }

// add takes an accepted request.
func (a *ages) add(sent meter.Instant) {
	a.last = max(a.last, sent)
	switch at := a.n / a.per; {
	case a.n%a.per > 0:
	case len(a.marks) < agesMarks:
		a.marks = append(a.marks, a.last)
	default:
		a.marks[at%agesMarks] = a.last
	}
	a.n++
}

// nth returns between which times the n-th last of the accepted requests was sent.
func (a *ages) nth(n int64) (from, to meter.Instant, ok bool) {
	at := a.n - n
	mark := at / a.per
	if n < 1 || at < 0 || (a.n-1)/a.per-mark >= agesMarks {
		return 0, 0, false
	}
	from, to = a.marks[mark%agesMarks], a.last
	switch next := mark + 1; {
	case at%a.per == 0:
		to = from
	case next*a.per < a.n:
		to = a.marks[next%agesMarks]
	}
	return from, to, true
}

// shows takes how many requests were counted when one was sent that has a response. Some others may have none yet. A refusal shows
// that the age is longer still, and the more of them come in a row, the more.
func (a *ages) shows(sent meter.Instant, counted, unseen int64, refused bool) {
	if _, to, ok := a.nth(counted - unseen); ok {
		age := sent - to
		if a.out > 0 && age > a.out+a.out/agesSlack {
			a.out = 0
			a.contradicted()
		}
		if refused {
			age += age / 64 << a.row
		}
		a.in = max(a.in, age)
	}
	if from, _, ok := a.nth(counted + 1 + unseen); ok {
		age := sent - from
		if age < a.in-a.in/agesSlack {
			a.in = age
			a.contradicted()
		}
		if a.out == 0 || age < a.out {
			a.out = age
		}
		a.in -= max(0, a.in-a.out) / agesFades
	}
	if a.row++; !refused {
		a.row = 0
	}
	a.row = min(a.row, 6)
}

// contradicted takes a response that does not agree with those before.
func (a *ages) contradicted() { a.agree, a.wrong = 0, min(a.wrong+1, agesWrong) }

// returned takes that some requests are no longer counted: all of those that were, as at the end of a window, or only some.
func (a *ages) returned(all bool) {
	switch {
	case a == nil:
	case all:
		a.agree /= 2
	case a.out > 0:
		if a.agree = min(a.agree+1, agesMost); a.agree >= agesAgain {
			a.wrong = 0
		}
	}
}

// known reports whether responses agree on the age up to which requests are counted.
func (a *ages) known() bool {
	return a != nil && a.wrong < agesWrong && a.agree >= agesSure && a.out > 0 && a.in >= a.out-a.out/agesTight
}

// age returns it, as it is certain that older ones are not counted.
func (a *ages) age() int64 { return max(a.in, a.out) }

// gone returns when the n-th last of the accepted requests is no longer counted; of n below 1: one that has no response yet.
func (a *ages) gone(n int64) (at meter.Instant, ok bool) {
	to := a.last
	if ok = n < 1; !ok {
		_, to, ok = a.nth(n)
	}
	return meter.AddInstant(to, a.age()), ok
}

// size returns how many bytes they take.
func (a *ages) size() int {
	if a == nil {
		return 0
	}
	return int(unsafe.Sizeof(*a)) + cap(a.marks)*int(unsafe.Sizeof(a.last))
}
