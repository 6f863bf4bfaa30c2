package store

// A rule is how fast tokens come in, and how many there can be: [Units] of a bucket or a pace; of a window, n tokens in per µs; of
// slots, n.
type rule struct{ tick, n, per, full int64 }

func (c *Call) rule() rule { return rule{c.Tick, c.N, c.Per, c.Full} }

// isStricter reports whether the rate is lower, or the burst or n if the rates are equal.
func (r rule) isStricter(than rule) bool {
	rate := func(r rule) float64 { return float64(r.n) / (float64(r.per) * float64(r.tick)) }
	switch a, b := rate(r), rate(than); {
	case a != b:
		return a < b
	case r.full > 0:
		return float64(r.full)/float64(r.per) < float64(than.full)/float64(than.per)
	}
	return r.n < than.n
}

// A ruling is the rule that counts for a budget.
type ruling struct {
	rule
	confirmed int64 // when a process last asked by it
}

// govern reports whether the rule of c begins to count. If it does not, c gets the one that counts.
func (r *ruling) govern(c *Call, now int64) (changed bool) {
	asked := c.rule()
	switch {
	case asked == r.rule:
		r.confirmed = now
	case c.Replace, now-r.confirmed > epoch, asked.isStricter(r.rule):
		r.confirmed = now
		return true
	default:
		c.follow(r.rule)
	}
	return false
}

// follow gives c a stricter rule. Tokens are promised as far ahead as by its own, but no more of them are granted together than that rule
// allows.
func (c *Call) follow(r rule) {
	c.differs = true
	c.Owed = min(mostUnits, mulSat(c.Owed/c.Per, r.per))
	c.Horizon = min(mulSat(c.Horizon/c.N*c.Tick/r.tick, r.n), mostUnits)
	c.Ticks = min(c.Ticks*c.Tick/r.tick, mostUnits/r.n)
	if mulSat(c.Due, r.per) > r.full {
		c.Ticks = 0
	}
	c.Tick, c.N, c.Per, c.Full = r.tick, r.n, r.per, r.full
}
