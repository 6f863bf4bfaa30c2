package limiter

import (
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
)

// A Price is what each of many requests is charged: the same costs, under the key "". So they can share these charges. If nothing else is
// to be remembered of a request, a [Paid] is enough, which is a fraction of a [Request].
//
// What a request has paid is in the charges only under the lock. Nothing else in them changes.
type Price struct {
	user    *User
	charges []Charge // with room for that of a gate
}

// A Paid is a request that was granted at a Price.
type Paid struct {
	Mark
	gate *bucket.Bucket        // that it passed, too; nil: it passed none
	each [mostShared + 1]int64 // the [Charge.Paid] of each charge, and that of its gate
}

// mostShared is for how many charges a Paid has room, besides that of a gate.
const mostShared = 8

// NewPrice returns the Price for requests of a User that cost 1 in each of these limits.
func NewPrice(u *User, limits []*bucket.Limit) *Price {
	p := &Price{user: u, charges: make([]Charge, 0, len(limits)+1)}
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
func (l *Core) Pay(p *Price, gate *quota.Key, paid *Paid) (ok bool) {
	read := l.clock() // before the lock, for which others wait
	l.mu.Lock()
	now := l.atLocked(read)
	charges := p.charges
	if gate != nil {
		charges = l.passPricedLocked(p, gate, paid, now)
	}
	if charges != nil && !l.isShutLocked(p.user) {
		if ok, _ = l.payLocked(charges, &paid.Mark, p.user, now); ok {
			paid.note(charges)
		}
	}
	l.mu.Unlock()
	return ok
}

// passPricedLocked returns the charges of a Price and that of a gate; nil: there is no such gate yet.
func (l *Core) passPricedLocked(p *Price, key *quota.Key, paid *Paid, now meter.Instant) []Charge {
	g := l.servers.Find(key, now)
	if g == nil {
		return nil
	}
	paid.gate = ownerOf(g)
	charges := p.charges[:len(p.charges)+1]
	if c := &charges[len(p.charges)]; c.Bucket != paid.gate {
		*c = Charge{Bucket: paid.gate, Cost: 1} // without its key, as it need not be found
	}
	return charges
}

// Land is [Core.Report] for a request that was granted at a Price and has ended, and of which there is nothing to say but that the server did
// what was asked, if it passed a gate. It does nothing and reports false if that may change more than counts of the gate.
func (l *Core) Land(p *Price, paid *Paid) (ok bool) {
	now := l.begin()
	if paid.gate != nil && !l.landGatedLocked(p, paid, now) {
		l.end()
		return false
	}
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
	return true
}

// landGatedLocked is Land for the gate of a request.
func (l *Core) landGatedLocked(p *Price, paid *Paid, now meter.Instant) (ok bool) {
	g := paid.gate.Meter.(*quota.Gate)
	var rep quota.Report
	rep.Sent, rep.Number, rep.Accepted, rep.Done, rep.Own = paid.At, paid.each[len(p.charges)], true, true, ownOf(p.charges)
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
	if paid.gate != nil {
		r.addGate(paid.gate)
	}
	charges := r.Charges()
	for i := range charges {
		charges[i].Paid = paid.each[i]
	}
}
