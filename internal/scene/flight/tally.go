package flight

import (
	"fmt"
	"math"
	"slices"
)

// An Outcome is what became of a request.
type Outcome int

// The outcomes of requests. Unknown is that of one whose caller has given up.
const (
	Good Outcome = iota
	Refused
	Unknown
)

// A Tally is what came of a run, from the time on when measuring began.
type Tally struct {
	OK, Refused, Sent float64
	Answers           []Answer // the good ones
	Calls             []Answer // until the ends of their bodies
	per               []float64
}

// An Answer is a good response, and when its headers or its end came, in seconds.
type Answer struct{ At, Took float64 }

func newAnswer(now, sent int64) Answer { return Answer{float64(now) / 1e9, float64(now-sent) / 1e9} }

func (t *Tally) add(client int, now, sent int64, o Outcome) {
	switch o {
	case Good:
		t.OK++
		t.Answers = append(t.Answers, newAnswer(now, sent))
		t.per[client]++
	case Refused:
		t.Refused++
	}
}

// P99 returns the 99th percentile of the time until the headers of good responses, in seconds, from when they were sent.
func (t *Tally) P99() float64 { return P99(t.Answers) }

// P99 returns the 99th percentile of how long answers took.
func P99(answers []Answer) float64 {
	if len(answers) == 0 {
		return math.NaN()
	}
	took := make([]float64, 0, len(answers))
	for _, a := range answers {
		took = append(took, a.Took)
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}

// Jain returns Jain's index of what the clients got.
func (t *Tally) Jain() float64 {
	sum, squares := 0.0, 0.0
	for _, x := range t.per {
		sum += x
		squares += x * x
	}
	return sum * sum / squares / float64(len(t.per))
}

// Compare returns the figures of runs next to those of the best fixed n, in the same order.
func Compare(runs, fixed []*Tally) (all Figures) {
	all.Least = math.Inf(1)
	n := float64(len(runs))
	for i, g := range runs {
		f := fixed[i]
		goodput := 100 * g.OK / f.OK
		all.Goodput += goodput / n
		all.Least = min(all.Least, goodput)
		all.P99 += g.P99() / f.P99() / n
		all.Refused += 100 * g.Refused / max(1, g.Sent) / n
		all.Jain += g.Jain() / n
	}
	return all
}

func (f Figures) String() string {
	return fmt.Sprintf("%5.1f %% / %4.2f / %4.1f %%, Jain %.2f, least %.0f %%", f.Goodput, f.P99, f.Refused, f.Jain, f.Least)
}

// Figures plays the scene that many times.
func (s Scene) Figures(seeds int, newLimiter func() Limiter) Figures {
	var runs, fixed []*Tally
	for seed := range uint64(seeds) {
		fixed = append(fixed, s.Play(seed, func() Limiter { return Fixed(s.Best) }))
		runs = append(runs, s.Play(seed, newLimiter))
	}
	return Compare(runs, fixed)
}

// FindBest returns the least n that gives 99 % of what any n gives, of those that get few refusals.
func (s Scene) FindBest() int64 {
	type point struct {
		n  int64
		ok float64
	}
	var all []point
	most := 0.0
	for n := int64(1); n <= 2000; n = max(n+1, n*21/20) {
		t := s.Play(9, func() Limiter { return Fixed(n) })
		if t.Refused > (0.002+1.2*s.Faults)*t.Sent {
			continue
		}
		all = append(all, point{n, t.OK})
		most = max(most, t.OK)
		if t.OK < 0.5*most || len(all) > 12 && most > 0 && all[len(all)-10].ok >= 0.999*most {
			break
		}
	}
	for _, p := range all {
		if p.ok >= 0.99*most {
			return p.n
		}
	}
	return 1
}
