package quota

import (
	"slices"

	"github.com/httpthrottle/throttle/internal/meter"
)

// This file is the model of what a server counts together; see doc.go.

const (
	maxAccounts = 64 // of a group
	maxFiner    = 64 // families of a host whose requests are distinguished further
	mostVotes   = 3  // for counts that are separate
	askMost     = 2  // gates that find out in vain whether a hold concerns them
	mostTries   = 3  // to find the trait by which a server counts requests of one gate separately
)

// MaxTraits is how many traits of a request may be known besides its family, its method and its credential.
const MaxTraits = 8

// Traits are what else a server may count a request by. Those by which it is more probable, or of which there are fewer, come first.
type Traits interface {
	// Trait returns a hash of the n-th of MaxTraits; 0: the request has none.
	Trait(n int) uint64
}

// alike is what the requests of a gate have in common, besides finer traits.
type alike struct{ family, method, credential uint64 }

// evidence is what shows whether a gate is counted with the others of its account.
type evidence struct {
	own    departures
	report uint64 // which quotas its responses report, with their limits; 0: none
	left   int64  // what the response to its newest request reports
	newest int64  // the number of that request among its own; 0: there was no such response
	apart  int8   // how many responses fit its own count, and not that of the account
	joined bool   // a response has shown that it belongs to its account
	tries  int8   // to find what is different between its requests
	sides  *sides // nil: its responses report the same quotas
}

// A sides is what the requests of a gate have in common of which responses report one of two sets of quotas.
type sides struct {
	report uint64 // of the second
	traits [2][MaxTraits]uint64
	varies [2]uint16 // traits that are not the same in all
	n      [2]int8   // requests
}

// mix combines two hashes.
func mix(x, y uint64) uint64 {
	x = (x ^ y) * 0x9e3779b97f4a7c15
	return x ^ x>>29
}

// kind returns a hash of that by which requests are distinguished at the host.
func (s *Server) kind(key *Key) uint64 {
	kind := mix(mix(key.Family, key.Method), key.Credential)
	if finer := s.finer[key.Family]; finer != 0 && key.Traits != nil {
		for n := range MaxTraits {
			if finer>>n&1 == 1 {
				kind = mix(kind, key.Traits.Trait(n))
			}
		}
	}
	return kind
}

// guess returns the account that a new gate for a key probably belongs to: that of the gate that is most alike.
func (p *group) guess(key *Key) *Account {
	best, most, looked := p.accounts[0], -1, 0
	if len(p.accounts) == 1 {
		return best
	}
	for _, a := range p.accounts {
		for _, g := range a.gates[:min(len(a.gates), lookAtMost)] {
			if alike := g.likeness(key); alike > most {
				best, most = a, alike
			}
			if looked++; looked > sweepMost {
				return best
			}
		}
	}
	return best
}

// likeness returns how much of what requests may be counted by is the same.
func (a alike) likeness(key *Key) (n int) {
	for _, same := range [...]bool{a.family == key.Family, a.method == key.Method, a.credential == key.Credential} {
		if same {
			n++
		}
	}
	return n
}

// reported returns a hash of which quotas are reported, and of their limits; 0: none.
func (r *Reading) reported() (hash uint64) {
	for i := range r.claims {
		c := &r.claims[i]
		h := uint64(c.Limit) + 2
		for j := range len(c.Name) {
			h = mix(h, uint64(c.Name[j]))
		}
		hash += h // whatever their order
	}
	return hash
}

// Judge decides what a response means, as [Gate.Judge] does, after it has moved the gate to the account that it belongs to by what the
// response shows. It returns the account that the gate left; nil: it stays.
func (r *Registry) Judge(g *Gate, rep *Report, now meter.Instant) (from *Account) {
	if rep.Kind == Unjudged {
		from = r.sort(g, rep, now)
		g.Judge(rep, now)
	}
	return from
}

// sort moves the gate of a response to the account that it belongs to by what the response shows. It returns the account that the gate left;
// nil: it stays.
func (r *Registry) sort(g *Gate, rep *Report, now meter.Instant) (from *Account) {
	to := g.Account
	switch reported := rep.reported(); {
	case rep.Hints != nil && rep.Hints.After != nil:
		return nil
	case reported == 0:
		to = r.asked(g, rep, now)
	case g.differs(rep, reported):
		return nil
	case g.Account.contradicts(rep.claims, g), g.countsApart(rep):
		g.report, g.joined, g.apart = reported, true, 0
		to = r.other(g, rep, now)
	default:
		g.report, g.joined = reported, true
	}
	if to == g.Account {
		return nil
	}
	return r.move(g, to, now)
}

// mayAsk reports whether a request may be sent to find out whether the gate belongs to its account.
func (g *Gate) mayAsk(need int64) bool {
	return !g.joined && g.inFlight == 0 && need <= 1 && g.Account.asked < askMost && g.Account.group != nil
}

// asked takes a response without counts. If the account was stopped when the request was sent, it shows whether the gate belongs to it.
func (r *Registry) asked(g *Gate, rep *Report, now meter.Instant) (to *Account) {
	a := g.Account
	refused := rep.Hints != nil && rep.Hints.Limited
	switch stopped := a.held > rep.Sent && a.set < rep.Sent; {
	case refused && stopped && !g.joined:
		a.asked++
	case refused && a.held <= now:
		a.asked = 0
	case stopped && !g.joined && rep.Accepted:
		a.asked, g.joined = 0, true
		return r.split(g, now)
	}
	return a
}

// contradicts reports whether a quota of the account, of which others than g know, has another limit than is reported.
func (a *Account) contradicts(claims []Claim, g *Gate) bool {
	for i := range claims {
		if q := a.find(claims[i].Name); q != nil && q.limit >= 0 && claims[i].Limit >= 0 && q.limit != claims[i].Limit {
			return slices.ContainsFunc(a.gates, func(x *Gate) bool { return x != g && x.joined && slices.Contains(x.quotas, q) })
		}
	}
	return false
}

// differs takes a response that reports other quotas than those before it. What differs between their requests is what the server counts
// by. It reports whether that is not known yet.
func (g *Gate) differs(rep *Report, reported uint64) bool {
	side := 0
	switch {
	case g.report == 0 || rep.Traits == nil || g.tries >= mostTries:
		return false
	case g.sides == nil && reported == g.report:
		return false
	case g.sides == nil:
		g.sides = &sides{report: reported}
		side = 1
	case reported == g.sides.report:
		side = 1
	case reported != g.report:
		return true
	}
	x := g.sides
	x.add(side, rep.Traits)
	if x.n[1] >= 4 && x.n[0] == 0 { // no longer
		g.sides = nil
		return false
	}
	if min(x.n[0], x.n[1]) < 2 {
		return true
	}
	g.sides = nil
	g.tries++
	if n := x.tell(); n >= 0 {
		g.Account.server.refine(g.family, n)
		for _, q := range g.Account.quotas {
			q.flow = flow{}
		}
		return true
	}
	return false
}

// add takes a request of one side.
func (x *sides) add(side int, t Traits) {
	for n := range MaxTraits {
		switch v := t.Trait(n); {
		case x.n[side] == 0:
			x.traits[side][n] = v
		case x.traits[side][n] != v:
			x.varies[side] |= 1 << n
		}
	}
	x.n[side] = min(x.n[side]+1, 100)
}

// tell returns the trait that tells the sides apart: rather one that is the same in all requests of each side; -1: there is none.
func (x *sides) tell() int {
	best, least := -1, 3
	for n := range MaxTraits {
		vary := int(x.varies[0]>>n&1 + x.varies[1]>>n&1)
		if vary < 2 && x.traits[0][n] != x.traits[1][n] && vary < least {
			best, least = n, vary
		}
	}
	return best
}

// refine has requests of a family be distinguished by another trait.
func (s *Server) refine(family uint64, trait int) {
	if s.finer == nil {
		s.finer = make(map[uint64]uint16)
	}
	if len(s.finer) < maxFiner || s.finer[family] != 0 {
		s.finer[family] |= 1 << trait
	}
}

// countsApart weighs the counts of a response: they follow from the requests of the gate alone, or from all requests of the account.
func (g *Gate) countsApart(rep *Report) bool {
	c := &rep.claims[0]
	q := g.Account.find(c.Name)
	n := g.own.before(rep.Number)
	if n <= g.newest && g.newest > 0 || !c.Counted {
		return false
	}
	left, before, known := c.Left, g.left, g.newest > 0
	since := n - g.newest
	g.left, g.newest = left, n
	if q == nil || g.Account.by == nil || g.Account.by == g || q.left == meter.MaxCount || !known {
		return false
	}
	own := abs(left - (before - since))
	common := abs(left - (q.left - (q.before(rep.Number) - q.newest.n)))
	switch {
	case common > 2*own+1+q.inFlight:
		g.apart++
	case own > 2*common+1:
		g.apart = max(g.apart-1, -mostVotes)
	}
	return g.apart >= mostVotes
}

func abs(n int64) int64 { return max(n, -n) }

// other returns the account that a gate belongs to whose responses contradict its account: another one that the response fits, or a new one.
func (r *Registry) other(g *Gate, rep *Report, now meter.Instant) *Account {
	for _, a := range g.Account.group.accounts {
		if a != g.Account && a.fits(rep, now) {
			return a
		}
	}
	return r.split(g, now)
}

// fits reports whether a response may be of the quotas of the account, by their limits, ends and counts.
func (a *Account) fits(rep *Report, now meter.Instant) bool {
	return !slices.ContainsFunc(rep.claims, func(c Claim) bool {
		q := a.find(c.Name)
		return q == nil || q.limit != c.Limit || !q.fits(&c, now)
	})
}

// fits reports whether a claim may be of the quota, by its end and its count.
func (q *quota) fits(c *Claim, now meter.Instant) bool {
	if q.left == meter.MaxCount || q.ended(now) {
		return true
	}
	if q.reset < meter.Never && c.Reset < meter.Never && abs(q.reset-c.Reset) > 2*rounding {
		return false
	}
	return abs(c.Left-q.left) <= 1+q.inFlight+q.sent-q.newest.n
}

// split returns a new account for a gate; its own, if there are too many.
func (r *Registry) split(g *Gate, now meter.Instant) *Account {
	a := g.Account
	if len(a.group.accounts) >= maxAccounts || len(a.gates) == 1 {
		return a
	}
	n := NewAccount(a.server, r.seeds.Uint64())
	n.Key, n.own, n.bare, n.sent, n.used, n.pace.most = a.Key, a.own, a.bare, a.sent, now, a.pace.most
	a.server.add(n)
	return n
}

// move moves a gate, and returns the account that it leaves.
func (r *Registry) move(g *Gate, to *Account, now meter.Instant) (from *Account) {
	from = g.Account
	waits := g.at > 0
	if waits {
		g.SetWaiting(false)
	}
	for _, q := range g.quotas {
		q.inFlight -= g.inFlight
	}
	g.quotas = nil
	g.Leave()
	to.sent = max(to.sent, from.sent)
	g.Join(to)
	if to.Knows(Unnamed) {
		g.Under(now, Unnamed)
	}
	if waits {
		g.SetWaiting(true)
	}
	r.left(from)
	r.count(to)
	return from
}
