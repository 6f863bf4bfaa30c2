package meter

import "math"

// A MeanRate is an exponentially weighted mean of events per second. Each method takes the time constant tau, in ns.
type MeanRate struct {
	Value float64 // at At
	At    Instant
}

// Of returns the mean at now.
func (m *MeanRate) Of(now Instant, tau float64) float64 { return m.Value * decay(now-m.At, tau) }

// decay returns what is left of 1 after d.
func decay(d int64, tau float64) float64 {
	x := float64(max(0, d)) / tau
	if x < 1.0/16 { // the series is exact to 2e-8 here, and math.Exp a fifth of what a request costs
		return 1 - x*(1-x*(1./2-x*(1./6-x*(1./24))))
	}
	return math.Exp(-x)
}

// Add counts x events at now.
func (m *MeanRate) Add(now Instant, x, tau float64) {
	m.Value = m.Of(now, tau) + x/tau*1e9
	m.At = max(m.At, now)
}

// Remove undoes an Add of x at an earlier instant.
func (m *MeanRate) Remove(now, at Instant, x, tau float64) {
	m.Value = max(0, m.Of(now, tau)-x/tau*1e9*decay(now-at, tau))
	m.At = max(m.At, now)
}
