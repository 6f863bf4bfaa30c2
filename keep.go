package throttle

import (
	"container/heap"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
)

// A bucket is the state of one limit for one key.
type bucket struct {
	limit   *limit
	key     string
	serial  uint64 // tells buckets apart, also those of one key that was forgotten and came back
	meter   meter.Meter
	rate    rate
	held    instant  // nothing goes before
	since   instant  // nobody can have been due before; in a dry run, the last who would have gone goes then
	stopped stopHeap // the lines whose first request can't pay here, or may not go before one that can't
	lines   []*stop  // all lines that fall under this bucket
	timer   *time.Timer
	armed   instant // when timer fires; never: it does not
	dirty   bool    // in Limiter.dirty
	ownRate bool    // as RateFor said
	idle    int     // where Limiter.idle has it; -1: it stays
	idleAt  instant // no later than when it is full again, unless its meter was changed
}

// ready returns when cost can be paid here once ahead has been, not before from.
func (b *bucket) ready(from instant, ahead, cost int64) instant {
	return b.meter.Ready(max(from, b.held, b.since), ahead, cost)
}

// heldUntil returns until when nothing goes, because somebody said so.
func (b *bucket) heldUntil() instant {
	switch m := b.meter.(type) {
	case *aimd.Meter:
		return max(b.held, m.PausedUntil())
	case *gateBucket:
		return max(b.held, m.Account.Until())
	}
	return b.held
}

// plan returns when cost can be paid here once ahead has been, as far as is known: a lower bound for a planner.
func (b *bucket) plan(from instant, ahead, cost int64) instant {
	if p, ok := b.meter.(meter.Planner); ok {
		return p.Plan(max(from, b.held, b.since), ahead, cost)
	}
	return b.ready(from, ahead, cost)
}

// payable reports whether cost can be paid here now.
// waiting returns how many requests in line fall under the bucket.
func (b *bucket) waiting() int {
	n := 0
	for _, s := range b.lines {
		n += s.line.size
	}
	return n
}

// A limit is a Limit at work in one Limiter.
type limit struct {
	single  *bucket // of the key "", which most programs use alone; it is never forgotten
	buckets map[string]*bucket
	gates   bool // its buckets are those of gates
	priced  bool // it says itself what requests cost
	Limit
	size int64 // the burst of keys that have no rate of their own
	peak int   // the most buckets since the map was made
}

// findLocked finds the bucket of a charge, and reports whether there is one.
func (c *charge) findLocked() bool {
	if c.key != "" && !c.limit.gates { // else it is found already
		c.bucket = c.limit.buckets[c.key]
	}
	return c.bucket != nil
}

// payLocked pays all charges if that can be done now, with nobody waiting there. It tells the first whose bucket there is
// not, else -1.
func (l *Limiter) payLocked(charges []charge, by *asker, now instant) (m mark, ok bool, missing int) {
	ok = true
	for i := range charges {
		c := &charges[i]
		if !c.findLocked() {
			return m, false, i
		}
		b := c.bucket
		ok = ok && c.cost >= 0 && len(b.lines) == 0 && max(b.held, b.since) <= now && (i == 0 || b.meter.Payable(now, c.cost))
	}
	if ok && len(charges) > 0 {
		c := &charges[0]
		c.paid, ok = c.bucket.meter.Spend(now, c.cost)
		charges = charges[1:]
	}
	if ok {
		m = l.takeLocked(charges, by, now)
	}
	return m, ok, -1
}

// payAllLocked is payLocked with every bucket made that there is not, with those rates, and costs brought down to what can be
// paid where limits say so. It tells the first for which there is no room.
func (l *Limiter) payAllLocked(charges []charge, rates []rate, by *asker, now instant) (m mark, ok bool, missing *charge) {
	for i := range charges {
		charges[i].findLocked() // before any is forgotten to make room for another
	}
	for i := range charges {
		if c := &charges[i]; !l.haveLocked(c, charges, rateAt(rates, i), now) {
			return m, false, c
		}
	}
	if m, ok, _ = l.payLocked(charges, by, now); !ok && clampLocked(charges) {
		m, ok, _ = l.payLocked(charges, by, now)
	}
	return m, ok, nil
}

// haveLocked finds the bucket of a charge or makes it, with that rate. It reports whether there was room. What is to be
// charged as well stays.
func (l *Limiter) haveLocked(c *charge, charges []charge, r rate, now instant) bool {
	if c.findLocked() {
		return true
	}
	if len(l.idle) >= l.maxKeys && !l.evictLocked(now, charges, &l.idle) {
		return false
	}
	c.bucket = l.makeLocked(c.limit, c.key, r, now)
	return true
}

// clampLocked brings costs down to the sizes of limits with ClampCost, and reports whether there was one to bring down.
func clampLocked(charges []charge) (clamped bool) {
	for i := range charges {
		if c := &charges[i]; c.limit.clamps && c.cost > c.bucket.meter.Most() {
			c.cost, clamped = c.bucket.meter.Most(), true
		}
	}
	return clamped
}

// reclampLocked is the same for everyone who waits for a bucket that has become smaller.
func (b *bucket) reclampLocked() {
	if b.limit.clamps {
		for _, s := range b.lines {
			s.line.root.clamp(s.index, b.meter.Most())
		}
	}
}

// askRates asks the users' RateFor for the rates of all charges, unless all have buckets or no limit has one. The zero rate
// is the limit's own. It is called without the lock.
func askRates(charges []charge) ([]rate, error) {
	if !slices.ContainsFunc(charges, func(c charge) bool { return c.bucket == nil }) {
		return nil, nil
	}
	var rates []rate
	for i := range charges {
		c := &charges[i]
		if c.limit.rateFor == nil || c.key == "" {
			continue
		}
		if rates == nil {
			rates = make([]rate, len(charges))
		}
		n, per := c.limit.rateFor(c.key)
		if rates[i] = (rate{N: n, Per: per}); rates[i] == (rate{}) {
			continue
		}
		if err := c.limit.check(rates[i]); err != nil {
			return nil, join(fmt.Sprintf("throttle: limit %q: RateFor(%q) = %d, %v (0, 0 keeps the limit's rate)",
				c.limit.name, c.key, n, per), err)
		}
	}
	return rates, nil
}

// rateAt returns what askRates found for a charge.
func rateAt(rates []rate, i int) rate {
	if i < len(rates) {
		return rates[i]
	}
	return rate{}
}

// makeLocked makes a bucket, with that rate or, if it is zero, the limit's own.
func (l *Limiter) makeLocked(li *limit, key string, r rate, now instant) *bucket {
	own, size := r != rate{}, li.size
	switch {
	case !own:
		r = li.rate
	case li.burst < 0:
		size = li.burstOf(r)
	}
	l.serial++
	b := &bucket{limit: li, key: key, serial: l.serial, armed: never, idle: -1}
	b.ownRate, b.rate = own, li.shared(r)
	b.meter = li.meter(now, b.rate, size, &l.unix)
	if key == "" {
		li.single = b
		return b
	}
	l.keepLocked(b, now)
	return b
}

// keepLocked keeps a bucket until it is full.
func (l *Limiter) keepLocked(b *bucket, now instant) {
	b.idleAt = now
	b.limit.buckets[b.key] = b
	b.limit.peak = max(b.limit.peak, len(b.limit.buckets))
	heap.Push(&l.idle, b)
	l.sweepLaterLocked(now)
}

// idleHeap orders buckets by the instant at which they are full again, as far as is known: use only moves it later,
// so the first that is really full at its instant is the first of all.
type idleHeap []*bucket

func (h idleHeap) Len() int           { return len(h) }
func (h idleHeap) Less(i, j int) bool { return h[i].idleAt < h[j].idleAt }
func (h idleHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].idle, h[j].idle = i, j }
func (h *idleHeap) Push(x any)        { b := x.(*bucket); b.idle = len(*h); *h = append(*h, b) }
func (h *idleHeap) Pop() any {
	old := *h
	b := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	b.idle = -1
	return b
}

// idleOf returns where a bucket is kept among those that may be forgotten: gates apart, so that neither stands in the
// other's way.
func (l *Limiter) idleOf(b *bucket) *idleHeap {
	if b.limit == l.gate {
		return &l.idleGates
	}
	return &l.idle
}

// first returns when the first may be forgotten; never if there is none.
func (h idleHeap) first() instant {
	if len(h) == 0 {
		return never
	}
	return h[0].idleAt
}

const (
	sweepEvery = time.Second      // buckets are forgotten no more often
	sweepMost  = 1024             // and no more of them under one lock
	busyFor    = 10 * time.Second // one with a line is looked at again after
	evictLook  = 64               // how many are looked at for one that may go
)

// touchLocked brings a bucket's place among the idle up to date, and reports whether that changed it.
func (l *Limiter) touchLocked(b *bucket, now instant) bool {
	at := max(b.meter.FullAt(), b.held)
	if at == never {
		at = now + int64(busyFor) // it is not known yet
	}
	if len(b.lines) > 0 {
		at = max(at, now+int64(busyFor))
	}
	if at <= b.idleAt {
		return false
	}
	b.idleAt = at
	heap.Fix(l.idleOf(b), b.idle)
	return true
}

// sweep forgets the buckets that are as good as new.
func (l *Limiter) sweep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweepAt = never
	now := l.nowLocked()
	l.sweepLocked(&l.idle, now)
	l.sweepLocked(&l.idleGates, now)
	l.sweepLaterLocked(now)
}

func (l *Limiter) sweepLocked(idle *idleHeap, now instant) {
	for range sweepMost {
		if idle.first() > now {
			return
		}
		if b := (*idle)[0]; !l.touchLocked(b, now) {
			l.forgetLocked(b)
		}
	}
}

// sweepLaterLocked sees to it that buckets are forgotten once they are full.
func (l *Limiter) sweepLaterLocked(now instant) {
	first := min(l.idle.first(), l.idleGates.first())
	if first == never {
		return
	}
	at := max(first, now+int64(sweepEvery))
	if first <= now-int64(sweepEvery) {
		at = now + int64(time.Millisecond) // behind: let others have the lock, then go on
	}
	if at >= l.sweepAt {
		return
	}
	l.sweepAt = at
	if l.sweeper == nil {
		l.sweeper = time.AfterFunc(time.Duration(at-now), l.sweep)
		return
	}
	l.sweeper.Reset(time.Duration(at - now))
}

// evictLocked makes room for a bucket: the one that is or will be full first goes, if it has no debt, no hold, nobody
// waiting and no charge that is about to be made.
func (l *Limiter) evictLocked(now instant, charges []charge, idle *idleHeap) bool {
	for range evictLook {
		if len(*idle) == 0 || !l.touchLocked((*idle)[0], now) {
			break
		}
	}
	for _, b := range (*idle)[:min(evictLook, len(*idle))] {
		wanted := slices.ContainsFunc(charges, func(c charge) bool { return c.bucket == b })
		if !wanted && len(b.lines) == 0 && b.held <= now && !b.meter.Indebted(now) {
			l.forgetLocked(b)
			return true
		}
	}
	return false
}

func (l *Limiter) forgetLocked(b *bucket) {
	heap.Remove(l.idleOf(b), b.idle)
	if b.timer != nil {
		b.timer.Stop()
	}
	if g, ok := b.meter.(*gateBucket); ok {
		l.forgetGateLocked(b, g)
		return
	}
	delete(b.limit.buckets, b.key)
	// A Go map never shrinks by itself.
	if n := len(b.limit.buckets); b.limit.peak > 1024 && n < b.limit.peak/4 {
		kept := make(map[string]*bucket, n)
		maps.Copy(kept, b.limit.buckets)
		b.limit.buckets, b.limit.peak = kept, n
	}
}
