package quota

import (
	"cmp"
	"slices"
	"strings"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	maxQuotas  = 32
	quotaStale = 3600 * second // a quota that ended so long ago makes room for the next
)

// A Server is one host, for all accounts.
type Server struct {
	barrier
	roster
}

// NewServer returns a server that holds nothing.
func NewServer(seed uint64) *Server {
	return &Server{barrier: barrier{set: -1, dice: meter.Dice(seed)}}
}

// An Account is one host and one set of request keys, such as a credential.
type Account struct {
	barrier
	record
	covered  bool // own limits or an Adaptive one decide how fast requests go
	adaptive bool // an Adaptive limit does
	asking   bool // refusals came in a row: one request a second is sent until one is accepted
	refusals int8 // in a row, each of a request sent after the last event
	server   *Server
	own      float64 // the least rate of the Limiter's own limits at the last response, in requests per second; 0: none
	pace     pace
	bare     aimd.Suspicion
	sent     int64  // requests
	final    *final // nil: there is none
	doubts   meter.Doubts[standing]
	quotas   []*quota
	gates    []*Gate
}

// NewAccount returns an account of which nothing is known.
func NewAccount(s *Server, seed uint64) *Account {
	return &Account{barrier: barrier{set: -1, dice: meter.Dice(seed)}, server: s}
}

// Cover notes what limits requests besides the server.
func (a *Account) Cover(o *Own) {
	a.own, a.covered, a.adaptive = o.Rate, o.Rate > 0 || o.Adaptive, o.Adaptive
	a.pace.most = max(a.pace.most, o.Fastest, paceLeast) // other requests may have other limits, or none
}

// trusted reports whether the client has limits of its own, and none that learns. They are taken for right until a request is refused:
// only then do quotas stop requests.
func (a *Account) trusted() bool { return a.own > 0 && !a.adaptive }

// Sofar sets what requests a new account has accepted lately.
func (a *Account) Sofar(t Tally) { a.pace.lately = t }

// find returns the quota of that name; nil: there is none.
func (a *Account) find(name string) *quota {
	for _, q := range a.quotas {
		if q.name == name {
			return q
		}
	}
	return nil
}

// quota returns the quota of that name. If there is no room for a new one, it replaces the quota that ends first.
func (a *Account) quota(now meter.Instant, name string) *quota {
	if q := a.find(name); q != nil {
		return q
	}
	slices.SortFunc(a.quotas, func(x, y *quota) int { return cmp.Compare(x.known(), y.known()) })
	for len(a.quotas) == maxQuotas || len(a.quotas) > 0 && a.quotas[0].inFlight == 0 && a.quotas[0].known() < now-quotaStale {
		a.drop(a.quotas[0])
	}
	q := newQuota(a, cloned(name))
	a.quotas = append(a.quotas, &q)
	return &q
}

// Unnamed is the name of the quota that a server does not name.
const Unnamed = "default"

// cloned returns a name that keeps no longer string in memory.
func cloned(name string) string {
	if name == Unnamed {
		return Unnamed
	}
	return strings.Clone(name)
}

// Silent reports whether the server has told nothing yet that stops or bounds requests.
func (a *Account) Silent() bool {
	return a.held == 0 && a.server.held == 0 && a.final == nil && a.pace.rate == 0 && len(a.quotas) == 0
}

// adopt puts all gates of the account under the quota that the server does not name, if there is one.
func (a *Account) adopt(now meter.Instant) {
	if a.Knows(Unnamed) {
		for _, g := range a.gates {
			g.Under(now, Unnamed)
		}
	}
}

// Knows reports whether the account has a quota of that name.
func (a *Account) Knows(name string) bool { return a.find(name) != nil }

// Quotas returns how many quotas are known.
func (a *Account) Quotas() int { return len(a.quotas) }

// Bounds reports whether a quota that counts requests may have less than n left.
func (a *Account) Bounds(n int64) bool {
	return slices.ContainsFunc(a.quotas, func(q *quota) bool { return q.counted && q.bounds(n) })
}

// Saved returns what is left of the quota of that name, less the requests in flight, if that and the reset are known.
func (a *Account) Saved(now meter.Instant, name string) (c Claim, ok bool) {
	q := a.find(name)
	if q == nil || q.reset <= now || q.reset == meter.Never || q.left == meter.MaxCount {
		return Claim{}, false
	}
	return Claim{Name: q.name, Limit: q.limit, Left: q.left - q.inFlight, Reset: q.reset, Counted: q.counted, Reserve: q.reserve}, true
}

// Restore takes what Saved returned in another process.
func (a *Account) Restore(now meter.Instant, c *Claim) {
	q := a.quota(now, c.Name)
	q.report(now, now, a.sent, false, c)
	a.adopt(now)
}

// NewGate returns a gate that stops no request.
func NewGate(a *Account) *Gate {
	g := new(Gate)
	g.Join(a)
	return g
}

// Join makes the zero Gate one of an account.
func (g *Gate) Join(a *Account) {
	g.Account, g.nth = a, len(a.gates)
	a.gates = append(a.gates, g)
}

// Leave takes the gate out of its account.
func (g *Gate) Leave() {
	gates := g.Account.gates
	last := gates[len(gates)-1]
	gates[g.nth], last.nth = last, g.nth
	gates[len(gates)-1] = nil
	if gates = gates[:len(gates)-1]; len(gates) < cap(gates)/4 && cap(gates) > 64 {
		gates = slices.Clone(gates)
	}
	g.Account.gates = gates
}

// Under returns the quota of that name. The gate falls under it from now on.
func (g *Gate) Under(now meter.Instant, name string) *quota {
	q := g.Account.quota(now, name)
	if !slices.Contains(g.quotas, q) {
		q.inFlight += g.inFlight
		g.quotas = append(g.quotas, q)
	}
	return q
}

// Matters keeps a gate for a request in flight, a hold, refusals in a row and an empty quota.
func (g *Gate) Matters(meter.Instant) (must, full meter.Instant) {
	if g.inFlight > 0 {
		return meter.Never, meter.Never
	}
	a := g.Account
	_, ask, _ := a.Final()
	must = max(a.Until(), ask)
	if a.refusals > 0 { // the next one doubles the backoff, or a success ends the row
		must = meter.AddInstant(max(must, a.set), second<<longestBack)
	}
	full = max(must, a.pace.next, a.pace.evenly)
	if a.final != nil { // what would be forgotten is that one request asks, and not all
		full = meter.AddInstant(full, finalStale)
	}
	for _, q := range g.quotas {
		must = max(must, q.held)
		if q.reset == meter.Never {
			continue
		}
		full = max(full, q.reset)
		if q.believed() && q.empty() {
			must = max(must, q.reset)
		}
	}
	return must, meter.AddInstant(full, paceIdle)
}
