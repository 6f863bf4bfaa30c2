package aimd

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/httpthrottle/throttle/internal/meter/metertest"
)

// A slow server gives a few requests a minute or an hour.
type slow struct {
	n       int
	per     float64
	seconds float64
	kind    string
	after   retryAfterHeader
}

func (s slow) play(seed uint64) (used, refused float64) {
	x := scenario{seconds: s.seconds, callersAt: crowd(4), limit: constant(float64(s.n) / s.per), policy: func(*rand.Rand) policy {
		switch s.kind {
		case "fixed":
			return &policeWindow{n: s.n, per: s.per, after: s.after}
		case "log":
			return &policeLog{n: s.n, per: s.per, after: s.after}
		}
		return &policeBucket{limit: constant(float64(s.n) / s.per), burst: float64(s.n), after: s.after}
	}}
	f := x.run(seed, ablation{})
	ok, bad := 0.0, 0.0
	for i := len(f.accepted) / 4; i < len(f.accepted); i++ {
		ok += float64(f.accepted[i])
		bad += float64(f.failed[i])
	}
	return 100 * ok / (0.75 * s.seconds * float64(s.n) / s.per), 100 * bad / max(1, ok+bad)
}

// A rate of a few requests a minute or an hour is found, too: over an hour, or three days, with goals after the first quarter.
func TestALowRateIsFound(t *testing.T) {
	type server struct {
		n            int
		per, seconds float64
	}
	servers := []server{{5, 60, 3600}, {2, 60, 3600}, {40, 60, 1800}, {10, 3600, 3 * 86400}}
	if testing.Short() {
		servers = servers[:3]
	} else {
		for seed := range uint64(2) {
			r := metertest.Seeded(t, seed)
			per := 60 * math.Pow(60, r.Float64())
			servers = append(servers, server{2 + r.IntN(10), per, 60 * per})
		}
	}
	for _, c := range servers {
		for _, kind := range []string{"fixed", "log", "bucket"} {
			for name, after := range map[string]retryAfterHeader{"bare": bare, "Retry-After": wholeSeconds} {
				t.Run(fmt.Sprintf("%d per %.0f s, %s, %s", c.n, c.per, kind, name), func(t *testing.T) {
					t.Parallel()
					used, refused := 0.0, 0.0
					const seeds = 2
					for seed := range uint64(seeds) {
						u, r := slow{c.n, c.per, c.seconds, kind, after}.play(seed)
						used, refused = used+u/seeds, refused+r/seeds
					}
					t.Logf("%.1f %% used, %.1f %% refused", used, refused)
					if used < 85 || refused > 5 {
						t.Error("want at least 85 and at most 5")
					}
				})
			}
		}
	}
}
