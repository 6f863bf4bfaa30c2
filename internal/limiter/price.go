package limiter

import "github.com/httpthrottle/throttle/internal/bucket"

// A Price is what each of many requests is charged: the same costs, under the key "". So they can share these charges. If nothing else is
// to be remembered of a request, a [Paid] is enough, which is a fraction of a [Request].
//
// What a request has paid is in the charges only under the lock. Nothing else in them changes.
type Price struct {
	user    *User
	charges []Charge
}

// A Paid is a request that was granted at a Price.
type Paid struct {
	Mark
	each [mostShared]int64 // the [Charge.Paid] of each charge
}

// mostShared is for how many charges a Paid has room.
const mostShared = 8

// NewPrice returns the Price for requests of a User that cost 1 in each of these limits.
func NewPrice(u *User, limits []*bucket.Limit) *Price {
	p := &Price{user: u}
	for _, li := range limits {
		p.charges = append(p.charges, Charge{Bucket: li.Single, Cost: 1})
	}
	return p
}

// IsEnough reports whether nothing but what it has paid is to be remembered of a request, as long as its response says nothing.
func (p *Price) IsEnough() bool {
	for i := range p.charges {
		if li := p.charges[i].Limit(); li.Learns || li.Settles || li.Unit != "" || li.Tracked && li.Supply != nil {
			return false
		}
	}
	return len(p.charges) <= mostShared && !p.user.Granted
}

// Pay is [Core.Now] for a request for which a Price is enough.
func (l *Core) Pay(p *Price, paid *Paid) (ok bool) {
	read := l.clock() // before the lock, for which others wait
	l.mu.Lock()
	now := l.atLocked(read)
	if !l.isShutLocked(p.user) {
		ok, _ = l.payLocked(p.charges, &paid.Mark, p.user, now)
	}
	if ok {
		paid.note(p.charges)
	}
	l.mu.Unlock()
	return ok
}

// Land is [Core.Report] for a request that was granted at a Price and has ended, and of which there is nothing to say.
func (l *Core) Land(p *Price, paid *Paid) {
	now := l.begin()
	l.landedLocked(p.user)
	for i := range p.charges {
		c := &p.charges[i]
		switch b := c.Bucket; {
		case b.Limit.Answered:
			if b.Meter.(answered).Answered(paid.each[i], now) {
				l.markLocked(b)
			}
		case b.Limit.Frees:
			c.rest(now)
			l.giveBackLocked(b, paid.each[i], now, c.Cost)
		}
	}
	l.end()
}

// note notes what was paid, before another request pays the same Price.
func (p *Paid) note(charges []Charge) {
	for i := range charges {
		p.each[i] = charges[i].Paid
	}
}

// Asked returns what a request has asked for that was not granted, with room for the charge of its gate.
func (p *Price) Asked() *Asked {
	charges := make([]Charge, len(p.charges), len(p.charges)+1)
	for i := range charges {
		charges[i].Bucket, charges[i].Cost = p.charges[i].Bucket, p.charges[i].Cost
	}
	return &Asked{p.user, charges}
}

// AddPrice adds the charges of a Price to a request that has none. It does not read what other requests have paid.
func (r *Request) AddPrice(p *Price) {
	for i := range p.charges {
		c, of := r.add(), &p.charges[i]
		c.Bucket, c.Cost = of.Bucket, of.Cost
	}
}

// Bought makes r, which has no charges yet, the request that was granted at a Price.
func (r *Request) Bought(p *Price, paid *Paid) {
	r.User, r.Mark = p.user, paid.Mark
	r.AddPrice(p)
	charges := r.Charges()
	for i := range charges {
		charges[i].Paid = paid.each[i]
	}
}
