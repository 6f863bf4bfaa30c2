package quota

import "github.com/httpthrottle/throttle/internal/meter"

const (
	agesMarks = 64 // remembered, at most
	agesSure  = 4  // responses that agree show that the quota counts by age
	agesMost  = 16 // of them count
	agesSlack = 16 // of an age: by so small a part ages differ because some requests take longer than others
	agesOld   = 64 // of what an age is longer than another one that was too long: so much
)

// ages are how old requests are when the server stops to count them. A response that reports how many requests are counted shows
// it: the last so many are, and the one before is not. If all such responses agree, a request is accepted as soon as one that is counted reaches that
// age: so it is in a log of requests, and in any window or bucket as long as all of it is used.
type ages struct {
	per   int64 // requests for each mark
	n     int64 // accepted requests
	last  meter.Instant
	marks [agesMarks]meter.Instant // when the first of each per accepted requests was sent
	in    int64                    // requests of that age are counted
	out   int64                    // requests of that age are not; 0: it is not known
	agree int8                     // responses
	row   int8
}

func newAges(limit int64) *ages { return &ages{per: limit/(agesMarks-8) + 1} }

// add takes an accepted request.
func (a *ages) add(sent meter.Instant) {
	if a.last = max(a.last, sent); a.n%a.per == 0 {
		a.marks[a.n/a.per%agesMarks] = a.last
	}
	a.n++
}

// nth returns between which times the n-th last of the accepted requests was sent.
func (a *ages) nth(n int64) (from, to meter.Instant, ok bool) {
	at := a.n - n
	if n < 1 || at < 0 || (a.n-1)/a.per-at/a.per >= agesMarks {
		return 0, 0, false
	}
	from, to = a.marks[at/a.per%agesMarks], a.last
	switch next := at/a.per + 1; {
	case at%a.per == 0:
		to = from
	case next*a.per < a.n:
		to = a.marks[next%agesMarks]
	}
	return from, to, true
}

// shows takes how many requests are counted when one was sent, besides some whose responses have not come.
func (a *ages) shows(sent meter.Instant, counted, unseen int64, refused bool) {
	if _, to, ok := a.nth(counted - unseen); ok {
		age := sent - to
		if a.out > 0 && age > a.out+a.out/agesSlack {
			a.agree, a.out = a.agree/2, 0
		}
		if a.in = max(a.in, age); refused {
			a.in = max(a.in, age+(age/64)<<a.row)
			a.row = min(a.row+1, 6)
		} else {
			a.row = 0
		}
	}
	if from, _, ok := a.nth(counted + 1 + unseen); ok {
		age := sent - from
		if age < a.in-a.in/agesSlack {
			a.agree, a.in = a.agree/2, age
		}
		if a.out == 0 || age < a.out {
			a.out = age
		}
		if a.in > a.out {
			a.in -= (a.in - a.out) / agesOld
		}
	}
}

// returned takes that some requests are no longer counted: few of those that were, or most of them, as at the end of a window.
func (a *ages) returned(few bool) {
	switch {
	case a == nil:
	case few:
		a.agree = min(a.agree+1, agesMost)
	default:
		a.agree /= 2
	}
}

// known reports whether the server counts by age.
func (a *ages) known() bool { return a != nil && a.agree >= agesSure && a.out > 0 }

// gone returns when the n-th last of the accepted requests is no longer counted; n below 1: one that is in flight.
func (a *ages) gone(n int64) (at meter.Instant, ok bool) {
	if n < 1 {
		return a.last + max(a.in, a.out), true
	}
	_, to, ok := a.nth(n)
	return to + max(a.in, a.out), ok
}
