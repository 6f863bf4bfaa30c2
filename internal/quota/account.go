package quota

import (
	"cmp"
	"slices"
	"strings"
	"unsafe"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/record"
	"github.com/httpthrottle/throttle/internal/server"
)

const (
	maxQuotas  = 32
	quotaStale = 3600 * second // a quota that ended so long ago makes room for the next

	// maxSize is how many bytes an account takes at most, with its gates, as they are counted here. Together with what the allocator
	// adds it takes no more than 16 KiB.
	maxSize = 12_000
)

// What is kept of an account is worth more, the later its kind comes here.
const (
	stopsNothing   = iota
	stopsRequests  // by what the response to an accepted request reported
	stopsByRefusal // the server has refused a request
)

// An Account is one host and one set of request keys, such as a credential. All its gates share a hold, a rate and a record; what the server
// counts together is a [quota].
type Account struct {
	Key     Key    // of its requests, without what is of single ones
	Example string // one of its requests, for people, once the server has been seen to count some separately; "": not yet
	Limited uint32 // responses by which the server refused because of a limit

	byRefusal bool // what stops requests may be due to a refusal
	local     bool // its refusals do not concern other accounts, whatever their status
	guessed   bool // no server has asked for the end of the last hold
	asked     int8 // gates that asked whether a hold concerns them, and that it does

	barrier
	asking  bool // one request a second is sent until one is accepted
	last    LastRefusal
	own     Own // what limited the request of the last response besides the server
	even    evenly
	rate    *aimd.Meter // the learned one; nil: none is learned
	first   first
	shown   *shown        // nil: refusals have shown nothing
	lately  record.Record // of requests that were accepted
	backoff server.Backoff
	bare    aimd.Suspicion
	final   *final // nil: there is none
	doubts  meter.Doubts[standing]
	sent    int64 // requests
	quotas  []*quota
	units   *units // nil: no response has reported any
	gates   []*Gate
	by      *Gate // whose response reported a count last; nil: it is not known

	server  *Server
	group   *group
	waiting []*Gate
	heard   meter.Instant // when the last response came
	used    meter.Instant // when a request or a response came last
	nth     int32         // of the host's accounts
	size    int32         // as it is counted in Registry.size
}

// newAccount returns an account of which nothing is known.
func newAccount(s *Server, seed uint64) *Account {
	return &Account{barrier: barrier{set: -1, dice: meter.Dice(seed)}, backoff: server.NewBackoff(), server: s}
}

// cover notes what limits requests besides the server.
func (a *Account) cover(o *Own) {
	a.own = *o
	a.even.cover(o)
}

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

// adopt puts all gates of the account under the quota that the server does not name, if there is one.
func (a *Account) adopt(now meter.Instant) {
	if a.knows(Unnamed) {
		for _, g := range a.gates {
			g.under(now, Unnamed)
		}
	}
}

// knows reports whether the account has a quota of that name.
func (a *Account) knows(name string) bool { return a.find(name) != nil }

// Bounds reports whether a quota that counts requests may have less than n left.
func (a *Account) Bounds(n int64) bool {
	return slices.ContainsFunc(a.quotas, func(q *quota) bool { return q.counted && q.bounds(n) })
}

// Saved returns what is left of the quota of that name, less the requests in flight, if that and the reset are known.
func (a *Account) Saved(now meter.Instant, name string) (c Figures, ok bool) {
	q := a.find(name)
	if q == nil || q.reset <= now || q.reset == meter.Never || q.left == meter.MaxCount {
		return Figures{}, false
	}
	return Figures{Name: q.name, Limit: q.limit, Left: q.left - q.inFlight, Reset: q.reset, Counted: q.counted, Reserve: q.reserve}, true
}

// Restore takes what Saved returned in another process.
func (a *Account) Restore(now meter.Instant, c *Figures) {
	q := a.quota(now, c.Name)
	q.report(now, &Report{Sent: now, Number: a.sent, Verdict: server.Done}, c)
	if !c.Counted && q.empty() { // what requests cost is yet to be learned
		q.held = min(c.Reset, meter.AddInstant(now, longestHold))
	}
	a.adopt(now)
}

// Alone reports whether the server counts all requests of the account's keys together, or, of what its API is known to count
// separately, all that have the same parts. Of others it is not known after a restart which requests they were.
func (a *Account) Alone() bool {
	for _, x := range a.group.accounts {
		if x != a && x.Key.Parts == a.Key.Parts {
			return false
		}
	}
	return true
}

// isPart reports whether the server counts some of the requests of the account's keys separately.
func (a *Account) isPart() bool { return a.group != nil && len(a.group.accounts) > 1 }

// A State is what is known of one quota.
type State struct {
	Name, Unit  string
	Limit, Left int64 // -1: unknown; Left includes requests in flight
	InFlight    int64
	Reset       meter.Instant // Never: unknown
	HeldUntil   meter.Instant // no request of the quota is sent before; 0: nothing holds it
}

// LastRefusal returns the last refusal because of which requests of the account may wait: that of another account if it holds the server
// for longer. Its Status is 0 if there was none.
func (a *Account) LastRefusal(now meter.Instant) LastRefusal {
	if s := a.server; s.held > max(now, a.held) {
		return s.last
	}
	return a.last
}

// Pace returns the rate to which requests are held after a refusal, and the reason for it; 0: none.
func (a *Account) Pace(now meter.Instant) (rate float64, why Why) {
	switch {
	case a.asking:
		return 1, Asking
	case a.first.known:
		return a.learned(now)
	case a.even.until > now:
		return a.even.most, OwnLimit
	}
	return 0, NoRate
}

// State returns the rate at which requests leave one by one after a refusal (0: they need not), and what is known of quotas.
func (a *Account) State(now meter.Instant) (pace float64, quotas []State) {
	pace, _ = a.Pace(now)
	for _, q := range a.quotas {
		s := State{HeldUntil: q.heldUntil(now), Name: q.name, Unit: q.unitName(), Limit: q.limit, Left: q.shown(now), InFlight: q.inFlight, Reset: meter.Never}
		if !q.ended(now) && q.reset > now { // one that refills may have been full then
			s.Reset = q.reset
		}
		quotas = append(quotas, s)
	}
	slices.SortFunc(quotas, func(x, y State) int { return cmp.Compare(x.Name, y.Name) })
	return pace, quotas
}

// Forget lifts everything that the server said. Requests in flight still count, and their responses may say it again.
func (a *Account) Forget(now meter.Instant) {
	a.barrier.release(now)
	a.server.release(now)
	a.final, a.asking, a.shown = nil, false, nil
	a.doubts.Stand()
	a.unlearn()
	for _, q := range a.quotas {
		q.forget()
	}
	a.units = nil
}

// Size returns about how many bytes the account takes, without its gates.
func (a *Account) Size() int {
	n := int(unsafe.Sizeof(*a)) + cap(a.quotas)*int(unsafe.Sizeof(a)) + a.final.size() + a.units.size()
	if a.shown != nil {
		n += int(unsafe.Sizeof(*a.shown))
	}
	if a.rate != nil {
		n += a.rate.Size()
	}
	for _, q := range a.quotas {
		n += q.size()
	}
	return n
}

// fit makes the account take at most n bytes. Quotas that have something left go before those that are empty, and that end first before
// others.
func (a *Account) fit(now meter.Instant, n int) {
	for size := a.Size(); size > n && len(a.quotas) > 0; size = a.Size() {
		a.drop(slices.MinFunc(a.quotas, func(x, y *quota) int {
			return cmp.Or(cmp.Compare(x.worth(now), y.worth(now)), cmp.Compare(x.known(), y.known()))
		}))
	}
}

// drop forgets a quota.
func (a *Account) drop(q *quota) {
	is := func(other *quota) bool { return other == q }
	a.quotas = slices.DeleteFunc(a.quotas, is)
	for _, g := range a.gates {
		g.quotas = slices.DeleteFunc(g.quotas, is)
	}
}

// stops reports whether what the server reported stops requests: a hold, a final refusal or an empty quota.
func (a *Account) stops(now meter.Instant) bool {
	return a.Until() > now || a.final != nil || a.units.stops(now) || slices.ContainsFunc(a.quotas, func(q *quota) bool { return q.stops(now) })
}

// worth returns which of these kinds the account is of.
func (a *Account) worth(now meter.Instant) int {
	switch {
	case !a.stops(now):
		return stopsNothing
	case !a.byRefusal:
		return stopsRequests
	}
	return stopsByRefusal
}

// takes returns about how many bytes an account takes, with its gates.
func (a *Account) takes() int {
	return recordSize + len(a.Key.Host) + len(a.Key.keys) + a.Size() + a.gatesSize()
}

func (a *Account) gatesSize() int {
	return len(a.gates) * (gateSize + len(a.Key.Host) + len(a.Key.keys) + 16*len(a.quotas))
}

// Server returns the server of an account.
func (a *Account) Server() *Server { return a.server }

// Waiting returns the gates at which requests wait. They are not to be changed.
func (a *Account) Waiting() []*Gate { return a.waiting }

// waitForUnseen holds requests for as long as the first response took, if enough uncounted requests have left since that they might
// use up the quota. Their responses have come by then.
func (a *Account) waitForUnseen(n, took int64, now meter.Instant) {
	if n > 0 && a.Bounds(4*min(n, meter.MaxCount/4)) {
		a.Guess(now, min(took, second))
	}
}
