package store

import (
	"cmp"
	"math"
	"slices"
)

// A queue has the asks with Queue that wait for tokens of a budget, in the order in which the requests came to the store: an ask has the same
// place in all of its budgets. It reserves nothing.
type queue []waiting

// A waiting ask needs tokens, of a bucket or a pace in units, and has its place until an instant.
type waiting struct{ place, tokens, until int64 }

const mostWaiting = 64 // more have no place

// clear removes those that did not come, and those of a time that the clock has not reached again.
func (q *queue) clear(now int64) {
	*q = slices.DeleteFunc(*q, func(w waiting) bool { return w.until < now || w.place > now+linger })
}

// ahead returns how much an ask has to let others have.
func (q queue) ahead(c *Call) (tokens int64) {
	for _, w := range q {
		if c.Queued == 0 || w.place < c.Queued {
			tokens = min(tokens+w.tokens, mostUnits)
		}
	}
	return tokens
}

// enter puts an ask at its place.
func (q *queue) enter(w waiting) {
	i, has := q.find(w.place)
	switch {
	case has:
		(*q)[i] = w
	case len(*q) < mostWaiting:
		*q = slices.Insert(*q, i, w)
	}
}

// leave removes an ask that got its tokens.
func (q *queue) leave(c *Call) {
	if i, has := q.find(c.Queued); has {
		*q = slices.Delete(*q, i, i+1)
	}
}

func (q queue) find(place int64) (i int, has bool) {
	return slices.BinarySearchFunc(q, place, func(w waiting, place int64) int { return cmp.Compare(w.place, place) })
}

// last returns until when any of them has its place.
func (q queue) last() (at int64) {
	for _, w := range q {
		at = max(at, w.until)
	}
	return at
}

// hasQueue is the state of a budget that has a queue.
type hasQueue interface {
	line() *queue
	// turn returns how long to wait until the Need of c comes in behind what others wait for, and how much that is; 0: it has.
	turn(c *Call, now int64) (wait, tokens int64)
}

// queues reports whether an ask may wait for its turn in a budget.
func (c *Call) queues() bool { return c.Queue && c.Kind != Calendar && c.Kind != Slots }

// enter has an ask wait behind others. All parts have the place of the one that has waited longest. An ask comes again at the turn of the part
// whose turn comes last. If that is too late, it has no place. Asks for a budget do not wait for one that others delay for twice as long. A
// place is kept for a second after the turn, and no longer than the request can use tokens.
func enter(calls []Call, states []state, leased []LeasedPart, now int64) {
	place, after := int64(0), now
	for i := range calls {
		if c := &calls[i]; c.queues() {
			if c.Queued > 0 && (place == 0 || c.Queued < place) {
				place = c.Queued
			}
			if line := *states[i].(hasQueue).line(); len(line) > 0 {
				after = max(after, line[len(line)-1].place+1)
			}
		}
	}
	last, until := int64(0), int64(math.MaxInt64)
	for i := range calls {
		if c := &calls[i]; c.queues() {
			if c.Queued != place {
				states[i].(hasQueue).line().leave(c)
			}
			c.Queued = place
			turn, _ := states[i].(hasQueue).turn(c, now)
			leased[i].Turn = micros(turn)
			last, until = max(last, turn), min(until, mulSat(c.Ticks, c.Tick))
		}
	}
	if last > until {
		return
	}
	for i := range calls {
		c := &calls[i]
		if !c.queues() {
			continue
		}
		if leased[i].ID = place; place == 0 {
			leased[i].ID = after
		}
		if turn, tokens := states[i].(hasQueue).turn(c, now); turn > last/2 {
			states[i].(hasQueue).line().enter(waiting{leased[i].ID, tokens, now + min(last+linger, until)})
		}
	}
}
