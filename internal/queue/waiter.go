package queue

import (
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/order"
)

// A Waiter is a request that waits.
type Waiter struct {
	Bounds
	Verdict Verdict
	joining bool          // it may be granted on arrival
	in      order.Waiter  // its place
	Due     Instant       // when it would be granted, as it seemed on arrival
	At      Instant       // when it was decided
	decided chan struct{} // closed then
	Refusal *Refusal      // nil: it was not rejected
	by      *Counts
}

// Bounds say for how long a request may wait.
type Bounds struct {
	Rank     Instant // see order.RankOf
	Arrived  Instant
	Expiry   Instant // the last at which it may be granted, by its MaxWait; never: none
	Deadline Instant // the first at which it may not, by its context; never: none
	respite  int64   // for how long it may wait for a response of a store, although expiry is earlier
}

// last returns the last instant at which a request may be granted.
func (b *Bounds) last() Instant { return max(b.Expiry, b.Arrived+b.respite) }

// A Verdict is what has become of a request.
type Verdict uint8

const (
	Waiting Verdict = iota
	Granted
	Refused
	left    // its context was over first
	Unasked // nothing is decided: RateFor must be asked first
)

// A Caller is a request's caller where callers take turns.
type Caller struct {
	name   string
	weight int64
}

// enter gives w what the order of waiters is to know.
func (w *Waiter) enter(charges []Charge, a *Ask) {
	in, n, open := &w.in, len(charges), true
	*in = order.Waiter{Rank: w.Rank, Last: min(w.Expiry, w.Deadline-1), Caller: a.Caller, Weight: max(1, a.Weight), Owner: w}
	if w.Expiry == Never && w.Deadline == Never {
		in.Last = Never
	}
	for i := range charges {
		open = open && (charges[i].Limit.Open || charges[i].Limit.Gates)
	}
	if last := charges[n-1]; last.Limit.Gates && !open { // without limits, only requests of one gate wait in one line
		in.Gate = &last.bucket.needs().point
		n--
	}
	in.At, in.Costs = make([]*order.Point, n), make([]int64, n)
	for i := range n {
		in.At[i], in.Costs[i] = &charges[i].bucket.needs().point, charges[i].cost
	}
	w.by = a.By
}

// bucket returns the bucket of the i-th charge.
func (w *Waiter) bucket(i int) *Bucket {
	if i == len(w.in.At) {
		return bucketOf(w.in.Gate)
	}
	return bucketOf(w.in.At[i])
}

// Bucket returns the bucket that delays w, or has delayed it.
func (w *Waiter) Bucket() *Bucket { return w.bucket(w.in.Binding) }

// costAt returns what w costs at a bucket.
func (w *Waiter) costAt(b *Bucket) int64 {
	for i, cost := range w.in.Costs {
		if w.bucket(i) == b {
			return cost
		}
	}
	return 0
}

// paid returns what refunds of a granted w need, by charge. It takes memory behind the costs that the order of waiters does not need
// any more, because there may be many waiters.
func (w *Waiter) paid() []int64 {
	n := len(w.in.Costs)
	return w.in.Costs[n : 2*n]
}

// caller returns the caller in whose turn w was granted; nil: there are no turns.
func (w *Waiter) caller() *Caller {
	for _, p := range w.in.At {
		if p.Fair {
			return &Caller{w.in.Caller, w.in.Weight}
		}
	}
	return nil
}

// Granted returns what remains of w, which was granted.
func (w *Waiter) Granted() *Paid {
	p := &Paid{Charges: make([]Charge, len(w.in.Costs)), Waited: time.Duration(w.At - w.Arrived), Mark: Mark{At: w.At}, Caller: w.caller()}
	for i := range p.Charges {
		b := w.bucket(i)
		p.Charges[i] = Charge{Limit: b.Limit, Key: b.Key, bucket: b, cost: w.in.Costs[i], paid: w.paid()[i]}
	}
	return p
}

// A payer is a bucket as the order of waiters sees it.
type payer Bucket

func bucketOf(p *order.Point) *Bucket { return (*Bucket)(p.Payer.(*payer)) }

// Ready implements [order.Payer].
func (p *payer) Ready(from Instant, cost int64) Instant {
	b := (*Bucket)(p)
	if b.loan != nil {
		b.Limit.supply.core.markLoanLocked(b) // what is to be asked for may be something else from now on
		b.loan.Advance(from)
	}
	return b.Ready(from, 0, cost)
}

// Plan implements [order.Payer].
func (p *payer) Plan(from Instant, ahead, cost int64) Instant {
	return (*Bucket)(p).planFor(from, ahead, cost)
}

// Interval implements [order.Payer].
func (p *payer) Interval() int64 {
	if m, ok := p.Meter.(meter.Steady); ok {
		return m.Interval()
	}
	return 0
}

// Most implements [order.Payer].
func (p *payer) Most() int64 { return p.Meter.Most() }
