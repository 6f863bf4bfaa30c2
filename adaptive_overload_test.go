//go:build !race

package throttle_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
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
func TestErrorThresholdIsAShareOfAllFailures(t *testing.T) {
	seeds := uint64(24)
	if testing.Short() {
		seeds = 4
	}
	for seed := range seeds {
		s := failingScene(seed)
		for _, threshold := range []float64{0.05, 0.2, 0.4} {
			t.Run(fmt.Sprintf("%d: %s, %v", seed, s.Name, threshold), func(t *testing.T) {
				if testing.Short() && threshold != 0.2 {
					threshold = 0.2
				}
				t.Parallel()
				f := strain(t, s, seed, throttle.WithLimit(throttle.Adaptive(throttle.AIMD{ErrorThreshold: threshold})))
				t.Logf("LOG %-60s %.2f: use %.3f p50 %.3f errors %.3f", s.Name, threshold, f.Use, f.P50, f.Errors)
				assert.LessOrEqual(t, f.Errors, threshold+0.02)
				assert.GreaterOrEqual(t, f.Use, 0.9)
			})
		}
	}
}
