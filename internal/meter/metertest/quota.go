package metertest

import (
	"math/big"
	"slices"
)

// A Quota is a window whose tokens come back one by one: each one period after it was counted, and a gap after the one before it.
type Quota struct {
	N, Per int64
	Spent  []Token // in the order in which they come back

	start instant // the tokens that came back since then came back one gap after the other
	n     int64
}

// A Token was spent at an instant, and counts from another one on.
type Token struct{ At, Counted instant }

// Gaps returns how long k gaps are: n of them are a period and one n-1st, or a nineteenth if that is less.
func (m *Quota) gaps(k int64) int64 {
	round := m.Per + (m.Per-1)/max(m.N-1, 19) + 1
	return ceilRat(new(big.Rat).Mul(big.NewRat(round, m.N), Rat(k))).Int64()
}

// next takes the first of the tokens out, and returns when it comes back.
func (m *Quota) next() (at instant) {
	free := m.Spent[0].Counted + m.Per
	if m.n == 0 || m.start+m.gaps(m.n) < free {
		m.start, m.n = free, 0
	}
	at = m.start + m.gaps(m.n)
	m.n++
	m.Spent = m.Spent[1:]
	return at
}

// Advance takes out the tokens that have come back by now.
func (m *Quota) Advance(now instant) {
	for len(m.Spent) > 0 {
		if c := m.clone(); c.next() > now {
			return
		}
		m.next()
	}
}

// Take spends tokens.
func (m *Quota) Take(now instant, cost int64) {
	for range cost {
		m.Spent = append(m.Spent, Token{now, now})
	}
}

// Count has the tokens that were spent at an instant or after it count from a later one on.
func (m *Quota) Count(spent, from instant) {
	for i := range m.Spent {
		if m.Spent[i].At >= spent {
			m.Spent[i].Counted = max(m.Spent[i].Counted, from)
		}
	}
}

// Left returns how many tokens are there, negative for a debt.
func (m *Quota) Left() int64 { return m.N - int64(len(m.Spent)) }

// Ready returns the first instant from which cost can be paid, not before from.
func (m *Quota) Ready(from instant, cost int64) instant {
	if cost > m.N {
		return never
	}
	c := m.clone()
	for c.Left() < cost {
		from = max(from, c.next())
	}
	return from
}

// Full returns when all tokens will have come back; 0: they have.
func (m *Quota) Full() (at instant) {
	for c := m.clone(); len(c.Spent) > 0; {
		at = c.next()
	}
	return at
}

// GiveBack takes out tokens that were spent at an instant, if they have not come back.
func (m *Quota) GiveBack(spent instant, tokens int64) {
	m.Spent = slices.Clone(m.Spent)
	for range tokens {
		if i := m.spentAt(spent); i >= 0 {
			m.Spent = slices.Delete(m.Spent, i, i+1)
		}
	}
}

// Owe spends more tokens, up to a balance of minus four periods' worth.
func (m *Quota) Owe(now instant, tokens int64) {
	m.Advance(now)
	m.Take(now, min(tokens, max(0, m.Left()+4*m.N)))
}

func (m *Quota) spentAt(at instant) int {
	return slices.IndexFunc(m.Spent, func(t Token) bool { return t.At == at })
}

func (m *Quota) Pay(_, now instant, cost int64, _ bool) {
	m.Advance(now)
	m.Take(now, cost)
}

func (m *Quota) Retune(now instant, r Rate) {
	m.Advance(now)
	if m.n > 0 {
		m.start, m.n = m.start+m.gaps(m.n-1), 1
	}
	m.N, m.Per = r.N, int64(r.Per)
	m.Advance(now)
}

func (m *Quota) Clone() Meter { return m.clone() }

func (m *Quota) clone() *Quota {
	c := *m
	c.Spent = slices.Clone(m.Spent)
	return &c
}
