package lease

import (
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// This file decides when a process asks the store.

// AskAt returns when to ask the store, given the requests that wait: now or later, meter.Never if there is nothing to ask for.
func (m *Leased) AskAt(now meter.Instant, d Demand) meter.Instant {
	if m.under {
		return meter.Never
	}
	m.advance(now)
	if m.local != nil && m.drawn > 0 {
		return now
	}
	d.All += m.following(d)
	at := meter.AddInstant(m.since, tellAfter)
	total := m.have + m.promised()
	switch {
	case d.First > total:
		again := m.againFor(d.First-total, now, d.Until)
		at = min(at, again, m.recheckTurn(now, again))
	case d.All > total: // the tokens of the first request are available or promised
		at = min(at, max(m.againFor(d.Next-total, now, d.Until), m.lastAt(&d)-int64(m.lead)))
	case m.drawn > 0 && m.Low():
		at = min(at, max(m.again, m.spare))
	}
	if d.First <= total && m.far(d.First) {
		due := m.dueAt(d.First - m.have)
		if due-now > int64(recheckAfter) {
			at = min(at, m.recheckFor(due))
		}
		if last := due - int64(m.lead); last > m.asked && due-m.asked > 2*int64(recheckAfter) { // others may have set a hold
			at = min(at, last)
		}
	}
	if m.drops(d) {
		for i := range m.lots {
			at = min(at, m.lots[i].kept)
		}
		for i := range m.runs {
			at = min(at, m.runs[i].kept)
		}
	}
	return max(at, now, m.turnAt())
}

// againFor returns from when on the store may be asked for tokens that are missing. If they come after the instant until which they can be used,
// time does not help: they come nearer only as fast as the instant does. What other processes give back helps. A request that cannot wait uses
// them whenever they come.
//
// If others had been promised all tokens of a longer time than the request has, they are promised the next ones, too, as soon as these can be
// promised. Then one of all processes asks for each request, or a few do: each at an instant within the time in which all of them could have
// one such request.
func (m *Leased) againFor(missing int64, now, until meter.Instant) meter.Instant {
	switch {
	case missing <= 0, m.local != nil, until <= now && m.promises():
		return m.again
	case until <= now:
		return min(m.again, m.RecheckAt())
	}
	if at := m.empty(now, missing); at > 0 {
		return at
	}
	if m.promises() && m.Plan(now, m.have+m.promised(), missing) > until {
		return max(m.again, m.RecheckAt())
	}
	if r := &m.latest; r.processes > 1 && r.need > 0 && missing >= r.need && until-now < r.depth {
		all := max(1, m.flow(float64(missing)*float64(r.processes)))
		return max(m.again, min(m.RecheckAt(), r.sent+m.chance(r.sent, all)))
	}
	return m.again
}

// empty returns from when on a window that ends at a known instant may have tokens that it lacks now; 0: it may have them before, or the requests
// take turns.
func (m *Leased) empty(now meter.Instant, missing int64) meter.Instant {
	if m.fixed() && m.latest.known && now < m.latest.ends && float64(missing) > m.latest.left && !m.queues(missing) {
		return max(m.again, m.opens(m.latest.ends))
	}
	return 0
}

// recheckFor returns when to ask whether others gave back what is promised, or announced, for an instant; meter.Never: not before that.
func (m *Leased) recheckFor(due meter.Instant) meter.Instant {
	later := mulSat(recheckGrows, max(0, m.asked-m.news))
	if !m.promises() { // its tokens may be used until the window ends
		later = min(later, int64(recheckWindow))
	}
	again := meter.AddInstant(m.asked, max(int64(m.recheck()), later))
	if due-again > int64(recheckAfter) {
		return again
	}
	return meter.Never
}

// recheckTurn returns when a process that may have tokens of a window from an instant on asks whether others gave some back: once before its
// turn, and otherwise as for tokens that are promised.
func (m *Leased) recheckTurn(now, from meter.Instant) meter.Instant {
	switch l := &m.place; {
	case m.promises(), l.is == waits && now-l.check > l.at-now: // another budget delayed it for too long
		return meter.Never
	case l.is == waits:
		return l.check
	}
	return m.recheckFor(from)
}

// RecheckAt implements [Meter].
func (m *Leased) RecheckAt() meter.Instant {
	if m.asked == meter.Never {
		return 0
	}
	return meter.AddInstant(m.asked, int64(m.recheck()))
}

// turnAt returns when a process of a crowd may ask again: a cycle after its latest ask, except to report a change.
func (m *Leased) turnAt() meter.Instant {
	if m.holds.unknown() || m.replace || m.leaves || m.asked == meter.Never {
		return 0
	}
	return meter.AddInstant(m.asked, int64(cycle(m.latest.processes)))
}

// cycle returns the time in which each process asks once at most, so that a crowd does not overload the store: 1,000 processes ask 4,750
// times a second together.
func cycle(processes int) time.Duration { return time.Duration(max(0, processes-crowd)) * crowdEach }

// AsksFrom implements [Meter].
func (m *Leased) AsksFrom(now meter.Instant, together bool) meter.Instant {
	switch most, _ := m.allowed(now); {
	case m.under && !together:
		return 0
	case m.under:
		return meter.AddInstant(m.asked, int64(m.lead))
	case together && m.again <= now && most <= 0: // more may be allowed later
		return meter.AddInstant(now, moreAfter)
	}
	return max(m.again, m.turnAt(), m.empty(now, max(1, m.cost)))
}

// pause returns how long a process does not ask after a Sliding window had too few tokens for need: a part of the time for which shares
// count, so that it has its share of tokens that come in together. The less of its share it has, the sooner it asks: what was used within a
// short time comes in within as short a time. More than crowd processes would compete for each token, so they pause for a part of the period,
// and longer the more they are.
func (m *Leased) pause(now meter.Instant, need int64) time.Duration {
	per, processes := m.rate.Per, m.latest.processes
	if !m.competes() {
		return 0
	}
	if processes > crowd {
		return min(per, per/parts*time.Duration(processes)/crowd)
	}
	pause := time.Duration(m.fair()) / parts
	if mine, share := m.inPeriod(now), m.rate.N/int64(processes); mine+need <= share {
		return time.Duration(float64(pause) * float64(mine) / float64(share))
	}
	return pause
}

// recheck returns how long to wait for tokens before the store is asked again. It differs from ask to ask, so that no process is
// always behind another one.
func (m *Leased) recheck() time.Duration {
	mean := max(recheckAfter, time.Duration(m.latest.processes)*recheckEach)
	return mean*3/4 + time.Duration(m.chance(m.asked, int64(mean/2)))
}

// ends records the end of a Fixed window or a Calendar, and spreads the asks of a fleet after it.
func (m *Leased) ends(sent, now meter.Instant, p store.LeasedPart) {
	switch {
	case p.Until > 0:
		m.latest.ends = meter.AddInstant(sent, int64(p.Until))
	case p.Wait > 0:
		m.latest.ends = meter.AddInstant(sent, int64(p.Wait))
		if p.Hold == 0 {
			m.again = m.opens(m.latest.ends)
		}
	default:
		m.latest.ends = max(m.latest.ends, now)
	}
}

// opens returns when this process asks for tokens of the window that begins after ends, which is as early as the store may have meant.
func (m *Leased) opens(ends meter.Instant) meter.Instant {
	return meter.AddInstant(ends, int64(2*(m.trip-m.least))+m.chance(ends/spreadOver, spreadOver))
}
