package limiter

import (
	"errors"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
)

// Check returns what contradicts the invariants of the core, which hold whenever mu is free and no timer is late.
func (l *Core) Check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := checker{l: l, now: meter.Instant(time.Since(l.Start))}
	c.holds(l.order.IsChecked() && !l.leases.HasMarked(), "a change has not ended")
	c.holds(l.order.Len() == l.counts.Waiting, "another number of requests waits than was counted")
	c.holds(l.armed == min(l.order.Wake(), l.nextEndLocked()) && l.armed > c.now, "the timer is not set for the next request that can go, or whose MaxWait ends")
	kept, callers := 0, 0
	for _, li := range l.Limits {
		kept += li.Keys()
		for b := range li.All() {
			c.holds(li.Bucket(b.Key) == b, "a bucket is kept under another key")
		}
		waiting := 0
		for b := range l.allLocked([]*bucket.Limit{li}) {
			waiting += b.Waiting()
			callers += b.Callers()
			c.bucket(b)
		}
		c.holds(waiting == li.Counts.Waiting, "another number of requests waits in a limit than was counted")
	}
	c.holds(callers == l.order.Callers(), "another number of callers waits than was counted")
	c.holds(kept == l.keys.Len(), "the keeper does not have all buckets")
	c.gates()
	return errors.Join(c.faults...)
}

// A checker collects what contradicts the invariants.
type checker struct {
	l      *Core
	now    meter.Instant
	faults []error
}

func (c *checker) holds(ok bool, fault string) {
	if !ok {
		c.faults = append(c.faults, errors.New(fault))
	}
}

// kept returns the bucket that is kept in the place of b.
func (c *checker) kept(b *bucket.Bucket) *bucket.Bucket {
	if g, ok := b.Meter.(*quota.Gate); ok {
		if !g.IsKept() {
			return nil
		}
		return ownerOf(g)
	}
	return b.Limit.Bucket(b.Key)
}

// gates checks that each gate has its bucket, and that its account knows where requests wait.
func (c *checker) gates() {
	for g := range c.l.servers.All() {
		b := ownerOf(g)
		c.holds(b.Meter == g && g.IsKept(), "a bucket is of another gate, or of one that was forgotten")
		c.holds(slices.Contains(g.Account.Waiting(), g) == (b.Waiting() > 0), "an account lists other gates than those with waiters")
		c.bucket(b)
	}
}

// bucket checks that what requests wait for is kept, and that a store is asked in time.
func (c *checker) bucket(b *bucket.Bucket) {
	c.holds(b.Waiting() == 0 || b == c.kept(b), "a request waits for a bucket that was forgotten")
	n, now, alarm := b.Leased(), c.now, c.l.leases.AlarmOf(b)
	if n == nil {
		c.holds(alarm == meter.Never, "a timer is set for no lease")
		return
	}
	c.holds(b.Meter == n.Meter, "a lease is of another meter")
	c.holds(n.IsQueued() == slices.Contains(n.Supply().Asking(), b), "a bucket is not where it says among those that ask")
	c.holds(alarm > now, "a timer was not set again")
	if ask := n.AskAt(now, b.Demand(now)); ask < meter.Never && !n.IsQueued() {
		c.holds(alarm <= max(ask, n.RetryAt()), "the store is not asked in time")
	}
}
