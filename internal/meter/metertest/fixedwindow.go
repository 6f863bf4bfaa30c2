package metertest

import (
	"maps"
	"math/big"
)

// A calendar is a fixed window as a table of what was used, by window.
type FixedWindow struct {
	N, Per, Origin int64
	Unix           int64 // of instant 0
	Used           map[int64]int64
	Retuned, Since instant // in the window of the last new rate, what was granted since counts
}

func (m *FixedWindow) Ready(from instant, cost int64) instant {
	if cost > m.N {
		return never
	}
	i := m.Index(from + m.Unix)
	for later := range m.Used {
		i = max(i, later) // what is past can't be used any more
	}
	for m.Used[i]+cost > m.N {
		i++
	}
	return max(from, i*m.Per+m.Origin-m.Unix)
}

func (m *FixedWindow) Pay(_, now instant, cost int64, _ bool) { m.Used[m.Index(now+m.Unix)] += cost }

func (m *FixedWindow) Clone() Meter {
	c := *m
	c.Used = maps.Clone(m.Used)
	return &c
}

func (m *FixedWindow) Retune(now instant, r Rate) {
	i := m.Index(now + m.Unix)
	used := m.Used[i]
	m.Since, m.Retuned = m.Opened(now), now
	m.N, m.Per = r.N, int64(r.Per)
	m.Used = map[int64]int64{m.Index(now + m.Unix): used}
}

// Opened returns the instant from which on all counts that was granted.
func (m *FixedWindow) Opened(now instant) instant {
	begun := m.Index(now+m.Unix)*m.Per + m.Origin - m.Unix
	if m.Retuned >= begun && m.Retuned > 0 {
		return m.Since
	}
	return begun
}

func (m *FixedWindow) Index(unix int64) int64 {
	since := new(big.Int).Sub(big.NewInt(unix), big.NewInt(m.Origin))
	return since.Div(since, big.NewInt(m.Per)).Int64() // rounds down for per > 0
}
