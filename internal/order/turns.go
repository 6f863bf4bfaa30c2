package order

import "strings"

// This file is how callers take turns at a point, by start-time fair queueing (Goyal, Vin and Cheng, "Start-time Fair Queueing: A
// Scheduling Algorithm for Integrated Services Packet Switching Networks", SIGCOMM 1996). A caller has a start tag: the finish
// tag of what it was granted last, which is cost/weight after the start tag of that request, but not before the start tag that
// was granted last of all. The first requests of callers go in the order of these tags, and of rank where they are equal, as
// those of callers mostly are that had no request waiting. The others have no tags: what is known of their turns is a lower bound,
// because requests of other callers that come later may go before them.

const (
	tagScale  = 1 << 11 // of a cost of 1 at weight 1; so every request takes two units of tags at least
	MaxWeight = 1000
	maxTag    = Never / 2
)

// A turns holds the callers that take turns at one point.
type turns struct {
	now     int64 // the largest start tag granted
	active  int   // callers with requests waiting
	weights int64 // of these
	callers map[string]*caller
	idle    heapOf[*caller] // by tag
	debts   round

	// As long as callers keep coming that had no request waiting, their start tags are all now, and no other would ever be granted.
	// So turned rises with what is granted at now, as now would if the callers that wait were served at the same time, by weight.
	// Once it is two requests ahead, callers that come from since on start later; see startOf.
	turned int64
	part   int64 // by how much it was rounded down, times weights
	later  int64 // never before now
	since  Instant
}

// A caller has requests waiting that fall under one point, or had one granted a moment ago.
type caller struct {
	entry  // in turns.idle; in no heap: it has requests waiting
	turns  *turns
	point  *Point
	name   string
	weight int64
	tag    int64 // of its first request
	rest   int64 // by how much the tag was rounded down, times weight
	queues []*queue
}

// scaled returns a cost in units of tags, at weight 1.
func scaled(cost int64) int64 { return max(0, min(cost, maxTag/tagScale)) * tagScale }

// start returns the start tag of a request that comes after others of the caller that cost so much.
func (c *caller) start(before int64) int64 {
	if before == 0 {
		return c.tag
	}
	tag, _ := c.after(max(c.tag, c.turns.now), before)
	return tag
}

// after returns the tag after a cost that starts at tag, and by how much it is rounded down.
func (c *caller) after(tag, cost int64) (finish, rest int64) {
	if tag == c.tag {
		rest = c.rest
	}
	sum := scaled(cost) + rest
	return min(tag+sum/c.weight, maxTag), sum % c.weight
}

// until returns the least cost after which the tag of the caller is no longer before a turn.
func (c *caller) until(turn int64) int64 {
	if c.tag >= turn {
		return 0
	}
	start := max(c.tag, c.turns.now)
	_, rest := c.after(start, 0)
	by := max(0, min(turn-start, maxTag/MaxWeight))
	return max(1, (by*c.weight-rest+tagScale-1)/tagScale)
}

// startOf returns the start tag of w if its caller had no request waiting. c is what is known of the caller, and cost what w costs
// here. Where it does not start now, it starts just before it would be finished if it did. So its caller falls behind by less than
// that cost, and no caller whose requests are as large goes twice before it.
func (t *turns) startOf(c *caller, w *Waiter, cost int64) int64 {
	tag := t.now
	if w.Rank >= t.since {
		tag = max(tag, min(t.later, t.now+scaled(cost)/weightOf(w.Weight)-1))
	}
	if c != nil {
		tag = max(tag, c.tag)
	}
	return tag
}

// weightOf returns a weight within its bounds.
func weightOf(weight int64) int64 { return max(1, min(weight, MaxWeight)) }

// callerOf returns the caller of a request that joins, and costs so much here.
func (p *Point) callerOf(w *Waiter, cost int64) *caller {
	if p.turns == nil {
		p.turns = &turns{callers: make(map[string]*caller)}
	}
	t := p.turns
	c := t.callers[w.Caller]
	tag := t.startOf(c, w, cost)
	if c == nil {
		c = t.caller(p, w.Caller)
	}
	if weight := weightOf(w.Weight); c.weight != weight {
		if len(c.queues) > 0 {
			t.weights += weight - c.weight
		}
		c.weight, c.rest = weight, 0
	}
	if len(c.queues) == 0 {
		c.wake(tag)
	}
	return c
}

// caller returns a new caller.
func (t *turns) caller(p *Point, name string) *caller {
	c := &caller{turns: t, point: p, name: strings.Clone(name), weight: 1, tag: t.now}
	t.callers[c.name] = c
	return c
}

// wake sets the tag of a caller that has had no request waiting.
func (c *caller) wake(tag int64) {
	c.turns.idle.Remove(c)
	if c.tag != tag || tag <= c.turns.now {
		c.tag, c.rest = tag, 0
	}
}

// enter adds a queue of the caller.
func (c *caller) enter(q *queue) {
	if len(c.queues) == 0 {
		c.turns.active++
		c.turns.weights += c.weight
	}
	q.ofNth = len(c.queues)
	c.queues = append(c.queues, q)
}

// quit removes it.
func (c *caller) quit(q *queue) {
	t, n := c.turns, len(c.queues)-1
	c.queues[q.ofNth], c.queues[n].ofNth = c.queues[n], q.ofNth
	c.queues[n] = nil
	if c.queues = c.queues[:n]; n > 0 {
		return
	}
	t.active--
	t.weights -= c.weight
	if t.active == 0 {
		c.point.turns = nil // nothing is kept of callers where none waits
		return
	}
	t.retire(c)
}

// retire keeps a caller with no request waiting, or forgets it if its tag makes no difference.
func (t *turns) retire(c *caller) {
	if c.tag > t.now {
		t.idle.Put(c, key{major: c.tag})
	} else {
		delete(t.callers, c.name)
	}
	for range 2 { // more than come in
		if len(t.idle) == 0 || t.idle[0].tag > t.now {
			return
		}
		idle := t.idle[0]
		t.idle.Remove(idle)
		delete(t.callers, idle.name)
	}
}

// pay moves the tag of a caller on by a request that is granted.
func (o *Order) pay(c *caller, w *Waiter, at Instant) {
	t, cost := c.turns, w.Costs[w.queue.lane.line.fair]
	start := max(c.tag, t.now)
	finish, rest := c.after(start, cost)
	if start > t.now {
		t.now, t.turned, t.part = start, start, 0
		t.later = max(t.later, t.now)
	}
	t.part += scaled(cost)
	t.turned, t.part = min(t.turned+t.part/t.weights, maxTag), t.part%t.weights
	if t.turned-t.later >= 2*(finish-start) && t.turned < maxTag {
		if t.later == t.now {
			t.since = at
		}
		t.later = t.turned
	}
	o.retag(c, finish, rest, w.queue)
}

// retag gives a caller another tag. It puts its queues in their places, except one.
func (o *Order) retag(c *caller, tag, rest int64, except *queue) {
	c.tag, c.rest = tag, rest
	for _, q := range c.queues {
		if q != except {
			o.requeue(q)
		}
	}
}

// Correct moves the turn of a caller on by a cost at a point that it was charged too little, or back if it was charged too much
// and the cost is negative.
func (o *Order) Correct(p *Point, name string, weight, more int64) {
	t := p.turns
	if t == nil || more == 0 {
		return
	}
	c := t.callers[name]
	if c == nil || len(c.queues) == 0 && c.tag <= t.now {
		if more < 0 {
			return
		}
		if c == nil {
			c = t.caller(p, name)
			c.weight = weightOf(weight)
		}
		c.wake(t.now)
	}
	by := scaled(max(more, -more)) / c.weight
	if more < 0 {
		by = -by
	}
	tag := max(t.now, min(c.tag+by, maxTag))
	if len(c.queues) > 0 {
		o.retag(c, tag, 0, nil)
		return
	}
	c.wake(tag)
	t.retire(c)
}
