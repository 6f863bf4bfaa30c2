package quota

import (
	"math"
	"slices"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A Gate is what the requests of one family pass, such as those to one route. Servers count resources in separate quotas, and
// name the quota in the response. All costs at a gate are 1.
type Gate struct {
	link
	Account  *Account
	quotas   []*quota // named by responses to requests of the family
	inFlight int64
	nth      int // of the account's gates
}

var _ meter.Meter = (*Gate)(nil)

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

func (g *Gate) Payable(now meter.Instant, cost int64) bool { return g.Ready(now, 0, cost) <= now }

func (g *Gate) Spend(now meter.Instant, cost int64) (int64, bool) { return meter.SpendIf(g, now, cost) }

// Ready returns never if only a response can tell.
func (g *Gate) Ready(from meter.Instant, ahead, cost int64) meter.Instant {
	at, sure := g.next(from, meter.AddCount(ahead, cost))
	if !sure {
		return meter.Never
	}
	return at
}

// Plan returns a lower bound for when cost can be paid after ahead, whatever responses will tell.
func (g *Gate) Plan(from meter.Instant, ahead, cost int64) meter.Instant {
	at, _ := g.next(from, meter.AddCount(ahead, cost))
	return at
}

func (g *Gate) next(from meter.Instant, need int64) (at meter.Instant, sure bool) {
	a := g.Account
	at, sure = max(from, a.Until(), a.pace.next), true
	if len(g.quotas) == 0 {
		return at, sure
	}
	by, doubted := a.believed()
	for _, q := range g.quotas {
		claimed, ok := q.next(at, need)
		if doubted && !q.kept() && (claimed > by || !ok) {
			claimed, ok = max(at, by), true
		}
		at, sure = claimed, sure && ok
	}
	return at, sure
}

// claims returns when the quotas that the server reported allow a request.
func (g *Gate) claims(at meter.Instant) meter.Instant {
	for _, q := range g.quotas {
		if !q.kept() {
			at, _ = q.next(at, 1)
		}
	}
	return at
}

func (g *Gate) Take(due, now meter.Instant, _ int64, _ bool) int64 {
	a := g.Account
	if a.trusted() && len(g.quotas) > 0 {
		own := a.unclaimed()
		a.doubt.left(a.pace.last, own, g.claims(own), due)
	}
	if a.pace.take(due); a.asking {
		a.pace.next = meter.AddInstant(due, second)
	}
	for _, q := range g.quotas {
		q.roll(now)
		q.probe(due)
		q.last = due
		q.log.take(now, q.inFlight)
	}
	g.Sent()
	return 0
}

// Sent counts a request that was granted before there was a gate.
func (g *Gate) Sent() {
	g.inFlight++
	for _, q := range g.quotas {
		q.inFlight++
	}
}

// GiveBack undoes the Take of a request that was not sent.
func (g *Gate) GiveBack(_ int64, now meter.Instant, _ int64) {
	g.landed(now, now)
	for _, q := range g.quotas {
		q.log.doubt(now, now)
	}
}

// landed ends a request that left at sentAt.
func (g *Gate) landed(now, sentAt meter.Instant) {
	if g.inFlight == 0 {
		panic("throttle: bug: more answers than requests")
	}
	g.inFlight--
	for _, q := range g.quotas {
		q.inFlight--
		q.log.answer(now, sentAt)
	}
}

// InFlight returns how many requests have no response yet.
func (g *Gate) InFlight() int64 { return g.inFlight }

func (g *Gate) Most() int64 { return meter.MaxCount }

func (g *Gate) Settle(int64, meter.Instant, int64, int64) { panic("throttle: bug: a gate has no cost") }

// Answered takes what the response to a request tells that left at sentAt, and whether the request was accepted. After an
// error there is nothing told, but the request may have been counted.
func (g *Gate) Answered(now, sentAt meter.Instant, ok bool, tells []Tell) {
	g.Account.answered(sentAt, ok)
	g.landed(now, sentAt)
	for _, q := range g.quotas {
		q.roll(now)
		named := slices.ContainsFunc(tells, func(t Tell) bool { return t.Name == q.name })
		if !named {
			q.missed(now)
		}
		if !named || !ok {
			q.log.doubt(now, sentAt)
		}
	}
	g.Hear(now, sentAt, tells)
	for _, q := range g.quotas {
		for i := range tells {
			switch t := &tells[i]; {
			case t.Name != q.name:
			case ok:
				q.flow.hear(t.Left, q.limit)
			case t.Refused && q.flow.left < 0:
				q.flow.left = onlyRefused
			}
		}
	}
}

// Hear takes what the response to a request tells of quotas that left at sentAt.
func (g *Gate) Hear(now, sentAt meter.Instant, tells []Tell) {
	for i := range tells {
		if t := &tells[i]; t.Reset > now || g.Account.Knows(t.Name) {
			g.Under(now, t.Name).hear(now, sentAt, t)
		}
	}
}

// Under returns the quota of that name. The gate falls under it from now on.
func (g *Gate) Under(now meter.Instant, name string) *quota {
	q := g.Account.quota(now, name)
	if !slices.Contains(g.quotas, q) {
		q.roll(now)
		q.inFlight += g.inFlight
		q.log.doubt(now, now) // the server has counted requests here that the log does not have
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
	must = a.Until()
	if a.refusals > 0 { // the next one doubles the backoff, or a success ends the row
		must = meter.AddInstant(max(must, a.set), second<<longestBack)
	}
	full = max(must, a.pace.next, a.pace.evenly)
	for _, q := range g.quotas {
		if q.reset == meter.Never {
			continue
		}
		full = max(full, q.reset)
		if !q.pays(1) {
			must = max(must, q.reset)
		}
	}
	return must, meter.AddInstant(full, paceIdle)
}

// Tokens returns the least that a quota has left; +Inf: none bounds requests.
func (g *Gate) Tokens(now meter.Instant) float64 {
	least := math.Inf(1)
	for _, q := range g.quotas {
		q.roll(now)
		if !q.pays(plenty) {
			least = min(least, float64(q.told-q.reserve-q.inFlight))
		}
	}
	return least
}

// PerSecond returns 0: what a server reported is no rate.
func (g *Gate) PerSecond(meter.Instant) float64 { return 0 }

// HeldUntil returns when the last hold ends.
func (g *Gate) HeldUntil() meter.Instant { return g.Account.Until() }

// Open reports whether nothing stops or bounds requests here now.
func (g *Gate) Open(now meter.Instant) bool {
	a := g.Account
	return a.Until() <= now && !a.asking && a.pace.over(now) && !slices.ContainsFunc(g.quotas, func(q *quota) bool {
		q.roll(now)
		return !q.pays(plenty)
	})
}

func (g *Gate) Retune(meter.Instant, meter.Rate) {}

func (g *Gate) Resize(meter.Instant, int64) {}
