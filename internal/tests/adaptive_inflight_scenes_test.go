//go:build !race

package tests

import (
	"cmp"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/scene/flight"
)

// fly plays a scene with Transports.
func fly(t *testing.T, s flight.Scene, seed uint64, opts ...throttle.Option) (tally *flight.Tally) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		tally = s.PlayHTTP(seed, func(base http.RoundTripper) http.RoundTripper {
			tr, err := throttle.New(base, opts...)
			require.NoError(t, err)
			return tr
		})
	})
	return tally
}

// Every sixth scene: internal/concurrency plays all of them, without a Transport.
func TestLearnedNumberIsAsGoodAsTheBestFixedOne(t *testing.T) { // slow: scenes in fake time
	scenes, seeds := append(flight.Scenes(), flight.Unseen()...), uint64(2)
	if testing.Short() {
		scenes, seeds = flight.Scenes()[:1], 1
		scenes[0].Length = 40
	}
	for i, s := range scenes {
		if i%6 != 0 {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			var learned, fixed []*flight.Tally
			for seed := range seeds {
				fixed = append(fixed, fly(t, s, seed, throttle.WithLimit(throttle.InFlight(s.Best))))
				learned = append(learned, fly(t, s, seed, throttle.WithAdaptiveInFlight()))
			}
			f := flight.Compare(learned, fixed)
			t.Log(f)
			assert.GreaterOrEqual(t, f.Goodput, cmp.Or(s.Goal.Goodput, 95), "goodput: %v", f)
			assert.LessOrEqual(t, f.P99, cmp.Or(s.Goal.P99, 2), "p99: %v", f)
			// Goroutines are scheduled as they happen to be: of ten runs that refused 0.5 %, one refused 2.0.
			assert.LessOrEqual(t, f.Refused, max(2.5, s.Goal.Refused), "refused: %v", f)
			assert.GreaterOrEqual(t, f.Jain, s.Goal.Jain, "Jain: %v", f)
		})
	}
}
