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
	Owed           map[int64]int64 // what each window pays of a debt
	Retuned, Since instant         // in the window of the last new rate, what was granted since counts
}

func (m *FixedWindow) Ready(from instant, cost int64) instant {
	if cost > m.N {
		return never
	}
	i := m.Index(from + m.Unix)
	for later := range m.Used {
		i = max(i, later) // what is past can't be used any more
	}
	for m.Used[i]+m.Owed[i]+cost > m.N {
		i++
	}
	return max(from, i*m.Per+m.Origin-m.Unix)
}

func (m *FixedWindow) Pay(_, now instant, cost int64, _ bool) { m.Used[m.Index(now+m.Unix)] += cost }

func (m *FixedWindow) Clone() Meter {
	c := *m
	c.Used, c.Owed = maps.Clone(m.Used), maps.Clone(m.Owed)
	return &c
}

// GiveBack takes tokens off what the window has granted, and what is left of them off what it pays, and those after it.
func (m *FixedWindow) GiveBack(now instant, tokens int64) {
	i := m.Index(now + m.Unix)
	for _, from := range []map[int64]int64{m.Used, m.Owed} {
		if n := min(tokens, from[i]); n > 0 {
			from[i], tokens = from[i]-n, tokens-n
		}
	}
	m.pay(i, -min(tokens, max(0, m.N-m.Left(now)))) // nothing is used in this window any more, or nothing is left of the tokens
}

// Owe charges more tokens, which the window pays, and those after it, up to a balance of minus four windows.
func (m *FixedWindow) Owe(now instant, tokens int64) {
	m.pay(m.Index(now+m.Unix), min(tokens, max(0, m.Left(now)+4*m.N)))
}

// pay has a window and those after it pay tokens, and what the ones after it would have paid.
func (m *FixedWindow) pay(i, tokens int64) {
	for later, owed := range m.Owed {
		if later > i {
			tokens += owed
			delete(m.Owed, later)
		}
	}
	if m.Owed == nil {
		m.Owed = make(map[int64]int64)
	}
	for ; tokens > 0; i++ {
		if n := min(tokens, m.N-m.Used[i]-m.Owed[i]); n > 0 {
			m.Owed[i], tokens = m.Owed[i]+n, tokens-n
		}
	}
}

// Left returns the balance.
func (m *FixedWindow) Left(now instant) int64 {
	i := m.Index(now + m.Unix)
	left := m.N - m.Used[i]
	for later, owed := range m.Owed {
		if later >= i {
			left -= owed
		}
	}
	return left
}

func (m *FixedWindow) Retune(now instant, r Rate) {
	i := m.Index(now + m.Unix)
	used, owed := m.Used[i]+m.Owed[i], int64(0)
	for later, n := range m.Owed {
		if later > i {
			owed += n
		}
	}
	m.Since, m.Retuned = m.Opened(now), now
	m.N, m.Per = r.N, int64(r.Per)
	m.Used, m.Owed = map[int64]int64{m.Index(now + m.Unix): used}, nil
	m.pay(m.Index(now+m.Unix), owed)
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
