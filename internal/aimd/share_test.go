package aimd

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Clients that share a server with a bare 429 come to equal shares, also where each of them gets few requests per second. The figures
// are means of eight seeds.
func TestManyClientsShareASlowServer(t *testing.T) {
	type shared struct {
		clients int
		limit   float64
		jain    float64
	}
	all := []shared{{3, 5, 0.88}, {3, 6, 0.88}}
	if !testing.Short() {
		all = append(all, shared{15, 30, 0.85}, shared{15, 40, 0.85}, shared{30, 60, 0.82})
	}
	for _, c := range all {
		t.Run(fmt.Sprint(c.clients, " on ", c.limit), func(t *testing.T) {
			t.Parallel()
			s := scenario{clients: c.clients, callersAt: crowd(8), policy: bareBucket(c.limit, 20), limit: constant(c.limit)}
			m, worst := s.runs(8, ablation{})
			s.report(t, m, worst)
			if m.jain < c.jain || m.goodput < 99 {
				t.Errorf("want a Jain's index of at least %.2f, and 99 %% used", c.jain)
			}
		})
	}
}

// A client that is alone comes back from a rate of one per second. How soon depends on where in its cycle of growth and refusals the
// server begins to give more, so the limit comes back at 24 different times, and the figure is the mean of these runs.
func TestADropToAHundredthIsRecoveredFrom(t *testing.T) {
	const runs = 24
	used := 0.0
	for i := range runs {
		end := 180 + float64(i)
		limit := between(60, end, 100, 1)
		s := scenario{seconds: end + 120, policy: bucketPolicy(20, limit, bare), limit: limit}
		used += s.run(uint64(i)+1, ablation{}).figures().goodput / runs
	}
	t.Logf("%.1f %% used", used)
	assert.GreaterOrEqual(t, used, 75.0)
}
