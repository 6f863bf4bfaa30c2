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
	adaptive bool  // an Adaptive limit does
	server   *Server
	own      float64 // the least rate of the Limiter's own limits at the last response, in requests per second; 0: none
	learned
	stretch stretch
	doubt   doubt
	bare    aimd.Suspicion
	quotas  []*quota
	gates   []*Gate
}

// Rules are switched off by tests, to show what each of them gains.
type Rules struct {
	Covered, Least, Spread, Early, Learn, Explain, Length, Log, Flow bool
}

// NewAccount returns an account of which nothing is known.
func NewAccount(s *Server, seed uint64) *Account {
	return &Account{barrier: barrier{set: -1, dice: meter.Dice(seed)}, server: s}
}

// Cover notes what limits requests besides the server: own, the lowest rate of the client's own limits in requests per second,
// or 0 if none has a rate, and whether there is an Adaptive limit.
func (a *Account) Cover(now meter.Instant, own float64, adaptive bool) {
	if a.meter != nil && own > 0 {
		a.meter.Raise(now, own)
	}
	a.own, a.adaptive = own, adaptive
}

// covered reports whether something besides quotas decides how fast requests are sent.
func (a *Account) covered() bool { return a.own > 0 || a.learns() }

// learns reports whether a rate is learned from refusals, and no limit of the client's own is trusted instead.
func (a *Account) learns() bool { return a.adaptive || a.meter != nil && a.own == 0 }

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

// Refused takes a refusal that no quota explains, and that asks to stay away for d, or does not say for how long. With host it
// concerns the other accounts of the server, too.
func (a *Account) Refused(now, sentAt meter.Instant, d int64, host bool) {
	news := sentAt > max(a.set, a.server.set)
	switch {
	case host && d > 0:
		a.HoldHost(now, d)
	case d > 0:
		a.Hold(now, d)
	case news && a.meter == nil:
		a.set = now
	}
	if news {
		a.learn(now, d)
	}
}

// TakeBack undoes a hold that moved the end of the account's hold from from to to, unless another hold has come since.
func (a *Account) TakeBack(from, to meter.Instant) {
	if a.held == to {
		a.held = from
	}
}

// Sofar sets how many requests a new account has accepted since the Limiter was made, the last of which was sent then.
func (a *Account) Sofar(last meter.Instant, n int64) { a.stretch.last, a.stretch.done = last, n }

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
	return a.held == 0 && a.server.held == 0 && a.meter == nil && !a.begins && len(a.quotas) == 0
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
