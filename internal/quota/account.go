package quota

import (
	"cmp"
	"slices"
	"strings"
	"time"

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
	slots    bool  // a limit learns how many requests may be in flight
	asking   bool  // refusals came in a row: one request a second is sent until one is accepted
	refusals int8  // in a row, each of a request sent after the last event
	server   *Server
	own      float64 // the least rate of the Limiter's own limits at the last response, in requests per second; 0: none
	pace     pace
	doubt    doubt
	bare     aimd.Suspicion
	quotas   []*quota
	gates    []*Gate
}

// Rules are switched off by tests, to show what each of them gains.
type Rules struct {
	Covered, Least, First, Spread, Early, Pace, Explain, Length, Log, Flow bool
}

// NewAccount returns an account of which nothing is known.
func NewAccount(s *Server, seed uint64) *Account {
	return &Account{barrier: barrier{set: -1, dice: meter.Dice(seed)}, server: s}
}

// Cover notes what limits requests besides the server.
func (a *Account) Cover(o *Own) {
	a.own, a.covered, a.adaptive, a.slots = o.Rate, o.Rate > 0 || o.Adaptive, o.Adaptive, o.Slots
	a.pace.most = max(a.pace.most, o.Fastest, paceLeast) // other requests may have other limits, or none
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

// Refused takes a refusal that asks to stay away for d. With host it concerns the other accounts of the server, too. If a quota
// explains it, the rate was right; otherwise a pace begins.
func (a *Account) Refused(now, sentAt meter.Instant, d int64, host, explained bool) {
	news := sentAt > max(a.set, a.server.set)
	if news {
		a.row()
	}
	if most := second << longestBack; explained && d < most && a.refusals > 2 { // the quota resets later than the server says
		d = min(d<<(a.refusals-2), most)
	}
	a.hold(now, sentAt, d, host, news, explained)
}

// row counts a refusal in a row. From the second on, requests ask one by one whether the server accepts one.
func (a *Account) row() {
	a.refusals = min(a.refusals+1, mostRow)
	a.asking = a.asking || a.refusals > 1
}

func (a *Account) hold(now, sentAt meter.Instant, d int64, host, news, explained bool) {
	if host {
		a.HoldHost(now, d)
	} else {
		a.Hold(now, d)
	}
	switch {
	case explained || a.Off.Pace:
	case news:
		a.pace.refused(a.Until(), sentAt, d, a)
	default: // the other refusals of an event may ask for more
		a.pace.putOff(now, a.Until())
	}
}

// TakeBack undoes a hold that moved the end of the account's hold from from to to, and the pace after it, unless another hold
// has come since.
func (a *Account) TakeBack(from, to meter.Instant) {
	if a.held == to {
		a.held, a.pace.rate, a.pace.next = from, 0, from
	}
}

// Wait returns for how long a refusal asks the client to stay away; 0: it does not say. The reset of a quota that was seen to refill does
// not say so, because the server accepts a request long before. It counts once three refusals came in a row.
func (a *Account) Wait(r *Reading) time.Duration {
	h := r.Hints
	if h == nil || !h.Asked && a.refusals < 3 && a.refusedBy(r, func(q *quota) bool { return q.blind() && q.flow.refills() }) {
		return 0
	}
	return h.Wait
}

// Backoff takes a refusal without a known wait. It holds the account for as long as eight requests take at the rate that was accepted,
// from 1/8 s to 1 s, times two for each refusal before it in the row, at most 64 s. Refusals of requests that were sent before the last
// hold was set belong to the event that the hold was set for.
//
// Bare refusals in a row mostly come from a server that is down, which shows nothing about its limit. So they set no hold, and
// requests are sent at the previous rate once one is accepted.
//
// A client with limits of its own is trusted until refusals come in a row. The first one sets no hold, but from then on requests are
// sent evenly, because some servers refuse requests that come too close together.
func (a *Account) Backoff(now, sentAt meter.Instant, bare Bare) {
	if sentAt <= a.set {
		return
	}
	n := int(a.refusals)
	if a.own > 0 && !a.Off.First {
		a.pace.space(now)
		n--
	}
	a.row()
	switch {
	case n < 0:
		a.set = now
	case bare != NotBare && a.asking:
		a.set, a.pace.next = now, meter.AddInstant(now, second)
	default:
		few := int64(8e9 / max(a.pace.rate, a.pace.sustained(now)))
		a.hold(now, sentAt, min(min(max(few, second/8), second)<<n, second<<longestBack), false, true, false)
	}
}

// answered takes the response to a request that was accepted, or was not.
func (a *Account) answered(sentAt meter.Instant, accepted bool) {
	if !accepted {
		return
	}
	if sentAt > a.set {
		a.refusals = 0
		if a.asking {
			a.asking, a.pace.next = false, a.pace.last
		}
	}
	a.pace.accepted(sentAt)
}

// Sofar sets how many requests a new account has accepted since the Limiter was made.
func (a *Account) Sofar(n int64) { a.pace.given = float64(n) }

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
	return !a.Off.Explain && a.refusedBy(r, func(q *quota) bool { return !q.blind() && !(q.counted && q.flow.refills()) })
}

// refusedBy reports whether a refusal reports that a quota of this kind is empty.
func (a *Account) refusedBy(r *Reading, kind func(*quota) bool) bool {
	return r.Explained && slices.ContainsFunc(r.tells, func(t Tell) bool {
		return t.Refused && slices.ContainsFunc(a.quotas, func(q *quota) bool { return q.name == t.Name && kind(q) })
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
