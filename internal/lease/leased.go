package lease

import (
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// A Leased is the meter of a bucket that is filled by leases instead of by time. It serves every kind except Slots. Ready
// returns meter.Never for a cost that the leases do not cover, because it depends on a response then.
//
// At the instant that AskAt returns, the owner sends the Part that Ask returns to the store. It passes the response to
// Booked, or calls Failed if there is none.
type Leased struct {
	budget store.Budget
	config Config
	rate   meter.Rate // at which tokens come in: that of the budget, or a lower one by the rule of another process

	lots    []lot            // tokens that may be used now, in the order of use
	runs    []run            // tokens that are promised
	have    int64            // the number of tokens in lots
	next    meter.Instant    // when the next token of runs is due, or the next of lots or runs is void; or earlier, which only costs time
	at      meter.Instant    // lots and runs are as of this instant
	last    store.LeasedPart // the latest lease that had tokens
	void    meter.Instant    // when those are void
	came    meter.Instant    // when those did
	tooLate meter.Late       // of a window
	asking
	alone
	holds

	latest response
}

// A Config sets how a process leases.
type Config struct {
	Ahead   time.Duration // leases the tokens of so much time before they are needed, at the rate of recent use
	Keep    time.Duration // gives tokens back that were not used for so long, and some round trips; 0: 100 ms
	Horizon time.Duration // Part.Horizon, before some round trips are added; 0: 50 ms
	Windows Windows       // of a Calendar
	Name    string        // names the process as a Holder, besides Seed; at most 48 bytes
	Store   *Distance     // of all budgets in the store; nil: of this one alone
	Seed    uint64        // another in each process: it names the process as a Holder, and has processes ask at different instants after a Fixed window begins
}

// Windows finds the windows of a Calendar.
type Windows interface {
	// Around returns when the window before that of an instant begins, and the next three, in ns of Unix time.
	Around(now meter.Instant) [4]int64
}

// fixed reports whether the budget is a window that begins and ends at the same instants for all.
func (m *Leased) fixed() bool { return m.budget.Kind == store.Fixed || m.budget.Kind == store.Calendar }

// A lot is tokens of one lease that may be used now.
type lot struct {
	n, id int64
	void  meter.Instant // the first instant at which they must not be used
	kept  meter.Instant // when they are given back if no request waits
}

// A run is tokens of one lease that are due one by one.
type run struct {
	lot
	start meter.Instant // when token 0 is due
	taken int64         // the number of the next one; n are left
	rate  meter.Rate
}

// A response is the store's latest response about the bucket.
type response struct {
	known bool
	sent  meter.Instant // when the ask was sent
	left  float64
	ends  meter.Instant // of a Fixed window or a Calendar: its end; of a Sliding one: when tokens come in, if none were left

	need  int64         // as many tokens could not be promised, or announced, until after; 0: no number, or more came in since
	after meter.Instant // of a Bucket or a Pace
	depth int64         // the tokens of this time were promised, or announced, to others

	processes int // how many use the budget; 0: unknown
}

// A Meter is filled by leases. Its owner sends the Part of Ask to the store at the instant that AskAt
// returns, and passes the response to Booked, or calls Failed.
type Meter interface {
	meter.Meter
	meter.Planner
	// Advance moves the meter on: what is due at due may be used, except what is void at now. Ready is as of the latest
	// instants that it was moved to.
	Advance(due, now meter.Instant)
	// Expire gives back tokens of a Sliding window that will be void when the response to an ask of now comes. It reports whether there
	// were any.
	Expire(now meter.Instant) bool
	AskAt(now meter.Instant, d Demand) meter.Instant
	// Low reports whether AskAt may be earlier than before the latest charge, although no request waits.
	Low() bool
	Ask(now meter.Instant, d Demand) store.Part
	Booked(sent, now meter.Instant, asked store.Part, p store.LeasedPart)
	Failed(now, again meter.Instant)
	// Late takes the response to an ask that has Failed: its tokens go back. Nil: nothing was carried out, and what the ask gave back
	// is given back with the next one.
	Late(now meter.Instant, asked store.Part, p *store.LeasedPart)
	// Hold blocks the budget until an instant, for all processes. An instant that is not after now ends every hold.
	Hold(now, until meter.Instant)
	// Lead returns how long before tokens are used the store is to be asked for them.
	Lead() time.Duration
	// AsksFrom returns from when the store can be asked for a request that lacks tokens, so that it makes sense to ask for what else the
	// request lacks: together with these, or separately. If a response has to come before, that is when it is expected, because nothing
	// else looks at the request again when it comes.
	AsksFrom(now meter.Instant, together bool) meter.Instant
	// RecheckAt returns from when on other processes may have given back what the store did not have when it was last asked.
	RecheckAt() meter.Instant
	// Offers returns how many tokens requests could use if the store granted all that it may be asked for now; 0: it may not be asked.
	Offers(now meter.Instant) int64
	// Together returns how many tokens are available or promised, and how many there may be with those of an ask of now, if each request
	// needs more than one: Whole of its Demand lies between them if possible.
	Together(now meter.Instant) (total, most int64)
	// Recent returns how many tokens were lately used in the time of Lead.
	Recent() int64
	// Leave gives back everything that no request uses, now and whenever there is more. No request comes any more.
	Leave(now meter.Instant)
	// HeldUntil returns the end of the latest hold, which may be over.
	HeldUntil() meter.Instant
	// Processes estimates how many processes use the budget; 0: no store has reported it yet.
	Processes() int
	// Alone makes local pay until the next response is booked, and Local returns the meter of a process's share.
	Alone(now meter.Instant, local meter.Meter, owing bool, spent *uint64)
	IsAlone() bool
	Local(now meter.Instant, processes int) meter.Meter
}

var _ Meter = (*Leased)(nil)

// New returns the meter of a budget, with nothing leased.
func New(b store.Budget, c Config) Meter {
	if b.Kind == store.Slots {
		return newLeasedSlots(b, c)
	}
	return newLeased(b, c)
}

// newLeased returns the meter of a budget of any kind except Slots, with nothing leased.
func newLeased(b store.Budget, c Config) *Leased {
	if c.Keep == 0 {
		c.Keep = 100 * time.Millisecond
	}
	if c.Horizon == 0 {
		c.Horizon = 50 * time.Millisecond
	}
	if c.Store == nil {
		c.Store = new(Distance)
	}
	return &Leased{
		budget: b, config: c, rate: meter.Rate{N: b.N, Per: b.Per}, next: meter.Never, asking: asking{asked: meter.Never, since: meter.Never, Distance: c.Store},
	}
}

// due returns how many tokens of a run may be used at t.
func (r *run) due(t meter.Instant) int64 {
	if t < r.start {
		return 0
	}
	hi, lo := bits.Mul64(uint64(t-r.start), uint64(r.rate.N))
	if per := uint64(r.rate.Per); hi < per {
		if q, _ := bits.Div64(hi, lo, per); q < uint64(r.taken+r.n) {
			return max(0, int64(q)+1-r.taken)
		}
	}
	return r.n
}

// dueAt returns when k tokens of a run are due, k from 1 to n.
func (r *run) dueAt(k int64) meter.Instant {
	hi, lo := bits.Mul64(uint64(r.taken+k-1), uint64(r.rate.Per))
	lo, carry := bits.Add64(lo, uint64(r.rate.N-1), 0)
	if hi += carry; hi >= uint64(r.rate.N) {
		return meter.Never
	}
	q, _ := bits.Div64(hi, lo, uint64(r.rate.N))
	return meter.AddInstant(r.start, int64(min(q, math.MaxInt64)))
}

// Processes implements [Meter].
func (m *Leased) Processes() int { return m.latest.processes }

func (m *Leased) advance(now meter.Instant) { m.Advance(now, now) }

// Advance implements [Meter]: tokens become due, and void.
func (m *Leased) Advance(due, now meter.Instant) {
	m.at = max(m.at, due)
	if now < m.next {
		return
	}
	for i := range m.runs {
		r := &m.runs[i]
		if k := r.due(due); k > 0 {
			r.taken, r.n = r.taken+k, r.n-k
			m.add(lot{k, r.id, r.void, max(r.kept, m.keptFrom(now))})
		}
	}
	m.runs = slices.DeleteFunc(m.runs, func(r run) bool { return r.n == 0 || r.void <= now })
	m.expire(now, now)
	m.schedule()
}

// expire removes the tokens that are void at an instant.
func (m *Leased) expire(at, now meter.Instant) {
	m.lots = slices.DeleteFunc(m.lots, func(l lot) bool {
		if l.void <= at {
			m.have -= l.n
			if m.budget.Kind == store.Sliding { // used too late, it would count in another period than in that of the store
				m.returns(store.Return{Tokens: l.n, Lease: l.id}, now)
				m.again = min(m.again, now) // the store has them then
			}
		}
		return l.void <= at
	})
}

// Expire implements [Meter].
func (m *Leased) Expire(now meter.Instant) bool {
	if m.budget.Kind != store.Sliding || m.under { // what is under way comes earlier
		return false
	}
	had := m.have
	m.expire(meter.AddInstant(now, int64(m.trip)), now)
	return m.have < had
}

// schedule sets next. It may be left out where lots and runs only become fewer.
func (m *Leased) schedule() {
	m.next = meter.Never
	if m.local != nil {
		m.next = 0 // Spend is to ask Payable
	}
	for i := range m.lots {
		m.next = min(m.next, m.lots[i].void)
	}
	for i := range m.runs {
		m.next = min(m.next, m.runs[i].dueAt(1), m.runs[i].void)
	}
}

// add appends a lot.
func (m *Leased) add(l lot) {
	m.have += l.n
	l.kept = min(l.kept, l.void)
	if n := len(m.lots); n > 0 && m.lots[n-1].id == l.id && m.lots[n-1].void == l.void {
		m.lots[n-1].n += l.n
		m.lots[n-1].kept = max(m.lots[n-1].kept, l.kept)
		return
	}
	m.lots = append(m.lots, l)
}

// promised returns how many tokens are due later.
func (m *Leased) promised() (n int64) {
	for i := range m.runs {
		n += m.runs[i].n
	}
	return n
}

// Payable implements [meter.Meter].
func (m *Leased) Payable(now meter.Instant, cost int64) bool {
	m.advance(now)
	switch {
	case now < m.held:
		return false
	case m.local != nil:
		return cost <= m.Most() && m.local.Payable(now, cost)
	case m.budget.Kind == store.Pace: // the first token pays any cost
		return cost == 0 || m.have > 0 && cost <= m.have+m.promised()
	}
	return cost <= m.have
}

// Spend implements [meter.Meter].
func (m *Leased) Spend(now meter.Instant, cost int64) (charged int64, ok bool) {
	if now >= m.next || now < m.held || m.budget.Kind == store.Pace {
		if !m.Payable(now, cost) {
			return 0, false
		}
		return m.Take(now, now, cost, false), true
	}
	if m.have < cost {
		return 0, false
	}
	return m.draw(cost), true
}

// Take implements [meter.Meter].
func (m *Leased) Take(due, now meter.Instant, cost int64, waited bool) (charged int64) {
	m.advance(now)
	if m.local != nil {
		return m.drawLocal(due, now, cost, waited)
	}
	return m.draw(cost)
}

// draw takes tokens and returns the earliest of their leases: a return under an earlier lease is never worth more.
func (m *Leased) draw(cost int64) (id int64) {
	if missing := cost - m.have; missing > 0 && (m.budget.Kind != store.Pace || missing > m.promised()) {
		panic("throttle: bug: more tokens taken than leased")
	}
	m.drawn, m.cost = m.drawn+cost, cost
	if len(m.lots) > 0 && m.lots[0].n > cost {
		m.lots[0].n -= cost
		m.have -= cost
		return m.lots[0].id
	}
	id = math.MaxInt64
	for cost > 0 && len(m.lots) > 0 {
		l := &m.lots[0]
		n := min(cost, l.n)
		l.n, m.have, cost, id = l.n-n, m.have-n, cost-n, min(id, l.id)
		if l.n == 0 {
			m.lots = slices.Delete(m.lots, 0, 1)
		}
	}
	for cost > 0 { // of a Pace, tokens that are due later
		i := 0
		for k := range m.runs {
			if m.runs[k].dueAt(1) < m.runs[i].dueAt(1) {
				i = k
			}
		}
		r := &m.runs[i]
		n := min(cost, r.n)
		r.taken, r.n, cost, id = r.taken+n, r.n-n, cost-n, min(id, r.id)
		if r.n == 0 {
			m.runs = slices.Delete(m.runs, i, i+1)
		}
	}
	m.schedule()
	return id
}

// Ready implements [meter.Meter].
func (m *Leased) Ready(from meter.Instant, ahead, cost int64) meter.Instant {
	from = max(from, m.held)
	all := meter.AddCount(ahead, cost)
	switch {
	case m.local != nil && cost <= m.Most():
		return m.local.Ready(from, ahead, cost)
	case m.local != nil, all > m.have+m.promised():
		return meter.Never
	}
	if m.budget.Kind == store.Pace {
		all = min(all, ahead+1)
	}
	if all <= m.have { // a request that waited for the response is not late in its other limits
		return from
	}
	return max(from, m.dueAt(all-m.have))
}

// dueAt returns when k promised tokens are due.
func (m *Leased) dueAt(k int64) meter.Instant {
	if len(m.runs) == 1 {
		return m.runs[0].dueAt(k)
	}
	early, late := m.at, m.at // the instant lies after early, at late or before
	for i := range m.runs {
		late = max(late, m.runs[i].dueAt(m.runs[i].n))
	}
	for late-early > 1 {
		middle, n := early+(late-early)/2, int64(0)
		for i := range m.runs {
			n += m.runs[i].due(middle)
		}
		if n >= k {
			late = middle
		} else {
			early = middle
		}
	}
	return late
}

// Plan implements [meter.Planner]. It assumes that no other process asks from now on.
func (m *Leased) Plan(from meter.Instant, ahead, cost int64) meter.Instant {
	if cost > m.Most() {
		return meter.Never
	}
	if ready := m.Ready(from, ahead, cost); ready < meter.Never {
		return ready
	}
	from = max(from, m.held)
	if !m.latest.known {
		return from
	}
	missing := meter.AddCount(ahead, cost) - m.have - m.promised() + m.owe
	switch b := &m.budget; b.Kind {
	case store.Sliding:
		if over := missing - int64(math.Ceil(max(0, m.latest.left))); over > 0 {
			from = meter.AddInstant(max(from, m.latest.ends), mulSat((over-1)/m.rate.N, int64(m.rate.Per)))
		}
	case store.Fixed, store.Calendar:
		over := missing
		if from < m.latest.ends {
			over -= int64(max(0, m.latest.left))
		}
		if over > 0 {
			from = max(from, meter.AddInstant(m.latest.ends, mulSat((over-1)/m.rate.N, int64(m.rate.Per))))
		}
	default:
		need := m.latest.need
		if b.Kind == store.Pace { // the first token pays
			missing, need = missing-(cost-1), min(1, need)
		}
		if need > 0 && missing >= need {
			from = max(from, m.latest.after+1)
		}
		from = max(from, meter.AddInstant(m.latest.sent, m.flow(float64(missing)-m.latest.left)))
	}
	return from
}

// flow returns the time in which tokens come in, rounded down by more than the error of floats.
func (m *Leased) flow(tokens float64) int64 {
	if tokens <= 0 {
		return 0
	}
	ns := (tokens*(1-0x1p-40) - 0x1p-40) * float64(m.rate.Per) / float64(m.rate.N)
	if ns >= math.MaxInt64 {
		return math.MaxInt64
	}
	return max(0, int64(ns))
}

// GiveBack implements [meter.Meter]. Tokens of a lease that is still available may be used again, except during a hold. Other
// tokens go back to the store.
func (m *Leased) GiveBack(charged int64, now meter.Instant, cost int64) {
	if cost <= 0 {
		return
	}
	if charged == localCharge {
		m.settleLocal(now, cost, 0)
		return
	}
	m.advance(now)
	if now < m.held { // see yield
		m.returns(store.Return{Tokens: cost, Lease: charged}, now)
		return
	}
	for i := range m.lots {
		if m.lots[i].id == charged {
			m.lots[i].n += cost
			m.have += cost
			return
		}
	}
	if charged == m.last.ID && now < m.void {
		m.add(lot{cost, charged, m.void, meter.AddInstant(now, int64(m.config.Keep))})
		m.schedule()
		return
	}
	m.returns(store.Return{Tokens: cost, Lease: charged}, now)
}

// Settle implements [meter.Meter]. An undercharge takes tokens available; the rest is owed to the store.
func (m *Leased) Settle(charged int64, now meter.Instant, paid, cost int64) {
	switch {
	case charged == localCharge && cost > paid:
		m.settleLocal(now, paid, cost)
		return
	case cost <= paid:
		if charged != localCharge {
			m.tooLate.Add(now, paid-cost, m.unused(charged, now), int64(m.rate.Per))
		}
		m.GiveBack(charged, now, paid-cost)
		return
	}
	m.advance(now)
	more := m.tooLate.Reduce(now, cost-paid, int64(m.rate.Per))
	if n := min(more, m.have); n > 0 {
		m.draw(n)
		more -= n
	}
	m.owes(more, now)
}

// unused returns for how much of its period a window did without tokens of a lease: all of it if the window has ended.
func (m *Leased) unused(leased int64, now meter.Instant) int64 {
	switch at := m.came - (m.last.ID-leased)*int64(time.Microsecond); {
	case m.budget.Kind == store.Sliding:
		return max(0, now-at)
	case m.fixed() && (now >= m.latest.ends || at < m.latest.ends-m.length()):
		return int64(m.rate.Per)
	}
	return 0
}

// Most implements [meter.Meter].
func (m *Leased) Most() int64 { return m.budget.Most() }

// Matters implements [meter.Meter]. The state of the bucket is in the store. The meter is the same as a new one when it has no
// tokens, nothing to report, no ask under way and none for so long that Part.Since is that of a first ask. Available tokens may be
// forgotten, because the store has counted them.
func (m *Leased) Matters(now meter.Instant) (must, full meter.Instant) {
	switch {
	case m.busy():
		return meter.Never, meter.Never
	case m.have > 0 || len(m.runs) > 0:
		return 0, meter.Never
	}
	if m.local != nil {
		must, full = m.local.Matters(now)
	}
	if m.asked < meter.Never {
		full = max(full, meter.AddInstant(m.asked, int64(store.MaxSince)))
	}
	return must, max(full, m.held, m.again)
}

// Tokens implements [meter.Meter]. It adds the tokens available to those that the store should have, by its latest response.
func (m *Leased) Tokens(now meter.Instant) float64 {
	m.advance(now)
	return float64(m.have-m.owe) + m.inStore(now)
}

// inStore returns how many tokens the store has if no other process has asked since its latest response.
func (m *Leased) inStore(now meter.Instant) float64 {
	b := &m.budget
	came := float64(now-m.latest.sent) * float64(m.rate.N) / float64(m.rate.Per)
	switch {
	case b.Kind == store.Bucket && m.latest.known:
		return min(float64(b.Burst), m.latest.left+came)
	case b.Kind == store.Bucket:
		return float64(b.Initial)
	case b.Kind == store.Pace && m.latest.known:
		return min(float64(max(1, b.Burst)), m.latest.left+came)
	case b.Kind == store.Pace:
		return 1
	case m.latest.known && (!m.fixed() || now < m.latest.ends):
		return m.latest.left
	}
	return float64(m.rate.N)
}

// Retune implements [meter.Meter]. The store gets the rate immediately. Promised tokens are traded for new ones: those of a higher rate
// come earlier, and those of a lower one must not be used at the instants of the old rate. A program may set the rate that it has again and
// again, so that trades nothing.
func (m *Leased) Retune(now meter.Instant, r meter.Rate) {
	m.advance(now)
	stays := r == m.rate
	m.budget.N, m.budget.Per, m.rate, m.replace = r.N, r.Per, r, true
	m.latest.need = 0
	m.tell(now - tellAfter)
	if !stays {
		m.trade(now)
	}
}

// Resize implements [meter.Meter].
func (m *Leased) Resize(now meter.Instant, burst int64) {
	if m.budget.Burst > 0 {
		m.budget.Burst, m.budget.Initial = burst, min(m.budget.Initial, burst)
	}
	m.again, m.replace = now, true
}

// mulSat returns a·b for a, b ≥ 0, at most math.MaxInt64.
func mulSat(a, b int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi > 0 || lo > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(lo)
}
