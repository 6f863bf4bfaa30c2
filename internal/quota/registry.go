package quota

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/keep"
	"github.com/httpthrottle/throttle/internal/meter"
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
	seeds   meter.Dice
}

// A place is what a gate is found by.
type place struct {
	account *Account
	family  uint64
}

// A roster is the accounts of a server.
type roster struct {
	accounts []*Account
	byKey    map[Key]*Account // nil: there are few
	peak     int              // the most accounts since that map was made
}

// A record is what a Registry has of an account.
type record struct {
	Key       Key // without a family
	waiting   []*Gate
	used      meter.Instant // when a request or a response came last
	nth       int32         // of the host's accounts
	size      int32         // as it is counted in Registry.size
	Limited   uint32        // responses by which the server refused because of a limit
	byRefusal bool          // what stops requests may be due to a refusal
}

// A link is what a Registry has of a gate.
type link struct {
	keep.Entry
	Owner  any // for whoever uses the Registry
	family uint64
	at     int32 // in the list of its account's gates with waiters, counted from 1; 0: no request waits
}

// NewRegistry returns a registry of at most so many gates, unless more are needed for refusals. The seed is of what is random in holds.
func NewRegistry(most int, seed uint64) *Registry {
	r := &Registry{most: most, gates: make(map[place]*Gate), hosts: make(map[string]*Server), seeds: meter.Dice(seed)}
	r.keeper.Matters = (*Gate).matters
	return r
}

// matters is Matters for a gate at which requests may wait.
func (g *Gate) matters(now meter.Instant) (must, full meter.Instant) {
	if g.at > 0 {
		return meter.Never, meter.Never
	}
	must, full = g.Matters(now)
	return must, max(must, full)
}

// Len returns how many gates are kept.
func (r *Registry) Len() int { return len(r.gates) }

// All yields the gates.
func (r *Registry) All() iter.Seq[*Gate] { return maps.Values(r.gates) }

// Host returns the host of that name; nil: none is kept.
func (r *Registry) Host(name string) *Server { return r.hosts[name] }

// Accounts returns the accounts of a server, which are not to be changed. The server may be nil.
func (s *Server) Accounts() []*Account {
	if s == nil {
		return nil
	}
	return s.accounts
}

// Server returns the server of an account.
func (a *Account) Server() *Server { return a.server }

// Waiting returns the gates at which requests wait. They are not to be changed.
func (a *Account) Waiting() []*Gate { return a.waiting }

// SetWaiting notes whether requests wait at a gate, when that changes.
func (g *Gate) SetWaiting(wait bool) {
	all := &g.Account.waiting
	if wait {
		*all = append(*all, g)
		g.at = int32(len(*all))
		return
	}
	last := (*all)[len(*all)-1]
	(*all)[g.at-1], last.at = last, g.at
	*all = slices.Delete(*all, len(*all)-1, len(*all))
	g.at = 0
}

// Find returns the gate of a key; nil: none is kept.
func (r *Registry) Find(key *Key, now meter.Instant) *Gate {
	s := r.hosts[key.Host]
	if s == nil {
		return nil
	}
	g := r.gates[place{s.find(key.ofAccount()), key.Family}]
	if g != nil {
		g.Account.used = now
	}
	return g
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

// add makes a gate.
func (r *Registry) add(key *Key, now meter.Instant) *Gate {
	a := r.account(key, now)
	r.fitFamilies(a)
	g := NewGate(a)
	g.family = key.Family
	if a.Knows(Unnamed) {
		g.Under(now, Unnamed)
	}
	r.gates[place{a, key.Family}] = g
	r.peak = max(r.peak, len(r.gates))
	r.keeper.Add(g, now)
	r.count(a)
	return g
}

// account returns the account of a key, and makes it if there is none.
func (r *Registry) account(key *Key, now meter.Instant) *Account {
	s := r.hosts[key.Host]
	if s == nil {
		s = NewServer(r.seeds.Uint64())
		r.hosts[strings.Clone(key.Host)] = s // which may be a part of a long URL
		r.peaks = max(r.peaks, len(r.hosts))
	}
	a := s.find(key.ofAccount())
	if a == nil {
		a = NewAccount(s, r.seeds.Uint64())
		a.Key, a.used = key.ofAccount().clone(), now
		s.add(a)
	}
	return a
}

// forget forgets a gate that the keeper has removed, its account with the last gate, and its host with the last account.
func (r *Registry) forget(g *Gate) {
	a := g.Account
	delete(r.gates, place{a, g.family})
	r.gates = keep.Shrunk(r.gates, &r.peak)
	g.Leave()
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

const fewAccounts = 8 // of a host, among which one is found without a map

// find returns the account of a key without a family; nil: there is none.
func (o *roster) find(key Key) *Account {
	if o.byKey != nil {
		return o.byKey[key]
	}
	for _, a := range o.accounts {
		if a.Key == key {
			return a
		}
	}
	return nil
}

func (o *roster) add(a *Account) {
	a.nth = int32(len(o.accounts))
	o.accounts = append(o.accounts, a)
	if o.byKey == nil && len(o.accounts) > fewAccounts {
		o.byKey = make(map[Key]*Account)
		for _, a := range o.accounts {
			o.byKey[a.Key] = a
		}
	}
	if o.byKey != nil {
		o.byKey[a.Key] = a
		o.peak = max(o.peak, len(o.byKey))
	}
}

func (o *roster) remove(a *Account) {
	n := len(o.accounts) - 1
	last := o.accounts[n]
	o.accounts[a.nth], last.nth = last, a.nth
	o.accounts[n], o.accounts = nil, o.accounts[:n]
	if o.byKey != nil {
		delete(o.byKey, a.Key)
		o.byKey = keep.Shrunk(o.byKey, &o.peak)
	}
	if n < cap(o.accounts)/4 && cap(o.accounts) > keep.ShrinkAbove {
		o.accounts = slices.Clone(o.accounts)
	}
}

// Unseen are the requests that passed no gate, because no server had sent hints when they left. They may have gone to any server.
type Unseen struct {
	Before Tally // were sent before the response came
	Since  int64 // have left since the request of the report
}

// A Scope says whose requests a change concerns.
type Scope uint8

const (
	OfNone    Scope = iota
	OfAccount       // all requests of the account
	OfHost          // all requests to the host
)

// A Change is what a report has changed, besides what the gates of the account can pay, and when.
type Change struct {
	Late   Scope                                                  // whose waiting requests may be too late now
	Until  meter.Instant                                          // the end of a new hold; 0: there is none
	Lifted bool                                                   // a hold was taken back
	Final  error                                                  // what the server said with a final refusal, if that is news; Until is when the next request asks
	Doubt  func(now meter.Instant, as aimd.Outcome) (undone bool) // to be called once the body has been read, with what it shows, 0 if the refusal stands; nil: it is certain
	Forgot string                                                 // the name of an account that was forgotten for lack of room, although it stopped requests

	Explained bool // an empty quota explains a refusal, and stops requests by itself
}

// Apply takes the report about a request that passed a gate.
func (r *Registry) Apply(g *Gate, rep *Report, now meter.Instant) Change {
	c := g.apply(rep, now)
	c.Forgot = r.bound(g.Account, now)
	return c
}

// ApplyUngated takes a report with hints about a request that passed no gate. The gate is nil if there is no room for another, and nothing is
// applied. A refusal always finds room.
func (r *Registry) ApplyUngated(key *Key, rep *Report, unseen Unseen, now meter.Instant) (g *Gate, c Change) {
	g, forgot := r.gateFor(key, rep.Hints.Limited, now)
	if g == nil {
		return nil, c
	}
	a := g.Account
	known := len(a.quotas)
	if rep.Hints.After == nil {
		g.Sent()
	}
	if a.sent == 0 {
		a.Sofar(unseen.Before.Without(unseen.Since + 1)) // their responses have not come
	}
	rep.Number = a.sent - unseen.Since
	c = g.apply(rep, now)
	if len(a.quotas) > known {
		a.waitForUnseen(unseen.Since, now-rep.Sent, now)
	}
	c.Forgot = cmp.Or(r.bound(a, now), forgot)
	return g, c
}

// waitForUnseen holds requests for as long as the first response took, if so many uncounted requests have left since that they might
// use up the quota. Their responses have come by then.
func (a *Account) waitForUnseen(n, took int64, now meter.Instant) {
	if n > 0 && a.Bounds(4*min(n, meter.MaxCount/4)) {
		a.Hold(now, min(took, second))
	}
}
