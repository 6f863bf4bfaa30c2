package concurrency

import (
	"cmp"
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

var (
	only  = flag.String("only", "", "print the figures of the scenes whose names contain it")
	seeds = flag.Int("seeds", 3, "runs of each scene")
	both  = flag.Bool("both", false, "with a learned rate beside it")
	find  = flag.Bool("find", false, "find the best fixed n of these scenes")
)

// figures are what the controller reaches, compared with the best fixed n: goodput in percent, p99 as a multiple; then the share
// that was refused in percent, Jain's index of the clients, and the least goodput of a run.
type figures struct{ goodput, p99, refused, jain, least float64 }

func (s scene) figures(seeds int, newLimiter func() limiter) (all figures) {
	all.least = 1e9
	n := float64(seeds)
	for seed := range uint64(seeds) {
		f := s.run(seed, func() limiter { return fixed{s.best} })
		g := s.run(seed, newLimiter)
		goodput := 100 * g.ok / f.ok
		all.goodput += goodput / n
		all.least = min(all.least, goodput)
		all.p99 += g.p99() / f.p99() / n
		all.refused += 100 * g.refused / max(1, g.sent) / n
		all.jain += g.jain() / n
	}
	return all
}

func (f figures) String() string {
	return fmt.Sprintf("%5.1f %% / %4.2f / %4.1f %%, Jain %.2f, least %.0f %%", f.goodput, f.p99, f.refused, f.jain, f.least)
}

// findBest returns the least n that gives 99 % of what any n gives, of those that get few refusals.
func (s scene) findBest() int64 {
	type point struct {
		n  int64
		ok float64
	}
	var all []point
	most := 0.0
	for n := int64(1); n <= 2000; n = max(n+1, n*21/20) {
		t := s.run(9, func() limiter { return fixed{n} })
		if t.refused > (0.002+1.2*s.faults)*t.sent {
			continue
		}
		all = append(all, point{n, t.ok})
		most = max(most, t.ok)
		if t.ok < 0.5*most || len(all) > 12 && most > 0 && all[len(all)-10].ok >= 0.999*most {
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

// TestPrintFigures prints the table of the scenes that are asked for.
func TestPrintFigures(t *testing.T) {
	newLimiter := newLearned
	for _, s := range append(scenes(), unseen()...) {
		if *both {
			newLimiter = s.newPair()
		}
		if *only == "" || !strings.Contains(s.name, *only) {
			continue
		}
		if *find {
			s.best = s.findBest()
		}
		t.Logf("%-34s n %4d  %v", s.name, s.best, s.figures(*seeds, newLimiter))
	}
}

func TestControllerReachesItsGoals(t *testing.T) {
	for _, s := range append(scenes(), unseen()...) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			s.reach(t, newLearned)
		})
	}
}

// A learned rate costs nothing beside the number in flight, and finds a rate that binds more exactly.
func TestRateBesideTheControllerReachesItsGoals(t *testing.T) {
	for _, s := range scenes() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			if s.rate > 0 {
				s.goal.goodput = 105
			}
			if s.clients > 1 {
				s.goal.jain = 0.75
			}
			s.reach(t, s.newPair())
		})
	}
}

func (s scene) reach(t *testing.T, newLimiter func() limiter) {
	seeds := 3
	if testing.Short() {
		seeds = 1
	}
	f, goal := s.figures(seeds, newLimiter), s.goal
	assert.GreaterOrEqual(t, f.goodput, cmp.Or(goal.goodput, 95), "goodput: %v", f)
	assert.LessOrEqual(t, f.p99, cmp.Or(goal.p99, 2), "p99: %v", f)
	assert.LessOrEqual(t, f.refused, cmp.Or(goal.refused, 2), "refused: %v", f)
	assert.GreaterOrEqual(t, f.jain, goal.jain, "Jain: %v", f)
}
