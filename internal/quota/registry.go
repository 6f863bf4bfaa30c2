package quota

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"strings"

	"github.com/httpthrottle/throttle/internal/keep"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/record"
	"github.com/httpthrottle/throttle/internal/server"
)

const (
	// maxTotal is how many bytes a Registry takes at most, about, with a bucket for each gate and while no requests are in flight.
	maxTotal = 64 << 20

	groupMost   = 4 * maxSize // bytes of the accounts of a group together, besides what each takes without quotas
	maxFamilies = 16          // gates of an account that no request needs; the others are forgotten when another one is made
	gateSize    = 448         // about what a gate takes with its bucket, besides its list of quotas
	recordSize  = 304         // about what an account takes with its host and its places in maps, besides what Account.Size counts
	lookAtMost  = 64          // accounts or gates that are looked at at once to find one that may be forgotten
	sweepMost   = 1024        // that are looked at by the keeper, or where most may not be forgotten
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
	Wall    *meter.Wall                          // the client's; nil: it is not known
	Owner   func(g *Gate, now meter.Instant) any // of a new gate; nil: it has none
}

// A place is what a gate is found by.
type place struct {
	group *group
	kind  uint64
}

// kind returns a hash of that by which requests are distinguished at the host.
func (s *Server) kind(key *Key) uint64 {
	kind := mix(mix(key.Family, key.Method), key.Credential)
	if key.Parts == "" && len(s.finer) == 0 { // as for most
		return kind
	}
	return s.finerKind(kind, key)
}

// finerKind returns a hash of a kind and of what else distinguishes requests.
func (s *Server) finerKind(kind uint64, key *Key) uint64 {
	for i := range len(key.Parts) {
		kind = mix(kind, uint64(key.Parts[i]))
	}
	if finer := s.finerOf(key.Family); finer.by != 0 && key.Traits != nil {
		for n := range MaxTraits {
			if finer.by>>n&1 == 1 {
				kind = mix(mix(kind, uint64(n)), key.Traits.Trait(n)) // two traits may have the same values
			}
		}
	}
	return kind
}

// mix combines two hashes.
func mix(x, y uint64) uint64 {
	x = (x ^ y) * 0x9e3779b97f4a7c15
	return x ^ x>>29
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
	if r.Owner != nil {
		g.Owner = r.Owner(g, now)
	}
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

// drop forgets a gate.
func (r *Registry) drop(g *Gate) {
	r.keeper.Remove(g)
	r.forget(g)
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
	rep.Verdict = server.Done
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

// Judge decides what a response means, as [Gate.Judge] does, after it has moved the gate to the account that it belongs to by what the
// response shows.
func (r *Registry) Judge(g *Gate, rep *Report, now meter.Instant) (m Moved) {
	rep.wall = r.Wall
	if rep.Verdict == server.NoVerdict && (rep.Hints == nil || rep.Hints.After == nil) {
		m = r.sort(g, rep, now)
	}
	g.Judge(rep, now)
	return m
}

// sort moves the gate of a response to the account that it belongs to by what the response shows.
func (r *Registry) sort(g *Gate, rep *Report, now meter.Instant) (m Moved) {
	a, b := g.Account, g.belongs(rep, now)
	if b.account == nil {
		b.account = r.split(g, &b, now)
	}
	if b.account != a {
		m.From = r.move(g, b.account, now)
	}
	if to := g.Account; to.Example == "" && rep.Traits != nil && len(to.group.accounts) > 1 {
		to.Example = rep.Traits.String()
	}
	if b.divided {
		m.Parts = r.divide(g, now)
	}
	return m
}

// split returns a new account for a gate; its own, if there are too many that matter.
func (r *Registry) split(g *Gate, b *belonging, now meter.Instant) *Account {
	a := g.Account
	if len(a.gates) == 1 || len(a.group.accounts) >= maxAccounts && !r.forgetIdle(a.group, a, now) {
		return a
	}
	n := newAccount(a.server, r.seeds.Uint64())
	n.Key, n.final, n.own, n.bare, n.sent, n.used, n.even.most = a.Key, a.final, a.own, a.bare, a.sent, now, a.even.most
	a.server.add(n)
	if b.mixed {
		for _, q := range g.quotas {
			q.unlearn()
		}
	}
	if b.refused {
		g.odds, a.shown = 0, nil
		a.unlearn()
	}
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
	from.moves(to, g, now)
	g.Join(to)
	if to.knows(Unnamed) {
		g.under(now, Unnamed)
	}
	if waits {
		g.SetWaiting(true)
	}
	r.left(from)
	r.count(to)
	return from
}

// divide returns the gates of the parts that a trial has shown. A part of which nothing was left need not ask whether an end concerns it.
func (r *Registry) divide(g *Gate, now meter.Instant) (parts []*Gate) {
	x := g.trial
	g.trial = nil
	for i := max(0, int(x.n)-len(x.last)); i < int(x.n); i++ {
		c := &x.last[i%len(x.last)]
		part := r.Part(g, c.traits, now)
		if part.report == 0 {
			part.joined = c.left == 0
		}
		parts = append(parts, part)
	}
	return parts
}

// Part returns the gate at which a request with these traits is to wait that has waited at g, which is divided: g itself, if there is no
// room for another. A new one begins in the account of g, to which the responses to its requests have led.
func (r *Registry) Part(g *Gate, traits Traits, now meter.Instant) *Gate {
	k := g.Account.Key
	k.Family, k.Method, k.Credential, k.Traits = g.family, g.method, g.credential, traits
	if part := r.Find(&k, now); part != nil {
		return part
	}
	if !r.hasRoom(now) {
		return g
	}
	return r.addTo(g.Account, &k, now)
}

// count counts how many bytes an account takes. Every change of an account that takes room, or frees it, ends in it: a request takes none,
// and a response only if it has hints.
func (r *Registry) count(a *Account) {
	n := a.takes()
	r.size += n - int(a.size)
	a.size = int32(n)
}

// bound bounds how many bytes an account takes about which a report came, and all accounts together. It returns the name of one that was
// forgotten although it stopped requests.
func (r *Registry) bound(a *Account, now meter.Instant) (forgot string) {
	if !a.stops(now) {
		a.byRefusal = false
	}
	most := min(maxSize, groupMost/len(a.group.accounts))
	a.fit(now, most-recordSize-min(a.gatesSize(), most/2))
	for r.count(a); r.size > maxTotal; {
		name := r.forgetAccount(a, stopsByRefusal, now)
		if name == "" {
			break
		}
		forgot = name
	}
	return forgot
}

// fitFamilies forgets a gate of an account that no request needs, if there are many.
func (r *Registry) fitFamilies(a *Account) {
	if len(a.gates) < maxFamilies {
		return
	}
	for _, g := range a.gates[:min(len(a.gates), lookAtMost)] {
		if g.idle() {
			r.drop(g)
			return
		}
	}
}

// hasRoom reports whether there is room for another gate. It forgets a gate that stops nothing to make room if it must.
func (r *Registry) hasRoom(now meter.Instant) bool {
	if len(r.gates) < r.most {
		return true
	}
	g, ok := r.keeper.Evict(now, sweepMost, func(*Gate) bool { return false })
	if ok {
		r.Evicted++
		r.forget(g)
	}
	return ok
}

// gateFor returns a gate for a response to a request that passed none: if it must, it makes room for it by forgetting an account that is
// worth no more than the response. It returns the name of that account, and no gate if there is no room and the response is no refusal.
func (r *Registry) gateFor(key *Key, limited bool, now meter.Instant) (g *Gate, forgot string) {
	if g = r.Gate(key, now); g != nil {
		return g, ""
	}
	worth := stopsNothing
	if limited {
		worth = stopsByRefusal
	}
	if forgot = r.forgetAccount(nil, worth, now); forgot == "" && !limited {
		return nil, ""
	}
	return r.add(key, now), forgot
}

// forgetAccount forgets an account, which is not the one of that pointer and not worth more than most: of some, the one that is worth
// least, and of these the one that was used least recently. It returns its name; "": there is none.
func (r *Registry) forgetAccount(except *Account, most int, now meter.Instant) string {
	var victim *Account
	looked, least := 0, most
	for _, s := range r.hosts { // a map yields them from a random place
		if looked > lookAtMost && victim != nil || looked > sweepMost {
			break
		}
		for _, a := range s.accounts[:min(len(s.accounts), lookAtMost)] {
			looked++
			if a == except || !isIdle(a) {
				continue
			}
			if w := a.worth(now); w < least || w == least && (victim == nil || a.used < victim.used) {
				victim, least = a, w
			}
		}
	}
	if victim == nil {
		return ""
	}
	name := victim.Key.Name()
	r.forgetGates(victim)
	return name
}

// isIdle reports whether no request needs a gate of the account, as far as that can be seen at once.
func isIdle(a *Account) bool {
	if len(a.gates) > lookAtMost {
		return false
	}
	for _, g := range a.gates {
		if !g.idle() {
			return false
		}
	}
	return true
}

// forgetGates forgets the gates of an account, and with them the account.
func (r *Registry) forgetGates(a *Account) {
	for n := len(a.gates); n > 0; n-- {
		r.Evicted++
		r.drop(a.gates[n-1])
	}
}

// Forget lifts everything that a server reported about an account, which may have been forgotten itself; see [Account.Forget].
func (r *Registry) Forget(a *Account, now meter.Instant) {
	a.Forget(now)
	if len(a.gates) > 0 {
		r.count(a)
	}
}

// Restore has f change an account, and bounds what the account takes afterwards. The error is that of f, or that there was not
// enough room.
func (r *Registry) Restore(a *Account, now meter.Instant, f func(*Account, meter.Instant) error) error {
	a.asked = askMost // it is not known which requests what is restored concerns, so it concerns all
	err := f(a, now)
	if forgot := r.bound(a, now); forgot != "" {
		err = errors.Join(err, fmt.Errorf("for lack of room, what %s reported was forgotten", forgot))
	}
	return err
}

// Free notes that a request that kept a gate busy may have ended. It reports whether First may be earlier now.
func (r *Registry) Free(g *Gate, now meter.Instant) bool { return r.keeper.Free(g, now) }

// Sweep forgets gates that are as good as new, and looks at most so many. It reports whether there may be more to look at.
func (r *Registry) Sweep(now meter.Instant, most int) (more bool) {
	return r.keeper.Sweep(now, most, r.forget)
}

// First returns when Sweep has something to do; Never: nothing is kept.
func (r *Registry) First() meter.Instant { return r.keeper.First() }

// forgetIdle forgets the account of a group that was used least recently, of those that stop no request and have none in flight. It reports
// whether there is one.
func (r *Registry) forgetIdle(p *group, except *Account, now meter.Instant) bool {
	var idle *Account
	for _, a := range p.accounts {
		if a != except && isIdle(a) && !a.stops(now) && (idle == nil || a.used < idle.used) {
			idle = a
		}
	}
	if idle != nil {
		r.forgetGates(idle)
	}
	return idle != nil
}
