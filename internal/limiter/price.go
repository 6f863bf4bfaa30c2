package limiter

import (
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
)

// A Price is what each of many requests is charged: the same cost in the same limits, under the same key. If nothing else is to be remembered
// of a request, a [Paid] is enough, which is a fraction of a [Request].
type Price struct {
	user    *User
	limits  []*bucket.Limit
	charges []Charge // of the request that pays, with room for that of a gate; guarded by the lock
}

// An Order is what a request is to be charged in each limit of a [Price], if that is not 1 under the key "".
type Order struct {
	Key  string // "" for all requests or for none
	Cost int64  // 0: no limit applies
}

// A Paid is a request that was granted at a Price.
type Paid struct {
	Mark
	cost int64             // in each limit
	gate *bucket.Bucket    // that it passed, too; nil: it passed none
	n    int               // charges of limits
	each [mostPaid]payment // the charges, that of the gate last
}

// A payment is a [Charge] that was paid.
type payment struct {
	bucket *bucket.Bucket
	paid   int64
}

// mostPaid is for how many charges a Paid has room.
const mostPaid = 9

// NewPrice returns the Price for requests of a User in these limits.
func NewPrice(u *User, limits []*bucket.Limit) *Price {
	p := &Price{user: u, limits: limits, charges: make([]Charge, 0, len(limits)+1)}
	for _, li := range limits {
		p.charges = append(p.charges, Charge{Bucket: li.Single, Cost: 1})
	}
	return p
}

// IsEnough reports whether nothing but what it has paid is to be remembered of a request, as long as its response says nothing.
func (p *Price) IsEnough() bool {
	for _, li := range p.limits {
		if li.Learns || li.Settles || li.Clamps || li.Unit != "" || li.Tracked && li.Supply != nil {
			return false
		}
	}
	return len(p.limits) < mostPaid && !p.user.Granted
}

// Pay is [Core.Now] for a request for which a Price is enough, and which has neither an Order nor a gate.
func (l *Core) Pay(p *Price, paid *Paid) (ok bool) {
	read := l.clock() // before the lock, for which others wait
	if !l.mu.TryLock() {
		l.mu.wait()
	}
	now := l.atLocked(read)
	if !l.isShutLocked(p.user) {
		ok, _ = l.payLocked(p.charges, &paid.Mark, p.user, now)
	}
	if ok {
		paid.note(p.charges, 1)
	}
	l.mu.Unlock()
	return ok
}

// PayOrder is Pay for a request with an Order, or with a gate. All requests at the Price have an Order with a key, or none has.
func (l *Core) PayOrder(p *Price, o Order, gate *quota.Key, paid *Paid) (ok bool) {
	read := l.clock() // before the lock, for which others wait
	if !l.mu.TryLock() {
		l.mu.wait()
	}
	now := l.atLocked(read)
	if gate != nil {
		paid.gate = l.knownGateLocked(gate, now)
	}
	if !l.isShutLocked(p.user) && (gate == nil || paid.gate != nil) {
		charges, missing := p.orderLocked(o, paid.gate), false
		if ok, missing = l.payLocked(charges, &paid.Mark, p.user, now); missing {
			ok, _ = l.makeAndPayLocked(charges, &paid.Mark, p.user, now)
		}
		if ok {
			paid.note(charges, o.Cost)
		}
	}
	l.mu.Unlock()
	return ok
}

// orderLocked returns the charges of an Order and of a gate.
func (p *Price) orderLocked(o Order, gate *bucket.Bucket) []Charge {
	n := len(p.charges)
	for i := range p.charges {
		c := &p.charges[i]
		c.Key, c.Cost = o.Key, o.Cost
	}
	charges := p.charges
	if o.Cost == 0 {
		charges = charges[n:]
	}
	if gate == nil {
		return charges
	}
	if c := &p.charges[:n+1][n]; c.Bucket != gate {
		*c = Charge{Bucket: gate, Cost: 1} // without its key, as it need not be found
	}
	return charges[:len(charges)+1]
}

// Land is [Core.Report] for a request that was granted at a Price and has ended, and of which there is nothing to say but that the server did
// what was asked, if it passed a gate. It does nothing and reports false if that may change more than counts of the gate.
func (l *Core) Land(p *Price, paid *Paid) (ok bool) {
	now := l.begin()
	if paid.gate != nil && !l.landGatedLocked(paid, now) {
		l.end()
		return false
	}
	l.landedLocked(p.user)
	for i := range paid.n {
		c := &paid.each[i]
		switch b := c.bucket; {
		case b.Limit.Answered:
			if b.Meter.(answered).Answered(c.paid, now) {
				l.markLocked(b)
			}
			if b.Key != "" {
				l.freeLocked(b, now)
			}
		case b.Limit.Frees:
			rest(b, paid.cost, now)
			l.giveBackLocked(b, c.paid, now, paid.cost)
		}
	}
	l.end()
	return true
}

// landGatedLocked is Land for the gate of a request.
func (l *Core) landGatedLocked(paid *Paid, now meter.Instant) (ok bool) {
	g := paid.gate.Meter.(*quota.Gate)
	var rep quota.Report
	rep.Sent, rep.Number, rep.Accepted, rep.Done = paid.At, paid.each[paid.n].paid, true, true
	for i := range paid.n {
		b := paid.each[i].bucket
		noteOwn(&rep.Own, b, float64(paid.cost)*b.Limit.Settled.Ratio())
	}
	if !g.IsKept() || !l.servers.Accepted(g, &rep, now) {
		return false
	}
	l.models.noteLocked(g)
	paid.gate.Limit.Counts.Ended++
	l.freeLocked(paid.gate, now)
	return true
}

// IsGated reports whether the request passed a gate.
func (p *Paid) IsGated() bool { return p.gate != nil }

// note notes what was paid, before another request pays the same Price.
func (p *Paid) note(charges []Charge, cost int64) {
	p.cost, p.n = cost, len(charges)
	for i := range charges {
		p.each[i] = payment{charges[i].Bucket, charges[i].Paid}
	}
	if p.gate != nil {
		p.n--
	}
}

// Asked returns what a request has asked for that was not granted, with room for the charge of its gate.
func (p *Price) Asked(o Order) *Asked {
	asked := &Asked{user: p.user, charges: make([]Charge, 0, len(p.limits)+1)}
	if o.Cost != 0 {
		for _, li := range p.limits {
			asked.charges = append(asked.charges, Charge{Bucket: li.Single, Key: o.Key, Cost: o.Cost})
		}
	}
	return asked
}

// AddPrice adds the charges of a Price to a request that has none, and no Order.
func (r *Request) AddPrice(p *Price) {
	for _, li := range p.limits {
		c := r.add()
		c.Bucket, c.Cost = li.Single, 1
	}
}

// Bought makes r, which has no charges yet, the request that was granted at a Price.
func (r *Request) Bought(p *Price, paid *Paid) {
	r.User, r.Mark = p.user, paid.Mark
	for i := range paid.n {
		c, of := r.add(), &paid.each[i]
		c.Bucket, c.Key, c.Cost, c.Paid = of.bucket, of.bucket.Key, paid.cost, of.paid
	}
	if paid.gate != nil {
		r.addGate(paid.gate)
		r.Charges()[paid.n].Paid = paid.each[paid.n].paid
	}
}
