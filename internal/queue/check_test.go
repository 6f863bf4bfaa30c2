package queue

import (
	"errors"
	"slices"
	"time"
)

// Check returns what contradicts the invariants of the core, which hold whenever Mu is free and no timer is late.
func (l *Core) Check() error {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	c := checker{l: l, now: Instant(time.Since(l.Start))}
	c.holds(l.order.IsChecked() && len(l.loans) == 0, "a change has not ended")
	c.holds(l.order.Len() == l.Counts.Waiting, "another number of requests waits than was counted")
	c.holds(l.armed == l.order.Wake() && l.armed > c.now, "the timer is not set for the next request that can go")
	kept, callers := 0, 0
	for _, li := range l.Limits {
		kept += len(li.Buckets)
		for key, b := range li.Buckets {
			c.holds(key == b.Key, "a bucket is kept under another key")
		}
		waiting := 0
		for b := range l.allLocked([]*Limit{li}) {
			waiting += b.Waiting()
			callers += b.Callers()
			c.bucket(b)
		}
		c.holds(waiting == li.Counts.Waiting, "another number of requests waits in a limit than was counted")
	}
	c.holds(callers == l.order.Callers(), "another number of callers waits than was counted")
	c.holds(kept == l.keys.Len() && len(l.Gates) == l.gateKeys.Len(), "a keeper does not have all buckets")
	for _, b := range l.Gates {
		c.bucket(b)
	}
	c.hosts()
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

// kept returns the bucket that is kept in the place of b.
func (c *checker) kept(b *Bucket) *Bucket {
	if g, ok := b.Meter.(*GateBucket); ok {
		return c.l.Gates[gateID{g.Party, g.family}]
	}
	return b.Limit.bucket(b.Key)
}

// hosts checks that hosts and parties are kept for gates alone.
func (c *checker) hosts() {
	gates, said := 0, 0
	for _, h := range c.l.hosts {
		c.holds(len(h.parties) > 0, "a host without parties is kept")
		for nth, p := range h.parties {
			c.holds(h == p.Host && nth == int(p.nth) && p == h.find(p.Key) && len(p.gates) > 0, "a party is at another host, or without gates")
			gates, said = gates+len(p.gates), said+int(p.size)
			lined := 0
			for _, b := range p.gates {
				g := b.Meter.(*GateBucket)
				c.holds(p == g.Party && b == c.kept(b), "a gate is of another party, or not kept")
				if b.HasLines() {
					lined++
					c.holds(b == p.lined[g.at-1], "a gate with waiters is not where it says")
				}
			}
			c.holds(len(p.lined) == lined, "a party lists other gates")
		}
	}
	c.holds(gates == len(c.l.Gates), "a gate has no party")
	c.holds(said == c.l.said, "what servers said is counted wrongly")
}

// bucket checks that what requests wait for is kept, and that a store is asked in time.
func (c *checker) bucket(b *Bucket) {
	if b.Extra == nil {
		return
	}
	c.holds(!b.HasLines() || b == c.kept(b), "a request waits for a bucket that was forgotten")
	if b.loan == nil {
		c.holds(b.Armed == Never, "a timer is set for no loan")
		return
	}
	n, now := b.loan, c.now
	c.holds(b.Meter == n.Borrower, "a loan is of another meter")
	c.holds(n.IsQueued() == slices.Contains(n.Supply().Asking(), b), "a bucket is not where it says among those that ask")
	c.holds(b.Armed > now, "a timer was not set again")
	if ask := n.AskAt(now, b.demandLocked(now)); ask < Never && !n.IsQueued() {
		c.holds(b.Armed <= max(ask, n.RetryAt()), "the store is not asked in time")
	}
}
