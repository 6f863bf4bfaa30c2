package bucket

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/order"
	"github.com/httpthrottle/throttle/internal/quota"
	"github.com/httpthrottle/throttle/internal/supply"
)

// A Place is what the buckets know of a request that waits.
type Place struct {
	Bounds
	Verdict Verdict
	In      order.Waiter
	Due     meter.Instant // when it would be granted, as it seemed on arrival
	At      meter.Instant // when it was decided
	Refusal *Refusal      // nil: it was not rejected
	By      *Counts
	Ghost   bool    // it is of a request that was sent; see ghost.go
	Made    uint64  // charges of a ghost that were made before it is granted: bit i for charge i
	Heard   []Heard // what the response to the request of a ghost says, in the order in which it is to be booked
}

// Heard is what a response says of the i-th charge of a ghost.
type Heard struct {
	Index int
	After int64 // the time from the sending of the request
	Cost  int64 // the true cost; negative: it only says that the response is there
}

// Bounds say for how long a request may wait.
type Bounds struct {
	Rank     meter.Instant // see order.RankOf
	Arrived  meter.Instant
	Expiry   meter.Instant // the last at which it may be granted, by its MaxWait; never: none
	Deadline meter.Instant // the first at which it may not, by its context; never: none
	Respite  int64         // for how long it may wait for a response of a store, although expiry is earlier
}

// Last returns the last instant at which a request may be granted.
func (b *Bounds) Last() meter.Instant { return max(b.Expiry, b.Arrived+b.Respite) }

// A Verdict is what has become of a request.
type Verdict uint8

const (
	Waiting Verdict = iota
	Granted
	Refused
	Left    // its context was over first
	Unasked // nothing is decided: RateFor must be asked first
)

// A Caller is a request's caller where callers take turns.
type Caller struct {
	Name   string
	Weight int64
}

// Enter gives w what the order of waiters is to know.
func (w *Place) Enter(charges []Charge, a *Ask, owner any) {
	in, n, open := &w.In, len(charges), true
	in.Rank, in.Last, in.Caller, in.Weight, in.Owner = w.Rank, min(w.Expiry, w.Deadline-1), a.Caller, max(1, a.Weight), owner
	if w.Expiry == meter.Never && w.Deadline == meter.Never {
		in.Last = meter.Never
	}
	for i := range charges {
		open = open && (charges[i].Limit.Open || charges[i].Limit.Gates)
	}
	if last := charges[n-1]; last.Limit.Gates && !open { // without limits, only requests of one gate wait in one line
		in.Gate = &last.Bucket.Needs().Point
		n--
	}
	in.At, in.Costs = make([]*order.Point, n), make([]int64, n)
	for i := range n {
		in.At[i], in.Costs[i] = &charges[i].Bucket.Needs().Point, charges[i].Cost
	}
	w.By = a.By
}

// BucketAt returns the bucket of the i-th charge.
func (w *Place) BucketAt(i int) *Bucket {
	if i == len(w.In.At) {
		return bucketOf(w.In.Gate)
	}
	return bucketOf(w.In.At[i])
}

// Bucket returns the bucket that delays w, or has delayed it.
func (w *Place) Bucket() *Bucket { return w.BucketAt(w.In.Binding) }

// costAt returns what a waiter costs at a bucket.
func costAt(w *order.Waiter, b *Bucket) int64 {
	for i, cost := range w.Costs {
		if bucketOf(w.Point(i)) == b {
			return cost
		}
	}
	return 0
}

// Paid returns what refunds of a granted w need, by charge. It takes memory behind the costs that the order of waiters does not
// need any more, because there may be many waiters.
func (w *Place) Paid() []int64 {
	n := len(w.In.Costs)
	return w.In.Costs[n : 2*n]
}

// Caller returns the caller in whose turn w was granted; nil: there are no turns.
func (w *Place) Caller() *Caller {
	for _, p := range w.In.At {
		if p.Fair {
			return &Caller{w.In.Caller, w.In.Weight}
		}
	}
	return nil
}

// Granted returns what remains of w, which was granted.
func (w *Place) Granted() *Paid {
	p := &Paid{Charges: make([]Charge, len(w.In.Costs)), Waited: time.Duration(w.At - w.Arrived), Mark: Mark{At: w.At}, Caller: w.Caller()}
	for i := range p.Charges {
		b := w.BucketAt(i)
		p.Charges[i] = Charge{Limit: b.Limit, Key: b.Key, Bucket: b, Cost: w.In.Costs[i], Paid: w.Paid()[i]}
	}
	return p
}

// Check returns why a request that would be granted at due must be rejected; 0 if it need not. MaxWait comes before the
// deadline, so that one client sees one kind of rejection, whatever deadlines its callers set.
//
// A request that waits for a response of a store may wait for longer than MaxWait, as long as it may be granted immediately.
func (b *Bounds) Check(due, now meter.Instant, binding *Bucket) Reason {
	last := max(b.Expiry, min(now, b.Arrived+b.Respite))
	switch {
	case due == meter.Never: // however long the request may wait
	case binding.Leased() != nil && b.isCutOff(due, binding.blockedUntil()):
		return ReasonStore
	case due <= last && (b.Expiry > b.Arrived || b.Respite > 0):
		if due >= b.Deadline {
			return ReasonDeadline
		}
		return 0
	case b.Expiry > b.Arrived && !binding.isHeld(b.Expiry):
		return ReasonMaxWait
	}
	return binding.Denies(due, b.Expiry)
}

// isCutOff reports whether a request that waits for a store that is unreachable until then cannot wait so long.
func (b *Bounds) isCutOff(due, until meter.Instant) bool {
	return until > 0 && due >= until && (until == supply.Shut || due > b.Expiry || due >= b.Deadline)
}

// Until returns how long it is until due: the longest Duration if that is never.
func Until(due, now meter.Instant) time.Duration {
	if due == meter.Never {
		return math.MaxInt64
	}
	return time.Duration(max(0, due-now))
}

// Refuse returns the refusal of a request that could go at due.
func (b *Bounds) Refuse(reason Reason, li *Limit, key string, cost int64, due, now meter.Instant) Refusal {
	r := Refusal{Reason: reason, Limit: li, Key: key, Cost: cost, Wait: Until(due, now)}
	last := b.Expiry
	switch reason {
	case ReasonMaxWait, ReasonNoTokens, ReasonHeld:
	case ReasonDeadline:
		last = b.Deadline
	default:
		last = min(b.Expiry, b.Deadline)
	}
	if last < meter.Never {
		r.Patience = time.Duration(last - b.Arrived)
	}
	return r
}

// SweepEvery is how often buckets are forgotten, at most.
const SweepEvery = time.Second

// Unpayable returns a charge that cannot be made at all, and why: there is no room for its bucket, or it is negative. due is when
// the request may be tried again.
func Unpayable(charges []Charge, missing *Charge, now meter.Instant) (why Reason, c *Charge, due meter.Instant) {
	if missing != nil {
		return ReasonKeys, missing, now + int64(SweepEvery)
	}
	for i := range charges {
		if c := &charges[i]; c.Cost < 0 {
			return ReasonCost, c, meter.Never
		}
	}
	return 0, nil, 0
}

// An Ask is a request as the Limiter sees it, without its charges. Charges are a separate argument because parts of an ask are
// kept while the request waits, and as a part of it they would have to be allocated.
type Ask struct {
	Priority int
	Caller   string          // where callers take turns
	Weight   int64           // of the caller there
	MaxWait  time.Duration   // negative: no bound
	Try      bool            // it never overtakes a waiter
	Cancel   <-chan struct{} // Request.Cancel; nil: none
	By       *Counts
}

// A Paid is what remains of a request that was granted. Before, it is what the request is to pay.
type Paid struct {
	Charges []Charge
	Mark    Mark          // of the grant
	Caller  *Caller       // of a grant in its turn
	Waited  time.Duration // before the grant
}

// A Pending request could not be granted immediately.
type Pending struct {
	Ask     Ask
	Gate    *quota.Key   // nil: there is none to pass
	Late    bool         // only a waiter passes it
	Rates   []meter.Rate // by charge, as RateFor said; the zero rate is the limit's own; negative: RateFor has none for this key; nil: nothing was asked
	Refresh uint64       // the number of the last Refresh before that

	// Once it is decided:
	Paid
	Refusal   *Refusal      // where it is stored; nil: it is allocated
	Pretended time.Duration // for which it would have waited without a dry run
	Binding   *Bucket       // for this bucket then
	Room      Refusal
}

// Asked reports whether the rates are known of all buckets that are to be made, as of the last [Limiter.Refresh]. It
// finds out under the lock under which they are made: a bucket that was there a moment ago may have been forgotten.
func (p *Pending) Asked() bool {
	for i := range p.Charges {
		c := &p.Charges[i]
		if (p.Rates == nil || p.Refresh < c.Limit.Refreshed) && c.Limit.Asks && c.Key != "" && !c.Find() {
			return false
		}
	}
	return true
}

// Pend makes a request pending.
func Pend(charges []Charge, a Ask, gate *quota.Key) *Pending {
	p := &Pending{Ask: a, Paid: Paid{Charges: slices.Clone(charges)}}
	p.Refusal = &p.Room
	if gate != nil {
		p.Gate = new(*gate)
	}
	return p
}

// Unmade returns the ghost of a charge that is yet to be made, and the index of the charge there; nil: it was made.
func (c *Charge) Unmade() (w *Place, i int) {
	if c.Ghost == nil || c.Made {
		return nil, 0
	}
	if w, i = c.Ghost, c.inGhost(); w.Verdict == Granted {
		c.Paid, c.Made = w.Paid()[i], true
		return nil, 0
	}
	return w, i
}

// inGhost returns the index of the charge in its ghost.
func (c *Charge) inGhost() (i int) {
	for c.Ghost.BucketAt(i) != c.Bucket {
		i++
	}
	return i
}

// Hear has what a response says be booked when that of its ghost would have come, and reports whether there is a ghost that makes
// the charge.
func (c *Charge) Hear(after, cost int64) bool {
	w := c.Ghost
	if w == nil {
		return false
	}
	i := c.inGhost()
	if w.Made&(1<<i) != 0 {
		return false
	}
	w.Heard = append(w.Heard, Heard{i, after, cost})
	slices.SortStableFunc(w.Heard, func(a, b Heard) int { return cmp.Compare(a.After, b.After) })
	return true
}
