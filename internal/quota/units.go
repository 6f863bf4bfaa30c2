package quota

import (
	"slices"
	"unsafe"

	"github.com/httpthrottle/throttle/internal/allowance"
	"github.com/httpthrottle/throttle/internal/meter"
)

// mostUnseen is how many requests in flight are charged that were sent before the first report.
const mostUnseen = 256

// Units are the quotas of an account that do not count requests but, for example, tokens. What a request costs is not known before it is
// sent, so all cost the same here, and how much that is in each of the quotas is learned, as it is where the client has estimates.
type units struct {
	allowance.Meter
	first   int64 // the number of the account's first request that is charged
	refused bool  // the server has refused a request because too little was left
}

// newUnits returns the units of an account of which a response reports a first quota. Its request is charged, and those that were sent after it.
func (a *Account) newUnits(rep *Report) *units {
	wall := rep.wall
	if wall == nil {
		wall = new(meter.Wall)
	}
	u := &units{Meter: *allowance.New(wall), first: max(rep.Number, a.sent-mostUnseen)}
	u.Blind, u.ByLimit = true, true
	for range a.sent - u.first + 1 {
		u.Take(rep.Sent, rep.Sent, 1, false)
	}
	return u
}

// isUnit reports whether units take figures: not where a limit of the client does, and not those of a unit as a whole where its parts are
// reported, too.
func (r *Reading) isUnit(c *Figures) bool {
	return !c.Counted && !c.Covered && !r.Hints.HasPart(c.Name)
}

// stopsBy reports whether units stop requests of the gate. A client with limits of its own is trusted until it is refused.
func (g *Gate) stopsBy() bool {
	u := g.Account.units
	return g.spends && u != nil && u.Reports() && (u.refused || !g.Account.own.trusted())
}

// stops reports whether units stop a request.
func (u *units) stops(now meter.Instant) bool {
	return u != nil && u.Reports() && u.Ready(now, 0, 1) > now
}

// take charges a request of the account, which costs something if the gate spends units.
func (u *units) take(g *Gate, due, now meter.Instant, waited bool) {
	if u == nil {
		return
	}
	cost := int64(0)
	if g.spends {
		cost = 1
	}
	u.Take(due, now, cost, waited)
}

// skip notes that so many numbers are of requests of another account.
func (u *units) skip(n int64) {
	if u != nil {
		u.first += n
	}
}

// inUnit returns what figures say of a unit, without what is left to other clients.
func (c *Figures) inUnit(now meter.Instant) allowance.Figures {
	u := allowance.Figures{Name: c.Name, Limit: c.Limit, Left: max(0, c.Left-c.Reserve), Reset: -1}
	if c.Limit >= 0 {
		u.Limit = max(0, c.Limit-c.Reserve)
	}
	if c.Reset < meter.Never {
		u.Reset = max(0, c.Reset-now)
	}
	return u
}

// lacks reports whether too little of a unit explains a refusal.
func (g *Gate) lacks(r *Reading, now meter.Instant) bool {
	a, h := g.Account, r.Hints
	if a.units == nil || h == nil || !h.Limited || h.Host || h.Global {
		return false
	}
	return slices.ContainsFunc(r.figures, func(c Figures) bool {
		u := c.inUnit(now)
		return r.isUnit(&c) && (c.Refused || a.units.Lacks(&u, 1))
	})
}

// spend takes what a response shows of units: what is left of them, and that its request has ended.
func (g *Gate) spend(rep *Report, now meter.Instant) {
	a, h := g.Account, rep.Hints
	var room [4]allowance.Figures
	figures := room[:0]
	for i := range rep.figures {
		c := &rep.figures[i]
		if !rep.isUnit(c) {
			continue
		}
		if g.spends = true; a.units == nil {
			a.units = a.newUnits(rep)
		}
		if q := a.find(c.Name); q == nil || !q.doubt.on {
			figures = append(figures, c.inUnit(now))
		}
	}
	u := a.units
	if u == nil {
		return
	}
	n := rep.Number - u.first
	u.Report(n, now, figures, rep.Verdict.Refused())
	switch {
	case h != nil && h.After != nil: // it has ended
	case rep.lacks:
		wait := int64(0)
		if h.Asked {
			wait = int64(h.Wait)
		}
		u.refused = true
		u.Refused(n, now, wait, false)
	case rep.Verdict.Refused():
		u.GiveBack(n, now, 1)
	default:
		u.End(n, now)
	}
}

// size returns about how many bytes they take.
func (u *units) size() int {
	if u == nil {
		return 0
	}
	return int(unsafe.Sizeof(*u)) + u.Size()
}

// unitsReady returns when the units of a gate allow need requests. After a day a request asks whether there is no more. Where no end is
// reported, one does so at once, unless the server has refused one before: sure is false while its response decides.
func (g *Gate) unitsReady(at meter.Instant, need int64) (_ meter.Instant, sure bool) {
	if !g.stopsBy() {
		return at, true
	}
	a := g.Account
	ready := min(a.units.Ready(at, need-1, 1), meter.AddInstant(a.backoff.Last(), longestHold))
	if ready <= at || a.units.refused {
		return max(at, ready), true
	}
	if q := g.scarcest(); q != nil && q.reset == meter.Never && q.empty() {
		return max(at, min(ready, max(q.try, q.leftAt+firstRetry))), need <= 1 && g.inFlight == 0
	}
	return ready, true
}

// scarcest returns the quota in a unit of which least is left, as a part of its limit; nil: none is reported.
func (g *Gate) scarcest() (least *quota) {
	for _, q := range g.quotas {
		if !q.counted && q.believed() && (least == nil || float64(q.left)*float64(least.most) < float64(least.left)*float64(q.most)) {
			least = q
		}
	}
	return least
}
