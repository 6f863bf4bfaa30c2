package concurrency

import (
	"cmp"
	"flag"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/internal/scene/flight"
)

var (
	only  = flag.String("only", "", "print the figures of the scenes whose names contain it")
	seeds = flag.Int("seeds", 3, "runs of each scene")
	both  = flag.Bool("both", false, "with a learned rate beside it")
	find  = flag.Bool("find", false, "find the best fixed n of these scenes")
)

// TestPrintFigures prints the table of the scenes that are asked for.
func TestPrintFigures(t *testing.T) {
	newLimiter := newLearned
	for _, s := range append(flight.Scenes(), flight.Unseen()...) {
		if *both {
			newLimiter = newPair(s)
		}
		if *only == "" || !strings.Contains(s.Name, *only) {
			continue
		}
		if *find {
			s.Best = s.FindBest()
		}
		t.Logf("%-34s n %4d  %v", s.Name, s.Best, s.Figures(*seeds, newLimiter))
	}
}

func TestControllerReachesItsGoals(t *testing.T) {
	for _, s := range append(flight.Scenes(), flight.Unseen()...) {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			reach(t, s, newLearned)
		})
	}
}

// A learned rate costs nothing beside the number in flight, and finds a rate that binds more exactly.
func TestRateBesideTheControllerReachesItsGoals(t *testing.T) {
	for _, s := range flight.Scenes() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			if s.Rate > 0 {
				s.Goal.Goodput = 105
			}
			if s.Clients > 1 {
				s.Goal.Jain = 0.6
			}
			reach(t, s, newPair(s))
		})
	}
}

// Refusals that load does not cause cost next to nothing, whenever they come.
func TestRandomRefusalsCostNothingWithAnySeed(t *testing.T) {
	seeds := 10
	if testing.Short() {
		seeds = 2
	}
	for _, s := range flight.Scenes() {
		if s.Faults > 0 {
			assert.GreaterOrEqual(t, s.Figures(seeds, newLearned).Least, 95.0, s.Name)
		}
	}
}

func reach(t *testing.T, s flight.Scene, newLimiter func() flight.Limiter) {
	seeds, scatter := 2, 0.0
	if testing.Short() {
		seeds, scatter = 1, 1
	}
	if s.Best > 1000 {
		seeds = 1 // a million requests
	}
	f, goal := s.Figures(seeds, newLimiter), s.Goal
	assert.GreaterOrEqual(t, f.Goodput, cmp.Or(goal.Goodput, 95)-scatter, "goodput: %v", f)
	assert.LessOrEqual(t, f.P99, cmp.Or(goal.P99, 2), "p99: %v", f)
	assert.LessOrEqual(t, f.Refused, cmp.Or(goal.Refused, 2), "refused: %v", f)
	assert.GreaterOrEqual(t, f.Jain, goal.Jain, "Jain: %v", f)
}
