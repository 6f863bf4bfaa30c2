package bucket

import (
	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
)

// A Charge is what an ask costs against one limit.
type Charge struct {
	Limit  *Limit
	Key    string
	Cost   int64
	Bucket *Bucket
	Paid   int64 // what refunds and reports need, once it was granted

	Outcome aimd.Outcome // by the limit's Classify; 0: by the response
	Kept    bool         // a slot that Grant.Done gives back
	ByBody  bool         // the cost may be in the body of the response
	Settled bool         // guarded by the lock, as cost is from then on
	ByHost  bool         // the request has no key, and its host is in the place of one
	Made    bool         // paid is known, although there is a ghost
	Ghost   *Place       // see ghost.go; nil: there is none
}

// FewCharges need no memory of their own: those of four limits and of the gate.
const FewCharges = 5

// A Grant is what the core knows of a request that was granted.
type Grant struct {
	Mark   Mark
	Caller *Caller // where it was granted in its turn
	Spent  uint8   // guarded by the lock: which of the calls below were made
	n      uint8   // of the charges in room
	room   [FewCharges]Charge
	More   []Charge // all of them, if room is too small or they were allocated elsewhere
}

// The calls that count once for a grant.
const (
	GrantReported = 1 << iota
	GrantDone
	GrantSettled
	GrantReturned
	GrantCanceled = GrantReported | GrantDone | GrantSettled | GrantReturned
)

// First reports whether none of these calls was made before, and stores that they are made now.
func (g *Grant) First(what uint8) bool {
	first := g.Spent&what == 0
	g.Spent |= what
	return first
}

// Charges returns the charges. They are no field, because a field could point into the grant itself, and then a grant could
// not be on the stack.
func (g *Grant) Charges() []Charge {
	if g.More != nil {
		return g.More
	}
	return g.room[:g.n]
}

// Space returns an empty slice with room for n charges.
func (g *Grant) Space(n int) []Charge {
	if n <= len(g.room) {
		return g.room[:0]
	}
	g.More = make([]Charge, 0, n)
	return g.More
}

// Hold stores that n charges were appended to the space.
func (g *Grant) Hold(n int) {
	if g.More != nil {
		g.More = g.More[:n]
	} else {
		g.n = uint8(n)
	}
}

// Keep stores a copy of the charges.
func (g *Grant) Keep(charges []Charge) {
	own := g.Space(len(charges))[:len(charges)]
	for i := range own { // faster than copy
		own[i] = charges[i]
	}
	g.Hold(len(own))
}

// Add adds a charge, for which there must be room.
func (p *Paid) Add(li *Limit, key string, cost int64) {
	p.Charges = p.Charges[:len(p.Charges)+1] // field by field into zeroed memory, because every request comes here
	c := &p.Charges[len(p.Charges)-1]
	c.Limit, c.Key, c.Cost = li, key, min(cost, meter.MaxCount)
	if key == "" {
		c.Bucket = li.Single
	}
}

// AddByHost adds a charge of a request without a key to a limit that counts such requests by host. SetHost sets the host.
func (p *Paid) AddByHost(li *Limit, cost int64) {
	p.Add(li, "", cost)
	p.Charges[len(p.Charges)-1].ByHost = true
}

// SetHost sets the host of the request, which is not "".
func (p *Paid) SetHost(host string) {
	for i := range p.Charges {
		if c := &p.Charges[i]; c.ByHost {
			c.Key = host
		}
	}
}

// AddAll adds charges that were made before, where there are none yet. There must be room for them.
func (p *Paid) AddAll(charges []Charge) {
	p.Charges = p.Charges[:len(charges)]
	for i := range p.Charges { // faster than copy
		p.Charges[i] = charges[i]
	}
}

// Find finds the bucket of a charge, and reports whether there is one.
func (c *Charge) Find() bool {
	switch {
	case c.ByHost:
		c.Bucket = c.Limit.byHost(c.Key)
	case c.Key != "" && !c.Limit.Gates: // else it is found already
		c.Bucket = c.Limit.buckets[c.Key]
	}
	return c.Bucket != nil
}

// Payable reports whether all charges can be paid now and no request waits there, or whether a bucket is missing; otherwise
// all are found.
func Payable(charges []Charge, now meter.Instant) (ok, missing bool) {
	ok = true
	for i := range charges {
		c := &charges[i]
		if !c.Find() {
			return false, true
		}
		ok = ok && c.Passes(now) && c.Bucket.Meter.Payable(now, c.Cost)
	}
	return ok, false
}

// Passes reports whether nothing stops the charge except what it costs.
func (c *Charge) Passes(now meter.Instant) bool {
	return c.Cost >= 0 && c.Bucket.isOpen(now)
}

// Clamp reduces costs to the sizes of limits with ClampCost, and reports whether there was one to reduce.
func Clamp(charges []Charge) (clamped bool) {
	for i := range charges {
		if c := &charges[i]; c.Limit.Clamps && c.Cost > c.Bucket.Meter.Most() {
			c.Cost, clamped = c.Bucket.Meter.Most(), true
		}
	}
	return clamped
}

// RateAt returns what askRates found for a charge.
func RateAt(rates []meter.Rate, i int) meter.Rate {
	if i < len(rates) {
		return rates[i]
	}
	return meter.Rate{}
}

// A Mark is when a request was granted, and how many had been granted by then.
type Mark struct {
	At  meter.Instant
	Nth uint64 // 0: it is unknown, or the Limiter did not grant the request
}

// Pass adds the charge of a gate, for which there must be room.
func (p *Paid) Pass(gate *Bucket) {
	p.Add(gate.Limit, gate.Key, 1)
	p.Charges[len(p.Charges)-1].Bucket = gate
}

// Rest lets a slot rest that is given back next, where its limit has a pause.
func (c *Charge) Rest(now meter.Instant) {
	if m, ok := c.Bucket.Meter.(meter.Rester); ok {
		m.Rest(now, c.Cost)
	}
}

// SettledCost returns the cost, or what it will probably be once it is settled, by what was settled before.
func (c *Charge) SettledCost() float64 {
	if c.Settled {
		return float64(c.Cost)
	}
	return float64(c.Cost) * c.Limit.Settled.Ratio()
}
