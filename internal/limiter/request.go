package limiter

import (
	"context"
	"slices"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
)

// A Request is a request from its arrival until its charges are settled. Its owner sets User and Context, adds charges, and passes
// it to [Core.Now] or [Core.Try]. If it has to wait, it waits as a [Waiter], from which it is taken once it is granted.
//
// It has room for a few charges inside, so that it can be on the stack: a field that points to them would move it to the heap.
type Request struct {
	User    *User
	Context context.Context // of its caller, for events
	Mark
	Waited int64 // before the grant, in nanoseconds

	turned *Waiter // that was granted in the turn of a caller; nil: it was not
	ghost  *Waiter // that waits in its place (see ghost.go); nil: none does
	spent  uint8   // guarded by the lock: which of the calls below were made
	n      uint8   // of the charges in few
	few    [fewCharges]Charge
	many   []Charge // all of them, if there are too many for few
}

// fewCharges is how many charges a Request has room for: those of four limits and of the gate.
const fewCharges = 5

// A Mark is when a request was granted, and how many had been granted by then.
type Mark struct {
	At  meter.Instant
	Nth uint64 // 0: it is unknown, or the Limiter did not grant the request
}

// A turn is the caller in whose turn a request was granted. The zero value is for none.
type turn struct {
	caller string
	weight int64 // 1 at least
}

// A Charge is what a request costs in one limit.
type Charge struct {
	Bucket *bucket.Bucket // that of the key "" in the same limit as long as that of Key is to be found, or made
	Key    string
	Cost   int64
	Paid   int64 // the result of Meter.Take, which refunds and reports need

	Outcome aimd.Outcome // by the limit's Classify; 0: by the response
	Kept    bool         // a slot that Free gives back
	ByBody  bool         // the cost may be in the body of the response
	settled bool         // guarded by the lock, as Cost is from then on
	byHost  bool         // the request has no key, and Key is its host
	made    bool         // Paid is known, although there is a ghost
	share   bucket.Share // of the estimate that Cost is; 0: it was not asked for
}

// The calls of which only the first counts, for a request that was granted.
const (
	wasReported = 1 << iota
	wasFreed
	wasSettled
	wasReturned
	wasCanceled = wasReported | wasFreed | wasSettled | wasReturned
)

// turn returns the turn in which the request was granted.
func (r *Request) turn() turn {
	if r.turned == nil {
		return turn{}
	}
	return r.turned.turn()
}

// first reports whether none of these calls was made before, and notes that they are made now.
func (r *Request) first(what uint8) bool {
	first := r.spent&what == 0
	r.spent |= what
	return first
}

// Charges returns the charges, which are valid as long as the request.
func (r *Request) Charges() []Charge {
	if r.many != nil {
		return r.many
	}
	return r.few[:r.n]
}

// Add adds a charge.
func (r *Request) Add(li *bucket.Limit, key string, cost int64) {
	c := r.add()
	c.Bucket, c.Key, c.Cost = li.Single, key, min(cost, meter.MaxCount)
}

// AddByHost adds a charge of a request without a key to a limit that counts such requests by host, which is not "".
func (r *Request) AddByHost(li *bucket.Limit, host string, cost int64) {
	c := r.add()
	c.Bucket, c.Key, c.Cost, c.byHost = li.Single, host, min(cost, meter.MaxCount), true
}

// ManyCharges is room for the charges of a request with more limits than it has room for inside, which is used for one request after another.
type ManyCharges [16]Charge

// NeedsRoom reports whether ManyCharges are for requests with charges in n limits.
func NeedsRoom(n int) bool { return n >= fewCharges && n < len(ManyCharges{}) }

// Use has the request, which has no charges yet, use that room for them.
func (r *Request) Use(room *ManyCharges) { r.many = room[:0] }

// Unused returns the room of a request that has ended and was not copied to another one; nil: it has none.
func (r *Request) Unused() (room *ManyCharges) {
	if cap(r.many) == len(room) {
		room, r.many = (*ManyCharges)(r.many[:len(room)]), nil
	}
	return room
}

// addAll adds charges that were made before, where there are none yet.
func (r *Request) addAll(charges []Charge) {
	if r.many != nil || len(charges) > len(r.few) {
		r.many = append(r.many, charges...)
		return
	}
	r.n = uint8(copy(r.few[:], charges))
}

// addGate adds the charge of a gate.
func (r *Request) addGate(gate *bucket.Bucket) {
	c := r.add()
	c.Bucket, c.Key, c.Cost = gate, gate.Key, 1
}

// add adds an empty charge.
func (r *Request) add() *Charge {
	if r.many == nil {
		if n := r.n; n < fewCharges {
			r.n++
			return &r.few[n]
		}
		r.many = append(make([]Charge, 0, 2*fewCharges), r.few[:]...)
	}
	r.many = append(r.many, Charge{})
	return &r.many[len(r.many)-1]
}

// dropGate removes the charge of the gate, which was added last.
func (r *Request) dropGate() {
	charges := r.Charges()
	charges[len(charges)-1] = Charge{}
	if r.many != nil {
		r.many = r.many[:len(r.many)-1]
	} else {
		r.n--
	}
}

// Frees reports whether some charge is to be given back when the request ends.
func (r *Request) Frees() bool {
	return slices.ContainsFunc(r.Charges(), func(c Charge) bool { return c.Limit().Frees })
}

// IsTracked reports whether the response or the outcome of the request is to be reported.
func (r *Request) IsTracked() bool {
	charges := r.Charges()
	for i := range charges { // no copy of a charge, which another goroutine may be settling
		if charges[i].Limit().Tracked {
			return true
		}
	}
	return false
}

// IsGated reports whether the request passed a gate.
func (r *Request) IsGated() bool { return gateOf(r.Charges()) != nil }

// gateOf returns the gate that is among charges; nil: there is none.
func gateOf(charges []Charge) *quota.Gate {
	if n := len(charges); n > 0 && charges[n-1].Limit().Gates {
		return charges[n-1].Bucket.Meter.(*quota.Gate)
	}
	return nil
}

// Limit returns the limit of the charge.
func (c *Charge) Limit() *bucket.Limit { return c.Bucket.Limit }

// find finds the bucket of a charge, and reports whether there is one.
func (c *Charge) find() bool {
	return c.Key == "" && !c.Limit().Lowers || c.search()
}

func (c *Charge) search() bool {
	li := c.Limit()
	if c.Key != "" && !li.Gates { // otherwise it has its bucket from the beginning
		b := li.Find(c.Key, c.byHost)
		if b == nil {
			c.Bucket = li.Single // it may have been forgotten
			return false
		}
		c.Bucket = b
	}
	if li.Lowers && c.share == 0 {
		c.lower()
	}
	return true
}

// isFound reports whether the bucket of the charge is known.
func (c *Charge) isFound() bool { return c.Bucket.Key == c.Key }

// lower reduces the cost, which is an estimate, to the share of their estimates that requests of the key did cost.
func (c *Charge) lower() {
	c.share = bucket.WholeShare
	if s := c.Bucket.Share(); s > 0 {
		c.share, c.Cost = s, s.Of(c.Cost)
	}
}

// payable reports whether all charges can be paid now and no request waits there, or whether a bucket is missing; otherwise
// all are found.
func payable(charges []Charge, now meter.Instant) (ok, missing bool) {
	ok = true
	for i := range charges {
		c := &charges[i]
		if !c.find() {
			return false, true
		}
		ok = ok && c.passes(now) && c.Bucket.Meter.Payable(now, c.Cost)
	}
	return ok, false
}

// passes reports whether nothing stops the charge except what it costs.
func (c *Charge) passes(now meter.Instant) bool {
	return c.Cost >= 0 && c.Bucket.IsOpen(now)
}

// clamp reduces costs to the sizes of limits with ClampCost, and reports whether there was one to reduce.
func clamp(charges []Charge) (clamped bool) {
	for i := range charges {
		if c := &charges[i]; c.Limit().Clamps && c.Cost > c.Bucket.Meter.Most() {
			c.Cost, clamped = c.Bucket.Meter.Most(), true
		}
	}
	return clamped
}

// rest begins the pause of slots that are about to be given back, if their limit has one.
func rest(b *bucket.Bucket, slots int64, now meter.Instant) {
	if m, ok := b.Meter.(meter.Rester); ok {
		m.Rest(now, slots)
	}
}

// settledCost returns the cost, or what it will probably be once it is settled, by what was settled before.
func (c *Charge) settledCost() float64 {
	if c.settled {
		return float64(c.Cost)
	}
	return float64(c.Cost) * c.Limit().Settled.Ratio()
}
