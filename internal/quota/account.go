package quota

import (
	"cmp"
	"slices"
	"strings"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A barrier is a hold: nothing goes before held.
type barrier struct {
	held meter.Instant
	set  meter.Instant // when held was set last; refusals of requests that were sent before are of that event
	dice meter.Dice
}

// Hold lets nothing go for d, and up to a tenth or a second longer.
func (b *barrier) Hold(now meter.Instant, d int64) {
	if d <= 0 {
		return
	}
	b.set = now
	b.held = max(b.held, meter.AddInstant(meter.AddInstant(now, d), b.dice.Jitter(d)))
}

// Held returns until when nothing goes.
func (b *barrier) Held() meter.Instant { return b.held }

// A Server is one host, whoever asks it.
type Server struct{ barrier }

// NewServer returns a server that holds nothing.
func NewServer(seed uint64) *Server { return &Server{barrier{set: -1, dice: meter.Dice(seed)}} }

// An Account is one host and one set of keys of requests, such as a credential.
type Account struct {
	barrier
	Off      Rules // that tests switch off
	server   *Server
	own      float64 // the least rate of the Limiter's own limits at the last response, in requests per second; 0: none
	covered  bool    // own limits or an Adaptive one decide how fast requests go
	refusals int     // in a row without a known wait, each of a request sent after the last event
	older    int64   // requests that were on their way when the row began, and not refused since: one may yet end it
	pace     pace
	quotas   []*quota
}

// Rules are switched off by tests, to show what each is good for.
type Rules struct {
	Covered, Least, First, Spread, Pace, Explain bool
}

// NewAccount returns an account of which nothing is known.
func NewAccount(s *Server, seed uint64) *Account {
	return &Account{barrier: barrier{set: -1, dice: meter.Dice(seed)}, server: s}
}

// Cover notes what limits requests beside the server's word: the least rate of limits with a known one, in requests per
// second (0: there is none), and whether there is an Adaptive one.
func (a *Account) Cover(own float64, adaptive bool) { a.own, a.covered = own, own > 0 || adaptive }

// Until returns when the last hold ends.
func (a *Account) Until() meter.Instant { return max(a.held, a.server.held) }

// Refused notes a refusal that asks to stay away for d, be it all who ask that server or this account alone, and that no
// quota explains.
func (a *Account) Refused(now, sentAt meter.Instant, d int64, host bool) {
	news := sentAt > max(a.set, a.server.set)
	b := &a.barrier
	if host {
		b = &a.server.barrier
	}
	b.Hold(now, d)
	if news && !a.Off.Pace {
		a.pace.refused(a.Until(), sentAt, d, a)
	}
}

// TakeBack undoes a hold of the account that prolonged the one until from to to, unless another has come since, and the pace
// that was to follow.
func (a *Account) TakeBack(from, to meter.Instant) {
	if a.held == to {
		a.held, a.pace.rate, a.pace.next = from, 0, from
	}
}

// Backoff notes a refusal whose end is unknown, while inFlight other requests are on their way: a hold of 1 s, twice as long
// after each further one, at most 64 s. Refusals of requests that were sent before the last hold was set are of one event
// with what it was set for.
//
// A client with limits of its own is believed until refusals come in a row. The first sets no hold, but requests leave
// evenly for a while, because some servers refuse requests that come too close together. Refusals are faster than
// responses, so that a second one within a second is no row while older requests are on their way.
func (a *Account) Backoff(now, sentAt meter.Instant, inFlight int64) {
	if sentAt <= a.set {
		return
	}
	n := a.refusals
	if a.own > 0 && !a.Off.First {
		a.pace.even(now, a.own)
		if n > 0 && a.older > 0 && now-a.set < second {
			return
		}
		n--
	}
	a.refusals = min(a.refusals+1, longestBack+1)
	if n < 0 {
		a.set, a.older = now, inFlight
		return
	}
	a.Refused(now, sentAt, second<<min(n, longestBack), false)
}

// answered notes that a request was accepted, or that it was not.
func (a *Account) answered(sentAt meter.Instant, accepted bool) {
	switch older := sentAt <= a.set; {
	case accepted && (!older || a.older > 0):
		a.refusals, a.older = 0, 0
	case older && a.older > 0:
		a.older--
	}
	if accepted {
		a.pace.accepted(sentAt)
	}
}

// Sofar tells an account that was asked nothing yet how many requests were accepted since the Limiter was made.
func (a *Account) Sofar(n int64) { a.pace.done = n }

// quota returns the quota of that name. A new one is in the place of the one that is over first, if there is no room.
func (a *Account) quota(now meter.Instant, name string) *quota {
	for _, q := range a.quotas {
		if q.name == name {
			return q
		}
	}
	slices.SortFunc(a.quotas, func(x, y *quota) int { return cmp.Compare(x.ends(), y.ends()) })
	for len(a.quotas) == maxQuotas || len(a.quotas) > 0 && a.quotas[0].stale(now) {
		*a.quotas[0] = newQuota(a, "")
		a.quotas[0].dropped = true
		a.quotas = slices.Delete(a.quotas, 0, 1)
	}
	q := newQuota(a, strings.Clone(name))
	a.quotas = append(a.quotas, &q)
	return &q
}

// Knows reports whether an account has a quota of that name.
func (a *Account) Knows(name string) bool {
	return slices.ContainsFunc(a.quotas, func(q *quota) bool { return q.name == name })
}

// Quotas returns how many quotas are known.
func (a *Account) Quotas() int { return len(a.quotas) }

// Bounds reports whether a quota that counts requests may have less than n left.
func (a *Account) Bounds(n int64) bool {
	return slices.ContainsFunc(a.quotas, func(q *quota) bool { return q.counted && !q.pays(n, 0) })
}

// Saved returns what is left of the quota of that name, requests in flight taken off, if that is known until its reset.
func (a *Account) Saved(now meter.Instant, name string) (t Tell, ok bool) {
	for _, q := range a.quotas {
		if q.name == name && q.reset > now && q.reset < meter.Never && q.told < meter.MaxCount {
			return Tell{Name: q.name, Limit: q.limit, Left: q.told - q.inFlight, Reset: q.reset, Counted: q.counted, Reserve: q.reserve}, true
		}
	}
	return Tell{}, false
}

// Restore takes in what Saved returned in another process.
func (a *Account) Restore(now meter.Instant, t *Tell) { a.quota(now, t.Name).hear(now, now, t) }

// scarce reports whether what is left of a quota of that name is given out sparingly.
func (a *Account) scarce(name string) bool {
	return slices.ContainsFunc(a.quotas, func(q *quota) bool { return q.name == name && q.scarce && q.reset < meter.Never })
}
