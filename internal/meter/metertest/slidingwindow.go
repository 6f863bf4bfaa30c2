package metertest

import "slices"

// A plainEvent is one grant.
type Event struct {
	At   instant
	Cost int64
}

// A plainWindow is a sliding window as a plain list of all that was granted: what a slidingWindow is meant to be.
type SlidingWindow struct {
	N, Per int64
	Events []Event
	Debt   int64 // takes each token as soon as it is there, and is an event then

	last instant // until when it has
}

// Advance pays the debt with what was there until now.
func (m *SlidingWindow) Advance(now instant) {
	for m.Debt > 0 && m.last <= now {
		if n := min(m.Debt, m.N-m.Used(m.last)); n > 0 {
			m.Events, m.Debt = append(m.Events, Event{m.last, n}), m.Debt-n
		}
		next := never
		for _, e := range m.Events {
			if t := e.At + m.Per; t > m.last {
				next = min(next, t)
			}
		}
		m.last = next
	}
	m.last = now
}

// Owe adds an undercharge that becomes known now, up to a balance of minus four windows.
func (m *SlidingWindow) Owe(now instant, tokens int64) {
	m.Debt += min(tokens, max(0, m.Left(now)+4*m.N))
	m.Advance(now)
}

// Left returns the balance.
func (m *SlidingWindow) Left(now instant) int64 {
	m.Advance(now)
	return m.N - m.Used(now) - m.Debt
}

func (m *SlidingWindow) Used(now instant) (sum int64) {
	for _, e := range m.Events {
		if now-e.At < m.Per {
			sum += e.Cost
		}
	}
	return sum
}

// Ready returns the first instant from which cost can be paid, not before from.
func (m *SlidingWindow) Ready(from instant, cost int64) instant {
	if cost > m.N {
		return never
	}
	m = m.Clone().(*SlidingWindow)
	for at := from; ; {
		if m.Advance(at); m.Debt == 0 {
			break
		}
		next := never
		for _, e := range m.Events {
			if t := e.At + m.Per; t > at {
				next = min(next, t)
			}
		}
		at = next
	}
	free := []instant{from}
	for _, e := range m.Events {
		from, free = max(from, e.At), append(free, e.At+m.Per)
	}
	slices.Sort(free)
	for _, t := range free {
		if t = max(t, from); m.Used(t)+cost <= m.N {
			return t
		}
	}
	panic("an empty window can't pay")
}

func (m *SlidingWindow) Take(now instant, cost int64) {
	m.Advance(now)
	m.Events = append(m.Events, Event{At: now, Cost: cost})
}

func (m *SlidingWindow) Clone() Meter {
	return &SlidingWindow{m.N, m.Per, slices.Clone(m.Events), m.Debt, m.last}
}

func (m *SlidingWindow) Pay(_, now instant, cost int64, _ bool) { m.Take(now, cost) }

func (m *SlidingWindow) Retune(now instant, r Rate) {
	m.Advance(now)
	m.Events = slices.DeleteFunc(m.Events, func(e Event) bool { return now-e.At >= m.Per })
	m.N, m.Per = r.N, int64(r.Per)
	m.Debt = min(m.Debt, max(0, 5*m.N-m.Used(now)))
	m.Advance(now)
}

// MostInAnyWindow returns the most that lies in a half-open stretch of length per.
func MostInAnyWindow(events []Event, per int64) (most int64) {
	sum, i := int64(0), 0
	for _, e := range events {
		for sum += e.Cost; e.At-events[i].At >= per; i++ {
			sum -= events[i].Cost
		}
		most = max(most, sum)
	}
	return most
}
