package meter

// Doubts keep the state of an S from before refusals whose bodies may say that they are none. If all of them say so, it is as if
// the refusals had not been. One that stands makes what they have changed stand, too.
type Doubts[S any] struct{ last *doubt[S] }

type doubt[S any] struct {
	before S
	since  Instant
	open   int // refusals of which nothing more is known yet
}

// doubtFor is for how long a state is kept. A body that is read later changes nothing: too much may have been learned since.
const doubtFor = 10 * second

// Open keeps the state before a refusal. It returns a function to call once the body has been read: excused says that the response
// is no refusal. The function returns the state to return to; nil: what was changed stays.
func (d *Doubts[S]) Open(now Instant, before S) (end func(now Instant, excused bool) *S) {
	x := d.last
	if x == nil || now > x.since+doubtFor {
		x = &doubt[S]{before: before, since: now}
		d.last = x
	}
	x.open++
	return func(now Instant, excused bool) *S {
		if x != d.last {
			return nil
		}
		if x.open--; excused && x.open > 0 {
			return nil
		}
		if d.last = nil; excused && now <= x.since+doubtFor {
			return &x.before
		}
		return nil
	}
}

// Stand makes what has been changed stand.
func (d *Doubts[S]) Stand() { d.last = nil }
