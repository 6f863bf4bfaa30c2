package quota

import (
	"cmp"
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

// Forget lifts everything that the server said. Requests in flight still count, and their responses may say it again.
func (a *Account) Forget(now meter.Instant) {
	a.barrier.release(now)
	a.server.release(now)
	a.refusals, a.asking = 0, false
	a.pace = pace{last: a.pace.last, from: now, most: a.pace.most}
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
