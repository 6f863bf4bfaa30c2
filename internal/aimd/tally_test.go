package aimd

import (
	"math"
	"slices"
	"testing"
)

// A tally is what came of a run.
type tally struct {
	scenario
	sent, ok, bad, refused int
	accepted, failed       []int32 // by tenth of a second
	offered                int     // by the loads that come at random
	per                    []int32 // accepted by client, in the last two thirds
	latencies              []float64
	waits                  []float64
	sendTimes              []float32
}

func (f *tally) count(c *simClient, start instant, o Outcome) {
	f.sent++
	i := int(c.Now() / (second / 10))
	if o != OK {
		f.bad++
		f.failed[i]++
		return
	}
	f.ok++
	f.accepted[i]++
	f.latencies = append(f.latencies, float64(c.Now()-start)/1e9)
	if c.Now() > at(c.seconds/3) {
		f.per[c.index]++
	}
}

// figures are a run's results as numbers, so that they can be averaged.
type figures struct {
	goodput, refused     float64 // percent
	p50, p99, medianWait float64 // ms
	jain                 float64
	inOutage             float64   // requests sent in it
	back                 []float64 // seconds until the limit was found after each change, the start being the first
}

func (f *tally) figures() figures {
	best := 0.0
	for i := range f.accepted[1:] {
		t := (float64(i) + 0.5) / 10
		if f.outage == nil || t < f.outage.from || t >= f.outage.to {
			best += f.limit(t) / 10
		}
	}
	if f.callersAt == nil {
		best = float64(f.offered)
	}
	r := figures{
		goodput: 100 * float64(f.ok) / best, refused: 100 * float64(f.bad) / float64(max(1, f.sent)),
		p50: 1000 * quantile(f.latencies, 0.5), p99: 1000 * quantile(f.latencies, 0.99), medianWait: 1000 * quantile(f.waits, 0.5),
	}
	sum, squares := 0.0, 0.0
	for _, n := range f.per {
		sum += float64(n)
		squares += float64(n) * float64(n)
	}
	r.jain = sum * sum / max(1, squares) / float64(len(f.per))
	if f.outage != nil {
		for _, t := range f.sendTimes {
			if float64(t) >= f.outage.from && float64(t) < f.outage.to {
				r.inOutage++
			}
		}
	}
	for _, t := range append([]float64{0}, f.changes...) {
		r.back = append(r.back, f.backAfter(t))
	}
	return r
}

// backAfter returns the seconds after t until a second began in which that share of the limit was accepted and at most a
// tenth failed.
func (f *tally) backAfter(t float64) float64 {
	for i := int(t * 10); i+10 < len(f.accepted); i++ {
		ok, bad := 0, 0
		for j := range 10 {
			ok += int(f.accepted[i+j])
			bad += int(f.failed[i+j])
		}
		if float64(ok) >= f.share*f.limit(float64(i)/10+0.5) && 10*bad <= ok+bad {
			return float64(i)/10 - t
		}
	}
	return f.seconds
}

func quantile(x []float64, q float64) float64 {
	if len(x) == 0 {
		return 0
	}
	s := slices.Clone(x)
	slices.Sort(s)
	return s[min(len(s)-1, int(q*float64(len(s))))]
}

// mean averages the figures of several runs; worst is the goodput and the refused share of the worst of them.
func mean(all []figures) (m figures, worst figures) {
	n := float64(len(all))
	worst = figures{goodput: math.Inf(1), jain: math.Inf(1)}
	m.back = make([]float64, len(all[0].back))
	for _, f := range all {
		m.goodput += f.goodput / n
		m.refused += f.refused / n
		m.p50 += f.p50 / n
		m.p99 += f.p99 / n
		m.medianWait += f.medianWait / n
		m.jain += f.jain / n
		m.inOutage += f.inOutage / n
		for i := range f.back {
			m.back[i] += f.back[i] / n
		}
		worst.goodput, worst.refused = min(worst.goodput, f.goodput), max(worst.refused, f.refused)
		worst.p99, worst.jain = max(worst.p99, f.p99), min(worst.jain, f.jain)
	}
	return m, worst
}

// runs plays a scenario with seeds 1 to n.
func (s scenario) runs(n int, off ablation) (m, worst figures) {
	var all []figures
	for seed := range n {
		all = append(all, s.run(uint64(seed)+1, off).figures())
	}
	return mean(all)
}

// report logs the figures that say something of the scenario.
func (s scenario) report(t testing.TB, m, worst figures) {
	t.Helper()
	t.Logf("%-58s %5.1f / %5.2f  worst %5.1f / %5.2f  latency %3.0f/%4.0f  jain %.2f  wait %2.0f  back %.1f  in outage %.0f",
		s.name, m.goodput, m.refused, worst.goodput, worst.refused, m.p50, m.p99, m.jain, m.medianWait, m.back, m.inOutage)
}
