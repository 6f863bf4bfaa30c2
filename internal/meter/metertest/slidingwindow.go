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
	m.Events = append(m.Events, Event{At: now, Cost: cost})
}

func (m *SlidingWindow) Clone() Meter { return &SlidingWindow{m.N, m.Per, slices.Clone(m.Events)} }

func (m *SlidingWindow) Pay(_, now instant, cost int64, _ bool) { m.Take(now, cost) }

func (m *SlidingWindow) Retune(now instant, r Rate) {
	m.Events = slices.DeleteFunc(m.Events, func(e Event) bool { return now-e.At >= m.Per })
	m.N, m.Per = r.N, int64(r.Per)
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
