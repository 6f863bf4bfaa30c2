package quota

import (
	"cmp"
	"math"
	"slices"
	"unsafe"

	"github.com/httpthrottle/throttle/internal/keep"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/server"
)

// A Gate is what the requests of one family pass, such as those to one route. Servers count resources in separate quotas, and
// name the quota in the response. All costs at a gate are 1.
type Gate struct {
	keep.Entry
	Account  *Account
	Owner    any      // see Registry.Owner
	quotas   []*quota // named by responses to requests of the family
	inFlight int64
	nth      int // of the account's gates
	kind     uint64
	alike
	evidence
	at int32 // in the list of its account's gates with waiters, counted from 1; 0: no request waits
}

var _ meter.Meter = (*Gate)(nil)

// newGate returns a gate that stops no request.
func newGate(a *Account) *Gate {
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
	if g.Account.by == g {
		g.Account.by = nil
	}
	if s := g.Account.shown; s != nil && s.spell.gate == g {
		s.spell.gate = nil
	}
}

// under returns the quota of that name. The gate falls under it from now on.
func (g *Gate) under(now meter.Instant, name string) *quota {
	q := g.Account.quota(now, name)
	if !slices.Contains(g.quotas, q) {
		q.inFlight += g.inFlight
		g.quotas = append(g.quotas, q)
	}
	return q
}

func (g *Gate) Payable(now meter.Instant, cost int64) bool {
	at, sure := g.next(now, cost)
	return sure && at <= now
}

// Ready returns never if it depends on a response.
func (g *Gate) Ready(from meter.Instant, ahead, cost int64) meter.Instant {
	at, sure := g.next(from, meter.AddCount(ahead, cost))
	if !sure {
		return meter.Never
	}
	return at
}

// Plan returns a lower bound for when cost can be paid after ahead, whatever responses report; never after a final refusal, except for
// a request that may ask now.
func (g *Gate) Plan(from meter.Instant, ahead, cost int64) meter.Instant {
	at, _ := g.next(from, meter.AddCount(ahead, cost))
	if g.Account.final != nil && at > from {
		return meter.Never
	}
	return at
}

// next is stopped by what stops the account, unless the gate may find out whether that concerns it.
func (g *Gate) next(from meter.Instant, need int64) (at meter.Instant, sure bool) {
	at, sure = g.stopped(from, need)
	if at > from && at > meter.AddInstant(from, second) && g.Account.final == nil && need <= 1 {
		return g.asking(from, at, sure)
	}
	return at, sure
}

// asking returns what next is for a request that may ask, where it is that without.
func (g *Gate) asking(from, at meter.Instant, sure bool) (meter.Instant, bool) {
	a, s := g.Account, g.Account.server
	mayAsk := s.mayAsk(a)
	switch {
	case g.mayAsk() && mayAsk:
		return from, true
	case g.mayAsk():
		return max(from, s.held), true
	case mayAsk && s.by != a && s.held > a.held:
		return g.counted(max(from, a.held, a.backoff.Until(a.even.next, 1)), 1)
	}
	return at, sure
}

func (g *Gate) stopped(from meter.Instant, need int64) (at meter.Instant, sure bool) {
	a := g.Account
	at, sure = a.final.next(max(from, a.Until(), a.backoff.Until(a.even.next, 1)), need), true
	if at == meter.Never {
		return at, sure
	}
	if a.rate != nil {
		at, sure = a.ready(at)
	}
	if len(g.quotas) == 0 || !sure {
		return at, sure
	}
	return g.counted(at, need)
}

// counted returns what next is if only quotas stop requests.
func (g *Gate) counted(at meter.Instant, need int64) (_ meter.Instant, sure bool) {
	sure = true
	for _, q := range g.quotas {
		ready, known := q.next(at, need)
		at, sure = ready, sure && known
	}
	at, known := g.unitsReady(at, need)
	return at, sure && known
}

// Take returns the number of the request, counted from 1 at the account.
func (g *Gate) Take(due, now meter.Instant, _ int64, waited bool) int64 {
	a := g.Account
	a.even.take(due)
	rested := a.backoff.Sent(due, waited)
	if a.shown != nil {
		a.shown.chance.Rested(rested)
	}
	a.server.takes(due)
	if a.asking {
		a.even.next = meter.AddInstant(due, second)
	}
	a.number(due, now, waited, rested)
	a.final.asks(asker{a, a.sent}, due)
	for _, q := range g.quotas {
		q.departures.take(a.sent, due)
	}
	g.own.take(a.sent, due)
	a.units.take(g, due, now, waited)
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
	if m := g.Account.rate; m != nil {
		m.GiveBack(n, now, 1)
	}
	g.Account.final.unsent(asker{g.Account, n}, now)
	for _, q := range g.quotas {
		q.undo(n)
	}
	g.own.undo(n)
	if u := g.Account.units; u != nil {
		u.GiveBack(n-u.first, now, 1)
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

// apply takes a response.
func (g *Gate) apply(rep *Report, now meter.Instant) (c Change) {
	g.Judge(rep, now)
	a, h := g.Account, rep.Hints
	if h == nil {
		h = new(Hints)
	}
	h.verdict = rep.Verdict
	a.used = now
	if rep.Verdict.Refused() {
		a.byRefusal, g.joined = true, true
		if h.After == nil || !h.After.verdict.Refused() {
			a.Limited++
		}
	}
	waiting := len(a.waiting) > 0 // if not, there is nothing to plan again
	until, open, unnamed := a.Until(), waiting && g.Payable(now, 1), len(rep.figures) == 0 || a.knows(Unnamed)
	g.spend(rep, now)
	if h.After == nil {
		c.Opened = g.answered(rep, now)
	}
	for i := range rep.figures {
		figures := &rep.figures[i]
		q := g.under(now, figures.Name)
		newest := q.newest
		if q.report(now, rep, figures); q.newest != newest && i == 0 {
			a.by = g
		}
		if q.doubt.on && a.units != nil {
			a.units.Drop(q.name)
		}
		if h.Wait > 0 && rep.Wait == 0 && figures.Refused && !h.Explained && (h.Asked || q.refills() == 0 || !q.early) { // else the reset is when it is full
			q.hold(now, int64(h.Wait), figures.Reset)
		}
	}
	if !unnamed {
		a.adopt(now)
	}
	switch {
	case rep.Doubtful && (rep.Verdict.Refused() || h.Bare != NotBare):
		c.Doubt = a.doubt(now, rep)
	case rep.Verdict.Refused() && rep.Verdict != server.Final:
		if a.doubts.Stand(); a.rate != nil {
			a.rate.Stand()
		}
	}
	if rep.Verdict.Refused() && h.Status > 0 {
		a.last = LastRefusal{now, int64(h.Wait), int32(h.Status), rep.Verdict}
	}
	held, guessed := a.Held(), a.guessed
	switch rep.Verdict {
	case server.Done:
		if a.final != nil {
			a.setFinal(a.final.accepted(rep.Sent))
		}
	case server.Final:
		c.Final = a.refusedFinally(rep, now)
	case server.TooFast, server.TooMany, server.Closed, server.Exhausted, server.ByChance:
		c.Lifted = g.refuse(rep, now)
	}
	a.learn(g, rep, now)
	if c.Verdict = rep.Verdict; c.Verdict.Refused() {
		a.last.Verdict = c.Verdict
	}
	h.held = hold{held, a.Held(), guessed}
	if a.Until() > until {
		c.Until, c.Guessed = a.Until(), a.Guessed()
	}
	switch {
	case c.Until > 0 && h.Host, (c.Until > 0 && h.Global || c.Final != nil) && a.group != nil && len(a.group.accounts) > 1:
		c.Late = OfHost
	case c.Until > 0, open && !g.Payable(now, 1), rep.Verdict == server.Final:
		c.Late = OfAccount
	case !rep.Verdict.Refused() && a.final.askedBy(asker{a, rep.Number}): // those that waited for its response are too late
		c.Late = OfAccount
	}
	return c
}

// answered takes the response to a request, or that there is none. Quotas that it does not name may be empty, or may not. It reports whether
// a hold of the host has ended.
func (g *Gate) answered(rep *Report, now meter.Instant) (opened bool) {
	a := g.Account
	a.heard = now
	a.answered(rep.Sent, rep.Verdict)
	g.landed()
	if !rep.Verdict.Refused() && !rep.Verdict.Accepted() {
		return false
	}
	opened = rep.Verdict.Accepted() && a.server.accepted(a, now, rep.Sent)
	for _, q := range g.quotas {
		if !rep.names(q.name) {
			q.missed(now, rep)
		}
	}
	return opened
}

// refuse takes a refusal that waiting ends. It reports whether a hold was taken back.
func (g *Gate) refuse(rep *Report, now meter.Instant) (lifted bool) {
	a, h := g.Account, rep.Hints
	a.lately.Add(rep.Sent, 0, a.spacing()) // a rest before it is none after which nothing was accepted
	wait := int64(rep.Wait)
	if !rep.empty { // an empty quota says itself until when
		wait = a.backoff.Asked(wait)
	}
	switch {
	case h.Explained, rep.lacks:
	case rep.Verdict == server.Exhausted && rep.named && wait > 0 && !h.Global:
		a.holdQuotas(rep.figures, now+min(wait, longestHold))
		if h.After != nil {
			a.takeBack(now, h.After.held)
			return true
		}
	case wait > 0:
		a.holdFor(rep, now, wait)
	}
	return false
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

// Open reports whether nothing stops or bounds requests here now.
func (g *Gate) Open(now meter.Instant) bool {
	a := g.Account
	return a.Until() <= now && a.final == nil && !a.asking && !a.first.known && a.even.until <= now && !slices.ContainsFunc(g.quotas, func(q *quota) bool {
		_, bound := q.bound(now)
		return bound || q.held > now
	})
}

// Cause returns why requests wait here.
func (g *Gate) Cause(now meter.Instant) (c Cause) {
	a := g.Account
	held, q := max(now, a.Until()), g.scarcest()
	for _, q := range g.quotas {
		if until := q.heldUntil(now); until > held {
			held = until
			c.by(q, now)
		}
	}
	if until, _ := g.unitsReady(now, 1); until > held && q != nil {
		held = until
		c.by(q, now)
	}
	if a.Until() <= now {
		c.Rate, c.Why = a.Pace(now)
	}
	if c.Rate > 0 || a.server.held > now || a.byRefusal && held > now {
		c.Refusal = a.LastRefusal(now)
	}
	if c.Verdict = cmp.Or(c.Verdict, c.Refusal.Verdict); a.final != nil {
		c.Verdict = server.Final
	}
	return c
}

// by takes that nothing of a quota may be sent for longer than all else.
func (c *Cause) by(q *quota, now meter.Instant) {
	c.Quota, c.Left, c.Limit, c.Verdict = q.name, q.shown(now), q.limit, server.NoVerdict
	if q.empty() {
		c.Verdict = server.Exhausted
	}
}

// HeldUntil returns when the last hold ends.
func (g *Gate) HeldUntil() meter.Instant { return g.Account.Until() }

func (g *Gate) Spend(now meter.Instant, cost int64) (int64, bool) { return meter.SpendIf(g, now, cost) }

// PerSecond returns 0: what a server reported is no rate.
func (g *Gate) PerSecond(meter.Instant) float64 { return 0 }

func (g *Gate) Most() int64 { return meter.MaxCount }

func (g *Gate) Settle(int64, meter.Instant, int64, int64) { panic("throttle: bug: a gate has no cost") }

func (g *Gate) Retune(meter.Instant, meter.Rate) {}

func (g *Gate) Resize(meter.Instant, int64) {}

// SetWaiting notes whether requests wait at a gate, when that changes.
func (g *Gate) SetWaiting(wait bool) {
	all := &g.Account.waiting
	if wait {
		*all = append(*all, g)
		g.at = int32(len(*all))
		return
	}
	last := (*all)[len(*all)-1]
	(*all)[g.at-1], last.at = last, g.at
	*all = slices.Delete(*all, len(*all)-1, len(*all))
	g.at = 0
}

// matters is Matters for a gate at which requests may wait.
func (g *Gate) matters(now meter.Instant) (must, full meter.Instant) {
	if g.at > 0 {
		return meter.Never, meter.Never
	}
	must, full = g.Matters(now)
	return must, max(must, full)
}

// Matters keeps a gate for a request in flight, a hold, a learned rate and an empty quota.
func (g *Gate) Matters(now meter.Instant) (must, full meter.Instant) {
	if g.inFlight > 0 {
		return meter.Never, meter.Never
	}
	a := g.Account
	_, ask, _ := a.Final()
	must = max(a.Until(), ask)
	full = max(must, a.even.next, a.even.until, a.lately.Matters())
	if a.first.known {
		m, f := a.rateMatters(now)
		must, full = max(must, m), max(full, m, f)
	}
	if a.shown != nil && len(a.gates) > 1 { // which of its gates were refused shows what is counted together
		full = max(full, meter.AddInstant(a.shown.spell.sent, a.backoff.Most()))
	}
	if a.final != nil { // what would be forgotten is that one request asks, and not all
		full = meter.AddInstant(full, finalStale)
	}
	for _, q := range g.quotas {
		must = max(must, q.held)
		if q.reset == meter.Never {
			continue
		}
		full = max(full, q.reset)
		if q.believed() && q.empty() {
			must = max(must, q.reset)
		}
	}
	return must, meter.AddInstant(full, second)
}

func (g *Gate) idle() bool { return g.at == 0 && g.inFlight == 0 }

// Size returns about how many bytes the gate takes.
func (g *Gate) Size() int { return int(unsafe.Sizeof(*g)) + cap(g.quotas)*int(unsafe.Sizeof(g)) }
