package quota

import (
	"math"
	"slices"

	"github.com/httpthrottle/throttle/internal/meter"
)

// This file is the model of what a server counts together; see doc.go.

const (
	maxAccounts = 64           // of a group
	maxFiner    = 64           // families of a host whose requests are distinguished further
	mostVotes   = 3            // for counts that are separate, or are not
	askMost     = 2            // gates whose question is refused, whether a hold concerns them
	oddsApart   = 7 * oddsUnit // 1,100 to 1
	oddsUnit    = 16
	mostTries   = 40 // trials that are counted
	trialShown  = 4  // pairs of responses more than would show by chance that a trait matters
	trialMost   = 64 // responses
	trialFew    = 8  // if they fit each other from the second on
)

// MaxTraits is how many traits of a request may be known besides its family, its method and its credential.
const MaxTraits = 8

// traitModel is the trait that is in the body of a request.
const traitModel = 0

// Models say whether a server counts by the model of a request.
type Models uint8

const (
	NoModels Models = iota
	TriesModels
	CountsModels
)

// Models returns whether the server of a gate counts by model, as far as is known.
func (g *Gate) Models() Models {
	switch {
	case g.Account.server.byModel:
		return CountsModels
	case g.trial != nil:
		return TriesModels
	}
	return NoModels
}

// Traits are what else a server may count a request by. Those by which it is more probable, or of which there are fewer, come first.
type Traits interface {
	// Trait returns a hash of the n-th of MaxTraits; 0: the request has none.
	Trait(n int) uint64
	// String describes the request, without what may be secret.
	String() string
}

// alike is what the requests of a gate have in common, besides finer traits.
type alike struct{ family, method, credential uint64 }

// evidence is what shows whether a gate is counted with the others of its account.
type evidence struct {
	own    departures
	report uint64  // which quotas its last response with counts reported, with their limits; 0: there was none
	left   int64   // what the response to its newest request reported
	newest int64   // the number of that request among its own; 0: there was no such response
	apart  int8    // how many responses fit its own count, and not that of the account
	with   int8    // how many responses in a row fit the count of another account, and not that of its own
	joined bool    // a response has shown that it belongs to its account
	spends bool    // its requests spend units of the account
	odds   int8    // that it is counted separately, because only its requests were refused since one was accepted: their logarithm times oddsUnit
	tries  [2]int8 // trials that found nothing, of counts and of limits
	finer  finer   // when it was made
	trial  *trial  // one that has not ended; nil: its responses fit each other
}

// A finer is by which traits requests of a family are distinguished; each is a bit.
type finer struct {
	by    uint8
	found uint8 // at some time
}

// A trial finds the trait by which a server counts requests of one gate separately. It compares each response with a few before it: they
// fit if they may be of the same quotas. If the server counts by a trait, only those of requests that differ in it do not fit.
type trial struct {
	last  [4]counting
	n     int8            // responses
	of    int8            // what differs
	odd   int8            // of them that did not fit the one before
	apart [MaxTraits]int8 // pairs that do not fit, of requests that differ in the trait
	alike [MaxTraits]int8 // pairs that fit, of requests that do not differ
	loose [MaxTraits]int8 // pairs that fit, of requests that differ
	wrong [MaxTraits]int8 // pairs that do not fit, of requests that do not differ
}

// What differs between responses.
const (
	ofCounts int8 = iota
	ofLimits
)

// A counting is a response that reported counts.
type counting struct {
	report, left, n int64
	traits          hashes
}

// hashes are traits that need no request.
type hashes [MaxTraits]uint64

func hashesOf(t Traits) (h hashes) {
	for n := range h {
		h[n] = t.Trait(n)
	}
	return h
}

// Fixed returns the traits that a request has now, without its description, for one that may change; nil: it has none.
func Fixed(t Traits) Traits {
	if t == nil {
		return nil
	}
	return hashesOf(t)
}

// Trait implements [Traits].
func (h hashes) Trait(n int) uint64 { return h[n] }

// String implements [Traits].
func (h hashes) String() string { return "" }

// guess returns the account that a new gate for a key probably belongs to: that of the gate that is most alike; nil: there is none of which
// it may be.
func (p *group) guess(key *Key) (best *Account) {
	most, looked := -1, 0
	for _, a := range p.accounts {
		if a.Key.Parts != key.Parts {
			continue
		}
		for _, g := range a.gates[:min(len(a.gates), lookAtMost)] {
			if alike := g.likeness(key); alike > most {
				best, most = a, alike
			}
			if looked++; looked > sweepMost {
				return best
			}
		}
	}
	return best
}

// likeness returns how much of what requests may be counted by is the same.
func (a alike) likeness(key *Key) (n int) {
	for _, same := range [...]bool{a.family == key.Family, a.method == key.Method, a.credential == key.Credential} {
		if same {
			n++
		}
	}
	return n
}

// reported returns a hash of which quotas are reported, and of their limits; 0: none.
func (r *Reading) reported() (hash uint64) {
	for i := range r.figures {
		c := &r.figures[i]
		h := uint64(c.Limit) + 2
		for j := range len(c.Name) {
			h = mix(h, uint64(c.Name[j]))
		}
		hash += h // whatever their order
	}
	return hash
}

// IsDivided reports whether requests of the gate's family are distinguished in another way than when it was made.
func (g *Gate) IsDivided() bool { return g.finer != g.Account.server.finerOf(g.family) }

// finerOf returns by which traits requests of a family are distinguished.
func (s *Server) finerOf(family uint64) (f finer) {
	if len(s.finer) > 0 { // as for few
		f = s.finer[family]
	}
	return f
}

// A belonging is the account that a gate belongs to, as a response shows.
type belonging struct {
	account *Account // nil: a new one
	mixed   bool     // what the account that it leaves for a new one has shown of rates and times is of a mixture
	refused bool     // and what its refusals have shown is of the gate
	divided bool     // requests of its family are distinguished in another way from now on
}

// belongs takes what a response shows of what the gate is counted with.
func (g *Gate) belongs(rep *Report, now meter.Instant) (b belonging) {
	b.account = g.Account
	reported := rep.reported()
	if reported == 0 {
		return g.asked(rep, now)
	}
	first := g.Account.find(rep.figures[0].Name)
	switch differs, divided := g.differs(rep, first, reported, now); {
	case differs:
		b.divided = divided
	case g.Account.contradicts(rep.figures, g), g.countsApart(rep, first):
		b.account, b.mixed = g.other(rep, now), g.joined
		g.joined, g.apart = true, 0
	default:
		b.account = g.countsWith(rep, first, now)
		g.joined = true
	}
	g.notes(rep, reported)
	return b
}

// mayAsk reports whether a request may be sent to find out whether the gate belongs to its account.
func (g *Gate) mayAsk() bool {
	return !g.joined && g.inFlight == 0 && g.Account.asked < askMost && g.Account.group != nil
}

// asked is belongs for a response without counts. If the account was stopped when the request was sent, it shows whether the gate belongs to it.
func (g *Gate) asked(rep *Report, now meter.Instant) belonging {
	a := g.Account
	refused := rep.Hints != nil && rep.Hints.Limited
	switch stopped := a.held > rep.Sent && a.set < rep.Sent; {
	case a.weigh(g, rep):
		return belonging{mixed: g.joined, refused: true}
	case refused && stopped && !g.joined:
		a.asked++
	case refused && a.held <= now:
		a.asked = 0
	case stopped && !g.joined && rep.Accepted:
		a.asked, g.joined = 0, true
		return belonging{mixed: true}
	}
	return belonging{account: a}
}

// A spell is the refusals since the last accepted request of an account, in the order of sending.
type spell struct {
	gate *Gate // of all of them; nil: of several
	n    int64
	sent meter.Instant // when the last of these requests was sent
}

// weigh takes a response, and reports whether the server seems to count the gate's requests separately, because they alone are refused.
// Of the requests of a spell and the one after it, one is accepted. If the server counted them together, any of them could have been that
// one, whatever the server refuses, and when. So spells of one gate that always end with a request of another one are improbable.
func (a *Account) weigh(g *Gate, rep *Report) (apart bool) {
	h := rep.Hints
	refused := h != nil && (h.Limited || h.Bare != NotBare)
	if !refused && !g.isWeighed() { // as for most
		return false
	}
	s := &a.known().spell
	switch {
	case refused:
		if s.n == 0 {
			s.gate = g
		} else if s.gate != g {
			s.gate = nil
		}
		s.n, s.sent = s.n+1, max(s.sent, rep.Sent)
		return g.odds > oddsApart
	case !rep.Accepted || rep.Sent <= s.sent:
		return false
	case s.gate != nil && s.gate != g:
		s.gate.odds = int8(min(float64(s.gate.odds)+oddsUnit*math.Log(float64(s.n+1)), math.MaxInt8))
	}
	g.odds, s.gate, s.n = 0, nil, 0
	return false
}

// isWeighed reports whether an accepted request of the gate shows something of what the server counts together.
func (g *Gate) isWeighed() bool {
	s := g.Account.shown
	return s != nil && (s.spell.n > 0 || g.odds > 0)
}

// contradicts reports whether responses to requests of other gates than g have shown that the account has other quotas than are
// reported, or other limits.
func (a *Account) contradicts(figures []Figures, g *Gate) bool {
	others := false
	for _, x := range a.gates {
		if x == g || !x.joined || len(x.quotas) == 0 {
			continue
		}
		others = true
		for i := range figures {
			if q := a.find(figures[i].Name); q != nil && slices.Contains(x.quotas, q) {
				return q.limit >= 0 && figures[i].Limit >= 0 && q.limit != figures[i].Limit
			}
		}
	}
	return others
}

// count returns what is left of the first quota that is reported, if it counts requests: a count in another unit shows nothing of which of
// them are counted together.
func (r *Reading) count() int64 {
	if c := &r.figures[0]; c.Counted {
		return c.Left
	}
	return 0
}

// differs takes a response, and reports whether something that differs between requests of the gate decides what they are counted under, as
// far as is known, and whether that is found. The first quota that it reports may be nil.
func (g *Gate) differs(rep *Report, first *quota, reported uint64, now meter.Instant) (differs, divided bool) {
	n := g.own.before(rep.Number)
	h := counting{report: int64(reported), left: rep.count(), n: n}
	before := counting{report: int64(g.report), left: g.left, n: g.newest}
	odd := g.report != 0 && !h.fits(&before, 2+g.inFlight) && (h.report != before.report || first == nil || !first.ended(rep.Sent))
	of := ofCounts
	if g.report != 0 && h.report != before.report {
		of = ofLimits
	}
	switch {
	case rep.Traits == nil || g.trial == nil && !odd || g.IsDivided(): // its requests are distinguished further
		return false, false
	case g.trial == nil && !g.mayTry(of):
		return of == ofLimits, false
	case g.trial == nil:
		g.trial = new(trial)
	}
	g.trial.of = max(g.trial.of, of)
	h.traits = hashesOf(rep.Traits)
	if odd {
		g.trial.odd++
	}
	trait := g.trial.next(h, 2+g.inFlight)
	if trait >= 0 && g.Account.server.refine(g.family, trait) {
		g.Account.group.mixed(g.family, now)
		return true, true
	}
	if x := g.trial; trait >= 0 || x.n >= trialMost || x.n >= trialFew && x.odd <= 1 {
		if x.odd > 1 {
			g.tries[x.of] = min(g.tries[x.of]+1, mostTries)
		}
		g.trial = nil
	}
	return true, false
}

// mayTry reports whether a trial may begin. Each that finds nothing has the next one wait for twice as many requests: counts also rise
// where requests come back one by one, and what differs may be nothing that is known of requests, until the server counts in another way.
func (g *Gate) mayTry(of int8) bool { return g.tries[of] == 0 || g.own.sent >= trialMost<<g.tries[of] }

// mixed takes that what was one family is several. What their accounts have shown of rates and times is of a mixture, so it is forgotten.
func (p *group) mixed(family uint64, now meter.Instant) {
	for _, a := range p.accounts {
		if slices.ContainsFunc(a.gates[:min(len(a.gates), lookAtMost)], func(g *Gate) bool { return g.family == family }) {
			a.unlearn()
			for _, q := range a.quotas {
				q.unlearn()
			}
		}
	}
}

// fits reports whether two responses may be of the same quotas: what is left falls by no more than the requests between them, give or take
// some that were in flight together.
func (h *counting) fits(before *counting, slack int64) bool {
	fell := before.left - h.left
	return h.report == before.report && fell >= -slack && fell <= max(0, h.n-before.n)+slack
}

// next takes a response, and returns the trait by which the server counts; -1: it is not known.
func (x *trial) next(h counting, slack int64) int {
	var between [MaxTraits]bool // a response between the two was to a request with another trait
	for age := 1; age <= min(int(x.n), len(x.last)); age++ {
		before := &x.last[(int(x.n)-age)%len(x.last)]
		fits := h.fits(before, slack)
		for t := range MaxTraits {
			of := &x.apart
			same := h.traits[t] == before.traits[t]
			switch {
			case fits && same && x.of == ofCounts && !between[t]: // counts and traits may both have changed with time
				continue
			case fits && same:
				of = &x.alike
			case fits:
				of = &x.loose
			case same:
				of = &x.wrong
			}
			of[t] = min(of[t]+1, 100)
			between[t] = between[t] || !same
		}
	}
	x.last[int(x.n)%len(x.last)] = h
	x.n++
	best, most := -1, float64(trialShown)
	for t := range MaxTraits {
		if shown := x.shown(t); shown >= most && (best < 0 || shown > most) {
			best, most = t, shown
		}
	}
	return best
}

// shown returns how much shows that the server counts by a trait: how many more pairs of requests with the same trait would not
// fit, if they did not as often as others.
func (x *trial) shown(t int) float64 {
	apart, alike := float64(x.apart[t]), float64(x.alike[t])
	return alike*apart/max(1, apart+float64(x.loose[t])) - 4*float64(x.wrong[t])
}

// refine has requests of a family be distinguished by another trait. It replaces those before, which may have differed with it by chance;
// if one of these is found again, both count. It reports whether that changes anything: no more families than maxFiner are divided.
func (s *Server) refine(family uint64, trait int) bool {
	if s.finer == nil {
		s.finer = make(map[uint64]finer)
	}
	f := s.finer[family]
	was := f
	if len(s.finer) >= maxFiner && f == (finer{}) {
		return false
	}
	if f.found>>trait&1 == 0 {
		f.by = 0
	}
	f.by |= 1 << trait
	f.found |= f.by
	s.finer[family] = f
	s.byModel = s.byModel || trait == traitModel
	return f != was
}

// notes keeps what a response reports.
func (g *Gate) notes(rep *Report, reported uint64) {
	if n := g.own.before(rep.Number); n > g.newest || g.report == 0 {
		g.left, g.newest = rep.count(), n
	}
	g.report = reported
}

// countsApart weighs the counts of a response: they follow from the requests of the gate alone, or from all requests of the account.
func (g *Gate) countsApart(rep *Report, q *quota) bool {
	c, by := &rep.figures[0], g.Account.by
	n := g.own.before(rep.Number)
	if !c.Counted || q == nil || by == nil || by == g || q.left == meter.MaxCount || g.newest == 0 || n <= g.newest {
		return false
	}
	own := abs(c.Left - (g.left - (n - g.newest)))
	common := abs(c.Left - (q.left - (q.before(rep.Number) - q.newest.n)))
	switch {
	case common > 2*own+1+q.inFlight:
		g.apart++
	case own > 2*common+1:
		g.apart = max(g.apart-1, -mostVotes)
	}
	return g.apart >= mostVotes
}

// countsWith weighs the count of a response that is lower than requests of the account explain. If those of another account do,
// again and again, the server counts the gate's requests with them: it returns that account, otherwise the gate's.
func (g *Gate) countsWith(rep *Report, q *quota, now meter.Instant) *Account {
	a, c := g.Account, &rep.figures[0]
	if len(a.group.accounts) == 1 || !c.Counted || q == nil || q.left == meter.MaxCount || q.ended(rep.Sent) {
		return a
	}
	if unexplained := q.left - (q.before(rep.Number) - q.newest.n) - c.Left; unexplained < q.inFlight { // this one is in flight
		g.with = 0
		return a
	}
	for _, b := range a.group.accounts {
		if b != a && b.Key.Parts == a.Key.Parts && b.counts(c.Name, rep.Sent) && b.fits(rep, now) {
			if g.with++; g.with < mostVotes {
				return a
			}
			g.with = 0
			return b
		}
	}
	g.with = 0
	return a
}

// counts reports whether it is known what is left of a quota of the account, whose window goes on.
func (a *Account) counts(name string, now meter.Instant) bool {
	q := a.find(name)
	return q != nil && q.left < meter.MaxCount && !q.ended(now)
}

func abs(n int64) int64 { return max(n, -n) }

// other returns the account that the gate belongs to, whose responses contradict its own: another one that the response fits; nil: there is
// none.
func (g *Gate) other(rep *Report, now meter.Instant) *Account {
	for _, a := range g.Account.group.accounts {
		if a != g.Account && a.Key.Parts == g.Account.Key.Parts && a.fits(rep, now) {
			return a
		}
	}
	return nil
}

// fits reports whether a response may be of the quotas of the account, by their limits, ends and counts.
func (a *Account) fits(rep *Report, now meter.Instant) bool {
	return !slices.ContainsFunc(rep.figures, func(c Figures) bool {
		q := a.find(c.Name)
		return q == nil || q.limit != c.Limit || !q.fits(&c, now)
	})
}

// fits reports whether figures may be of the quota, by its end and its count.
func (q *quota) fits(c *Figures, now meter.Instant) bool {
	if q.left == meter.MaxCount || q.ended(now) {
		return true
	}
	if q.reset < meter.Never && c.Reset < meter.Never && abs(q.reset-c.Reset) > 2*rounding {
		return false
	}
	return !c.Counted || abs(c.Left-q.left) <= 1+q.inFlight+q.sent-q.newest.n
}
