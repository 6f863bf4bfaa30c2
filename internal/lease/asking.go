package lease

import (
	"cmp"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// A Demand describes the requests that wait for a bucket. The zero value is for none.
type Demand struct {
	First, All int64         // the cost of the first request, and the sum of all costs
	Soon       int64         // of All, what requests will use before another ask can have a response, if all that they wait for besides comes when it is due
	From       meter.Instant // there are other requests, for which tokens are not wanted earlier, because they wait for another limit; 0: there are none, or it is unknown
	Next       int64         // of All, what the first requests need that lack tokens: the first one at least; 0: all costs are 1, or it is unknown
	Whole      int64         // the same of as many more as may get tokens with them; at least Next
	Even       bool          // Whole is of requests that cost the same
	Until      meter.Instant // the first request that lacks tokens cannot use one that is due later; if none lacks any, the first request
	Joint      bool          // the first request needs other budgets as well, which are asked for together
	Window     bool          // one of all these is a window
	Keeps      bool          // what else one of the other requests needs is there, or was promised by a store
}

// asking is the part of a [Leased] that decides when to ask the store, and for how much.
type asking struct {
	under  bool          // an ask is under way
	asked  meter.Instant // when the latest ask was sent; meter.Never: none was
	again  meter.Instant // no tokens are asked for before, because the store said so
	news   meter.Instant // when tokens came, or went back as those of others may, or the first ask was sent
	spare  meter.Instant // no tokens are leased ahead before, because the store had too few
	drawn  int64         // tokens drawn after the latest ask
	cost   int64         // of the latest request
	leaves bool          // see Leave
	use    float64       // recent use, in tokens per ns

	*Distance
	turns
	place      place
	takesTurns bool // requests need several budgets, one of them a window, and may wait for their turns

	back  []store.Return
	owe   int64
	since meter.Instant // how long back, owe or a hold have waited for an ask; meter.Never: there is nothing to report
	owed  int64         // owe of the ask under way

	replace, replaced bool // the rule was changed: after the latest ask that had a response, and before the ask under way
}

const (
	moreAfter  = int64(100 * time.Millisecond) // a process that is allowed no more may be then
	tellAfter  = int64(20 * time.Millisecond)  // returns and debts wait so long for an ask that is made anyway
	spreadOver = int64(10 * time.Millisecond)  // a fleet's asks are spread over it after a window begins
	meanOver   = float64(50 * time.Millisecond)
	lateUse    = int64(10 * time.Millisecond) // with one and a half round trips, how long after the ask a token of a Sliding window may be used
	lateAsk    = 5 * time.Millisecond         // a busy machine may delay an ask so long before tokens come in too late
	maxReturns = 16                           // more are joined
	tripsAhead = 3                            // a process that gets half of the horizon with each ask has tokens until the response to the next one
	farthest   = time.Second                  // what is promised further ahead is so for many processes, and not for distant ones
	crowd      = 64
	crowdEach  = 225 * time.Microsecond // each process beyond a crowd has all of them ask so much less often
	parts      = 64                     // a store records the leases of a full Sliding window in this many parts of the period

	// A budget may get tokens before the instant that the store returned: others give some back, its state is lost, or a hold is
	// released. So the store is asked again after this time, or this time for each process if that is longer. After a promise, the next
	// time is longer in proportion to how long the request has waited for it, so that a fleet does not ask the more often the slower it is.
	recheckAfter, recheckEach = 5 * time.Second, 500 * time.Millisecond
	recheckGrows              = 16
	recheckWindow             = 5 * time.Minute
)

// busy reports whether an ask is under way or needed to report something to the store.
func (m *Leased) busy() bool { return m.under || m.since < meter.Never }

// returns records tokens that go back to the store, where the process finds them again.
func (m *Leased) returns(r store.Return, now meter.Instant) {
	m.uncount(r.Tokens)
	m.sendBack(r, now)
}

// sendBack has the next ask return tokens. Of too many leases, two are joined under the earlier one: a return under an earlier lease is
// never worth more.
func (m *Leased) sendBack(r store.Return, now meter.Instant) {
	m.tell(now)
	m.latest.left += float64(r.Tokens)
	m.latest.need = 0
	if !m.promises() && m.place.is != waits {
		m.again = min(m.again, meter.AddInstant(now, tellAfter)) // the next ask finds them
	}
	if i := slices.IndexFunc(m.back, func(b store.Return) bool { return b.Lease == r.Lease }); i >= 0 {
		m.back[i].Tokens += r.Tokens
		return
	}
	if m.back = append(m.back, r); len(m.back) > maxReturns {
		slices.SortFunc(m.back, func(a, b store.Return) int { return int(max(-1, min(1, a.Lease-b.Lease))) })
		m.back[0].Tokens += m.back[1].Tokens
		m.back = slices.Delete(m.back, 1, 2)
	}
}

// owes records tokens that the store is to charge.
func (m *Leased) owes(tokens int64, now meter.Instant) { m.owesUpTo(m.mostOwed(), tokens, now) }

func (m *Leased) owesUpTo(most, tokens int64, now meter.Instant) {
	if tokens > 0 {
		m.tell(now)
		m.owe = max(m.owe, min(meter.AddCount(m.owe, tokens), most))
	}
}

// mostOwed returns the largest debt: four times the n of a window, and otherwise what comes in within a minute, or the burst or n if that is
// more.
func (m *Leased) mostOwed() int64 {
	least := m.Most()
	if !m.promises() {
		return meter.MulCount(meter.MostUsed-1, least)
	}
	if m.budget.Kind == store.Pace {
		least = m.budget.N
	}
	return max(least, int64(min(float64(meter.MaxCount/2), float64(m.budget.N)*float64(time.Minute)/float64(m.budget.Per))))
}

// mostOwedAlone returns the most that is owed of what was used in an outage: of a bucket, a part of the burst. What came in meanwhile would
// have been lost besides.
func (m *Leased) mostOwedAlone() int64 {
	if m.budget.Kind == store.Bucket {
		return max(1, m.Most()/int64(max(1, m.latest.processes)))
	}
	return m.mostOwed()
}

func (m *Leased) tell(since meter.Instant) { m.since, m.news = min(m.since, since), max(m.news, since) }

// trade gives promised tokens back and asks for others immediately.
func (m *Leased) trade(now meter.Instant) {
	for _, r := range m.runs {
		m.returns(store.Return{Tokens: r.n, Lease: r.id}, now)
	}
	m.runs, m.again = nil, now
	m.schedule()
}

// Low implements [Meter].
func (m *Leased) Low() bool { return m.local != nil || m.have+m.promised() < m.target()/2 }

// target returns how many tokens to lease before they are needed: those of requests like the latest one.
func (m *Leased) target() int64 {
	ahead := m.config.Ahead
	if ahead > 0 {
		ahead += cycle(m.latest.processes)
	}
	target := int64(min(m.use*float64(ahead), float64(m.Most())))
	return target - target%max(1, m.cost)
}

// Lead implements [Meter].
func (m *Leased) Lead() time.Duration {
	if m.budget.Kind == store.Sliding { // see lateUse
		return min(m.lead, m.trip+m.trip/2+lateAsk)
	}
	return m.lead
}

// Offers implements [Meter].
func (m *Leased) Offers(now meter.Instant) int64 {
	if m.under || m.again > now {
		return 0
	}
	most, _ := m.allowed(now)
	return meter.AddCount(m.have+m.promised(), max(0, min(most, m.granted())))
}

// Together implements [Meter]. It assumes that no other process has asked since the latest response, and each takes its part.
func (m *Leased) Together(now meter.Instant) (total, most int64) {
	m.advance(now)
	total = m.have + m.promised()
	if !m.promises() || !m.latest.known {
		return total, total
	}
	left, ahead := m.inStore(now), m.rate.PerSecond()*m.horizon().Seconds()
	room := (ahead + left) / 2 // as a store computes it
	if left >= 0 {
		room = left + ahead/2
	}
	if processes := float64(m.latest.processes); processes > 1 {
		room = min(room, max(left, ahead)/processes)
	}
	portion, _ := m.allowed(now)
	return total, meter.AddCount(total, max(0, min(portion, int64(room))))
}

// granted returns how many tokens the store may grant to one ask: those of a full budget, and what it promises besides.
func (m *Leased) granted() int64 {
	promised := int64(min(m.rate.PerSecond()*m.horizon().Seconds(), float64(meter.MaxCount/2)))
	switch m.budget.Kind {
	case store.Bucket:
		return meter.AddCount(m.budget.Burst, promised)
	case store.Pace:
		return 1 + promised
	}
	return m.Most()
}

// horizon returns how long before they come in the store may promise tokens.
func (m *Leased) horizon() time.Duration {
	reach := m.reach()
	if reach > m.ownReach() { // the portion of this process is to be beyond it
		reach += 2 * reach / time.Duration(m.latest.processes)
	}
	return reach
}

// reach returns how far ahead processes are promised tokens: by the distance of this one, or as far as those that are further away have them
// by the latest response. With its own distance alone, a near process would get one token whenever all of theirs were due.
func (m *Leased) reach() time.Duration {
	own := m.ownReach()
	if !m.promises() || m.latest.processes < 2 {
		return own
	}
	return time.Duration(max(float64(own), min(-m.latest.left/m.rate.PerSecond()*float64(time.Second), float64(farthest))))
}

// ownReach returns how far ahead this process needs tokens by its own distance.
func (m *Leased) ownReach() time.Duration {
	return m.config.Horizon + cycle(m.latest.processes) + tripsAhead*m.trip
}

// Recent implements [Meter].
func (m *Leased) Recent() int64 { return int64(m.use * float64(m.Lead())) }

// following returns how many tokens the requests will need that come while an ask is under way and its tokens become due, by the
// recent use; at most three times as many as the requests that wait need. Half of the horizon needs none: it lasts for a near store.
func (m *Leased) following(d Demand) int64 {
	far := 2*m.trip - m.config.Horizon/2
	if far <= 0 || !m.promises() || m.place.queues() { // in turn, they are asked for together with what else they need
		return 0
	}
	return int64(min(m.use*float64(far), 3*float64(d.All)))
}

// Ask returns the ask of now. The caller must call Booked or Failed next.
func (m *Leased) Ask(now meter.Instant, d Demand) store.Part {
	m.advance(now)
	if m.drops(d) {
		m.drop(now)
	}
	if !m.promises() && d.First > m.have { // a window has them for others, and those of a Sliding one may be void before the rest has come
		m.release(now)
	}
	more := m.following(d)
	if d.Whole == d.All && d.Even { // and of requests like the first one
		_, most := m.Together(now)
		d.Whole += max(0, min(more, most-d.Whole)) / d.First * d.First
	}
	d.All += more
	total := m.have + m.promised()
	p := store.Part{
		Budget: m.budget, Horizon: m.horizon(), Back: m.back, Owe: m.owe, Want: max(0, d.All-total), Since: store.MaxSince,
	}
	if m.asked < meter.Never {
		p.Since = min(store.MaxSince, time.Duration(now-m.asked))
		if m.measure(float64(p.Since)); d.All > 0 || m.drawn > 0 {
			p.Ahead = max(0, m.target()-max(0, total-d.All))
		}
	}
	switch missing := d.First - total; {
	case missing <= 0 && m.promises() && m.lasts(now, &d) && (d.Next > total || m.far(d.First)): // it reports something, or asks whether others gave tokens back
		p.Want = 0
	case d.Next > total && m.promises():
		p.Need, p.Want, p.Whole = d.Next-total, d.Whole-total, true
	case missing > 0:
		p.Need = missing
	default:
		p.Need = min(1, p.Want)
	}
	if d.Until > now {
		p.Within = time.Duration(d.Until - now)
	}
	each, others := m.each(d.First)
	m.takesTurns = d.Window && d.Until-now > each
	m.takeTurn(&p, now, d.First)
	switch window := d.Window && m.promises(); {
	case window && p.Queue: // used with what the request gets of the window, as late as that may be used
		p.Horizon = min(p.Horizon, time.Duration(lateUse)+m.trip/4)
	case window && (others || !m.latest.known): // nor do processes that do not know of each other yet save tokens
		p.Within = 0
	}
	if m.budget.Kind == store.Calendar {
		for i, begins := range m.config.Windows.Around(now) {
			p.Budget.Windows[i] = time.Unix(0, begins)
		}
	}
	p.Hold = m.holds.ask(now)
	p.Replace, m.replaced, m.replace = m.replace, m.replace, false
	if m.asked == meter.Never {
		m.news = now
	}
	m.under, m.asked, m.drawn = true, now, 0
	m.back, m.owe, m.owed, m.since = nil, 0, m.owe, meter.Never
	if m.holds.unknown() {
		m.tell(now - tellAfter)
	}
	return p
}

// far reports whether tokens that are promised are due long after the latest ask.
func (m *Leased) far(tokens int64) bool {
	return tokens > m.have && m.dueAt(tokens-m.have)-m.asked > int64(recheckAfter)
}

// lasts reports whether the tokens last for longer than an ask takes, so that the next request has its own reserved later. If each ask reserved
// them, whatever it is made for, those of all requests would be promised, and debts could not delay them any more.
func (m *Leased) lasts(now meter.Instant, d *Demand) bool { return m.lastAt(d)-int64(m.lead) > now }

// lastAt returns when the last promised token is due. If a request needs other budgets, too, it returns when the last request that the promised
// tokens pay for can be sent.
func (m *Leased) lastAt(d *Demand) meter.Instant {
	n := m.promised()
	if m.budget.Kind == store.Pace && d.Joint { // the first token pays
		n -= d.First - 1
	}
	if n <= 0 {
		return m.at
	}
	return m.dueAt(n)
}

// measure updates the rate of use after span ns.
func (m *Leased) measure(span float64) {
	if span > 0 {
		old := meanOver / (meanOver + span)
		m.use = m.use*old + float64(m.drawn)/span*(1-old)
	}
}

// inTime returns how long after its ask a token of a Sliding window may be used.
func inTime(trip time.Duration) time.Duration { return trip + trip/2 + time.Duration(lateUse) }

// drops reports whether tokens are given back that are not used in time. What a bucket or a pace has promised is kept for a request that
// will need it: given back, it would be promised again later, and what the request was promised elsewhere would be unused until then. A
// window has its tokens for others immediately.
func (m *Leased) drops(d Demand) bool { return d.All == 0 && !(d.Keeps && m.promises()) }

// promises reports whether tokens are promised that come in later.
func (m *Leased) promises() bool { return m.budget.Kind == store.Bucket || m.budget.Kind == store.Pace }

// drop gives tokens back that were not used in time.
func (m *Leased) drop(now meter.Instant) {
	m.lots = slices.DeleteFunc(m.lots, func(l lot) bool {
		if l.kept <= now {
			m.have -= l.n
			m.returns(store.Return{Tokens: l.n, Lease: l.id}, now)
		}
		return l.kept <= now
	})
	m.runs = slices.DeleteFunc(m.runs, func(r run) bool {
		if r.kept <= now {
			m.returns(store.Return{Tokens: r.n, Lease: r.id}, now)
		}
		return r.kept <= now
	})
}

// release gives back all tokens that may be used now.
func (m *Leased) release(now meter.Instant) {
	for _, l := range m.lots {
		m.returns(store.Return{Tokens: l.n, Lease: l.id}, now)
	}
	m.lots, m.have = nil, 0
	m.schedule()
}

// Leave implements [Meter].
func (m *Leased) Leave(now meter.Instant) {
	m.advance(now)
	m.leaves, m.use, m.drawn = true, 0, 0
	m.release(now)
	for _, r := range m.runs {
		m.returns(store.Return{Tokens: r.n, Lease: r.id}, now)
	}
	m.runs = nil
	m.schedule()
	if m.since < meter.Never {
		m.tell(now - tellAfter)
	}
}

// Booked records the response to asked, which was sent at an earlier instant and arrived at now.
func (m *Leased) Booked(sent, now meter.Instant, asked store.Part, p store.LeasedPart) {
	m.advance(now)
	m.under = false
	void := meter.Never
	if p.Until > 0 {
		void = voidAt(sent, p.Until)
	}
	trip := time.Duration(now - sent)
	if m.budget.Kind == store.Sliding {
		void = min(void, meter.AddInstant(sent, int64(inTime(cmp.Or(m.trip, trip)))))
	}
	m.measureTrip(sent, trip)
	rate := rateOf(&asked.Budget, &p)
	if !m.replace {
		m.follow(rate)
	}
	if m.budget.Kind == store.Sliding {
		m.open(sent, now, &p)
	}
	m.latest = response{known: true, sent: sent, left: p.Left, ends: m.latest.ends, processes: m.count(now, max(1, p.Processes))}
	if p.Tokens < asked.Need && p.Wait > 0 && p.Hold == 0 {
		m.refused(sent, &asked, &p)
	}
	m.alone = alone{}
	m.schedule()
	m.holds.booked(now, p.Hold)
	m.again = now
	if p.Tokens < asked.Need || m.budget.Kind == store.Sliding && p.Wait > 0 {
		wait := p.Wait
		if wait > 0 && m.budget.Kind == store.Sliding { // else another budget lacks tokens
			if wait = max(wait, m.pause(now, asked.Need)); !m.competes() {
				wait -= m.least // the ask reaches the store when the token comes in. If it came before, it would cost a round trip
			}
		}
		if m.promises() || p.Hold > 0 {
			wait = min(wait, m.recheck())
		}
		m.again = meter.AddInstant(now, int64(max(time.Millisecond, wait)))
	}
	switch m.budget.Kind {
	case store.Fixed, store.Calendar:
		m.ends(sent, now, p)
	case store.Sliding:
		m.latest.ends = meter.AddInstant(sent, int64(p.Wait))
	}
	m.endTurn(sent, now, &asked, p)
	m.turned(sent, now, &asked, &p)
	switch {
	case p.Tokens > 0 && void <= now && m.fixed():
		m.again, m.latest.left = max(now, m.latest.ends), float64(m.rate.N) // the window has ended, or ends in this µs
	case p.Tokens > 0 && void <= now:
		m.returns(store.Return{Tokens: p.Tokens, Lease: p.ID}, now-tellAfter)
		m.again = now
	case p.Tokens > 0:
		m.news = now
		m.lease(now, void, rate, p)
	}
	switch own := float64(m.promised()); {
	case rate != m.rate: // it was set while the ask was under way, see Retune
		m.trade(now)
	case own > 0 && p.Left+own >= 1 && m.dueAt(1)-now > int64(m.config.Horizon):
		m.trade(now) // others gave tokens back, which are there earlier
	}
	if p.Tokens <= asked.Want {
		m.spare = meter.AddInstant(now, int64(m.config.Ahead))
	}
	m.yield(now)
	if m.leaves {
		m.Leave(now)
	}
}

// refused records that tokens could not be promised, or announced, in time.
func (m *Leased) refused(sent meter.Instant, asked *store.Part, p *store.LeasedPart) {
	r, due := &m.latest, asked.Need
	kind := m.budget.Kind
	if asked.Queue {
		kind = store.Sliding
	}
	switch kind {
	case store.Pace:
		due = 1 // the first token pays
		fallthrough
	case store.Bucket:
		r.need, r.after = asked.Need, meter.AddInstant(sent, int64(max(asked.Within, asked.Horizon)))
		r.depth = m.flow(float64(due) - p.Left)
	default:
		if p.Turn > asked.Within {
			r.need, r.depth = asked.Need, int64(p.Turn)
		}
	}
}

// rateOf returns the rate at which tokens come in by the response to an ask for tokens of b. A store may leave that of another process out.
func rateOf(b *store.Budget, p *store.LeasedPart) meter.Rate {
	if p.Differs && p.N > 0 && p.Per > 0 {
		return meter.Rate{N: p.N, Per: p.Per}
	}
	return meter.Rate{N: b.N, Per: b.Per}
}

// follow has tokens come in at a rate.
func (m *Leased) follow(r meter.Rate) {
	if r.Per != m.rate.Per {
		m.leased = nil // it counts parts of the period
	}
	m.rate = r
}

// chance returns a number from 0 to below most that depends on the process and on at.
func (m *Leased) chance(at meter.Instant, most int64) int64 {
	z := m.config.Seed ^ uint64(at)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return int64((z ^ z>>31) % uint64(most))
}

// lease adds the tokens of a response.
func (m *Leased) lease(now, void meter.Instant, rate meter.Rate, p store.LeasedPart) {
	kept := m.keptFrom(now)
	m.last, m.void, m.came = p, void, now
	if p.AtOnce > 0 {
		m.add(lot{p.AtOnce, p.ID, void, kept})
	}
	if n := p.Tokens - p.AtOnce; n > 0 {
		start := meter.AddInstant(now, int64(p.Next))
		m.runs = append(m.runs, run{lot: lot{n, p.ID, void, max(kept, start)}, start: start, rate: rate})
	}
	m.next = min(m.next, now)
	m.advance(now)
}

// keptFrom returns until when tokens are kept that may be used from now on. If the request that they are for waits for another shared
// limit, its tokens come some round trips later.
func (m *Leased) keptFrom(now meter.Instant) meter.Instant {
	return meter.AddInstant(now, int64(m.config.Keep+cycle(m.latest.processes)+tripsAhead*m.trip))
}

// Failed records that there is no response to the ask under way. Its returns are lost, because the store may have taken
// them. Its debt and its hold are sent again. Tokens are asked for from again on.
func (m *Leased) Failed(now, again meter.Instant) {
	m.under = false
	m.again = again
	if m.place.is == entering {
		m.place.is = comes
	}
	m.replace = m.replace || m.replaced
	if m.holds.failed(now) {
		m.tell(now)
	}
	m.owes(m.owed, now)
	m.yield(now)
}

// Late implements [Meter].
func (m *Leased) Late(now meter.Instant, asked store.Part, p *store.LeasedPart) {
	if p == nil {
		for _, r := range asked.Back {
			m.sendBack(r, now)
		}
		return
	}
	m.owe = max(0, m.owe-asked.Owe) // Failed has it charged again
	if p.Tokens > 0 {
		m.sendBack(store.Return{Tokens: p.Tokens, Lease: p.ID}, now)
	}
}
