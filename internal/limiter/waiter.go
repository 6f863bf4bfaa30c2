package limiter

import (
	"context"
	"time"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/heap"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/order"
	"github.com/httpthrottle/throttle/internal/quota"
	"github.com/httpthrottle/throttle/internal/supply"
)

// A Waiter is a request that could not be granted immediately. It is on the heap, and takes little memory there, because there may
// be a million of them. Its owner sets the exported fields before it passes it to [Core.Enqueue].
type Waiter struct {
	Priority int
	MaxWait  time.Duration // negative: no bound
	Gate     *quota.Key    // that it passes; nil: none
	Claim    *Claim        // the request waits in other Cores, too; nil: it does not
	Late     bool          // it passes the gate only if it has to wait

	try       bool    // it never overtakes a waiter
	joining   bool    // it may be granted on arrival
	queued    bool    // it was not decided on arrival
	served    bool    // it was granted after it had joined the order of waiters
	lowered   bool    // some estimate was lowered, as its charge says
	verdict   verdict // guarded by the lock until it is decided
	user      *User
	charges   []Charge      // nil while it waits, as the order of waiters has them, unless it is lowered
	traits    quota.Traits  // what else its server may count it by, once it has passed a gate; nil: nothing
	mark      Mark          // of the grant of the request
	rejection *Rejection    // nil: it was not rejected
	ghost     *ghost        // its request was sent immediately, in a dry run; nil: it was not
	decided   chan struct{} // closed when it is granted or rejected; nil: it is a ghost, or must not wait

	bounds
	in                 order.Waiter
	at                 meter.Instant // when it was decided
	heap.Entry[ending]               // in Core.ends
}

// tell ends the wait of w, which the order has taken out.
func (w *Waiter) tell() {
	switch {
	case w.decided == nil || w.verdict == left:
	case w.Claim == nil:
		close(w.decided)
	case w.verdict == granted:
		w.Claim.finish()
	default:
		w.Claim.drop()
	}
}

// A verdict is what has become of a request.
type verdict uint8

const (
	waiting verdict = iota
	granted
	rejected
	left // its context ended first, or another Core granted it
)

// Waiter returns a Waiter with the charges of a request that was not granted. It waits for as long as it takes.
func (r *Request) Waiter() *Waiter { return r.Asked().Waiter() }

// An Asked is what a request has asked for that was not granted. It is small, because it is allocated while the Request is on the stack:
// to allocate a Waiter there would need more than a small stack has.
type Asked struct {
	user    *User
	charges []Charge
}

// Asked returns what the request has asked for, with room for the charge of its gate.
func (r *Request) Asked() *Asked {
	charges := r.Charges()
	return &Asked{r.User, append(make([]Charge, 0, len(charges)+1), charges...)}
}

// Waiter returns a Waiter that waits for as long as it takes.
func (a *Asked) Waiter() *Waiter { return &Waiter{MaxWait: -1, user: a.user, charges: a.charges} }

// SetCaller sets the caller of the request, where callers take turns.
func (w *Waiter) SetCaller(name string, weight int64) { w.in.Caller, w.in.Weight = name, weight }

// Decided returns a channel that is closed when the request is granted or rejected.
func (w *Waiter) Decided() <-chan struct{} { return w.decided }

// Rejected reports whether the request was rejected, once it does not wait any more.
func (w *Waiter) Rejected() bool { return w.rejection != nil }

// Take moves the request of w, which was granted, to r.
func (w *Waiter) Take(r *Request) {
	r.User, r.Mark = w.user, w.mark
	if !w.served {
		if r.addAll(w.charges); w.ghost != nil && len(w.charges) > 0 {
			r.ghost = w
		}
		return
	}
	if r.Waited = w.at - w.arrived; w.turn() != (turn{}) {
		r.turned = w
	}
	for i, cost := range w.in.Costs {
		b := w.bucketAt(i)
		if w.Claim != nil && isDoor(b) {
			continue // it pays nothing there
		}
		c := r.add()
		c.Bucket, c.Key, c.Cost, c.Paid = b, b.Key, cost, w.paid()[i]
		if w.lowered {
			c.share = w.charges[i].share
		}
	}
}

// enter sets what the order of waiters needs to know of w.
func (w *Waiter) enter() {
	in, n, open := &w.in, len(w.charges), true
	in.Last, in.Weight, in.Owner = min(w.expiry, w.deadline-1), max(1, in.Weight), w
	if w.expiry == meter.Never && w.deadline == meter.Never {
		in.Last = meter.Never
	}
	for i := range w.charges {
		li := w.charges[i].Limit()
		open = open && (li.Open || li.Gates)
		w.lowered = w.lowered || li.Lowers
	}
	if w.Gate != nil {
		w.traits = w.Gate.Traits
	}
	if last := w.charges[n-1]; last.Limit().Gates && !open { // without limits, only requests of one gate wait in one line
		in.Gate = bucket.PointOf(last.Bucket)
		n--
	}
	in.At, in.Costs = make([]*order.Point, n), make([]int64, n)
	for i := range n {
		in.At[i], in.Costs[i] = bucket.PointOf(w.charges[i].Bucket), w.charges[i].Cost
	}
}

// bucketAt returns the bucket of the i-th charge.
func (w *Waiter) bucketAt(i int) *bucket.Bucket {
	if i == len(w.in.At) {
		return bucket.Of(w.in.Gate)
	}
	return bucket.Of(w.in.At[i])
}

// bucket returns the bucket that delays w, or has delayed it.
func (w *Waiter) bucket() *bucket.Bucket { return w.bucketAt(int(w.in.Binding)) }

// paid has the [Charge.Paid] of each charge of a granted w. It is behind in.Costs, where the order had its sums while w waited, because
// there may be many waiters.
func (w *Waiter) paid() []int64 {
	n := len(w.in.Costs)
	return w.in.Costs[n : 2*n]
}

// turn returns the turn in which w was granted.
func (w *Waiter) turn() turn {
	for _, p := range w.in.At {
		if p.Fair {
			return turn{w.in.Caller, w.in.Weight}
		}
	}
	return turn{}
}

// bounds say for how long a request may wait.
type bounds struct {
	arrived  meter.Instant
	expiry   meter.Instant // the last instant at which it may be granted, by its MaxWait; never: there is none
	deadline meter.Instant // the first instant at which it may not, by its context; never: there is none
	respite  int64         // for how long it may wait for a response of a store, although expiry is earlier
}

// bind sets the bounds of a request, counted from w.arrived, and its rank; see Options.DeadlineAge.
func (w *Waiter) bind(ctx context.Context, age time.Duration, now meter.Instant) {
	b := &w.bounds
	b.expiry, b.deadline = meter.Never, meter.Never
	w.in.Rank = order.RankOf(b.arrived, w.Priority)
	if w.MaxWait >= 0 {
		b.expiry = meter.AddInstant(b.arrived, int64(w.MaxWait))
	}
	if d, ok := ctx.Deadline(); ok {
		b.deadline = meter.AddInstant(now, max(0, int64(time.Until(d))))
	}
	if age > 0 {
		w.in.Rank += min(0, min(b.expiry, b.deadline)-b.arrived-int64(age))
	}
}

// last returns the last instant at which a request may be granted.
func (b *bounds) last() meter.Instant { return max(b.expiry, b.arrived+b.respite) }

// check returns why a request that would be granted at due must be rejected; 0 if it need not. MaxWait comes before the
// deadline, so that one client sees one kind of rejection, whatever deadlines its callers set.
//
// While the respite of a request lasts, its MaxWait does not count: the store may have tokens for it now.
func (b *bounds) check(due, now meter.Instant, binding *bucket.Bucket) bucket.Reason {
	last := max(b.expiry, min(now, b.arrived+b.respite))
	switch {
	case due == meter.Never: // however long the request may wait
	case binding.Leased() != nil && b.isCutOff(due, binding.BlockedUntil()):
		return bucket.ReasonStore
	case due <= last && (b.expiry > b.arrived || b.respite > 0):
		if due >= b.deadline {
			return bucket.ReasonDeadline
		}
		return 0
	case b.expiry > b.arrived && !binding.IsHeld(b.expiry):
		return bucket.ReasonMaxWait
	}
	return binding.WhyRejected(due, b.expiry)
}

// isCutOff reports whether a request that waits for a store that is unreachable until then cannot wait so long.
func (b *bounds) isCutOff(due, until meter.Instant) bool {
	return until > 0 && due >= until && (until == supply.Shut || due > b.expiry || due >= b.deadline)
}

// rejection returns the rejection of a request that could go at due, without the charge because of which it is rejected.
func (b *bounds) rejection(reason bucket.Reason, due, now meter.Instant) *Rejection {
	r := &Rejection{Reason: reason, Wait: bucket.Until(due, now)}
	last := b.expiry
	switch reason {
	case bucket.ReasonMaxWait, bucket.ReasonNoTokens, bucket.ReasonHeld:
	case bucket.ReasonDeadline:
		last = b.deadline
	default:
		last = min(b.expiry, b.deadline)
	}
	if last < meter.Never {
		r.Patience = time.Duration(last - b.arrived)
	}
	return r
}

// unpayable returns a charge that cannot be made, and why: there is no room for its bucket, or it is negative. due is when the request
// may be tried again.
func unpayable(charges []Charge, missing *Charge, now meter.Instant) (why bucket.Reason, c *Charge, due meter.Instant) {
	if missing != nil {
		return bucket.ReasonKeys, missing, now + int64(sweepEvery)
	}
	for i := range charges {
		if c := &charges[i]; c.Cost < 0 {
			return bucket.ReasonCost, c, meter.Never
		}
	}
	return 0, nil, 0
}

// respite brings the leases of charges up to date. It returns for how long a request that may wait until expiry may wait for a
// response of a store that may have the tokens; 0: not at all.
func respite(charges []Charge, try bool, expiry, now meter.Instant) (d int64) {
	for i := range charges {
		if n := charges[i].Bucket.Leased(); n != nil {
			n.Update(now)
		}
	}
	for i := range charges {
		c := &charges[i]
		if n := c.Bucket.Leased(); n != nil && !try && c.Bucket.BlockedUntil() == 0 && c.Bucket.Ready(0, 0, c.Cost) == meter.Never {
			if c.Bucket.PlanFor(now, 0, c.Cost) > max(now, expiry) {
				return 0
			}
			d = max(d, int64(n.Supply().Timeout))
		}
	}
	return d
}
