package bucket

const settledKeeps = 31.0 / 32 // of the settlements before, beside the next

// Settled is what the requests of a limit cost in the end, against what they were charged at first: in sums that give less and less
// weight to earlier ones. The zero Settled has seen no settlement.
type Settled struct{ charged, cost float64 }

// Add takes a settlement.
func (s *Settled) Add(charged, cost int64) {
	s.charged = settledKeeps*s.charged + float64(charged)
	s.cost = settledKeeps*s.cost + float64(cost)
}

// Ratio returns what a request costs in the end for each token that it is charged at first; 1 if that is not known.
func (s *Settled) Ratio() float64 {
	if s.charged <= 0 || s.cost <= 0 {
		return 1
	}
	return s.cost / s.charged
}

// IsKnown reports whether a settlement was seen.
func (s *Settled) IsKnown() bool { return s.charged > 0 }
