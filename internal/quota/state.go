package quota

import (
	"cmp"
	"math"
	"slices"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A State is what is known of one quota.
type State struct {
	Name, Unit  string
	Limit, Left int64 // -1: unknown; Left includes requests in flight
	InFlight    int64
	Reset       meter.Instant // Never: unknown
}

// State returns the rate at which requests leave one by one after a refusal (0: they need not), and what is known of quotas.
func (a *Account) State(now meter.Instant) (pace float64, quotas []State) {
	switch p := &a.pace; {
	case a.asking:
		pace = 1
	case !p.over(now):
		pace = p.at(now)
	}
	for _, q := range a.quotas {
		s := State{Name: q.name, Unit: q.unit, Limit: q.limit, Left: -1, InFlight: q.inFlight, Reset: meter.Never}
		if !q.ended(now) {
			s.Reset = q.reset
		}
		if left := q.remaining(now); left < meter.MaxCount {
			s.Left = left
		}
		quotas = append(quotas, s)
	}
	slices.SortFunc(quotas, func(x, y State) int { return cmp.Compare(x.Name, y.Name) })
	return pace, quotas
}

// ended reports whether the window of which responses report has ended.
func (q *quota) ended(now meter.Instant) bool { return q.end() <= now && q.refills() == 0 }

// remaining returns what is left now, with what is in flight; MaxCount: unknown.
func (q *quota) remaining(now meter.Instant) int64 {
	switch {
	case !q.ended(now):
		return q.left
	case q.limit < 0:
		return meter.MaxCount
	}
	return q.limit
}

// bound returns how many requests the quota allows now, with those in flight, if it bounds them.
func (q *quota) bound(now meter.Instant) (n int64, known bool) {
	left := q.remaining(now)
	return left - q.reserve, q.believed() && left < meter.MaxCount && (q.counted || left <= q.reserve)
}

// InFlight returns how many requests have no response yet.
func (g *Gate) InFlight() int64 { return g.inFlight }

// Tokens returns the least that a quota has left; +Inf: none bounds requests.
func (g *Gate) Tokens(now meter.Instant) float64 {
	least := math.Inf(1)
	for _, q := range g.quotas {
		if left, known := q.bound(now); known {
			least = min(least, float64(left-q.inFlight))
		}
	}
	return least
}

func (g *Gate) Spend(now meter.Instant, cost int64) (int64, bool) { return meter.SpendIf(g, now, cost) }

// PerSecond returns 0: what a server reported is no rate.
func (g *Gate) PerSecond(meter.Instant) float64 { return 0 }

func (g *Gate) Most() int64 { return meter.MaxCount }

func (g *Gate) Settle(int64, meter.Instant, int64, int64) { panic("throttle: bug: a gate has no cost") }

func (g *Gate) Retune(meter.Instant, meter.Rate) {}

func (g *Gate) Resize(meter.Instant, int64) {}

// Held returns the end of the hold.
func (b *barrier) Held() meter.Instant { return b.held }

// HeldUntil returns when the last hold ends.
func (g *Gate) HeldUntil() meter.Instant { return g.Account.Until() }

// Open reports whether nothing stops or bounds requests here now.
func (g *Gate) Open(now meter.Instant) bool {
	a := g.Account
	return a.Until() <= now && a.final == nil && !a.asking && a.pace.over(now) && !slices.ContainsFunc(g.quotas, func(q *quota) bool {
		_, bound := q.bound(now)
		return bound || q.held > now
	})
}

// Forget lifts everything that the server said. Requests in flight still count, and their responses may say it again.
func (a *Account) Forget(now meter.Instant) {
	a.barrier.release(now)
	a.server.release(now)
	a.refusals, a.asking, a.final = 0, false, nil
	a.doubts.Stand()
	a.pace = pace{last: a.pace.last, lately: a.pace.lately, from: now, most: a.pace.most}
	for _, q := range a.quotas {
		inFlight := q.inFlight
		*q = newQuota(a, q.name)
		q.inFlight = inFlight
	}
}

// release ends a hold. Refusals of requests that were sent before are old news.
func (b *barrier) release(now meter.Instant) {
	if b.held > now {
		b.held, b.set = now, now
	}
}
