package quota

import (
	"math"
	"slices"
	"time"

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

func (g *Gate) Payable(now meter.Instant, cost int64) bool { return g.Ready(now, 0, cost) <= now }

// Ready returns never if only a response can tell.
func (g *Gate) Ready(from meter.Instant, ahead, cost int64) meter.Instant {
	at, sure := g.next(from, meter.AddCount(ahead, cost))
	if !sure {
		return meter.Never
	}
	return at
}

// Plan returns a lower bound for when cost can be paid after ahead, whatever responses will tell; never after a final refusal, except for
// a request that may ask now.
func (g *Gate) Plan(from meter.Instant, ahead, cost int64) meter.Instant {
	at, _ := g.next(from, meter.AddCount(ahead, cost))
	if g.Account.final != nil && at > from {
		return meter.Never
	}
	return at
}

func (g *Gate) next(from meter.Instant, need int64) (at meter.Instant, sure bool) {
	a := g.Account
	at, sure = a.final.next(max(from, a.Until(), a.pace.next), need), true
	if at == meter.Never || len(g.quotas) == 0 {
		return at, sure
	}
	for _, q := range g.quotas {
		ready, known := q.next(at, need)
		at, sure = ready, sure && known
	}
	return at, sure
}

// Take returns the number of the request, counted from 1 at the account.
func (g *Gate) Take(due, now meter.Instant, _ int64, _ bool) int64 {
	a := g.Account
	if a.pace.take(due); a.asking {
		a.pace.next = meter.AddInstant(due, second)
	}
	a.sent++
	a.final.asks(a.sent, due)
	for _, q := range a.quotas {
		q.recent <<= 1
	}
	for _, q := range g.quotas {
		q.recent |= 1
		q.sent, q.last = q.sent+1, due
	}
	g.Sent()
	return a.sent
}

// Sent counts a request that was granted before there was a gate.
func (g *Gate) Sent() {
	g.inFlight++
	for _, q := range g.quotas {
		q.inFlight++
	}
}

// GiveBack undoes the Take of a request that was not sent.
func (g *Gate) GiveBack(n int64, now meter.Instant, _ int64) {
	g.landed()
	g.Account.final.unsent(n, now)
	for _, q := range g.quotas {
		q.sent--
		q.recent &^= 1 << (g.Account.sent - n)
	}
}

// landed ends a request.
func (g *Gate) landed() {
	if g.inFlight == 0 {
		panic("throttle: bug: more answers than requests")
	}
	g.inFlight--
	for _, q := range g.quotas {
		q.inFlight--
	}
}

// answered takes the response to a request, or that there is none. Quotas that it does not name may be empty, or may not.
func (g *Gate) answered(rep *Report, now meter.Instant) {
	g.Account.answered(now, rep.Sent, rep.Accepted)
	g.landed()
	refused := rep.Hints != nil && rep.Hints.Limited
	for _, q := range g.quotas {
		named := slices.ContainsFunc(rep.claims, func(c Claim) bool { return c.Name == q.name })
		if (refused || rep.Accepted) && !named {
			q.missed(now, rep.Sent, rep.Number, refused)
		}
	}
}

// Explains reports whether an empty quota explains a refusal, so that it is no news of a rate that is learned: one that accepted responses
// have reported before, or that the refusal names.
func (g *Gate) Explains(r *Reading) bool {
	h, a := r.Hints, g.Account
	if h == nil || !h.Limited && h.Bare == NotBare {
		return false
	}
	if !r.Explained {
		return slices.ContainsFunc(g.quotas, func(q *quota) bool { return q.believed() && q.left == 0 })
	}
	is := func(c Claim) bool { return g.emptied(&c) != nil }
	return r.named && !a.adaptive && h.Wait > 0 || slices.ContainsFunc(r.claims, is)
}

// emptied returns the quota of which a refusal reports that nothing is left, if accepted responses have reported it.
func (g *Gate) emptied(c *Claim) *quota {
	q := g.Account.find(c.Name)
	if q == nil || !q.served || !c.Refused {
		return nil
	}
	return q
}

// Wait returns for how long a refusal asks the client to stay away; 0: it does not say, or no longer than until the end of the window of an
// empty quota, which stops requests by itself. A refusal after that end shows that it was wrong, unless others have used up the next window.
func (g *Gate) Wait(r *Reading, now meter.Instant) time.Duration {
	h := r.Hints
	if h == nil || slices.ContainsFunc(r.claims, func(c Claim) bool {
		q := g.emptied(&c)
		return q != nil && (!h.Asked && q.backoff == 0 || q.reset > now || q.others() > 0) && c.Reset >= meter.AddInstant(now, int64(h.Wait)-rounding)
	}) {
		return 0
	}
	return h.Wait
}

// Room returns how many requests per second the quotas can be seen to allow now; 0: they do not say.
func (g *Gate) Room(now meter.Instant) float64 {
	least := math.Inf(1)
	for _, q := range g.quotas {
		least = min(least, q.room(now))
	}
	if math.IsInf(least, 1) {
		return 0
	}
	return least
}
