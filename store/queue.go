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

// ahead returns how much an ask has to let others have whose turns come from one instant on, and before another one.
func (q queue) ahead(c *Call, from, before int64) (tokens int64) {
	for _, w := range q {
		if at := w.until - linger; (c.Queued == 0 || w.place < c.Queued) && from <= at && at < before {
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
	// turn returns how long to wait until Need of c may have come in behind what others wait for: after, or longer.
	turn(c *Call, now, after int64) int64
}

// queues reports whether an ask may wait for its turn in a budget.
func (c *Call) queues() bool { return c.Queue && c.Kind != Calendar && c.Kind != Slots }

// turnOf returns how long to wait until all parts may have what they need.
func turnOf(calls []Call, states []state, now int64) (after int64) {
	for before := int64(-1); after > before; {
		before = after
		for i := range calls {
			if c := &calls[i]; c.queues() {
				after = states[i].(hasQueue).turn(c, now, after)
			}
		}
	}
	return after
}

// enter has an ask wait behind others. All parts have the place of the one that has waited longest. An ask comes again when all of them may
// have what they need. If that is too late, it has no place. Asks for a budget do not wait for one that others delay for twice as long, except
// those that come in the same fixed window. A place is kept for a second after the turn, and no longer than the request can use tokens.
func enter(calls []Call, states []state, leased []LeasedPart, now int64) {
	place, after, until := int64(0), now, int64(math.MaxInt64)
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
	for i := range calls {
		if c := &calls[i]; c.queues() {
			if c.Queued != place {
				states[i].(hasQueue).line().leave(c)
			}
			c.Queued = place
			leased[i].Turn = micros(turnOf(calls[i:i+1], states[i:i+1], now))
			until = min(until, mulSat(c.Ticks, c.Tick))
		}
	}
	last := turnOf(calls, states, now)
	if last > until {
		return
	}
	if place == 0 {
		place = after
	}
	for i := range calls {
		c := &calls[i]
		if !c.queues() {
			continue
		}
		p, s := &leased[i], states[i].(hasQueue)
		p.ID = place
		delayed := p.Turn <= micros(last)/2 // by others
		if !delayed {
			p.Turn = micros(last)
		}
		tokens := c.Need
		if b, ok := s.(*bucketState); ok {
			tokens = mulSat(c.Need, b.per)
		}
		if !delayed || c.Kind == Fixed {
			s.line().enter(waiting{place, tokens, now + min(last+linger, until)})
		}
	}
}
