package queue

import (
	"cmp"
	"container/heap"
	"context"
	"iter"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// This file handles requests that would have to wait, in a dry run. They are sent immediately and charged as of when they would
// have left: immediately in the bucket that stops them, because requests behind them there would leave later still, and in the
// other buckets when that time has come, because until then they would bar no request there. A request that falls under the bucket
// that stops them comes after them in all buckets. So where another of its buckets stops it, they are charged there before it.

// A booking is a charge that is yet to be made.
type booking struct {
	due    Instant
	charge *Charge // nil: it was made, or given back
	of     crossing
}

// A crossing is a bucket in which charges are booked, and the one that stops the requests of these charges.
type crossing struct{ at, by place }

// A place is a bucket, which may be forgotten meanwhile.
type place struct {
	limit *Limit
	key   string
}

func (c *Charge) place() place { return place{c.Limit, c.Key} }

// A backlog is what is booked at a crossing.
type backlog struct {
	cost     int64      // together, saturated
	bookings []*booking // in the order of their requests; those at the beginning are yet to be made
}

// books are all bookings: by when they are due, by charge, and by crossing.
type books struct {
	bookings
	of       map[*Charge]*booking
	backlogs map[crossing]*backlog
}

// add books a charge of a request that another charge stops until due.
func (s *books) add(due Instant, c, by *Charge) {
	if s.of == nil {
		s.of, s.backlogs = make(map[*Charge]*booking), make(map[crossing]*backlog)
	}
	b := &booking{due, c, crossing{c.place(), by.place()}}
	c.booked, s.of[c] = true, b
	heap.Push(&s.bookings, b)
	log := s.backlogs[b.of]
	if log == nil {
		log = new(backlog)
		s.backlogs[b.of] = log
	}
	log.cost = meter.AddCount(log.cost, c.cost)
	log.bookings = append(log.bookings, b)
}

// drop removes the booking of a charge.
func (s *books) drop(c *Charge) {
	b := s.of[c]
	delete(s.of, c)
	c.booked, b.charge = false, nil
	log := s.backlogs[b.of]
	log.cost = max(0, log.cost-c.cost)
	for len(log.bookings) > 0 && log.bookings[0].charge == nil {
		log.bookings = log.bookings[1:]
	}
	if len(log.bookings) == 0 {
		delete(s.backlogs, b.of)
	}
}

// settle changes the cost of a booked charge.
func (s *books) settle(c *Charge, cost int64) {
	log := s.backlogs[s.of[c].of]
	log.cost = meter.AddCount(max(0, log.cost-c.cost), cost)
	c.cost = cost
}

// ahead yields the backlogs in the bucket of a charge that its request comes after.
func (s *books) ahead(charges []Charge, i int) iter.Seq[*backlog] {
	return func(yield func(*backlog) bool) {
		for j := range charges {
			if j == i {
				continue
			}
			if log := s.backlogs[crossing{charges[i].place(), charges[j].place()}]; log != nil && !yield(log) {
				return
			}
		}
	}
}

// bookings is a heap by when they are due.
type bookings []*booking

func (h bookings) Len() int           { return len(h) }
func (h bookings) Less(i, j int) bool { return h[i].due < h[j].due }
func (h bookings) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *bookings) Push(x any)        { *h = append(*h, x.(*booking)) }
func (h *bookings) Pop() any {
	last := len(*h) - 1
	b := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return b
}

// first returns when the first is due; never: there is none.
func (h bookings) first() Instant {
	if len(h) == 0 {
		return Never
	}
	return h[0].due
}

// bookLocked makes the charges that are due.
func (l *Core) bookLocked(now Instant) {
	for l.books.first() <= now {
		l.makeChargeLocked(heap.Pop(&l.books.bookings).(*booking), now)
	}
}

// makeChargeLocked makes a charge that was booked.
func (l *Core) makeChargeLocked(b *booking, now Instant) {
	c := b.charge
	if c == nil {
		return
	}
	l.books.drop(c)
	c.bucket = l.keptLocked(c, now)
	c.paid = c.bucket.Meter.Take(b.due, b.due, c.cost, true)
	c.Limit.Counts.Charged += uint64(c.cost)
}

// chargesAtOnce is how many booked charges of a backlog are made before they are due. It takes about 0.3 ms.
const chargesAtOnce = 1024

// pretendPlanLocked returns when the charges could be paid after all that the request comes after, and which of them is the last.
func (l *Core) pretendPlanLocked(charges []Charge, now Instant) (due Instant, last int) {
	for i := range charges {
		c := &charges[i]
		ahead := int64(0)
		for log := range l.books.ahead(charges, i) {
			ahead = meter.AddCount(ahead, log.cost)
		}
		if d := max(now, c.bucket.planFor(now, ahead, c.cost)); d > due {
			due, last = d, i
		}
	}
	return due, last
}

// goBeforeLocked makes the charges that are booked in the bucket of a charge and that its request comes after: the first of them, so
// that the lock is not held for long, and the next request makes more. It reports whether there were any.
func (l *Core) goBeforeLocked(charges []Charge, i int, now Instant) bool {
	var some []*booking
	for log := range l.books.ahead(charges, i) {
		some = append(some, log.bookings[:min(len(log.bookings), chargesAtOnce)]...)
	}
	slices.SortStableFunc(some, func(a, b *booking) int { return cmp.Compare(a.due, b.due) })
	for _, b := range some {
		l.makeChargeLocked(b, now) // unless it was given back
	}
	return len(some) > 0
}

// pretendLocked charges a request that would have to wait, and decides about one that would be rejected.
func (l *Core) pretendLocked(ctx context.Context, p *Pending, now Instant, missing *Charge) Verdict {
	a, charges := &p.Ask, p.Charges
	var by Bounds
	bound(ctx, &by, a, now)
	p.Mark = Mark{At: now}
	if reason, c, due := unpayable(charges, missing, now); reason != 0 {
		l.refuseLocked(p, &by, reason, c, due, now)
		return Refused
	}
	var due Instant
	var last int
	for tries := 0; ; tries++ {
		due, last = l.pretendPlanLocked(charges, now)
		if reason := by.Judge(due, now, charges[last].bucket); reason != 0 {
			l.refuseLocked(p, &by, reason, &charges[last], due, now)
			return Refused
		}
		if tries == len(charges) || !l.goBeforeLocked(charges, last, now) {
			break
		}
	}
	binding := charges[last].bucket
	for i := range charges {
		c := &charges[i]
		c.Limit.Counts.Granted++
		switch {
		case i == last:
			c.paid = c.bucket.Meter.Take(due, due, c.cost, true)
			c.Limit.Counts.Charged += uint64(c.cost)
			c.bucket.needs().since = due
		case c.Limit.Reported: // it counts what is really on its way
			c.paid = c.bucket.Meter.Take(now, now, c.cost, false)
			c.Limit.Counts.Charged += uint64(c.cost)
		case len(l.books.bookings) < l.MaxQueue: // else the others seem to have more than they would
			l.books.add(due, c, &charges[last])
		}
	}
	l.synced = min(l.synced, l.books.first())
	l.Counts.grantedAfter(due - now)
	a.By.grantedAfter(due - now)
	binding.Limit.Counts.waited(due - now)
	p.Pretended, p.Binding = time.Duration(due-now), binding
	return Granted
}
