//go:build !race

package tests

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/scene/overload"
)

// What our limits reach at the servers of the benchmarks' table, in less time: at least that use, and at most that median in seconds and that
// share of failures. What is left out, a limit cannot bound: the number in flight at a server that counts a rate.
func TestLearnedLimitsAtOverloadedServers(t *testing.T) { // slow: servers with a queue or failures, for minutes
	type bounds struct{ use, p50, errors float64 }
	rate, number := throttle.WithAdaptive(), throttle.WithAdaptiveInFlight()
	clients := []struct {
		name   string
		opts   []throttle.Option
		bounds []bounds // by the scene
	}{
		{"a rate", []throttle.Option{rate}, []bounds{{0.9, 0.08, 0}, {0.9, 0.08, 0}, {0.93, 0.05, 0.04}, {0.93, 0.05, 0.005}, {0.9, 0.05, 0.05}, {0.85, 4, 0}}},
		{"a number", []throttle.Option{number}, []bounds{{0.93, 0.09, 0}, {0.93, 0.09, 0}, {}, {}, {}, {0.93, 4, 0}}},
		{"both", []throttle.Option{rate, number}, []bounds{{0.93, 0.09, 0}, {0.93, 0.09, 0}, {0.93, 0.05, 0.04}, {0.93, 0.05, 0.005}, {0.9, 0.05, 0.05}, {0.93, 4, 0}}},
		{"thresholds", []throttle.Option{throttle.WithAdaptive(throttle.AIMD{LatencyThreshold: 500 * time.Millisecond, ErrorThreshold: 0.2})},
			[]bounds{{0.95, 0.5, 0}, {0.9, 0.5, 0.2}, {0.97, 0.05, 0.2}, {0.97, 0.05, 0.2}, {1, 0.05, 0.2}, {0.08, 2.5, 0}}},
	}
	if testing.Short() {
		clients = clients[:1]
	}
	for i, s := range overload.Scenes() {
		if s.Length == 0 {
			s.Length, s.From = 40, 20
		} else {
			s.Length, s.From = 600, 300
		}
		for _, c := range clients {
			b := c.bounds[i]
			if b == (bounds{}) {
				continue
			}
			t.Run(s.Name+"/"+c.name, func(t *testing.T) {
				f := strain(t, s, 1, c.opts...)
				t.Logf("%.3f used, median %.3f s, %.4f failed", f.Use, f.P50, f.Errors)
				assert.GreaterOrEqual(t, f.Use, b.use)
				assert.LessOrEqual(t, f.P50, b.p50)
				assert.LessOrEqual(t, f.Errors, b.errors)
			})
		}
	}
}

// softScene returns a server that is drawn at random and fails the more of the requests the more of them come.
func softScene(seed uint64) overload.Scene {
	r := rand.New(rand.NewPCG(seed, 591))
	between := func(low, high float64) float64 { return low * math.Pow(high/low, r.Float64()) }
	from, service := between(10, 400), between(0.005, 0.2)
	soft := from * between(0.5, 3)
	return overload.Scene{
		Name:     fmt.Sprintf("none of %.0f/s to all of %.0f/s, %.3f s", from, from+soft, service),
		Capacity: from, Length: max(120, 2000/from), Callers: int(max(128, 5*from*service)),
		New: func() overload.Server {
			return &overload.Failing{PerSecond: from, Soft: soft, Status: http.StatusInternalServerError, Service: service}
		},
	}
}

// Requests that fail because of load are kept few, however gently the server begins to fail.
func TestARampOfFailuresIsLoad(t *testing.T) { // slow: servers that fail, for minutes
	seeds := uint64(3)
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		s := softScene(seed)
		for name, opts := range map[string][]throttle.Option{
			"a rate": {throttle.WithAdaptive()}, "both": {throttle.WithAdaptive(), throttle.WithAdaptiveInFlight()},
		} {
			t.Run(fmt.Sprintf("%d: %s, %s", seed, s.Name, name), func(t *testing.T) {
				f := strain(t, s, seed, opts...)
				t.Logf("%.3f of what never fails, %.4f failed", f.Use, f.Errors)
				assert.LessOrEqual(t, f.Errors, 0.05)
				assert.GreaterOrEqual(t, f.Use, 0.85)
			})
		}
	}
}

// Requests that fail at any rate, however many are in flight, lower neither, whatever their status.
func TestFailuresByChanceAreNoLoad(t *testing.T) { // slow: servers that fail, for minutes
	rate, number := throttle.WithAdaptive(), throttle.WithAdaptiveInFlight()
	clients := map[string][]throttle.Option{"a rate": {rate}, "a number": {number}, "both": {rate, number}}
	seeds := 3
	if testing.Short() {
		seeds = 1
	}
	for name, opts := range clients {
		for _, chance := range []float64{0.05, 0.2} {
			for i, status := range []int{http.StatusInternalServerError, http.StatusServiceUnavailable, http.StatusGatewayTimeout} {
				const callers, service = 16, 0.2
				s := overload.Scene{
					Callers: callers, Length: 300, From: 30,
					// A failure takes 3 ms, and its caller waits for 50. The mean of a log-normal time is 1.02 times the median.
					Capacity: callers * (1 - chance) / ((1-chance)*service*1.02 + chance*0.053),
					New:      func() overload.Server { return &overload.Failing{Chance: chance, Status: status, Service: service} },
				}
				for seed := range seeds {
					f := strain(t, s, uint64(10*i+seed), opts...)
					t.Logf("%s, %d, %v: %.3f used", name, status, chance, f.Use)
					assert.GreaterOrEqual(t, f.Use, 0.95, "%s, %d, %v", name, status, chance)
				}
			}
		}
	}
}
