package bucket

import (
	"time"

	"github.com/httpthrottle/throttle/internal/heap"
	"github.com/httpthrottle/throttle/internal/lease"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/order"
	"github.com/httpthrottle/throttle/internal/supply"
	"github.com/httpthrottle/throttle/store"
)

// Leases are what is to be done for the buckets whose budget is in a store.
type Leases struct {
	marked []*Bucket // whose stores may have to be asked for something else, or at another instant
	alarms heap.Heap[*alarm, when]
}

// HasMarked reports whether there are buckets that Next returns.
func (s *Leases) HasMarked() bool { return len(s.marked) > 0 }

// Next returns a bucket that was marked, and is not any more.
func (s *Leases) Next() *Bucket {
	n := len(s.marked) - 1
	b := s.marked[n]
	s.marked, b.marked = s.marked[:n], false
	return b
}

// SetAlarm sets when a store may have to be asked for something for a bucket; Never: it need not.
func (s *Leases) SetAlarm(b *Bucket, at meter.Instant) {
	switch {
	case at < meter.Never:
		s.alarms.Put(&b.alarm, when(at))
	case b.extra != nil:
		s.alarms.Remove(&b.alarm)
	}
}

// AlarmOf returns when a store may have to be asked for something for a bucket; Never: it is not known.
func (s *Leases) AlarmOf(b *Bucket) meter.Instant {
	if b.extra == nil || !b.alarm.IsIn() {
		return meter.Never
	}
	return meter.Instant(b.alarm.Key())
}

// FirstAlarm returns the bucket with the first alarm, and when that is; nil and Never: there is none.
func (s *Leases) FirstAlarm() (*Bucket, meter.Instant) {
	a := s.alarms.Top()
	if a == nil {
		return nil, meter.Never
	}
	return a.of, meter.Instant(a.Key())
}

// An alarm is when a store may have to be asked for something for a bucket, if nothing changes before.
type alarm struct {
	heap.Entry[when]
	of *Bucket
}

// when is an instant.
type when meter.Instant

// Before implements [heap.Key].
func (at when) Before(other when) bool { return at < other }

// MarkLease notes that a store may have to be asked for something else for a bucket, or at another instant.
func (b *Bucket) MarkLease() {
	if b.Leased() != nil && !b.marked {
		b.marked = true
		b.Limit.Leases.marked = append(b.Limit.Leases.marked, b)
	}
}

// lease returns the lease of a new bucket. Share is already applied to r and burst.
func (li *Limit) lease(b *Bucket, key string, r meter.Rate, burst int64) *supply.Lease[*Bucket] {
	config := lease.Config{Ahead: li.Store.Ahead, Name: li.Store.Name, Seed: li.Supply.Dice.Uint64(), Store: &li.Supply.Away, Windows: li.Calendar}
	return li.Supply.Lease(b, lease.New(li.Budget(key, r, burst), config))
}

// Budget returns what a store is to know of a bucket.
func (l *Rule) Budget(key string, r meter.Rate, burst int64) store.Budget {
	b := store.Budget{Kind: l.Stored, Limit: l.Name, Key: key, N: r.N, Per: r.Per, Start: l.Start}
	switch l.Stored {
	case store.Bucket:
		b.Burst, b.Initial = burst, l.InitialOf(burst)
	case store.Pace:
		if l.Counted {
			b.Burst = burst
		}
	case store.Slots:
		b.N, b.Per = burst, 0
	}
	return b
}

// Demand describes the requests that wait for tokens of a shared bucket and can use them. During a hold of this process alone there are
// none: tokens that were leased for them would be used when it ends, beside those of the other processes.
func (b *Bucket) Demand(now meter.Instant) lease.Demand {
	d, _ := b.wants(now)
	return d
}

// wants returns the demand of now, and its first request. Requests that other buckets stop for longer than the store takes want nothing
// yet: what they cannot use would be missing in other processes, and would be lost if this one ended.
func (b *Bucket) wants(now meter.Instant) (d lease.Demand, first *order.Waiter) {
	if b.Opens() > now {
		return d, nil
	}
	d = lease.Demand{First: b.lease.Wanted, All: b.lease.Wanted, Until: now}
	n, next := 0, meter.Never
	for w, sums := range b.point.Lines {
		from, promised := b.asksFor(w, now)
		if from > now {
			next = min(next, from)
			d.Keeps = d.Keeps || promised
		} else {
			cost, soon := costAt(w, b), b.soon(w, sums, now)
			if first == nil {
				first = w
				d.First, d.All, d.Until = cost, 0, lastUse(w)
			}
			d.All, d.Soon = meter.AddCount(d.All, max(cost, soon)), meter.AddCount(d.Soon, soon)
		}
		if n++; n == maxBlocked {
			break
		}
	}
	if d.All = max(d.All, d.First); next < meter.Never {
		d.From = next
	}
	if first != nil {
		b.together(&d, first, now)
	}
	return d, first
}

// together sets what concerns several requests, or several buckets, of a demand whose first request is first.
func (b *Bucket) together(d *lease.Demand, first *order.Waiter, now meter.Instant) {
	for i := range first.Costs {
		if other := Of(first.Point(i)); other != b && other.isAskedWith(b) && other.Limit.Stored != store.Slots { // which come back at any time
			d.Joint, d.Window = true, d.Window || !b.isPromisedWith(other)
		}
	}
	i := indexOf(first, b)
	if i < 0 {
		return
	}
	total, most := b.lease.Together(now)
	next, lacks := first.Together(i, total, 0)
	if lacks != nil {
		d.Until = lastUse(lacks)
	}
	if first.Largest(i) <= 1 {
		return
	}
	d.Next = max(d.First, next)
	d.Even = first.Largest(i) == d.First
	together, _ := first.Together(i, total, min(most, d.All))
	if d.Whole = max(d.Next, together); d.Whole < d.All && d.All <= most {
		d.Whole = d.All // of several queues
	}
}

// lastUse returns the latest instant at which a request can use a token.
func lastUse(w *order.Waiter) meter.Instant { return min(w.Last, meter.Never-1) }

// asksFor returns from when the store is to be asked for the tokens of a request that is the first of its line: before, another bucket
// stops it, and would still do so when the response comes. Promised reports that all else that it waits for is promised.
func (b *Bucket) asksFor(w *order.Waiter, now meter.Instant) (from meter.Instant, promised bool) {
	from, promised = now, true
	for i, cost := range w.Costs {
		other := Of(w.Point(i))
		if other == b {
			continue
		}
		if other.lease != nil {
			other.lease.Advance(now, now) // its tokens may be void by now
		}
		together := other.isAskedWith(b)
		ready := other.Ready(0, 0, cost)
		promised = promised && (ready <= now || other.Leased() != nil && (ready < meter.Never || other.Limit.Stored == store.Slots)) // slots come at any time
		switch {
		case ready < meter.Never:
			from = max(from, ready-int64(b.lease.Lead()))
		case other.Leased() != nil:
			from = max(from, other.lease.AsksFrom(now, together))
		default: // a response may come at any time, but may not change anything for an hour
			from = max(from, other.PlanFor(now, 0, cost)-int64(b.lease.Lead()))
		}
	}
	return from, promised
}

// isAskedWith reports whether the store grants tokens of both buckets together.
func (b *Bucket) isAskedWith(other *Bucket) bool {
	x, y := b.Leased(), other.Leased()
	return x != nil && y != nil && x.Supply() == y.Supply() && (!x.Supply().Apart || b.Key == other.Key)
}

// soon returns how many tokens of the bucket the requests of a line will use until the next ask can have a response, given the first
// one and what all of them cost: as many as the scarcest of their other buckets lets go until then.
func (b *Bucket) soon(first *order.Waiter, sums []int64, now meter.Instant) int64 {
	var all int64
	for i := range sums {
		if Of(first.Point(i)) == b {
			all = sums[i]
		}
	}
	most := all
	for i, others := range sums {
		other := Of(first.Point(i))
		if other == b || others == 0 {
			continue
		}
		if lets := other.lets(b, first, first.Costs[i], others, now); lets < others {
			most = min(most, int64(float64(all)*float64(lets)/float64(others)))
		}
	}
	return most
}

// lets returns how much of all that the requests of a line cost here can be paid until another bucket, for which the store is asked now,
// can have a second response.
func (b *Bucket) lets(other *Bucket, first *order.Waiter, cost, all int64, now meter.Instant) int64 {
	by := meter.AddInstant(now, int64(other.lease.Lead()))
	switch ready := b.Ready(now, 0, cost); {
	case ready == meter.Never && b.isGrantedWith(other, first) && b.offers(now, cost) > 0:
		return min(all, b.offers(now, cost))
	case ready == meter.Never: // as slots, which come back at any time
		return min(all, other.lease.Recent())
	case ready > by:
		return 0
	case b.Ready(now, max(0, all-cost), cost) <= by:
		return all
	}
	least, most := cost, all
	for most-least > 1 {
		if middle := least + (most-least)/2; b.Ready(now, middle-cost, cost) <= by {
			least = middle
		} else {
			most = middle
		}
	}
	if b.promises() { // if each limit counted only on what it has of the other one, both would get less and less
		least = max(least, (other.lease.Recent()/max(1, costAt(first, other))+1)*cost)
		if b.isPromisedWith(other) && b.Ready(now, least, cost) == meter.Never { // more is asked for at the same time
			if offers := b.offers(now, cost); offers > 0 {
				least = max(least+cost, offers)
			}
		}
	}
	return min(all, least)
}

// offers returns how many tokens requests could use if the store granted all that it may be asked for now, in whole requests of a cost: one at
// least; 0: it may not be asked.
func (b *Bucket) offers(now meter.Instant, cost int64) int64 {
	n := b.lease.Offers(now)
	return max(n-n%max(1, cost), min(n, 1)*cost)
}

// promises reports whether a store promises tokens of the bucket that come in later.
func (b *Bucket) promises() bool {
	return b.Leased() != nil && (b.Limit.Stored == store.Bucket || b.Limit.Stored == store.Pace)
}

// isGrantedWith reports whether the store is asked for tokens of both buckets for the same requests, which are granted in proportion. If the
// other one has tokens for some, no more of this one is asked for than they need, unless one of the two promises what comes in later.
func (b *Bucket) isGrantedWith(other *Bucket, first *order.Waiter) bool {
	return b.isAskedWith(other) && (b.promises() || other.promises() || other.Ready(0, 0, costAt(first, other)) == meter.Never)
}

// isPromisedWith reports whether the store promises tokens of both buckets together.
func (b *Bucket) isPromisedWith(other *Bucket) bool {
	return b.promises() && other.promises() && b.isAskedWith(other)
}

// costAt returns what a waiter costs at a bucket.
func costAt(w *order.Waiter, b *Bucket) int64 {
	if i := indexOf(w, b); i >= 0 {
		return w.Costs[i]
	}
	return 0
}

// indexOf returns which of the points of a waiter is that of a bucket; -1: none.
func indexOf(w *order.Waiter, b *Bucket) int {
	for i := range w.Costs {
		if Of(w.Point(i)) == b {
			return i
		}
	}
	return -1
}

// BlockedUntil returns until when requests wait for a store that is unreachable: supply.Shut if they do not, 0 if it is
// reachable, another meter pays, or there is none.
func (b *Bucket) BlockedUntil() meter.Instant {
	if n := b.Leased(); n != nil {
		return n.BlockedUntil()
	}
	return 0
}

// Sharing is what throttle.Shared sets for a limit.
type Sharing struct {
	SupplyTerms
	Ahead time.Duration
	Name  string // of this process, for those who operate the store
}

// SupplyTerms are how a Limiter uses a store.
type SupplyTerms struct {
	Store store.Store
	supply.Terms
}

// maxRechecked is how many requests are checked again after each response about their bucket. Where more wait, they are
// checked again when there is news that delays all of them.
const maxRechecked = 256

// FewWait reports whether few enough requests wait that all are checked again after each response about the bucket.
func (b *Bucket) FewWait() bool { return b.Waiting() <= maxRechecked }
