package lease

import (
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// A place is where a process is in the queue that a store has for a budget: it gives requests their turns, one by one.
type place struct {
	is    standing
	at    meter.Instant // if it waits, or may: when its turn comes
	check meter.Instant // if it waits: when it asks whether others gave tokens back; meter.Never: not before its turn
	need  int64         // if it waits for tokens that others may give back: how many
	id    int64         // Queued of the next ask
}

// A standing is how a process stands to the queue of a budget.
type standing int8

const (
	outside  standing = iota // shares count
	ignored                  // a request got no turn, as the store has no queue: shares count
	comes                    // the next request that lacks tokens enters
	entering                 // an ask that enters is under way
	waits                    // the process has a turn
)

// queues reports whether requests take turns, and not shares.
func (p *place) queues() bool { return p.is >= comes }

// queues reports whether requests of a cost enter the queue of the store, one by one: where a process's share is one of them at most, or less than
// two if tokens come in one by one. By shares alone, all processes would ask for each token that comes in, and one would get it.
func (m *Leased) queues(cost int64) bool {
	switch {
	case m.inTurn(cost):
		return true
	case m.promises():
		return false
	case m.place.queues():
		return true
	case !m.competes() || m.budget.Kind == store.Calendar:
		return false
	case m.budget.Kind == store.Sliding:
		return m.rate.N < mulSat(2*cost, int64(m.latest.processes))
	}
	return m.rate.N <= mulSat(cost, int64(m.latest.processes))
}

// inTurn reports whether requests that need several budgets enter the queue: where each process has one seldom enough to enter, and to come for its
// tokens, and often enough for its turn to come in time.
func (m *Leased) inTurn(cost int64) bool {
	each, ok := m.each(cost)
	return m.takesTurns && ok && each > int64(m.lead)*3/2
}

// each returns in which time each process has a request of a cost, if others use the budget.
func (m *Leased) each(cost int64) (span int64, ok bool) {
	processes := max(m.most, m.latest.processes)
	return m.flow(float64(cost) * float64(processes)), processes > 1 && m.budget.Kind != store.Calendar
}

// takeTurn changes an ask for a request of a cost by the place of the process.
func (m *Leased) takeTurn(p *store.Part, now meter.Instant, cost int64) {
	l, queues := &m.place, m.queues(cost)
	switch {
	case l.is == waits && now < min(l.at, m.again): // it reports something, or asks whether others gave tokens back
		p.Need, p.Want, p.Ahead, l.check = 0, 0, 0, meter.Never
	case p.Need > 0 && queues && l.is != ignored:
		most := p.Need
		if m.takesTurns && l.is == outside { // others may follow it: the one before did not wait
			most = m.rest(now)
		}
		p.Want, p.Ahead = max(p.Need, min(p.Want, most-most%max(1, cost))), 0
	case !p.Whole: // else it is within the portion
		m.limitToTurn(p, now)
	}
	if p.Need > 0 && queues {
		p.Queue, p.Queued = true, l.id
		l.is = entering
	}
}

// turned records a response: whether the process has a turn, and when.
func (m *Leased) turned(sent, now meter.Instant, asked *store.Part, p *store.LeasedPart) {
	l := &m.place
	switch {
	case p.Tokens > 0:
		m.served(now, asked, p)
	case l.is == entering:
		m.entered(sent, now, asked, p)
	case l.is == waits && l.need > 0 && p.Left >= float64(l.need): // others gave tokens back
		l.is, m.again = comes, now
	}
	if l.is == waits && now < l.at {
		m.again = l.at
	}
}

// served records a response with tokens.
func (m *Leased) served(now meter.Instant, asked *store.Part, p *store.LeasedPart) {
	l := &m.place
	if asked.Queued > 0 || asked.Queue && p.Left < float64(asked.Need) {
		*l = place{is: comes}
	} else {
		*l = place{}
	}
	if !m.queues(asked.Need) {
		return
	}
	m.again = now // the next request enters immediately; where tokens are left or come in soon, other processes ask first
	if soon := spreadOver + int64(2*m.trip); p.Left >= float64(asked.Need) || int64(p.Wait) < soon && m.budget.Kind == store.Sliding {
		m.again += soon
	}
}

// entered records the response to an ask that was to enter the queue.
func (m *Leased) entered(sent, now meter.Instant, asked *store.Part, p *store.LeasedPart) {
	l := &m.place
	switch {
	case p.Hold > 0, p.Turn > asked.Within:
		*l = place{is: comes}
		return
	case p.ID == 0:
		*l = place{is: ignored}
		return
	case p.Turn == 0: // another budget lacks tokens
		*l = place{is: comes, id: p.ID}
		return
	}
	*l = place{is: waits, id: p.ID, check: meter.Never}
	per, turn := int64(m.rate.Per), int64(p.Turn)
	if lacks := p.Left < float64(asked.Need); m.fixed() && lacks && int64(p.Turn-p.Wait)%per == 0 { // a window begins then
		l.at = m.opens(meter.AddInstant(sent, turn))
	} else {
		l.at = max(now+1, meter.AddInstant(now, turn-int64(m.least))) // see Booked
	}
	if check := l.at - per/2 - turn/2/per*per; !m.promises() && p.Left < float64(asked.Need) && check-now > int64(m.recheck()) {
		l.need, l.check = asked.Need, check
	}
}
