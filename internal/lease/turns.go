package lease

import (
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
	opened meter.Instant // of a Sliding window: when it was last seen with at most a share used
}

const (
	turnParts = 16
	turnsEach = 32 // per period
	leastKept = 64 // one part in this many is left for processes that used nothing yet
)

// competes reports whether the budget is a window that other processes use as well.
func (m *Leased) competes() bool {
	return (m.budget.Kind == store.Sliding || m.fixed()) && m.latest.processes > 1
}

// share returns the even share of a process.
func (m *Leased) share() int64 { return max(1, m.rate.N/int64(max(1, m.latest.processes))) }

// inPeriod returns how many tokens were leased in the latest period.
func (m *Leased) inPeriod(now int64) (sum int64) {
	if m.leased == nil {
		m.leased = make([]int64, turnParts)
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

// limitToTurn reduces an ask to the rest of the share, or to a turn's part if there is no rest.
func (m *Leased) limitToTurn(p *store.Part, d Demand, now int64) {
	if !m.competes() {
		return
	}
	mine := m.inPeriod(now)
	most := m.share() - mine
	if most <= 0 {
		most, p.Ahead = min(max(1, m.rate.N/turnsEach), m.freeBeyond(mine, now)), 0
		if most <= 0 && d.Alone { // it only learns what is left
			p.Need, p.Want = 0, 0
			return
		}
	}
	p.Want = max(p.Need, min(p.Want, most))
}

// freeBeyond returns how many tokens a process can have beyond its share, by the latest response: as many as the processes
// together do not use the window faster than evenly, and that others, up to their shares, find a quarter more than they used in
// the latest period of a Sliding one.
func (m *Leased) freeBeyond(mine, now int64) int64 {
	n, left := m.rate.N, int64(max(0, m.latest.left))
	past := now - m.opened
	if m.fixed() { // of a Calendar, Per is an average
		past = max(0, int64(m.rate.Per)-max(0, m.latest.ends-now))
		if now >= m.latest.ends {
			past, left = 0, n
		}
	}
	even := m.share() + int64(float64(n-m.share())*min(1, float64(past)/float64(m.rate.Per)))
	free := min(left, even-(n-left))
	if m.budget.Kind == store.Sliding {
		others := max(0, n-left-mine)
		free = min(free, left-max(0, min(max(others/4, n/leastKept), n-m.share()-others)))
	}
	return free
}

// endTurn counts the tokens of a lease and sets when the next turn is.
func (m *Leased) endTurn(sent, now int64, asked *store.Part, p store.LeasedPart) {
	if !m.competes() {
		return
	}
	if float64(m.rate.N)-p.Left <= float64(m.share()) {
		m.opened = now
	}
	all := m.inPeriod(now) + p.Tokens
	m.leased[m.part%turnParts] += p.Tokens
	if all < m.share() || p.Tokens == 0 && asked.Need > 0 {
		return
	}
	per := int64(m.rate.Per)
	turn := max(1, min(per/turnsEach, int64(m.recheck())))
	if p.Tokens > 0 {
		turn = max(1, min(mulSat(p.Tokens, per)/m.rate.N, turn))
	} else { // it has only learned that there are none: those of a Sliding window come in one by one
		turn *= map[store.Kind]int64{store.Sliding: 2, store.Fixed: 4, store.Calendar: 4}[m.budget.Kind]
	}
	m.again = max(m.again, sent+turn/4+m.chance(now, turn)) // at different instants, so that no process is always first
}
