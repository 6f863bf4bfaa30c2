package lease

import (
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// turns is the part of a [Leased] by which processes that compete for a window get even shares of it. A window promises no
// tokens, so the process that asks first after tokens come in could take them all. A process takes its share of a period as
// soon as it can. Beyond its share it waits for a turn after each lease, so that the others come first. By turns alone it can
// still lease a whole window in each period.
type turns struct {
	leased []int64       // tokens leased in each part of the latest period; nil: the window was not shared yet
	part   int64         // the latest part
	opened meter.Instant // of a Sliding window: see open

	most   int           // processes that the store counted, the largest number lately
	mostAt meter.Instant // when it did
}

const (
	turnParts = 16
	turnsEach = 32 // in the time in which turns count
	mostFor   = 4  // the largest number of processes counts for so many periods
	leastKept = 64 // one part in this many is left for processes that used nothing yet

	// A process that has not asked for so long is not counted any more, so nothing is left for it for longer. Beyond that, a longer
	// window is first come, first served.
	fairFor = int64(store.MaxSince)
)

// fair returns for how long shares and turns count: the period, or fairFor if that is shorter.
func (m *Leased) fair() int64 { return min(int64(m.rate.Per), fairFor) }

// count returns how many processes there are, given the store's latest count. The store counts those that asked lately, and those that wait for
// tokens of a window ask when they come in, or in their turn: it counts too few just before, and the first processes to ask in a long window
// would think that they are alone. So the largest number counts for some periods.
func (m *Leased) count(now meter.Instant, processes int) int {
	if m.promises() {
		m.most = max(m.most, processes)
		return processes
	}
	if processes >= m.most || now-m.mostAt > mulSat(mostFor, int64(m.rate.Per)) {
		m.most, m.mostAt = processes, now
	}
	return m.most
}

// competes reports whether the budget is a window that other processes use as well.
func (m *Leased) competes() bool {
	return (m.budget.Kind == store.Sliding || m.fixed()) && m.latest.processes > 1
}

// share returns the even share of a process, in whole requests if it is more than one.
func (m *Leased) share() int64 {
	share := m.rate.N / int64(max(1, m.latest.processes))
	if share > m.cost && m.cost > 0 {
		share -= share % m.cost
	}
	return max(1, share)
}

// shares returns the shares of all processes together. They are less than a window that cannot be divided evenly.
func (m *Leased) shares() int64 { return min(m.rate.N, m.share()*int64(max(1, m.latest.processes))) }

// inPeriod returns how many tokens were leased in the latest period, or in the window.
func (m *Leased) inPeriod(now int64) (sum int64) {
	if m.leased == nil {
		m.leased = make([]int64, turnParts)
	}
	if m.fixed() && now >= m.latest.ends {
		clear(m.leased)
	}
	part := now / max(1, int64(m.rate.Per)/turnParts)
	for i := int64(0); i < turnParts && m.part < part; i++ {
		m.part++
		m.leased[m.part%turnParts] = 0
	}
	m.part = part
	for _, n := range m.leased {
		sum += n
	}
	return sum
}

// uncount has tokens that go back count as if they had not been leased. They are of the latest leases.
func (m *Leased) uncount(tokens int64) {
	for i := int64(0); i < turnParts && m.leased != nil && tokens > 0; i++ {
		part := &m.leased[(m.part+turnParts-i)%turnParts]
		n := min(tokens, *part)
		*part, tokens = *part-n, tokens-n
	}
}

// allowed returns how many tokens the process may ask for now: the rest of its share, or beyond it a turn's part. If that is not positive,
// the process only asks what is left.
func (m *Leased) allowed(now int64) (most int64, beyond bool) {
	if !m.promises() && m.place.is != ignored && m.queues(max(1, m.cost)) {
		return meter.MaxCount, false
	}
	if most = m.rest(now); most > 0 {
		return most, false
	}
	return min(m.turn(), m.freeBeyond(m.inPeriod(now), now)), true
}

// rest returns how many tokens the process may ask for without a turn.
func (m *Leased) rest(now int64) int64 {
	switch {
	case m.promises():
		return m.portion(now)
	case !m.competes():
		return meter.MaxCount
	}
	return m.share() - m.inPeriod(now)
}

// portion returns how many tokens of a Bucket or a Pace one ask is for: the mean of an even share and of recent use, over the time in which
// each process asks once. If all took half of what may still be promised, the first ones to ask would take most of it, and processes ask in
// the same order again and again. With portions, each finds twice its own there, so that it gets it whichever its place. The part that
// follows recent use leaves more to those that use more while others are idle. A process whose tokens do not last until the response takes
// what it can get.
func (m *Leased) portion(now meter.Instant) int64 {
	ahead, processes := m.promised(), float64(m.latest.processes)
	if processes < 2 || ahead == 0 || m.dueAt(ahead)-int64(m.lead) < m.again {
		return meter.MaxCount
	}
	// A process asks when its last token is due in two round trips, which are one and a half when the ask arrives. Then the others may have
	// been promised all tokens of a cycle but its own, and twice its own are to fit below the horizon.
	cycle := float64(m.reach()-m.trip*3/2-lateAsk) * processes / (processes + 1)
	even := m.rate.PerSecond() / float64(time.Second) / processes
	part := float64(max(1, m.cost)) * float64(m.chance(now, int64(time.Second))) / float64(time.Second) // of a request: rounded at random, so that the mean is exact
	return max(1, int64(cycle*(even+m.use)/2+part))
}

// turn returns how many tokens a process leases in a turn. It has at most one in a round trip, so those of a far store are larger.
// Tokens of a Sliding window would be used later then.
func (m *Leased) turn() int64 {
	n := max(1, m.rate.N/turnsEach)
	if m.fixed() {
		n = max(n, int64(float64(m.rate.N)*float64(m.trip)/float64(m.fair())))
	}
	return n
}

// limitToTurn reduces an ask to what is allowed.
func (m *Leased) limitToTurn(p *store.Part, now int64) {
	most, beyond := m.allowed(now)
	if most <= 0 {
		p.Need, p.Want, p.Ahead = 0, 0, 0
		return
	}
	if !m.promises() && m.cost > 1 { // of a window, no part of a request
		most, p.Ahead = most-most%m.cost, 0
	}
	p.Want = max(p.Need, min(p.Want, most))
	switch {
	case beyond && m.budget.Kind == store.Sliding: // most of what is not needed immediately would be void before it is used
		p.Ahead = 0
	case beyond:
		p.Ahead = min(p.Ahead, max(0, most-p.Want))
	}
}

// freeBeyond returns how many tokens a process can have beyond its share, by the latest response: as many as are not kept for others,
// and as the processes together do not use the window faster than evenly, while that counts.
func (m *Leased) freeBeyond(mine, now int64) int64 {
	n, left := m.rate.N, int64(max(0, m.latest.left))
	past, over := now-m.opened, m.fair()
	if m.fixed() { // the last turn that comes before the window ends may take the rest
		over = max(1, over-over/turnsEach-int64(m.trip))
	}
	switch {
	case m.fixed() && now >= m.latest.ends:
		past, left = 0, n
	case left <= n-m.shares(): // the shares are used: only what cannot be divided is left
		return left - m.keptFor(mine)
	case m.fixed():
		past = max(0, m.length()-max(0, m.latest.ends-now))
	}
	even := m.share() + int64(float64(n-m.share())*min(1, float64(past)/float64(over)))
	return min(left-m.keptFor(mine), even-(n-left))
}

// freeFrom returns from when on a process may have a request's tokens of a window beyond its share, if no other process uses any.
func (m *Leased) freeFrom() meter.Instant {
	n, used := m.rate.N, m.rate.N-int64(max(0, m.latest.left))
	early := used + max(1, m.cost) - m.share()
	if early <= 0 || used >= m.shares() {
		return 0
	}
	over := m.fair() - m.fair()/turnsEach - int64(m.trip) // see freeBeyond
	return meter.AddInstant(m.latest.ends-m.length(), int64(float64(over)*min(1, float64(early)/float64(n-m.share()))))
}

// keptFor returns how many tokens of a Sliding window a process that has mine leaves for others, by the latest response: up to their
// shares, a quarter of what they used in the latest period. For those that used nothing yet, it leaves some while shares count.
func (m *Leased) keptFor(mine int64) int64 {
	if m.budget.Kind != store.Sliding {
		return 0
	}
	n := m.rate.N
	others := max(0, n-int64(max(0, m.latest.left))-mine)
	least := int64(float64(n) / leastKept * float64(m.fair()) / float64(m.rate.Per))
	return max(0, min(max(others/4, least), m.shares()-m.share()-others))
}

// open sets when a Sliding window opened, from when on it is to be used evenly: when it was last seen with at most a share used, which is not
// that of this process, or when tokens came in faster than evenly. What was used within a short time comes in again within as short a time. A
// share may be that of one process, so more than two must come in.
func (m *Leased) open(sent, now int64, p *store.LeasedPart) {
	share := float64(m.share())
	came := p.Left + float64(p.Tokens) - m.latest.left
	evenly := float64(m.rate.N) * float64(sent-m.latest.ends) / float64(m.fair())
	if float64(m.rate.N)-p.Left <= share && m.inPeriod(now) < m.share() || came-evenly > 2*share {
		m.opened = now
	}
}

// length returns how long the latest window of a Fixed or a Calendar budget is. Of a Calendar, Per is an average.
func (m *Leased) length() int64 {
	if m.budget.Kind == store.Fixed {
		return int64(m.rate.Per)
	}
	around := m.config.Windows.Around(m.latest.ends - int64(m.rate.Per)/2)
	return around[2] - around[1]
}

// endTurn counts the tokens of a lease and sets when the next turn is.
func (m *Leased) endTurn(sent, now int64, asked *store.Part, p store.LeasedPart) {
	if !m.competes() {
		return
	}
	all := m.inPeriod(now) + p.Tokens
	m.leased[m.part%turnParts] += p.Tokens
	if all < m.share() || p.Tokens == 0 && asked.Need > 0 {
		return
	}
	over := m.fair()
	if int64(max(0, p.Left)) <= m.keptFor(all) { // the next tokens come in over the period
		over = int64(m.rate.Per)
	}
	turn := max(1, min(over/turnsEach, int64(m.recheck())))
	if p.Tokens > 0 {
		turn = max(1, min(mulSat(p.Tokens, over)/m.rate.N, turn))
	} else { // it has only learned that there are none: those of a Sliding window come in one by one
		turn *= map[store.Kind]int64{store.Sliding: 2, store.Fixed: 4, store.Calendar: 4}[m.budget.Kind]
	}
	turn = turn/4 + m.chance(now, turn) // at different instants, so that no process is always first
	end := sent + turn
	if m.budget.Kind == store.Sliding {
		end = min(end, m.shareFrom(all))
	} else {
		end = max(end, m.freeFrom())
	}
	m.again = max(m.again, end)
}

// shareFrom returns from when on the process may use more of its share, given how many tokens it leased in the latest period. Turns of a
// Sliding window end then: if all of it was used within a short time, it comes in within as short a time, before a turn ends.
func (m *Leased) shareFrom(leased int64) meter.Instant {
	for part := m.part - turnParts + 1; ; part++ {
		if leased -= m.leased[(part+turnParts)%turnParts]; leased < m.share() {
			return (part + turnParts) * max(1, int64(m.rate.Per)/turnParts)
		}
	}
}
