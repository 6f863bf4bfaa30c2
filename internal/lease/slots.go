package lease

import (
	"strconv"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// A LeasedSlots is the meter of a bucket of kind Slots. A request that ends gives its slot back to the process, and the next
// request takes it. Each ask contains the number of slots that the process has, so an ask that fails or is repeated has no
// trace.
//
// The process asks again [renewSlots] after its latest ask, as long as it has slots. If no ask succeeds for SlotLease, the
// store frees the slots. Then requests in flight go on, and the store counts them, but no other request takes their slots.
type LeasedSlots struct {
	budget store.Budget
	keep   int64 // slots that were unused for so long are given back
	holder string

	leased int64         // the slots that the process has at the store, and keeps
	void   meter.Instant // when the store may have freed them
	used   int64         // the slots of requests in flight; more than leased if some are lost, or another meter paid
	lost   int64         // of used, the slots that the process does not have any more: they were void, or others have them
	had    int64         // leased as of the ask under way
	low    int64         // the fewest unused slots from a time before kept on
	kept   meter.Instant // when low slots are given back; meter.Never: no slot is unused
	at     meter.Instant // the fields above are as of this instant

	under   bool          // an ask is under way
	asked   meter.Instant // when the latest ask was sent; meter.Never: none was
	known   meter.Instant // when the latest ask was sent that succeeded, and after which the store counts something of this process; meter.Never: none was
	counted meter.Instant // the store counts nothing of this process from then on if no ask comes before
	tell    meter.Instant // when to report the number of slots of the process to the store; meter.Never: it is known there
	again   meter.Instant // no slots are asked for before, because there were too few
	lead    int64         // slots are asked for so long before requests can use them
	wants   int64         // the slots that the store believes this process waits for
	leaves  bool          // see Leave
	came    bool          // a request has given a slot back since the latest ask
	turn    meter.Instant // the process keeps one slot more than its share until then, if there is not one more for each
	yield   int64         // of the slots that requests give back next, those that are for other processes, which have less than their share

	replace, replaced bool // the number was changed: after the latest ask that had a response, and before the ask under way

	processes int // how many use the budget; 0: unknown
	left      float64
	alone
	holds
}

// renewSlots is how long after its latest ask a process that has slots asks again.
const renewSlots = 3 * time.Second

// slotPoll, times the number of processes, is how long a process that got too few slots does not ask again.
const slotPoll = 10 * time.Millisecond

// passEach, times the number of processes, is the time after an ask in which a process gives slots to its own requests without
// asking whether others wait for them, if it has more than its share would be with one more process.
const passEach = int64(100 * time.Millisecond)

// turnPolls is how long a process keeps a slot that goes around, because there is not one for each process, in times that such a slot is
// unused until one of the others asks for it. More than a hundred processes do not ask less often, but as many more slots go around: 1,000
// would keep theirs for one request, and used less than half of the slots.
const turnPolls = 25

var _ Meter = (*LeasedSlots)(nil)

// newLeasedSlots returns the meter of a budget of kind Slots, with nothing leased.
func newLeasedSlots(b store.Budget, c Config) *LeasedSlots {
	if c.Keep == 0 {
		c.Keep = 100 * time.Millisecond
	}
	return &LeasedSlots{
		budget: b, keep: int64(c.Keep), holder: holderOf(c),
		kept: meter.Never, asked: meter.Never, known: meter.Never, tell: meter.Never, left: float64(b.N),
	}
}

// holderOf returns what a process is called.
func holderOf(c Config) string {
	seed := strconv.FormatUint(c.Seed, 36) // up to 13 bytes
	if c.Name == "" {
		return seed
	}
	return c.Name[:min(len(c.Name), 48)] + "-" + seed
}

// InFlight implements [meter.Flier].
func (m *LeasedSlots) InFlight() int64 { return m.used }

// PerSecond implements [meter.Rater].
func (m *LeasedSlots) PerSecond(meter.Instant) float64 { return 0 }

// Processes implements [Meter].
func (m *LeasedSlots) Processes() int { return m.processes }

// free returns how many slots requests can take.
func (m *LeasedSlots) free() int64 {
	switch {
	case m.local != nil:
		return max(0, m.local.Most()-m.used)
	case m.at >= m.void:
		return 0
	}
	return max(0, min(m.idle(), m.budget.N-m.used))
}

// idle returns how many of the process's slots no request has.
func (m *LeasedSlots) idle() int64 { return m.leased + m.lost - m.used }

func (m *LeasedSlots) advance(now meter.Instant) { m.Advance(now, now) }

// Advance implements [Meter].
func (m *LeasedSlots) Advance(_, now meter.Instant) {
	m.at = max(m.at, now)
	if now >= m.void && m.leased > 0 && !m.under { // the response to an ask shows whether they are void
		m.leased, m.lost = 0, m.used
	}
	m.low = max(0, min(m.low, m.idle()))
	if now >= m.kept && m.low == 0 {
		m.kept = meter.Never
		m.watch(now)
	}
}

// watch begins another time in which slots must be used, if there is none and there are unused ones.
func (m *LeasedSlots) watch(now meter.Instant) {
	if idle := m.idle(); m.kept == meter.Never && idle > 0 {
		m.low, m.kept = idle, meter.AddInstant(now, m.keep)
	}
}

// Payable implements [meter.Meter].
func (m *LeasedSlots) Payable(now meter.Instant, cost int64) bool {
	m.advance(now)
	return now >= m.held && cost <= m.free()
}

// Spend implements [meter.Meter].
func (m *LeasedSlots) Spend(now meter.Instant, cost int64) (charged int64, ok bool) {
	return meter.SpendIf(m, now, cost)
}

// Take implements [meter.Meter].
func (m *LeasedSlots) Take(_, _ meter.Instant, cost int64, _ bool) (charged int64) {
	m.used += cost
	m.low = max(0, min(m.low, m.idle()))
	if m.local != nil {
		*m.spent += uint64(cost)
	}
	return 0
}

// Ready implements [meter.Meter]. It returns meter.Never if a slot must become free first.
func (m *LeasedSlots) Ready(from meter.Instant, _, cost int64) meter.Instant {
	if cost > m.free() {
		return meter.Never
	}
	return max(from, m.held)
}

// Plan implements [meter.Planner]. A request cannot have a slot immediately if the store has just said that there are too few.
func (m *LeasedSlots) Plan(from meter.Instant, ahead, cost int64) meter.Instant {
	if cost > m.budget.N {
		return meter.Never
	}
	from = max(from, m.held)
	if now := max(from, m.at); meter.AddCount(ahead, cost) > m.free() && (now < m.again || m.local != nil) {
		return now + 1
	}
	return from
}

// GiveBack implements [meter.Meter].
func (m *LeasedSlots) GiveBack(_ int64, now meter.Instant, cost int64) {
	m.advance(now)
	if m.used -= cost; m.used < 0 {
		panic("throttle: bug: more slots given back than taken")
	}
	if ended := min(m.lost, cost); ended > 0 { // it is reported to the store, which counts them
		m.lost -= ended
		m.tell = min(m.tell, meter.AddInstant(now, tellAfter))
	}
	m.came = true
	if !m.under { // the response has the number that others wait for
		own := int64(0)
		if now < m.turn {
			own = m.share() + 1
		}
		pass := max(0, min(m.yield, cost, m.leased-max(m.used-m.lost, own)))
		m.yield -= pass
		m.shed(now, pass)
		if m.leaves {
			m.leave(now)
		}
	}
	m.watch(now)
}

// Leave implements [Meter].
func (m *LeasedSlots) Leave(now meter.Instant) {
	m.advance(now)
	m.leaves = true
	m.leave(now)
}

// leave gives back all unused slots, so that there is nothing to watch.
func (m *LeasedSlots) leave(now meter.Instant) {
	m.shed(now, m.idle())
	m.kept = meter.Never
}

// shed gives unused slots back, and those that the limit does not have any more.
func (m *LeasedSlots) shed(now meter.Instant, unused int64) {
	if give := max(unused, m.leased-max(m.used-m.lost, m.budget.N)); give > 0 {
		m.leased -= give
		m.low = max(0, min(m.low, m.idle()))
		m.tell = now
	}
}

// Settle implements [meter.Meter].
func (m *LeasedSlots) Settle(int64, meter.Instant, int64, int64) {
	panic("throttle: bug: a slot has no cost")
}

// Most implements [meter.Meter].
func (m *LeasedSlots) Most() int64 { return m.budget.N }

// Matters implements [meter.Meter].
func (m *LeasedSlots) Matters(now meter.Instant) (must, full meter.Instant) {
	m.advance(now)
	if m.under || m.used > 0 || m.leased > 0 || m.tellAt(now) < meter.Never {
		return meter.Never, meter.Never
	}
	return 0, max(m.held, m.again)
}

// Tokens implements [meter.Meter]. It adds the unused slots to those that the store had left at its latest response.
func (m *LeasedSlots) Tokens(now meter.Instant) float64 {
	m.advance(now)
	return float64(m.idle()) + max(0, m.left)
}

// Retune implements [meter.Meter].
func (m *LeasedSlots) Retune(meter.Instant, meter.Rate) {}

// Resize implements [meter.Meter]. The next ask reports the number to the store.
func (m *LeasedSlots) Resize(now meter.Instant, n int64) {
	m.advance(now)
	m.budget.N, m.again, m.replace = n, now, true
	m.shed(now, 0)
}

// Hold implements [Meter].
func (m *LeasedSlots) Hold(now, until meter.Instant) {
	m.tell = now
	m.set(now, until)
}

// Alone implements [Meter]. The other meter decides how many requests may be in flight, including those that are.
func (m *LeasedSlots) Alone(now meter.Instant, local meter.Meter, owing bool, spent *uint64) {
	m.advance(now)
	m.alone = alone{local, owing, spent}
}

// Local implements [Meter].
func (m *LeasedSlots) Local(_ meter.Instant, processes int) meter.Meter {
	return meter.NewSlots(max(1, m.budget.N/int64(processes)))
}

// tellAt returns when to report the number of slots of the process, or a hold, to the store.
func (m *LeasedSlots) tellAt(now meter.Instant) meter.Instant {
	if now < m.counted || m.holds.unknown() {
		return m.tell
	}
	return meter.Never
}

// wanted returns how many slots requests wait for that can use them now or soon, and how many the first of them lacks.
func (m *LeasedSlots) wanted(d Demand) (first, all int64) {
	free := m.free()
	return max(0, min(d.First, m.budget.N)-free), max(0, d.All-free)
}

// spare returns how many of the slots that were unused lately are given back: all but those that requests will use soon, which would be
// asked for again and come a round trip later. If others wait, or the first request needs more, which may never come, all of them are.
func (m *LeasedSlots) spare(d Demand) int64 {
	if m.left < 0 || d.First > m.free() {
		return m.low
	}
	return max(0, min(m.low, m.idle()-d.Soon))
}

// AskAt implements [Meter].
func (m *LeasedSlots) AskAt(now meter.Instant, d Demand) meter.Instant {
	if m.under {
		return meter.Never
	}
	m.advance(now)
	at := m.tellAt(now)
	if m.low == 0 || m.spare(d) > 0 { // another time begins, or some are given back
		at = min(at, m.kept)
	}
	if m.used > 0 || m.leased > 0 {
		at = min(at, meter.AddInstant(m.asked, int64(renewSlots)))
	}
	if m.came && m.leased > m.budget.N/int64(m.processes+1) {
		at = min(at, meter.AddInstant(m.asked, int64(m.processes)*passEach))
	}
	if d.All > m.free() && m.leased < m.budget.N { // with all of them, there is none to ask for
		again := m.again
		if m.processes > crowd {
			again = max(again, meter.AddInstant(m.asked, int64(cycle(m.processes))))
		}
		at = min(at, again)
	}
	if _, all := m.wanted(d); all == 0 && m.wants > 0 && (d.From == 0 || d.From > m.again) { // else it asks for some then
		at = min(at, meter.AddInstant(m.asked, tellAfter))
	}
	if m.local != nil && (m.used > 0 || d.All > 0) {
		at = now
	}
	return max(at, now)
}

// Lead implements [Meter].
func (m *LeasedSlots) Lead() time.Duration { return time.Duration(m.lead) }

// Expire implements [Meter]. Slots are not void so soon.
func (m *LeasedSlots) Expire(meter.Instant) bool { return false }

// RecheckAt implements [Meter]: slots come at any time.
func (m *LeasedSlots) RecheckAt() meter.Instant { return 0 }

// AsksFrom implements [Meter]. A process that has slots may get one back at any time.
func (m *LeasedSlots) AsksFrom(_ meter.Instant, together bool) meter.Instant {
	switch {
	case m.leased > 0 || m.under && !together:
		return 0
	case m.under:
		return meter.AddInstant(m.asked, m.lead)
	}
	return m.again
}

// Offers implements [Meter].
func (m *LeasedSlots) Offers(now meter.Instant) int64 {
	if m.under || m.again > now {
		return 0
	}
	return max(0, m.budget.N-max(m.leased, m.used)) + m.free()
}

// Together implements [Meter]. Slots need not be granted together: those of a request that waits for others are few.
func (m *LeasedSlots) Together(meter.Instant) (total, most int64) { return 0, 0 }

// Recent implements [Meter]. It does not count how slots are used.
func (m *LeasedSlots) Recent() int64 { return 0 }

// Low implements [Meter].
func (m *LeasedSlots) Low() bool { return m.local != nil }

// Ask implements [Meter].
func (m *LeasedSlots) Ask(now meter.Instant, d Demand) store.Part {
	m.advance(now)
	if now >= m.kept {
		m.leased -= m.spare(d)
		m.kept = meter.Never
		m.watch(now)
	}
	m.had = m.leased
	if m.local != nil { // it uses slots until the response that the store does not know
		m.had = max(m.had, m.used-m.lost, 1)
	}
	p := store.Part{
		Budget: m.budget, Holder: m.holder, Held: m.had + m.lost, Since: store.MaxSince, Hold: m.holds.ask(now), Replace: m.replace,
	}
	m.replaced, m.replace = m.replace, false
	if p.Need, p.Want = m.wanted(d); p.Want > 0 {
		p.Need = max(1, p.Need)
	}
	if p.Held > 0 || p.Want > 0 {
		m.counted = meter.AddInstant(now, int64(store.SlotLease))
	} else {
		m.known = meter.Never // even with the second of two copies of this ask
	}
	if m.known < meter.Never {
		p.Since = min(store.MaxSince, time.Duration(now-m.known))
	}
	m.under, m.asked, m.wants, m.came, m.tell = true, now, p.Want, false, meter.Never
	if m.holds.unknown() {
		m.tell = now
	}
	return p
}

// Booked implements [Meter].
func (m *LeasedSlots) Booked(sent, now meter.Instant, asked store.Part, p store.LeasedPart) {
	m.under, m.alone = false, alone{}
	m.lead = 2*(now-sent) + int64(time.Millisecond)
	m.leased, m.void = max(0, m.had-p.Over)+p.Tokens, voidAt(sent, store.SlotLease)
	m.lost = max(m.lost, m.used-m.leased)
	if asked.Held > 0 || asked.Want > 0 {
		m.known = sent
	}
	m.processes, m.left, m.wants = max(1, p.Processes), p.Left, max(0, asked.Want-p.Tokens)
	m.holds.booked(now, p.Hold)
	m.again = now
	if p.Tokens < asked.Want {
		m.again = meter.AddInstant(now, int64(max(m.poll(), min(p.Wait, recheckAfter))))
	}
	m.advance(now)
	m.watch(now)
	share := m.share()
	if more := m.budget.N % int64(m.processes); more > 0 && m.had <= share && m.leased > share {
		m.turn = meter.AddInstant(now, turnPolls*int64(m.processes)*int64(slotPoll)/(int64(m.processes)-more))
	}
	m.yield = int64(max(0, min(-p.Left, float64(m.leased-share))))
	m.shed(now, 0)
	if m.leaves {
		m.leave(now)
	}
}

// share returns the even share of a process, rounded down.
func (m *LeasedSlots) share() int64 { return m.budget.N / int64(m.processes) }

// poll returns how long the process does not ask again if it got too few slots.
func (m *LeasedSlots) poll() time.Duration { return time.Duration(min(100, m.processes)) * slotPoll }

// Failed implements [Meter]. The store may have counted slots that the process does not know of.
func (m *LeasedSlots) Failed(now, again meter.Instant) {
	m.under, m.again, m.tell, m.replace = false, again, now, m.replace || m.replaced
	m.holds.failed(now)
}

// Late implements [Meter]. The next ask has the number of slots, as each has.
func (m *LeasedSlots) Late(now meter.Instant, _ store.Part, _ *store.LeasedPart) {
	m.tell = min(m.tell, now)
}
