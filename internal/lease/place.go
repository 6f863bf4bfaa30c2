package lease

import (
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// A place is where a process is in the queue that a store has for a window: it gives requests their turns, one by one.
type place struct {
	is    standing
	lost  bool          // others were faster at its turn: next time it does not go to the end of the queue
	at    meter.Instant // if it waits, or may: when its turn comes
	check meter.Instant // if it waits: when it asks whether others gave tokens back; meter.Never: not before its turn
	need  int64         // if it waits: for how many tokens
}

// A standing is how a process stands to the queue of a window.
type standing int8

const (
	outside  standing = iota // shares count
	ignored                  // a request got no turn, as the store has no queue: shares count
	comes                    // the next request that lacks tokens enters
	entering                 // an ask that enters is under way
	unsure                   // such an ask had no response, or there were tokens before the turn, so the store may count the process already
	waits                    // the process has a turn
)

// queues reports whether requests take turns, and not shares.
func (p *place) queues() bool { return p.is >= comes }

// An ask may have come too early by up to one part in so many of the period.
const earlyPart = 4

// queues reports whether requests of a cost enter the queue of the store, one by one: where a process's share is one of them at most, or less than
// two if tokens come in one by one. By shares alone, all processes would ask for each token that comes in, and one would get it.
func (m *Leased) queues(cost int64) bool {
	switch {
	case m.place.queues():
		return true
	case !m.competes() || m.budget.Kind == store.Calendar:
		return false
	case m.budget.Kind == store.Sliding:
		return m.rate.N < mulSat(2*cost, int64(m.latest.processes))
	}
	return m.rate.N <= mulSat(cost, int64(m.latest.processes))
}

// takeTurn changes an ask for a request of a cost by the place of the process.
func (m *Leased) takeTurn(p *store.Part, now meter.Instant, cost int64) {
	l, queues := &m.place, m.queues(cost)
	switch {
	case l.is == waits && now < min(l.at, m.again): // it reports something, or asks whether others gave tokens back
		p.Need, p.Want, p.Ahead, l.check = 0, 0, 0, meter.Never
	case p.Need > 0 && queues && l.is != ignored:
		p.Want, p.Ahead = p.Need, 0
	case !p.Whole: // else it is within the portion
		m.limitToTurn(p, now)
	}
	if p.Need > 0 && queues && l.is != waits {
		p.Queue, p.Queued = true, l.is == unsure
		l.is = entering
	}
}

// turned records a response: whether the process has a turn, and when.
func (m *Leased) turned(sent, now meter.Instant, asked *store.Part, p *store.LeasedPart) {
	l := &m.place
	switch lacks := p.Left < float64(l.need); {
	case p.Tokens > 0:
		m.served(now, asked, p)
	case l.is == entering:
		m.entered(sent, now, asked, p)
	case l.is != waits, asked.Need > 0 && !lacks, asked.Need == 0 && lacks: // nothing changes: another budget lacks tokens, or this one still does
	case !lacks: // others gave tokens back
		l.is, m.again = unsure, now
	case p.Hold == 0 && (l.lost || int64(p.Wait) <= int64(m.rate.Per)/earlyPart): // the ask came too early
		m.turnIn(sent, now, p.Wait)
	default: // others were faster
		*l, m.again = place{is: comes, lost: true}, now
	}
	if l.is == waits && now < l.at {
		m.again = l.at
	}
}

// served records a response with tokens.
func (m *Leased) served(now meter.Instant, asked *store.Part, p *store.LeasedPart) {
	l := &m.place
	if l.is == waits || asked.Queue && p.Left < float64(asked.Need) {
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
	case p.Turn == 0:
		*l = place{is: ignored}
		return
	}
	before := l.at
	*l = place{is: waits, need: asked.Need, check: meter.Never, lost: l.lost}
	if m.turnIn(sent, now, p.Turn); before > now { // there were tokens before its turn, and it got none
		l.at = min(l.at, before)
		return
	}
	per := int64(m.rate.Per)
	if check := l.at - per/2 - int64(p.Turn)/2/per*per; check-now > int64(m.recheck()) {
		l.check = check
	}
}

// turnIn has the turn of the process come after a time.
func (m *Leased) turnIn(sent, now meter.Instant, wait time.Duration) {
	if m.fixed() {
		m.place.at = m.opens(meter.AddInstant(sent, int64(wait)))
	} else {
		m.place.at = max(now+1, meter.AddInstant(now, int64(wait-m.least))) // see Booked
	}
}
