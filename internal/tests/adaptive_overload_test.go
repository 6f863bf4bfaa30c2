//go:build !race

package tests

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/scene/overload"
)

// strain plays a scene with a Transport.
func strain(t *testing.T, s overload.Scene, seed uint64, opts ...throttle.Option) (f overload.Figures) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f = s.Play(seed, func(base http.RoundTripper) http.RoundTripper {
			tr, err := throttle.New(base, opts...)
			require.NoError(t, err)
			return tr
		})
	})
	return f
}

// failingScene returns a server that is drawn at random and fails beyond a rate, or of which the requests end in a 504 while they wait.
func failingScene(seed uint64) overload.Scene {
	r := rand.New(rand.NewPCG(seed, 59))
	between := func(low, high float64) float64 { return low * math.Pow(high/low, r.Float64()) }
	service := between(0.005, 0.5)
	if seed%4 == 3 {
		workers := 1 + r.IntN(20)
		patience := service * between(2, 10)
		return overload.Scene{
			Name:     fmt.Sprintf("%d workers, %.3f s, 504 after %.3f s", workers, service, patience),
			Capacity: float64(workers) / service, Length: max(180, 1500*service/float64(workers)),
			New: func() overload.Server {
				return overload.NewWorkers(workers, overload.Half(service), 0, time.Duration(patience*1e9))
			},
		}
	}
	limit, status, soft := between(4, 400), []int{500, 502, 503, 504}[r.IntN(4)], 0.0
	if seed%4 == 2 {
		soft = limit * between(0.5, 4)
	}
	return overload.Scene{
		Name:     fmt.Sprintf("%d softly %.0f above %.0f/s, %.3f s", status, soft, limit, service),
		Capacity: limit, Length: max(180, 3000/limit),
		New: func() overload.Server {
			return &overload.Failing{PerSecond: limit, Soft: soft, Status: status, Service: service}
		},
	}
}

// What is above the threshold is too much, whatever the failures are.
func TestErrorThresholdIsAShareOfAllFailures(t *testing.T) { // slow: servers that fail, for minutes
	seeds, thresholds := uint64(7), []float64{0.05, 0.2, 0.3}
	if testing.Short() {
		seeds, thresholds = 3, []float64{0.2}
	}
	for seed := range seeds {
		s := failingScene(seed)
		for _, threshold := range thresholds {
			t.Run(fmt.Sprintf("%d: %s, %v", seed, s.Name, threshold), func(t *testing.T) {
				t.Parallel()
				f := strain(t, s, seed, throttle.WithLimit(throttle.Adaptive(throttle.AIMD{ErrorThreshold: threshold})))
				t.Logf("%.3f of what the server can serve, %.3f failed", f.Use, f.Errors)
				assert.LessOrEqual(t, f.Errors, threshold+0.02)
				assert.GreaterOrEqual(t, f.Use, 0.75)
			})
		}
	}
}

// queueing returns a server that is drawn at random, with workers that requests wait for, and the median latency to keep. The service
// becomes slower, or faster, in some of them.
func queueing(seed uint64) (s overload.Scene, service, target float64) {
	r := rand.New(rand.NewPCG(seed, 61))
	between := func(low, high float64) float64 { return low * math.Pow(high/low, r.Float64()) }
	service = between(0.010, 5)
	workers := int(between(1, 60) + 0.5)
	dist, name := overload.Half(service), "half exponential"
	switch r.IntN(3) {
	case 0:
		dist, name = overload.LogNormal(service*0.96, 0.3), "log-normal"
	case 1:
		dist, name = overload.LogNormal(service*0.61, 1), "heavy tail"
	}
	target = service * between(1.2, 10)
	callers := int(between(8, 256))
	length := max(120, 240*service)
	change := []float64{1, 1, 2, 0.5}[r.IntN(4)]
	if change != 1 {
		dist = overload.Changing(dist, 0.6*length, change)
		target *= max(1, change)
	}
	return overload.Scene{
		Name:     fmt.Sprintf("%d workers, %.3f s, %s, then times %v, %d callers", workers, service, name, change, callers),
		Capacity: float64(workers) / service, Length: length, Callers: callers, From: length / 5,
		New: func() overload.Server { return overload.NewWorkers(workers, dist, 0, 0) },
	}, service, target
}

// mostAt returns the most that any number in flight gives at that median latency.
func mostAt(t *testing.T, s overload.Scene, seed uint64, target float64) (best overload.Figures) {
	for low, high := 1, s.Callers; low <= high; {
		n := (low + high) / 2
		f := strain(t, s, seed, throttle.WithLimit(throttle.InFlight(int64(n))))
		if f.P50 > target && n > 1 {
			high = n - 1
			continue
		}
		if f.Use > best.Use {
			best = f
		}
		low = n + 1
	}
	return best
}

// A latency threshold is kept, and whatever throughput it allows is used.
func TestLatencyThresholdIsKept(t *testing.T) { // slow: servers with a queue, for minutes
	seeds := []uint64{0, 3, 10}
	if !testing.Short() {
		seeds = []uint64{0, 3, 5, 8, 10} // the one between sends 1,700 a second
	}
	for _, seed := range seeds {
		s, _, target := queueing(seed)
		t.Run(fmt.Sprintf("%d: %s, %.3f s", seed, s.Name, target), func(t *testing.T) {
			t.Parallel()
			f := strain(t, s, seed, throttle.WithAdaptive(throttle.AIMD{LatencyThreshold: time.Duration(target * 1e9)}))
			best := mostAt(t, s, seed, target)
			t.Logf("%.3f of %.3f used, median %.3f s", f.Use, best.Use, f.P50)
			assert.LessOrEqual(t, f.P50, target)
			assert.GreaterOrEqual(t, f.Use, 0.97*best.Use)
		})
	}
}

// A threshold below what a request alone takes is reported once, and requests are sent one at a time.
func TestLatencyThresholdBelowOneRequestIsReported(t *testing.T) {
	s := overload.Scene{Capacity: 10, Length: 240, New: func() overload.Server { return overload.NewWorkers(10, overload.Half(1), 0, 0) }}
	var alone atomic.Int64
	f := strain(t, s, 1, throttle.WithAdaptive(throttle.AIMD{LatencyThreshold: 200 * time.Millisecond}), throttle.WithHooks(throttle.Hooks{
		OnRetune: func(e throttle.RetuneEvent) {
			if e.Reason == throttle.CauseLatencyAlone {
				alone.Add(1)
			}
		},
	}))
	assert.InDelta(t, 0.1, f.Use, 0.01, "one of ten workers")
	assert.EqualValues(t, 1, alone.Load())
}

// Without a threshold, a slow server is not filled with a queue.
func TestLearnedLatencyIsThatOfTheServer(t *testing.T) {
	for _, service := range []float64{0.01, 0.2, 0.8, 2, 5} {
		if testing.Short() && service < 0.5 {
			continue
		}
		for _, workers := range []int{5, 10, 40} {
			if float64(workers) > 1000*service {
				continue // a million requests
			}
			s := overload.Scene{
				Capacity: float64(workers) / service, Length: max(180, 300*service),
				New: func() overload.Server { return overload.NewWorkers(workers, overload.Half(service), 0, 0) },
			}
			t.Run(fmt.Sprintf("%d workers, %v s", workers, service), func(t *testing.T) {
				t.Parallel()
				f := strain(t, s, 1, throttle.WithAdaptive())
				t.Logf("%.3f used, median %.3f s", f.Use, f.P50)
				assert.LessOrEqual(t, f.P50, 2*service)
				assert.GreaterOrEqual(t, f.Use, 0.87) // once in 30 runs .887, else .91 to .96: it depends on which of several callers is first
			})
		}
	}
}
