package queue

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// Check returns what contradicts the invariants of the core, which hold whenever Mu is free and no timer is late.
func (l *Core) Check() error {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	c := checker{l: l, now: Instant(time.Since(l.Start))}
	c.holds(len(l.dirty) == 0, "a bucket is dirty")
	waiting := 0
	for id, ln := range l.Lines {
		waiting += ln.size
		c.holds(id == ln.id, "a line is kept under another name")
		c.holds(slices.Contains(ln.Queue.lines, ln), "a queue does not have its line")
		c.line(ln)
	}
	c.holds(waiting == l.Counts.Waiting, "another number of requests waits than was counted")
	for id, q := range l.queues {
		c.holds(id == q.id && len(q.lines) > 0, "a queue is kept under another name, or is empty")
		c.queue(q)
	}
	kept, callers := 0, 0
	for _, li := range l.Limits {
		kept += len(li.Buckets)
		for key, b := range li.Buckets {
			c.holds(key == b.Key, "a bucket is kept under another key")
		}
		c.holds(li.latest == nil || li.latest == li.Buckets[li.latest.Key], "a limit finds a bucket that was forgotten")
		for b := range l.allLocked([]*Limit{li}) {
			c.bucket(b)
			callers += c.turns(b)
		}
	}
	c.holds(callers == l.Callers, "another number of callers waits than was counted")
	c.holds(kept == l.keys.size() && len(l.Gates) == l.gateKeys.size(), "a keeper does not have all buckets")
	c.holds(l.latest == nil || l.latest == l.Gates[l.latest.Meter.(*GateBucket).Key], "a gate is found that was forgotten")
	c.keeper(&l.keys)
	c.keeper(&l.gateKeys)
	for _, b := range l.Gates {
		c.bucket(b)
	}
	c.hosts()
	return errors.Join(c.faults...)
}

// CheckLocked returns what contradicts the invariants at a bucket at that instant.
func (l *Core) CheckLocked(b *Bucket, now Instant) error {
	c := checker{l: l, now: now}
	c.bucket(b)
	return errors.Join(c.faults...)
}

// A checker collects what contradicts the invariants.
type checker struct {
	l      *Core
	now    Instant
	faults []error
}

func (c *checker) holds(ok bool, fault string) {
	if !ok {
		c.faults = append(c.faults, errors.New(fault))
	}
}

// keeper checks that the buckets of a keeper are where they say, and still kept.
func (c *checker) keeper(k *keeper) {
	for _, h := range []BucketHeap{k.idle, k.busy} {
		for i, b := range h {
			c.holds(i == int(b.Place) && h.first() <= b.lookAt, "a bucket is not where it says, or this is not a heap")
			c.holds(b == c.kept(b), "a bucket is in a keeper that is not kept")
		}
	}
	for _, b := range k.idle {
		c.holds(!b.busy, "a busy bucket is among the idle ones")
	}
	for _, b := range k.busy {
		c.holds(b.busy, "an idle bucket is among the busy ones")
	}
}

// kept returns the bucket that is kept in the place of b.
func (c *checker) kept(b *Bucket) *Bucket {
	if g, ok := b.Meter.(*GateBucket); ok {
		return c.l.Gates[g.Key]
	}
	return b.Limit.bucket(b.Key)
}

// queue checks what a queue knows of its lines.
func (c *checker) queue(q *Queue) {
	size, vocal := 0, 0
	totals := make([]int64, q.stops())
	for nth, ln := range q.lines {
		c.holds(q == ln.Queue && nth == ln.nth, "a line is not where it says")
		size += ln.size
		if ln.Vocal {
			vocal++
		}
		for i := range q.stops() {
			totals[i] = meter.AddCount(totals[i], ln.root.sums()[i])
			c.holds(q.mosts[i] >= ln.root.mosts()[i], "a request costs more than its queue knows")
		}
		for w := ln.First; w != nil; w = w.Next() {
			c.holds(q.tightest <= w.tight(), "a request has an earlier limit than its queue knows")
			c.holds(!q.latest.Before(&w.Place), "a request comes after the last one that its queue knows")
		}
	}
	c.holds(size == q.size && vocal == q.Vocal, "a queue has another size, or other vocal lines, than it knows")
	for i := range q.totals {
		c.holds(totals[i] == q.totals[i].count(), "the requests of a queue cost something else than it knows")
	}
}

// hosts checks that hosts and parties are kept for gates alone.
func (c *checker) hosts() {
	gates := 0
	for _, h := range c.l.Hosts {
		c.holds(len(h.parties) > 0, "a host without parties is kept")
		for _, p := range h.parties {
			c.holds(h == p.Host && len(p.gates) > 0, "a party is at another host, or without gates")
			gates += len(p.gates)
			lined, stopped := 0, 0
			for b := range p.gates {
				g := b.Meter.(*GateBucket)
				c.holds(p == g.Party && b == c.kept(b), "a gate is of another party, or not kept")
				if len(b.Lines) > 0 {
					lined++
					c.holds(b == p.Lists[LinedGates][g.at[LinedGates]-1], "a gate with waiters is not where it says")
				}
				if len(b.Stopped) > 0 {
					stopped++
					c.holds(b == p.Lists[stoppedGates][g.at[stoppedGates]-1], "a gate that stops waiters is not where it says")
				}
			}
			c.holds(len(p.Lists[LinedGates]) == lined && len(p.Lists[stoppedGates]) == stopped, "a party lists other gates")
			c.holds(p.Vocal || p.account.Silent(), "a party counts as silent, and its server has told something")
		}
	}
	c.holds(gates == len(c.l.Gates), "a gate has no party")
}

// line checks that a line is not empty, and stopped somewhere.
func (c *checker) line(ln *Line) {
	waiters, _, err := ln.check()
	if err != nil {
		c.faults = append(c.faults, err)
	}
	c.holds(len(waiters) > 0, "a line is empty")
	stopped := 0
	for i := range ln.Stops {
		s := &ln.Stops[i]
		b := s.Bucket
		c.holds(ln == s.Line && i == s.index && s == b.Lines[s.lined], "a stop is not where it says")
		c.holds(b == c.kept(b), "a request waits for a bucket that was forgotten")
		if s.pos >= 0 {
			stopped++
			c.holds(s == b.Stopped[s.pos], "a stop is not where it says")
		}
	}
	c.holds(stopped > 0, "a line is stopped nowhere")
	c.holds(!ln.Starved || stopped == len(ln.Stops), "a starved line does not bar all its buckets")
	c.holds(!ln.Starved || ln.First.Passed < Never, "no request was passed over")
	for _, w := range waiters {
		c.holds(w.Verdict == Waiting, "a request in line is decided")
	}
}

// bucket checks that the first request that is stopped at a bucket cannot go, and that its timer is set for when it can.
func (c *checker) bucket(b *Bucket) {
	if b.Extra == nil {
		return
	}
	c.holds(b.dirty == 0, "a bucket was not served")
	for i, s := range b.Lines {
		c.holds(i == s.lined && s.Line == c.l.Lines[s.Line.id], "a stop is not where it says")
	}
	for i, s := range b.Stopped {
		c.holds(i == s.pos && b == s.Bucket, "a stop is not where it says")
		c.holds(!b.before(s.Line, b.Stopped[0].Line), "the lines that are stopped here are not a heap")
	}
	switch {
	case b.loan != nil:
		c.loan(b)
	case len(b.Stopped) == 0:
		c.holds(b.Armed == Never, "a timer is set for no waiter")
	default:
		c.timer(b)
	}
}

func (c *checker) timer(b *Bucket) {
	const fault = "the timer is not set for the first request that is stopped here"
	top, now := b.Stopped[0], c.now
	ready := top.readyAt()
	switch {
	case b.Limit.Wall: // it looks at the wall clock before
		c.holds(b.Armed > now && b.Armed <= now+wallCheck && (ready <= now || b.Armed <= ready), fault)
	case b.Limit == c.l.Gate && ready > now && ready < Never: // what others of its party took may have moved it later
		c.holds(b.Armed <= ready, fault)
	case ready > now && ready < Never:
		c.holds(b.Armed == ready, fault)
	default:
		c.holds(b.Armed == Never, "a timer is set for a request that can go, or never can")
	}
	if ready <= now {
		c.holds(top.Line.Starved && slices.ContainsFunc(top.Line.Stops, func(s Stop) bool { return s.readyAt() > now || s.barred() }),
			"the first request that is stopped here can go")
	}
}

// loan checks that a shared bucket asks its store in time, and that the first request that is stopped there is not forgotten.
func (c *checker) loan(b *Bucket) {
	n, now := b.loan, c.now
	c.holds(b.Meter == n.Borrower, "a loan is of another meter")
	c.holds(n.queued == slices.Contains(n.supply.asking, b), "a bucket is not where it says among those that ask")
	c.holds(n.supply.calls >= 0 && n.supply.calls <= MaxCalls && n.supply.late <= MaxCalls, "too many calls of a store")
	c.holds(b.Armed > now, "a timer was not set again")
	if ask := n.AskAt(now, b.demandLocked(now)); ask < Never && !n.queued {
		c.holds(b.Armed <= max(ask, n.outage.again), "the store is not asked in time")
	}
	if len(b.Stopped) > 0 {
		if ready := b.Ready(0, 0, b.Stopped[0].cost()); ready > now && ready < Never {
			c.holds(b.Armed <= ready, "the timer is not set for the first request that is stopped here")
		}
	}
}

// turns checks what holds of the turns at a bucket, and returns how many callers wait there.
func (c *checker) turns(b *Bucket) (callers int) {
	if b.Turns() == nil {
		c.holds(b.Limit != c.l.Fair || !b.HasLines(), "callers wait, and take no turns")
		return 0
	}
	c.holds(len(b.Lines) > 0, "callers take turns where no request waits")
	t := b.Fair
	waiting, active, weights := 0, 0, int64(0)
	for name, one := range t.Callers {
		c.holds(name == one.name, "a caller is kept under another name")
		if one.First == nil {
			c.holds(one.last == nil && t.idle[one.place] == one, "a caller with nothing in line is not where it says")
			c.holds(t.idle[max(0, one.place-1)/2].end <= one.end, "idle callers are out of order")
			continue
		}
		c.holds(one.place == -1, "a caller with requests in line is among the idle ones")
		active++
		weights += one.weight
		waiting += c.caller(one)
	}
	callers += active
	c.holds(t.waiting == waiting && t.active == active && t.weights == weights, "the callers at a bucket were counted wrongly")
	c.holds(len(t.idle) == len(t.Callers)-active && t.now <= t.later, "a caller is lost, or turns go back")
	return callers
}

// caller checks the requests of a caller, and returns how many there are.
func (c *checker) caller(one *caller) (waiting int) {
	stale := false
	for w, end := one.First, one.First.Tag; w != nil; w = w.Seat.Later {
		waiting++
		stale = stale || w == one.stale
		c.holds(stale || end == w.Tag, "a tag does not follow the one before")
		c.holds(w != one.First || !stale, "the first of a caller has a stale tag")
		end = one.after(w.Tag, w.taken())
		c.holds(stale || w != one.last || end == one.end, "the end of a caller is not that of its last request")
		c.holds(w == one.last || w.Seat.Later.Seat.earlier == w && w.seq < w.Seat.Later.seq, "requests of a caller are out of order")
	}
	c.holds(waiting == one.size, "the requests of a caller were counted wrongly")
	return waiting
}

// check walks a line from the root of its tree. It returns its waiters in order, how deep the tree is, and what contradicts
// its invariants.
func (ln *Line) check() (inOrder []*Waiter, depth int, err error) {
	var faults []error
	holds := func(ok bool, fault string) {
		if !ok {
			faults = append(faults, errors.New(fault))
		}
	}
	var walk func(w, parent *Waiter, level int)
	walk = func(w, parent *Waiter, level int) {
		if w == nil {
			return
		}
		depth = max(depth, level)
		holds(parent == w.parent && ln == w.line, "not a tree")
		holds(parent == nil || parent.weight >= w.weight, "not a heap by weight")
		first := len(inOrder)
		walk(w.left, w, level+1)
		inOrder = append(inOrder, w)
		walk(w.right, w, level+1)
		upTo := int64(0)
		for _, other := range inOrder[first:] {
			upTo = meter.AddCount(upTo, other.paced())
			holds(other.tight() >= w.bound+w.slope*upTo, "a request is too late at the bound")
		}
		for i, sum := range w.costs {
			most := sum
			for _, below := range []*Waiter{w.left, w.right} {
				if below != nil {
					sum = meter.AddCount(sum, below.sums()[i])
					most = max(most, below.mosts()[i])
				}
			}
			holds(sum == w.sums()[i], "a sum of costs is wrong")
			holds(most == w.mosts()[i], "a largest cost is wrong")
		}
	}
	walk(ln.root, nil, 1)
	if len(inOrder) != ln.size {
		faults = append(faults, fmt.Errorf("%d waiters in a line of %d", len(inOrder), ln.size))
	}
	var before *Waiter
	for _, w := range inOrder {
		if before == nil {
			holds(ln.First == w, "another is the first")
		} else {
			holds(before.Before(&w.Place), "out of order")
			holds(before.Next() == w, "another is the next")
		}
		before = w
	}
	if before == nil {
		holds(ln.First == nil, "an empty line has a first")
	} else {
		holds(before.Next() == nil, "the last has a next")
	}
	return inOrder, depth, errors.Join(faults...)
}
