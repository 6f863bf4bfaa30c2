package lease

// turns is the part of a [Leased] by which processes that compete for a window get even shares of it. A window promises no
// tokens, so the process that asks first after tokens come in could take them all. A process takes its share of a period as
// soon as it can. Beyond its share it waits for a turn after each lease, so that the others come first. By turns alone it can
// still lease a whole window in each period.
type turns struct {
	leased []int64 // tokens leased in each part of the latest period; nil: the window was not shared yet
	part   int64   // the latest part
}

const (
	turnParts = 16
	turnsEach = 32 // per period
)

// competes reports whether the budget is a window that other processes use as well.
func (m *Leased) competes() bool {
	return (m.budget.Kind == Sliding || m.budget.Kind == Fixed) && m.told.processes > 1
}

// share returns the even share of a process.
func (m *Leased) share() int64 { return max(1, m.budget.N/int64(max(1, m.told.processes))) }

// inPeriod returns how many tokens were leased in the latest period.
func (m *Leased) inPeriod(now int64) (sum int64) {
	if m.leased == nil {
		m.leased = make([]int64, turnParts)
	}
	part := now / max(1, int64(m.budget.Per)/turnParts)
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
func (m *Leased) limitToTurn(p *Part, now int64) {
	if !m.competes() {
		return
	}
	most := m.share() - m.inPeriod(now)
	if most <= 0 {
		most, p.Ahead = m.budget.N/turnsEach, 0
	}
	p.Want = max(p.Need, min(p.Want, most))
}

// endTurn counts the tokens of a lease and sets when the next turn is. While more than half of the window is left, there are no
// turns.
func (m *Leased) endTurn(sent, now int64, p LeasedPart) {
	if p.Tokens == 0 || !m.competes() {
		return
	}
	all := m.inPeriod(now) + p.Tokens
	m.leased[m.part%turnParts] += p.Tokens
	if all >= m.share() && p.Left < float64(m.budget.N)/2 {
		per := int64(m.budget.Per)
		turn := max(1, min(mulSat(p.Tokens, per)/m.budget.N, per/turnsEach, int64(m.recheck())))
		m.again = max(m.again, sent+turn/4+m.chance(now, turn)) // at different instants, so that no process is always first
	}
}
