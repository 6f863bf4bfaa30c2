package quota

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A barrier is a hold: nothing goes before held.
type barrier struct {
	held  meter.Instant
	began meter.Instant // of the stretch of holds that ends at held
	set   meter.Instant // the last hold was set
	paced bool          // after it, requests leave one by one
	dice  meter.Dice
}

// Hold lets nothing go for d, and up to a tenth or a second longer.
func (b *barrier) Hold(now meter.Instant, d int64, paced bool) {
	if d <= 0 {
		return
	}
	if now >= b.held {
		b.began, b.paced = now, false
	}
	b.set = now
	b.paced = b.paced || paced
	b.held = max(b.held, meter.AddInstant(meter.AddInstant(now, d), b.dice.Jitter(d)))
}

// A server is one host, whoever asks it.
type Server struct{ barrier }

func NewServer(seed uint64) *Server { return &Server{barrier{set: -1, dice: meter.Dice(seed)}} }

// A pace lets requests go one by one after a stop, at a rate that doubles, so that it is a ramp and never for ever.
type pace struct {
	from meter.Instant
	next meter.Instant // nothing goes before
	rate float64       // per second, at from; 0: over
}

// begin begins a pace at the end of a stop. It does not cut short the gap of one before.
func (p *pace) begin(end meter.Instant, rate float64) { *p = pace{end, max(end, p.next), rate} }

func (p *pace) take(due meter.Instant) {
	if p.over(due) {
		p.rate = 0
		return
	}
	r := p.rate * math.Exp2(float64(max(0, due-p.from))/paceDoubles)
	if r > paceMost {
		p.rate = 0
		return
	}
	p.next = meter.AddInstant(due, int64(1e9/r))
}

func (p *pace) over(now meter.Instant) bool { return p.rate == 0 || now-p.next > paceIdle }

// An account is one host and one set of keys of requests, such as a credential.
type Account struct {
	barrier
	server   *Server
	resumed  meter.Instant // the end of the last hold after which something went
	refusals int           // without a known wait, each of a request sent after the hold for the one before
	used     meter.MeanRate
	pace     pace
	quotas   []*quota
}

// NewAccount returns an account whose requests went at that rate so far, per second.
func NewAccount(now meter.Instant, s *Server, seed uint64, rate float64) *Account {
	if !(rate > 0) { // nor NaN
		rate = 0
	}
	return &Account{barrier: barrier{set: -1, dice: meter.Dice(seed)}, server: s, used: meter.MeanRate{Value: min(rate, paceMost), At: now}}
}

func (a *Account) Hold(now meter.Instant, d int64, paced bool) {
	a.resume(now)
	a.barrier.Hold(now, d, paced)
}

// Backoff is a hold for a refusal of which no one knows how long it lasts: 1 s, twice as long after each further one, at
// most 64 s, and the jitter of any hold. Refusals of requests that were sent before the last hold was set are of one
// event with what it was set for.
func (a *Account) Backoff(now, sentAt meter.Instant, paced bool) {
	if sentAt <= a.set {
		return
	}
	a.Hold(now, second<<a.refusals, paced)
	a.refusals = min(a.refusals+1, longestBack)
}

// Until returns when the last hold ends.
func (a *Account) Until() meter.Instant { return max(a.held, a.server.held) }

// resume begins the pace after holds that are over.
func (a *Account) resume(now meter.Instant) {
	end := a.Until()
	if end <= a.resumed || end > now {
		return
	}
	began, paced := end, false
	for _, b := range [...]*barrier{&a.barrier, &a.server.barrier} {
		if b.held > a.resumed {
			began, paced = min(began, b.began), paced || b.paced
		}
	}
	a.resumed = end
	if r := a.stopped(began, end); paced {
		a.pace.begin(end, r)
	}
}

// stopped returns the rate to go on with after a stop: the mean of the last 10 s before, not counting earlier stops.
func (a *Account) stopped(began, end meter.Instant) float64 {
	a.used = meter.MeanRate{Value: a.used.Of(began, meanOver), At: max(a.used.At, end)}
	return max(paceLeast, a.used.Value)
}

// quota returns the quota of that name. A new one is in the place of the one that is over first, if there is no room.
func (a *Account) quota(now meter.Instant, name string) *quota {
	for _, q := range a.quotas {
		if q.name == name {
			return q
		}
	}
	slices.SortFunc(a.quotas, func(x, y *quota) int { return cmp.Compare(x.ends(), y.ends()) })
	for len(a.quotas) == maxQuotas || len(a.quotas) > 0 && a.quotas[0].stale(now) {
		*a.quotas[0] = newQuota("", 0)
		a.quotas[0].dropped = true
		a.quotas = slices.Delete(a.quotas, 0, 1)
	}
	q := newQuota(strings.Clone(name), meter.Dice(a.dice.Chance()*(1<<53)))
	a.quotas = append(a.quotas, &q)
	return &q
}

// TakeBack undoes a hold that prolonged the one until from to to, unless another has come since.
func (b *barrier) TakeBack(from, to meter.Instant) {
	if b.held == to {
		b.held = from
	}
}

// Held returns until when nothing goes.
func (b *barrier) Held() meter.Instant { return b.held }

// Knows reports whether an account has a quota of that name.
func (a *Account) Knows(name string) bool {
	return slices.ContainsFunc(a.quotas, func(q *quota) bool { return q.name == name })
}

// Quotas returns how many quotas are known.
func (a *Account) Quotas() int { return len(a.quotas) }

// Bounds reports whether a quota that counts requests may have less than n left.
func (a *Account) Bounds(n int64) bool {
	return slices.ContainsFunc(a.quotas, func(q *quota) bool { return q.counted && !q.pays(n) })
}

// Saved returns what is left of the quota of that name, requests in flight taken off, if that is known until its reset.
func (a *Account) Saved(now meter.Instant, name string) (t Tell, ok bool) {
	for _, q := range a.quotas {
		if q.name == name && q.reset > now && q.reset < meter.Never && q.told < meter.MaxCount {
			return Tell{q.name, q.limit, q.told - q.inFlight, q.reset, q.counted, q.reserve}, true
		}
	}
	return Tell{}, false
}

// Restore takes in what Saved returned in another process.
func (a *Account) Restore(now meter.Instant, t *Tell) { a.quota(now, t.Name).hear(now, now, t) }
