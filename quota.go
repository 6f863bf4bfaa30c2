package throttle

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/httpthrottle/throttle/internal/meter"
)

// This file is the arithmetic of what servers say about their limits: how long to stay away, and what is left. It has
// no lock and no clock. A server is one host, an account is one host and whom a request counts for there, and a gate is
// what the requests of one family pass: they fall under the quotas that the answers to requests of their family name.

const (
	maxSilent   = 128
	maxQuotas   = 32
	plenty      = int64(1) << 40       // a quota with that much left bounds nobody
	quotaStale  = 3600 * second        // a quota that was over that long ago makes room for the next
	meanOver    = float64(10 * second) // what the rate is measured over, from which a pace begins
	paceLeast   = 1.0                  // per second
	paceMost    = 10_000.0             // per second; there is no pace above
	paceDoubles = float64(2 * second)  // in which the rate of a pace doubles
	paceIdle    = second               // a pace that is not used for longer is over
	longestBack = 6                    // doublings of the backoff of 1 s
	sameWindow  = second               // resets of one window are told with that precision
	mostJitter  = second               // added to a stop, and no more than a tenth of it
)

// A tell is what an answer says of one quota.
type tell struct {
	name    string
	limit   int64 // -1: unknown
	left    int64
	reset   instant // never: unknown
	counted bool    // its unit is requests
	reserve int64   // is left for others
}

// jitter returns how long to stay away after a stop of length d, so that many clients do not come back as one.
func jitter(chance float64, d int64) int64 { return int64(chance * float64(min(mostJitter, d/10))) }

// A barrier is a hold: nothing goes before held.
type barrier struct {
	held  instant
	began instant // of the stretch of holds that ends at held
	set   instant // the last hold was set
	paced bool    // after it, requests leave one by one
	dice  meter.Dice
}

// hold lets nothing go for d, and up to a tenth or a second longer.
func (b *barrier) hold(now instant, d int64, paced bool) {
	if d <= 0 {
		return
	}
	if now >= b.held {
		b.began, b.paced = now, false
	}
	b.set = now
	b.paced = b.paced || paced
	b.held = max(b.held, meter.AddInstant(meter.AddInstant(now, d), jitter(b.dice.Chance(), d)))
}

// A server is one host, whoever asks it.
type server struct{ barrier }

func newServer(seed uint64) *server { return &server{barrier{set: -1, dice: meter.Dice(seed)}} }

// A pace lets requests go one by one after a stop, at a rate that doubles, so that it is a ramp and never for ever.
type pace struct {
	from instant
	next instant // nothing goes before
	rate float64 // per second, at from; 0: over
}

// begin begins a pace at the end of a stop. It does not cut short the gap of one before.
func (p *pace) begin(end instant, rate float64) { *p = pace{end, max(end, p.next), rate} }

func (p *pace) take(due instant) {
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

func (p *pace) over(now instant) bool { return p.rate == 0 || now-p.next > paceIdle }

// An account is one host and one set of keys of requests, such as a credential.
type account struct {
	barrier
	server   *server
	resumed  instant // the end of the last hold after which something went
	refusals int     // without a known wait, each of a request sent after the hold for the one before
	used     meter.MeanRate
	pace     pace
	quotas   []*quota
}

// newAccount returns an account whose requests went at that rate so far, per second.
func newAccount(now instant, s *server, seed uint64, rate float64) *account {
	if !(rate > 0) { // nor NaN
		rate = 0
	}
	return &account{barrier: barrier{set: -1, dice: meter.Dice(seed)}, server: s, used: meter.MeanRate{Value: min(rate, paceMost), At: now}}
}

func (a *account) hold(now instant, d int64, paced bool) {
	a.resume(now)
	a.barrier.hold(now, d, paced)
}

// backoff is a hold for a refusal of which no one knows how long it lasts: 1 s, twice as long after each further one, at
// most 64 s, and the jitter of any hold. Refusals of requests that were sent before the last hold was set are of one
// event with what it was set for.
func (a *account) backoff(now, sentAt instant, paced bool) {
	if sentAt <= a.set {
		return
	}
	a.hold(now, second<<a.refusals, paced)
	a.refusals = min(a.refusals+1, longestBack)
}

// until returns when the last hold ends.
func (a *account) until() instant { return max(a.held, a.server.held) }

// resume begins the pace after holds that are over.
func (a *account) resume(now instant) {
	end := a.until()
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
func (a *account) stopped(began, end instant) float64 {
	a.used = meter.MeanRate{Value: a.used.Of(began, meanOver), At: max(a.used.At, end)}
	return max(paceLeast, a.used.Value)
}

// quota returns the quota of that name. A new one is in the place of the one that is over first, if there is no room.
func (a *account) quota(now instant, name string) *quota {
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

// A quota is what a server counts under one name. Where its unit is not requests, it is not known what one costs: it
// stops them only while nothing is left of it.
type quota struct {
	name     string
	limit    int64 // -1: unknown
	told     int64 // what is left, by the server's word; maxCount: unknown
	at       instant
	low      int64     // the lowest word since then, if told is lower; maxCount: none
	silent   []instant // the last answers that did not name it
	reset    instant   // never: unknown
	counted  bool      // its unit is requests
	reserve  int64     // of what is left is for others
	renewed  instant   // its reset when it was empty, until an answer tells what that gave; never: none
	sent     int64     // since then
	gives    int64     // no more than that was left after such a reset
	inFlight int64     // requests whose answers may tell that less is left
	emptied  instant   // since then nothing is left for us; never: something is
	luck     float64   // of the jitter after that
	pace     pace
	dice     meter.Dice
	dropped  bool // by its account
}

// newQuota returns a quota of which nothing is known: it stops nobody.
func newQuota(name string, d meter.Dice) quota {
	return quota{name: name, limit: -1, told: maxCount, at: -1, low: maxCount, renewed: never, gives: maxCount, reset: never, emptied: never, dice: d}
}

// ends returns when what is known of it is over.
func (q *quota) ends() instant {
	if q.reset < never {
		return q.reset
	}
	return q.at
}

func (q *quota) stale(now instant) bool { return q.inFlight == 0 && q.ends() < now-quotaStale }

// pays reports whether so many requests can go.
func (q *quota) pays(need int64) bool {
	if !q.counted {
		return q.told > q.reserve || q.reset == never
	}
	return q.told-q.reserve-q.inFlight >= need
}

// next returns when so many requests can go, not before from. It is not sure if answers that are on their way decide it.
func (q *quota) next(from instant, need int64) (at instant, sure bool) {
	if q.reset < never && !q.pays(need) {
		from = max(from, q.reset)
		renewed := *q
		renewed.renew(0)
		q = &renewed
	}
	return max(from, q.pace.next), q.inFlight == 0 || q.pays(need)
}

// hear notes what an answer says, to a request that was sent then. One that was sent after what is known was learned
// tells the news, but others may have been counted after it that were answered before it. Of words that are out of order
// the lowest was the last.
func (q *quota) hear(now, sentAt instant, t *tell) {
	news := sentAt > q.at
	if !news && q.reset < never && t.reset < q.reset-sameWindow {
		return // of the window before
	}
	q.counted, q.reserve = t.counted, min(max(t.reserve, 0), maxCount)
	left := min(max(t.left, 0), maxCount)
	if t.limit >= 0 {
		q.limit = min(t.limit, maxCount)
	}
	if q.limit >= 0 {
		left = min(left, q.limit)
	}
	if sentAt >= q.renewed {
		q.gives, q.renewed = left+q.sent, never
	}
	for _, at := range q.silent {
		if at > sentAt {
			left-- // it may have been counted after
		}
	}
	learn := news || left <= q.told
	if t.reset < never && (learn || q.reset == never) {
		q.reset = t.reset
	}
	q.low = min(q.low, left)
	if learn {
		q.learn(q.low, now)
	}
}

// missed notes an answer that does not name the quota: its request may have been counted.
func (q *quota) missed(now instant) {
	if q.counted {
		q.learn(q.told-1, now)
		if len(q.silent) == maxSilent {
			q.silent = slices.Delete(q.silent, 0, maxSilent/2)
		}
		q.silent = append(q.silent, now)
	}
}

func (q *quota) learn(told int64, at instant) {
	q.told, q.at, q.low = told, at, maxCount
	switch {
	case told > q.reserve:
		q.emptied = never
	case q.emptied == never:
		q.emptied, q.luck = at, q.dice.Chance()
	}
}

// resumes returns when the first goes after the reset of an empty quota.
func (q *quota) resumes() instant {
	return meter.AddInstant(q.reset, jitter(q.luck, q.reset-q.emptied))
}

// roll brings the quota up to date.
func (q *quota) roll(a *account, now instant) {
	switch {
	case q.reset > now:
	case q.emptied == never:
		q.renew(0)
	default:
		q.renew(a.stopped(q.emptied, q.resumes()))
	}
}

// renew is the reset: all is left again, if it is known how much that is. Those who were stopped go at that rate.
func (q *quota) renew(rate float64) {
	told, at := q.limit, q.reset
	if told < 0 {
		told = maxCount
	}
	if q.emptied < never {
		q.pace.begin(q.resumes(), rate)
		q.renewed, q.sent = at, 0
		told = min(told, q.gives)
	}
	q.reset, q.emptied = never, never
	q.learn(told, at)
}

// probe forgets what is left when nothing is and nobody is on the way who could tell that there is more. Nor does
// anybody know when it will be, so that requests go one by one.
func (q *quota) probe(a *account, due instant) {
	if q.pays(1) || q.inFlight > 0 || q.reset < never {
		return
	}
	q.pace.begin(due, a.stopped(min(q.emptied, due), due))
	q.learn(maxCount, due)
}

// A gate is what the requests of one family pass, such as those to one route: servers count resources in quotas of
// their own, and name them in the answer. All costs at a gate are 1.
type gate struct {
	account  *account
	quotas   []*quota // that answers to requests of the family named
	inFlight int64
}

var _ meter.Meter = (*gate)(nil)

func newGate(a *account) *gate { return &gate{account: a} }

func (g *gate) Payable(now instant, cost int64) bool { return g.Ready(now, 0, cost) <= now }

func (g *gate) Spend(now instant, cost int64) (int64, bool) { return meter.SpendIf(g, now, cost) }

// Ready returns never where only an answer can tell.
func (g *gate) Ready(from instant, ahead, cost int64) instant {
	at, sure := g.next(from, meter.AddCount(ahead, cost))
	if !sure {
		return never
	}
	return at
}

// Plan returns a lower bound of when cost can be paid once ahead has been, whatever answers will tell.
func (g *gate) Plan(from instant, ahead, cost int64) instant {
	at, _ := g.next(from, meter.AddCount(ahead, cost))
	return at
}

func (g *gate) next(from instant, need int64) (at instant, sure bool) {
	at, sure = max(from, g.account.until(), g.account.pace.next), true
	for _, q := range g.quotas {
		var ok bool
		at, ok = q.next(at, need)
		sure = sure && ok
	}
	return at, sure
}

func (g *gate) Take(due, now instant, _ int64, _ bool) int64 {
	a := g.account
	a.resume(now)
	for _, q := range g.quotas {
		q.roll(a, now)
		q.probe(a, due)
		q.pace.take(due)
		q.inFlight++
		q.sent++
	}
	a.pace.take(due)
	a.used.Add(due, 1, meanOver)
	g.inFlight++
	return 0
}

// GiveBack undoes a take, of a request that was not sent.
func (g *gate) GiveBack(int64, instant, int64) {
	if g.inFlight == 0 {
		panic("throttle: bug: more answers than requests")
	}
	g.inFlight--
	for _, q := range g.quotas {
		q.inFlight--
	}
}

func (g *gate) Most() int64 { return maxCount }

func (g *gate) Settle(int64, instant, int64, int64) { panic("throttle: bug: a gate has no cost") }

// answered notes what the answer to a request that was sent then tells, and whether it was a success. If there is none,
// as after an error, it tells nothing, but the request may have been counted.
func (g *gate) answered(now, sentAt instant, ok bool, tells []tell) {
	a := g.account
	if ok && sentAt > a.set {
		a.refusals = 0
	}
	g.GiveBack(0, now, 1)
	g.quotas = slices.DeleteFunc(g.quotas, func(q *quota) bool { return q.dropped })
	for _, q := range g.quotas {
		q.roll(a, now)
		if !slices.ContainsFunc(tells, func(t tell) bool { return t.name == q.name }) {
			q.missed(now)
		}
	}
	g.tell(now, sentAt, tells)
}

// tell notes what the answer to a request that was sent then tells of quotas.
func (g *gate) tell(now, sentAt instant, tells []tell) {
	for i := range tells {
		if t := &tells[i]; t.reset > now { // else of a window that is over
			g.under(now, t.name).hear(now, sentAt, t)
		}
	}
}

// under returns the quota of that name, which the gate falls under from now on.
func (g *gate) under(now instant, name string) *quota {
	q := g.account.quota(now, name)
	if !slices.Contains(g.quotas, q) {
		q.roll(g.account, now)
		q.inFlight += g.inFlight
		g.quotas = append(g.quotas, q)
	}
	return q
}

func (g *gate) FullAt() instant {
	if g.inFlight > 0 {
		return never
	}
	at := max(g.account.until(), g.account.pace.next)
	for _, q := range g.quotas {
		at = max(at, q.pace.next)
		if q.reset < never {
			at = max(at, meter.AddInstant(q.reset, mostJitter))
		}
	}
	return meter.AddInstant(at, paceIdle)
}

func (g *gate) Tokens(now instant) float64 {
	least := int64(math.MaxInt64)
	for _, q := range g.quotas {
		q.roll(g.account, now)
		if !q.pays(plenty) {
			least = min(least, q.told-q.reserve-q.inFlight)
		}
	}
	return float64(least)
}

func (g *gate) Indebted(now instant) bool {
	return g.inFlight > 0 || g.account.until() > now || slices.ContainsFunc(g.quotas, func(q *quota) bool {
		return !q.pays(1) && q.reset > now && q.reset < never
	})
}

// open reports whether nothing at all stops or bounds requests here now.
func (g *gate) open(now instant) bool {
	a := g.account
	a.resume(now)
	return a.until() <= now && a.pace.over(now) && !slices.ContainsFunc(g.quotas, func(q *quota) bool {
		q.roll(a, now)
		return !q.pays(plenty) || !q.pace.over(now)
	})
}

func (g *gate) Retune(instant, rate) {}

func (g *gate) Resize(instant, int64) {}
