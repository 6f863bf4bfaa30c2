package concurrency

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/aimd"
)

// A machine answers requests one after the other, so that as many are in flight as may be, or as are wanted. The latency of
// each depends on how many.
type machine struct {
	*controller
	now     instant
	line    []flying
	latency func(n int64) float64
}

type flying struct {
	ticket
	latency float64
}

func newMachine(cfg Config, latency func(n int64) float64) *machine {
	return &machine{controller: newController(0, cfg, noon), latency: latency}
}

// knee is the latency of a server that works on k requests at a time, each of which takes s seconds.
func knee(k, s float64) func(int64) float64 {
	return func(n int64) float64 { return s * max(1, float64(n)/k) }
}

func (m *machine) fill(want int64) {
	for m.inFlight < min(want, m.limit()) {
		t := m.send(m.now, 1)
		m.line = append(m.line, flying{t, m.latency(t.inFlight)})
	}
}

// round answers as many requests as are in flight, each of which another follows.
func (m *machine) round(want int64) {
	m.fill(want)
	for n := m.inFlight; n > 0 && len(m.line) > 0; n-- {
		f := m.line[0]
		m.line = m.line[1:]
		m.now += at(f.latency / float64(m.inFlight))
		m.succeeded(m.now, f.ticket)
		m.measure(m.now, f.seq, f.latency)
		m.free(1)
		m.fill(want)
	}
}

func (m *machine) rounds(k int, want int64) {
	for range k {
		m.round(want)
	}
}

// until plays rounds until f holds, and returns how many it were.
func (m *machine) until(f func() bool) (rounds int) {
	for !f() && rounds < 10_000 {
		m.round(all)
		rounds++
	}
	return rounds
}

const all = math.MaxInt64

func TestStartDoublesUntilTheLatencyRises(t *testing.T) {
	m := newMachine(Config{}, knee(20, 0.05))
	seen := map[float64]bool{}
	for m.mode == starting && m.now < at(20) {
		seen[m.n] = true
		m.round(all)
	}
	assert.Equal(t, map[float64]bool{4: true, 8: true, 16: true, 32: true}, seen)
	assert.InDelta(t, 1.25*20, m.n, 1.5, "1.25 times the knee")
}

func TestNumberSettlesWhereMoreRequestsWouldOnlyWait(t *testing.T) {
	for _, k := range []float64{3, 20, 200} {
		m := newMachine(Config{}, knee(k, 0.05))
		m.rounds(1000, all)
		assert.Greater(t, m.n, k, "knee %v", k)
		assert.Less(t, m.n, 1.7*k, "knee %v", k)
	}
}

func TestElasticityIsZeroBelowTheKneeAndOneBeyondIt(t *testing.T) {
	below := newMachine(Config{Initial: 8, Max: 8}, knee(50, 0.05))
	below.rounds(400, all)
	assert.InDelta(t, 0, below.e, 1e-6)

	beyond := newMachine(Config{Initial: 40, Min: 20}, knee(4, 0.05))
	beyond.rounds(100, all)
	assert.InDelta(t, 1, beyond.e, 1e-6)
}

// A slower service is no queue: latencies at both levels rise alike.
func TestSlowerServiceWithoutAQueueKeepsTheNumber(t *testing.T) {
	m := newMachine(Config{}, knee(20, 0.05))
	m.rounds(1000, all)
	was := m.n
	m.latency = func(int64) float64 { return 0.15 }
	m.rounds(500, 60)
	assert.GreaterOrEqual(t, m.n, was)
}

func TestNumberFollowsTheCapacity(t *testing.T) {
	m := newMachine(Config{}, knee(20, 0.05))
	m.rounds(1000, all)
	m.latency = knee(60, 0.05)
	m.rounds(1000, all)
	assert.Greater(t, m.n, 60.0)
	m.latency = knee(10, 0.05)
	m.rounds(1000, all)
	assert.Less(t, m.n, 17.0)
}

func TestUnusedNumberDoesNotGrow(t *testing.T) {
	for _, want := range []int64{1, 2, 3} {
		m := newMachine(Config{}, knee(100, 0.05))
		m.rounds(2000, want)
		assert.Equal(t, 4.0, m.n, "%d in flight", want)
	}
}

func TestUnusedNumberFallsToWhatIsUsedIfTheServerIsSlow(t *testing.T) {
	m := newMachine(Config{}, knee(100, 0.05))
	m.rounds(400, all)
	require.Greater(t, m.n, 50.0)
	m.latency = func(int64) float64 { return 0.2 }
	m.rounds(3000, 10)
	assert.InDelta(t, 13, m.n, 4)
}

func TestNumberStaysWithinItsBounds(t *testing.T) {
	m := newMachine(Config{Initial: 10, Min: 6, Max: 30}, knee(1000, 0.05))
	m.rounds(500, all)
	assert.Equal(t, int64(30), m.limit())
	m.latency = knee(1, 0.05)
	m.rounds(2000, all)
	assert.GreaterOrEqual(t, m.limit(), int64(6))
	assert.Equal(t, 6.0, m.cruise())
}

func TestVisitIsAThirdLower(t *testing.T) {
	m := newMachine(Config{Initial: 20, Min: 1, Max: 20}, knee(100, 0.05))
	lowest := int64(20)
	for range 1000 {
		m.round(all)
		lowest = min(lowest, m.limit())
	}
	assert.Equal(t, int64(13), lowest)
}

func TestVisitsAreRareWhileNothingChanges(t *testing.T) {
	m := newMachine(Config{}, knee(20, 0.05))
	m.rounds(1000, all)
	visited := 0
	for range 1000 {
		m.round(all)
		if m.mode == visiting {
			visited++
		}
	}
	assert.Less(t, visited, 80)
	assert.Greater(t, visited, 10)
}

func TestFromOneAHigherNumberIsVisited(t *testing.T) {
	m := newMachine(Config{Initial: 1}, knee(1, 0.05))
	m.mode = cruising
	most := int64(0)
	for range 500 {
		m.round(all)
		most = max(most, m.limit())
	}
	assert.LessOrEqual(t, most, int64(2))
	m.latency = knee(8, 0.05)
	m.rounds(2000, all)
	assert.Greater(t, m.n, 7.0)
}

func TestJumpOfTheLatencyCausesAVisitAsDeep(t *testing.T) {
	m := newMachine(Config{}, knee(40, 0.05))
	m.rounds(1000, all)
	m.until(func() bool { return m.mode == cruising && !m.pending && m.open.done > 0 })
	m.latency = knee(10, 0.05)
	n := m.cruise()
	assert.LessOrEqual(t, m.until(func() bool { return m.mode == visiting }), 5)
	assert.Less(t, float64(m.limit()), 0.35*n)
	m.rounds(200, all)
	assert.Less(t, m.n, 20.0)
}

// Requests that fill the slots that a visit freed are sent together, and wait for each other.
func TestRequestsAfterAVisitBelongToNoLevel(t *testing.T) {
	m := newMachine(Config{Initial: 20, Max: 20}, knee(100, 0.05))
	m.until(func() bool { return m.mode == visiting })
	for i := 0; m.mode == visiting && i < 1000; i++ {
		m.send(m.now, 0)
	}
	assert.Equal(t, m.seq+1+7, m.open.from, "13 of 20 were in flight")
}

func TestBestFallsQuicklyAndRisesSlowly(t *testing.T) {
	c := newController(0, Config{}, noon)
	c.remember(at(1), math.Log(0.1), 1)
	assert.InDelta(t, 0.1, math.Exp(c.best), 1e-9)
	c.remember(at(2), math.Log(0.05), 1)
	assert.InDelta(t, 0.1*math.Pow(0.5, 0.3), math.Exp(c.best), 1e-9)
	was := c.best
	c.e = 1
	c.remember(at(3), math.Log(0.5), 1)
	assert.InDelta(t, (math.Log(0.5)-was)/600, c.best-was, 1e-9)
	was = c.best
	c.e = 0
	c.remember(at(4), math.Log(0.5), 1)
	assert.InDelta(t, 3*(math.Log(0.5)-was)/600, c.best-was, 1e-9, "three times as fast where more requests are not slower")
}

// A latency that chance does not explain is believed at once. Half of the distance is believed where it is as likely as not.
func TestBestFallsByWhatChanceDoesNotExplain(t *testing.T) {
	for _, c := range []struct{ v, part float64 }{{0, 1}, {1e-4, 0.999}, {math.Pow(math.Ln2, 2) / luck, 0.5}, {10, 0.3}} {
		k := newController(0, Config{}, noon)
		k.remember(at(1), math.Log(0.1), c.v)
		k.remember(at(2), math.Log(0.05), c.v)
		assert.InDelta(t, math.Log(0.1)-c.part*math.Ln2, k.best, 1e-3, "variance %v", c.v)
	}
}

// Silence must not forget.
func TestLongTimeBetweenTwoVerdictsCountsAsTenSeconds(t *testing.T) {
	c := newController(0, Config{}, noon)
	c.remember(0, math.Log(0.1), 1)
	c.e = 1
	c.remember(at(3600), math.Log(0.2), 1)
	assert.InDelta(t, 0.1*math.Pow(2, 10.0/600), math.Exp(c.best), 1e-9)
}

func TestGoalFallsWhereTheServerIsSlowerThanItWas(t *testing.T) {
	c := newController(0, Config{}, noon)
	assert.InDelta(t, 0.9, c.goal(5, 0), 1e-9, "nothing is known")
	c.best = math.Log(0.1)
	for _, x := range []struct{ latency, goal float64 }{{0.05, 0.9}, {0.124, 0.9}, {0.177, 0.45}, {0.3, 0.05}, {9, 0.05}} {
		assert.InDelta(t, x.goal, c.goal(math.Log(x.latency), 0), 0.01, "%v s", x.latency)
	}
	assert.InDelta(t, 0.9, c.goal(math.Log(0.177), 0.4), 0.01, "noise is no evidence")
}

func TestChangesAreReported(t *testing.T) {
	m := newMachine(Config{}, knee(20, 0.05))
	var causes []string
	for m.now < at(5) {
		m.round(all)
		if r, ok := m.retuned(); ok {
			causes = append(causes, fmt.Sprintf("%v %.0f to %.0f", r.Cause, r.From, r.To))
		}
	}
	assert.Equal(t, []string{"growth 4 to 8", "growth 8 to 16", "growth 16 to 32"}, causes[:3])
	assert.Less(t, len(causes), 6)
	assert.Equal(t, aimd.CauseGrowth, aimd.CauseGrowth)
}

func TestModesHaveNames(t *testing.T) {
	m := newMachine(Config{}, knee(20, 0.05))
	assert.Equal(t, "start", m.modeName(0))
	seen := map[string]bool{}
	for m.now < at(100) {
		m.round(all)
		seen[m.modeName(m.now)] = true
	}
	assert.Equal(t, map[string]bool{"start": true, "steady": true, "visit": true}, seen)
	m.cut(m.now, 10, false)
	assert.Equal(t, "ceiling", m.modeName(m.now))
	m.pause(m.now, false)
	assert.Equal(t, "paused", m.modeName(m.now))
}

func TestConfigurationIsValidated(t *testing.T) {
	assert.NoError(t, Config{}.Validate())
	assert.NoError(t, Config{Initial: 5, Min: 5, Max: 5}.Validate())
	for _, c := range []Config{{Initial: -1}, {Min: -1}, {Max: -1}, {Min: 3, Max: 2}, {Initial: 1, Min: 2}, {Initial: 3, Max: 2}} {
		assert.Error(t, c.Validate(), "%+v", c)
	}
	assert.Equal(t, int64(4), Config{}.withDefaults().Initial)
	assert.Equal(t, int64(2), Config{Max: 2}.withDefaults().Initial)
	assert.Equal(t, int64(9), Config{Min: 9}.withDefaults().Initial)
}
