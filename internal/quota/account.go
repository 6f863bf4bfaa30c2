package quota

import (
	"cmp"
	"slices"
	"strings"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
)

// A barrier is a hold: no request leaves before held.
type barrier struct {
	held meter.Instant
	set  meter.Instant // when held was set last; refusals of requests sent earlier belong to that event
	dice meter.Dice
}

// Hold blocks all requests for d, and for a random time longer: up to a tenth of d, at most a second.
func (b *barrier) Hold(now meter.Instant, d int64) {
	if d <= 0 {
		return
	}
	b.set = now
	b.held = max(b.held, meter.AddInstant(meter.AddInstant(now, d), b.dice.Jitter(d)))
}

// Held returns the end of the hold.
func (b *barrier) Held() meter.Instant { return b.held }

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
	Off      Rules // switched off by tests
	covered  bool  // own limits or an Adaptive one decide how fast requests go
	adaptive bool  // an Adaptive limit does
	asking   bool  // bare refusals came in a row: one request a second is sent until one is accepted
	refusals int8  // in a row, without a known wait, each of a request sent after the last event
	server   *Server
	own      float64 // the least rate of the Limiter's own limits at the last response, in requests per second; 0: none
	older    int64   // requests on their way when the row began and not refused since: one of them may still end it
	pace     pace
	doubt    doubt
	bare     aimd.Suspicion
	quotas   []*quota
	gates    []*Gate
}

// Rules are switched off by tests, to show what each of them gains.
type Rules struct {
	Covered, Least, First, Older, Spread, Early, Pace, Explain, Length, Log, Flow bool
}

// NewAccount returns an account of which nothing is known.
func NewAccount(s *Server, seed uint64) *Account {
	return &Account{barrier: barrier{set: -1, dice: meter.Dice(seed)}, server: s}
}

// Cover notes what limits requests besides the server: own, the lowest rate of the client's own limits in requests per second,
// or 0 if none has a rate, and whether there is an Adaptive limit.
func (a *Account) Cover(own float64, adaptive bool) {
	a.own, a.covered, a.adaptive = own, own > 0 || adaptive, adaptive
}

// trusted reports whether the client has limits of its own, and none that learns. They are taken for right until a request is refused:
// only then is what is left of a quota spread.
func (a *Account) trusted() bool { return a.own > 0 && !a.adaptive }

// Until returns when the last hold ends.
func (a *Account) Until() meter.Instant { return max(a.held, a.server.held) }

// HoldHost holds the account for d. Because one account may have provoked the response, it holds the server's others for a minute at
// most.
func (a *Account) HoldHost(now meter.Instant, d int64) {
	a.Hold(now, d)
	a.server.Hold(now, min(d, othersMost))
}

// Refused takes a refusal that no quota explains, and that asks to stay away for d. With host it concerns the other accounts of the
// server, too.
func (a *Account) Refused(now, sentAt meter.Instant, d int64, host bool) {
	news := sentAt > max(a.set, a.server.set)
	if host {
		a.HoldHost(now, d)
	} else {
		a.Hold(now, d)
	}
	if news && !a.Off.Pace {
		a.pace.refused(a.Until(), sentAt, d, a)
	}
}

// TakeBack undoes a hold that moved the end of the account's hold from from to to, and the pace after it, unless another hold
// has come since.
func (a *Account) TakeBack(from, to meter.Instant) {
	if a.held == to {
		a.held, a.pace.rate, a.pace.next = from, 0, from
	}
}

// Backoff takes a refusal without a known wait, while inFlight other requests are on their way. It holds the account for 1 s,
// and for twice as long after each further refusal, at most 64 s. Refusals of requests that left before the last hold was set
// belong to the event that the hold was set for.
//
// Bare refusals in a row mostly come from a server that is down, which shows nothing about its limit. So one request a second is sent
// until one is accepted, and then requests are sent at the previous rate.
//
// A client with limits of its own is trusted until refusals come in a row. The first refusal sets no hold, but requests leave
// evenly for a while, because some servers refuse requests that come too close together. Refusals are faster than other
// responses, so a second one within a second makes no row while older requests are on their way.
func (a *Account) Backoff(now, sentAt meter.Instant, inFlight int64, bare Bare) {
	if sentAt <= a.set {
		return
	}
	n := int(a.refusals)
	if a.own > 0 && !a.Off.First {
		a.pace.even(now, a.own)
		if a.older > 0 && now-a.set < second && !a.Off.Older {
			return
		}
		n--
	}
	a.refusals = min(a.refusals+1, longestBack+1)
	if n < 0 {
		a.set, a.older = now, inFlight
		return
	}
	if bare != NotBare && a.refusals > 1 {
		a.asking, a.set, a.pace.next = true, now, meter.AddInstant(now, second)
		return
	}
	a.Refused(now, sentAt, second<<min(n, longestBack), false)
}

// answered counts a request that was accepted, or was not.
func (a *Account) answered(sentAt meter.Instant, accepted bool) {
	switch older := sentAt <= a.set; {
	case accepted && (!older || a.older > 0):
		a.refusals, a.older = 0, 0
		if a.asking {
			a.asking, a.pace.next = false, sentAt
		}
	case older && a.older > 0:
		a.older--
	}
	if accepted {
		a.pace.accepted(sentAt)
	}
}

// Sofar sets how many requests a new account has accepted since the Limiter was made.
func (a *Account) Sofar(n int64) { a.pace.done = n }

// quota returns the quota of that name. If there is no room for a new one, it replaces the quota that ends first.
func (a *Account) quota(now meter.Instant, name string) *quota {
	for _, q := range a.quotas {
		if q.name == name {
			return q
		}
	}
	slices.SortFunc(a.quotas, func(x, y *quota) int { return cmp.Compare(x.ends(), y.ends()) })
	for len(a.quotas) == maxQuotas || len(a.quotas) > 0 && a.quotas[0].stale(now) {
		a.drop(a.quotas[0])
	}
	q := newQuota(a, kept(name))
	a.quotas = append(a.quotas, &q)
	return &q
}

// Unnamed is the name of the quota that a server does not name.
const Unnamed = "default"

// kept returns a name that keeps no longer string in memory.
func kept(name string) string {
	if name == Unnamed {
		return Unnamed
	}
	return strings.Clone(name)
}

// Silent reports whether the server has told nothing yet that stops or bounds requests.
func (a *Account) Silent() bool {
	return a.held == 0 && a.server.held == 0 && a.pace.rate == 0 && len(a.quotas) == 0
}

// adopt puts all gates of the account under the quota that the server does not name, if there is one.
func (a *Account) adopt(now meter.Instant) {
	if a.Knows(Unnamed) {
		for _, g := range a.gates {
			g.Under(now, Unnamed)
		}
	}
}

// Knows reports whether an account has a quota of that name.
func (a *Account) Knows(name string) bool {
	return slices.ContainsFunc(a.quotas, func(q *quota) bool { return q.name == name })
}

// Explains reports whether an empty quota explains a refusal with these hints, so that it is no news of a learned rate.
func (a *Account) Explains(r *Reading) bool {
	return r.Explained && !a.Off.Explain && slices.ContainsFunc(r.tells, func(t Tell) bool {
		return t.Refused && slices.ContainsFunc(a.quotas, func(q *quota) bool { return q.name == t.Name && !q.blind() })
	})
}

// Quotas returns how many quotas are known.
func (a *Account) Quotas() int { return len(a.quotas) }

// Bounds reports whether a quota that counts requests may have less than n left.
func (a *Account) Bounds(n int64) bool {
	return slices.ContainsFunc(a.quotas, func(q *quota) bool { return q.counted && !q.pays(n) })
}

// Saved returns what is left of the quota of that name, less the requests in flight, if that and the reset are known.
func (a *Account) Saved(now meter.Instant, name string) (t Tell, ok bool) {
	for _, q := range a.quotas {
		if q.name == name && q.reset > now && q.reset < meter.Never && q.told < meter.MaxCount {
			return Tell{Name: q.name, Limit: q.limit, Left: q.told - q.inFlight, Reset: q.reset, Counted: q.counted, Reserve: q.reserve}, true
		}
	}
	return Tell{}, false
}

// Restore takes what Saved returned in another process.
func (a *Account) Restore(now meter.Instant, t *Tell) {
	a.quota(now, t.Name).hear(now, now, t)
	a.adopt(now)
}
