package quota

import (
	"cmp"
	"iter"
	"maps"
	"strings"

	"github.com/httpthrottle/throttle/internal/keep"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/record"
)

// A Registry has the hosts of which a client knows what they reported, with their accounts and gates. It bounds how much is kept,
// because servers decide what there is to keep.
type Registry struct {
	Evicted uint64 // gates that were forgotten to make room
	most    int    // gates
	gates   map[place]*Gate
	hosts   map[string]*Server
	peak    int // the most gates since that map was made
	peaks   int // the most hosts
	size    int // about how many bytes all that takes
	keeper  keep.Keeper[*Gate]
	recent  *Gate // what Find returned last, since most programs send many requests of one kind in a row; nil: it was forgotten
	seeds   meter.Dice
	Wall    *meter.Wall // the client's; nil: it is not known
}

// A place is what a gate is found by.
type place struct {
	group *group
	kind  uint64
}

// NewRegistry returns a registry of at most that number of gates, unless more are needed for refusals. The seed is of what is random in
// holds.
func NewRegistry(most int, seed uint64) *Registry {
	r := &Registry{most: most, gates: make(map[place]*Gate), hosts: make(map[string]*Server), seeds: meter.Dice(seed)}
	r.keeper.Matters = (*Gate).matters
	return r
}

// Len returns how many gates are kept.
func (r *Registry) Len() int { return len(r.gates) }

// All yields the gates.
func (r *Registry) All() iter.Seq[*Gate] { return maps.Values(r.gates) }

// Host returns the host of that name; nil: none is kept.
func (r *Registry) Host(name string) *Server { return r.hosts[name] }

// Find returns the gate of a key; nil: none is kept.
func (r *Registry) Find(key *Key, now meter.Instant) *Gate {
	g := r.recent
	if g == nil || !g.isFor(key) {
		s := r.hosts[key.Host]
		if s == nil {
			return nil
		}
		if g = r.gates[place{s.find(key), s.kind(key)}]; g == nil {
			return nil
		}
		r.recent = g
	}
	g.Account.used = now
	return g
}

// isFor reports whether requests with a key pass the gate.
func (g *Gate) isFor(key *Key) bool {
	a := g.Account
	return a.Key.sameGroup(key) && g.kind == a.server.kind(key)
}

// Gate returns the gate of a key, and makes it if there is none; nil: there is no room for another.
func (r *Registry) Gate(key *Key, now meter.Instant) *Gate {
	if g := r.Find(key, now); g != nil {
		return g
	}
	if !r.hasRoom(now) {
		return nil
	}
	return r.add(key, now)
}

// add makes a gate of the account that requests with the key are probably counted by.
func (r *Registry) add(key *Key, now meter.Instant) *Gate {
	return r.addTo(r.account(r.server(key.Host), key, now), key, now)
}

// addTo makes a gate of an account.
func (r *Registry) addTo(a *Account, key *Key, now meter.Instant) *Gate {
	r.fitFamilies(a)
	if len(a.gates) == 1 && !a.stops(now) { // it was alone, so nothing but a count shows that it belongs with another one
		a.gates[0].joined = a.gates[0].report != 0
	}
	s, g := a.server, newGate(a)
	g.kind, g.finer, g.alike = s.kind(key), s.finerOf(key.Family), alike{key.Family, key.Method, key.Credential}
	if a.knows(Unnamed) {
		g.under(now, Unnamed)
	}
	r.gates[place{a.group, g.kind}] = g
	r.peak = max(r.peak, len(r.gates))
	r.keeper.Add(g, now)
	r.count(a)
	return g
}

// server returns the host of that name, and makes it if there is none.
func (r *Registry) server(host string) *Server {
	s := r.hosts[host]
	if s == nil {
		s = NewServer(r.seeds.Uint64())
		r.hosts[strings.Clone(host)] = s // which may be a part of a long URL
		r.peaks = max(r.peaks, len(r.hosts))
	}
	return s
}

// account returns the account that requests with a key are probably counted by, and makes it if there is none.
func (r *Registry) account(s *Server, key *Key, now meter.Instant) *Account {
	p := s.find(key)
	if p != nil {
		if a := p.guess(key); a != nil {
			return a
		}
		if len(p.accounts) >= maxAccounts && !r.forgetIdle(p, nil, now) {
			return p.accounts[0]
		}
	}
	a := newAccount(s, r.seeds.Uint64())
	a.Key, a.used = key.ofGroup().clone(), now
	a.Key.Parts = strings.Clone(key.Parts)
	if p != nil && len(p.accounts) > 0 {
		a.final = p.accounts[0].final
	}
	s.add(a)
	return a
}

// forget forgets a gate that the keeper has removed, its account with the last gate, and its host with the last account.
func (r *Registry) forget(g *Gate) {
	a := g.Account
	delete(r.gates, place{a.group, g.kind})
	if r.recent == g {
		r.recent = nil
	}
	r.gates = keep.Shrunk(r.gates, &r.peak)
	g.Leave()
	r.left(a)
}

// left takes that a gate has left an account.
func (r *Registry) left(a *Account) {
	if len(a.gates) > 0 {
		r.count(a)
		return
	}
	r.size -= int(a.size)
	a.server.remove(a)
	if len(a.server.accounts) == 0 {
		delete(r.hosts, a.Key.Host)
		r.hosts = keep.Shrunk(r.hosts, &r.peaks)
	}
}

// Apply takes the report about a request that passed a gate.
func (r *Registry) Apply(g *Gate, rep *Report, now meter.Instant) Change {
	r.Judge(g, rep, now)
	grows := rep.Hints != nil || g.Account.final != nil // else nothing is learned that takes room
	c := g.apply(rep, now)
	if grows || g.Account.byRefusal || r.size > maxTotal {
		c.Forgot = r.bound(g.Account, now)
	}
	return c
}

// Accepted is Apply for a response without hints to a request that no limit stopped, where it changes no more than what is counted. Otherwise
// it does nothing, and reports false: where requests wait, and where something may be known of a refusal that the response contradicts.
func (r *Registry) Accepted(g *Gate, rep *Report, now meter.Instant) (ok bool) {
	a := g.Account
	if len(a.waiting) > 0 || a.byRefusal || a.first.known || g.isWeighed() || a.final != nil || a.held > rep.Sent || a.server.held > rep.Sent || rep.Own.Learns() || r.size > maxTotal {
		return false
	}
	rep.Kind = Done
	a.cover(&rep.Own)
	a.bare.Accepted()
	a.used = now
	g.spend(rep, now)
	g.answered(rep, now)
	return true
}

// ApplyUngated takes a report with hints about a request that passed no gate. The gate is nil if there is no room for another, and nothing
// is applied. A refusal always finds room.
func (r *Registry) ApplyUngated(key *Key, rep *Report, unseen Unseen, now meter.Instant) (g *Gate, c Change) {
	g, forgot := r.gateFor(key, rep.Hints.Limited, now)
	if g == nil {
		return nil, c
	}
	a := g.Account
	known := len(a.quotas)
	if rep.Hints.After == nil {
		g.Sent()
		a.backoff.Sent(rep.Sent, false)
		if a.rate != nil {
			a.rate.Sent()
		}
	}
	if unseen.Before != (record.Record{}) {
		a.lately = unseen.Before.Without(float64(unseen.Since + 1)) // their responses have not come
	}
	rep.Number = a.sent - unseen.Since
	rep.Traits = key.Traits
	moved := r.Judge(g, rep, now)
	a = g.Account
	c = g.apply(rep, now)
	c.Moved = moved
	if len(a.quotas) > known {
		a.waitForUnseen(unseen.Since, now-rep.Sent, now)
	}
	c.Forgot = cmp.Or(r.bound(a, now), forgot)
	return g, c
}
