package aimd

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// A goal is what the mean of five seeds must reach; 0: not looked at.
type goal struct {
	scenario
	goodput, refused float64 // percent of the oracle's at least; percent of what was sent at most
	p50, p99         float64 // ms
	jain             float64
	inOutage         float64
	back             []float64 // seconds; the first is from the start
}

func bucketPolicy(burst float64, limit func(float64) float64, after retryAfterHeader) func(*rand.Rand) policy {
	return func(*rand.Rand) policy { return &policeBucket{limit: limit, burst: burst, after: after} }
}

func windowPolicy(n int, per float64, after retryAfterHeader) func(*rand.Rand) policy {
	return func(*rand.Rand) policy { return &policeWindow{n: n, per: per, after: after} }
}

func logPolicy(n int, per float64, counting, elastic bool) func(*rand.Rand) policy {
	return func(*rand.Rand) policy {
		return &policeLog{n: n, per: per, counting: counting, elastic: elastic, after: bare}
	}
}

func nginxPolicy(limit, burst float64, nodelay bool) func(*rand.Rand) policy {
	return func(*rand.Rand) policy { return &nginx{limit: limit, burst: burst, nodelay: nodelay} }
}

func poolPolicy(workers, queue int, service func(float64) float64) func(*rand.Rand) policy {
	return func(r *rand.Rand) policy { return &pool{workers: workers, queue: queue, service: service, rng: r} }
}

func nothing(*rand.Rand, float64) float64 { return 0 }

// between is what is, but other from one time to another.
func between(from, to, is, other float64) func(float64) float64 {
	return func(t float64) float64 {
		if t >= from && t < to {
			return other
		}
		return is
	}
}

func sine(mean, swing, period float64) func(float64) float64 {
	return func(t float64) float64 { return mean * (1 + swing*math.Sin(2*math.Pi*t/period)) }
}

// shifts are full load for 40 s, a tenth for 30 s, and none for 10 s.
func shifts(full, tenth, none float64) func(float64) float64 {
	return func(t float64) float64 {
		switch t = math.Mod(t, 80); {
		case t < 40:
			return full
		case t < 70:
			return tenth
		}
		return none
	}
}

func heavyTail(r *rand.Rand, _ float64) float64 {
	if r.Float64() < 0.01 {
		return 0.5 + 1.5*r.Float64()
	}
	return 0.010 * math.Exp(1.2*r.NormFloat64())
}

var (
	hundred      = constant(100)
	dropAndBack  = between(60, 180, 100, 10)
	bareHundred  = bucketPolicy(20, hundred, bare)
	headHundred  = bucketPolicy(20, hundred, wholeSeconds)
	shiftCallers = func(t float64) int { return int(shifts(50, 0, 0)(t)) }
)

// goals are the scenarios and figures that the controller was made for.
var goals = []goal{
	{scenario: scenario{name: "token bucket, bare 429", policy: bareHundred}, goodput: 98.5, refused: 0.2},
	{scenario: scenario{name: "token bucket, Retry-After", policy: headHundred}, goodput: 93.5, refused: 0.1},
	{scenario: scenario{name: "600 per minute, Retry-After", policy: windowPolicy(600, 60, wholeSeconds), limit: constant(10)}, goodput: 98, refused: 1},
	{scenario: scenario{name: "600 per minute, bare 429", policy: windowPolicy(600, 60, bare), limit: constant(10)}, goodput: 97, refused: 4},
	{scenario: scenario{name: "nginx, 503 above burst 20", policy: nginxPolicy(100, 20, true), refusal: Unavailable}, goodput: 98.5, refused: 0.7},
	{scenario: scenario{name: "nginx, delays up to 50", policy: nginxPolicy(100, 50, false), refusal: Unavailable}, goodput: 95.5, refused: 0.05, p50: 60, p99: 90},
	{scenario: scenario{name: "10 servers at 100 ms, queue of 100", policy: poolPolicy(10, 100, constant(0.1)), service: nothing, refusal: Unavailable}, goodput: 95, refused: 0.05, p50: 170, p99: 320},
	{scenario: scenario{name: "limit / 10 at 60 s, back at 180 s", policy: bucketPolicy(20, dropAndBack, bare), limit: dropAndBack, changes: []float64{60, 180}}, goodput: 92.5, refused: 0.6, back: []float64{4, 2, 13.5}},
	{scenario: scenario{name: "limit drifts by half", seconds: 480, policy: bucketPolicy(20, sine(100, 0.5, 240), bare), limit: sine(100, 0.5, 240)}, goodput: 96, refused: 0.35},
	{scenario: scenario{name: "load comes and goes", policy: bareHundred, callersAt: shiftCallers, poisson: shifts(0, 10, 0), limit: shifts(100, 10, 0)}, goodput: 98, refused: 0.25},
	{scenario: scenario{name: "ten clients", clients: 10, stagger: 5, policy: bareHundred}, goodput: 99, refused: 2.5, jain: 0.88},
	{scenario: scenario{name: "heavy tail, 1 % random 500", policy: bareHundred, service: heavyTail, faults: 0.01, fault: Error, limit: constant(99)}, goodput: 98.5, refused: 1.3},
	{scenario: scenario{name: "outage 60 to 90 s, fast 503", policy: bareHundred, outage: &outage{from: 60, to: 90}, changes: []float64{90}}, goodput: 95.5, refused: 0.4, inOutage: 25, back: []float64{4, 3}},
	{scenario: scenario{name: "outage 60 to 90 s, hanging", policy: bareHundred, timeout: 2, outage: &outage{from: 60, to: 90, hangs: true}, changes: []float64{90}}, goodput: 96, refused: 0.4, back: []float64{4, 3}},
	{scenario: scenario{name: "2/s, burst 5", seconds: 600, policy: bucketPolicy(5, constant(2), bare), limit: constant(2)}, goodput: 99, refused: 5},
	{scenario: scenario{name: "1,000/s, burst 100", seconds: 180, policy: bucketPolicy(100, constant(1000), bare), callersAt: crowd(250), limit: constant(1000)}, goodput: 94, refused: 0.1},
	{scenario: scenario{name: "HAProxy, 100 per 10 s, all counted, start at twice", seconds: 60, config: Config{Initial: 20}, policy: logPolicy(100, 10, true, false), limit: constant(10)}, goodput: 60},
	{scenario: scenario{name: "HAProxy, 1,000 per 10 s, all counted, start at twice", seconds: 60, config: Config{Initial: 200}, policy: logPolicy(1000, 10, true, false)}, goodput: 60},
	{scenario: scenario{name: "100 per 10 s, accepted counted, start at twice", seconds: 60, config: Config{Initial: 20}, policy: logPolicy(100, 10, false, false), limit: constant(10)}, goodput: 85, refused: 6.2},
	{scenario: scenario{name: "1,000 per 10 s, accepted counted, start at twice", seconds: 60, config: Config{Initial: 200}, policy: logPolicy(1000, 10, false, false)}, goodput: 85, refused: 5},
	{scenario: scenario{name: "nginx nodelay without burst, 10/s, 429", policy: nginxPolicy(10, 0, true), limit: constant(10)}, goodput: 85, refused: 5},
	{scenario: scenario{name: "nginx nodelay without burst, 10/s, 503", policy: nginxPolicy(10, 0, true), limit: constant(10), refusal: Unavailable}, goodput: 85, refused: 5},
}

// half is each server at half load.
func half() []goal {
	var all []goal
	for _, g := range []goal{goals[0], goals[1], goals[4], goals[5], goals[6], goals[11]} {
		s := g.scenario
		s.name = "half load: " + s.name
		s.callersAt, s.poisson = nil, constant(50)
		h := goal{scenario: s, goodput: 98, refused: 0.1}
		if s.faults > 0 {
			h.goodput, h.refused = 98*0.99, 1.2
		}
		all = append(all, h)
	}
	return all
}

// varied are scenarios that were written down before the controller was. It was not tuned on their figures, but where
// one of them showed a flaw, that was mended, so they are not unseen any more.
var varied = []scenario{
	{name: "20/s without burst, round trip 400 ms", policy: bucketPolicy(1, constant(20), bare), rtt: []float64{0.2}, limit: constant(20)},
	{name: "100/s, round trip 1 s", policy: bareHundred, rtt: []float64{0.5}, callersAt: crowd(250)},
	{name: "5/s, burst 20", policy: bucketPolicy(20, constant(5), bare), limit: constant(5)},
	{name: "0.2/s, burst 2, 1,800 s", seconds: 1800, policy: bucketPolicy(2, constant(0.2), bare), limit: constant(0.2)},
	{name: "3,000/s, burst 300, 60 s", seconds: 60, policy: bucketPolicy(300, constant(3000), bare), callersAt: crowd(500), limit: constant(3000)},
	{name: "300 per 10 s, bare 429", policy: windowPolicy(300, 10, bare), limit: constant(30)},
	{name: "300 per 10 s, Retry-After", policy: windowPolicy(300, 10, wholeSeconds), limit: constant(30)},
	{name: "3,600 per hour, Retry-After, two hours", seconds: 7200, policy: windowPolicy(3600, 3600, wholeSeconds), limit: constant(1)},
	{name: "50/s, 200/s at 100 s, 30/s at 200 s", policy: bucketPolicy(20, steps, bare), limit: steps, changes: []float64{100, 200}},
	{name: "3 % random 503 at saturation", policy: bareHundred, faults: 0.03, fault: Unavailable, limit: constant(97)},
	{name: "15 % random 503 at saturation", policy: bareHundred, faults: 0.15, fault: Unavailable, limit: constant(85)},
	{name: "15 % random 503 at half load", policy: bareHundred, faults: 0.15, fault: Unavailable, poisson: constant(50)},
	{name: "15 % random 500 at saturation", policy: bareHundred, faults: 0.15, fault: Error, limit: constant(85)},
	{name: "nginx, 503 above burst 5, 20/s, round trip 200 ms", policy: nginxPolicy(20, 5, true), rtt: []float64{0.1}, refusal: Unavailable, limit: constant(20)},
	{name: "4 servers at 50 ms, queue of 200", policy: poolPolicy(4, 200, constant(0.05)), service: nothing, refusal: Unavailable, limit: constant(80)},
	{name: "10 servers lose nine tenths from 100 to 160 s", policy: poolPolicy(10, 100, between(100, 160, 0.1, 1)), service: nothing, refusal: Unavailable, limit: between(100, 160, 100, 10), changes: []float64{160}},
	{name: "service four times slower from 100 s", policy: bareHundred, service: func(r *rand.Rand, t float64) float64 {
		return between(0, 100, 0.2, 0.05)(t) * math.Exp(0.3*r.NormFloat64())
	}},
	{name: "half the answers take 800 ms", policy: bareHundred, callersAt: crowd(250), service: func(r *rand.Rand, _ float64) float64 {
		return []float64{0.01, 0.8}[r.IntN(2)] * math.Exp(0.3*r.NormFloat64())
	}},
	{name: "500 per 30 s sliding, accepted counted", policy: logPolicy(500, 30, false, false), limit: constant(500. / 30)},
	{name: "100/s, Retry-After always 5 s", policy: bucketPolicy(20, hundred, fiveSeconds)},
	{name: "outage 60 to 260 s, fast 503, 600 s", seconds: 600, policy: bareHundred, outage: &outage{from: 60, to: 260}, changes: []float64{260}},
	{name: "outage 60 to 90 s, hanging, timeout 10 s", policy: bareHundred, timeout: 10, outage: &outage{from: 60, to: 90, hangs: true}, changes: []float64{90}},
	{name: "three clients 40, 200, 600 ms away share 60/s", clients: 3, rtt: []float64{0.02, 0.1, 0.3}, policy: bucketPolicy(20, constant(60), bare), limit: constant(60)},
	{name: "four clients share 10 servers at 100 ms", clients: 4, stagger: 10, policy: poolPolicy(10, 100, constant(0.1)), service: nothing, refusal: Unavailable},
	{name: "load of 90/s at random, limit 100/s", policy: bareHundred, poisson: constant(90)},
	{name: "50 per 20 s, elastic, 600 s", seconds: 600, policy: logPolicy(50, 20, false, true), limit: constant(2.5)},
	{name: "HAProxy, 50 per 1 s, all counted, start at twice", seconds: 60, config: Config{Initial: 100},
		policy: logPolicy(50, 1, true, false), limit: constant(50), service: nothing},
	{name: "60 per 60 s, all counted, 600 s", seconds: 600, policy: logPolicy(60, 60, true, false), limit: constant(1)},
	{name: "nginx nodelay without burst, 50/s, jitter 15 ms", policy: nginxPolicy(50, 0, true), jitter: 0.015, limit: constant(50)},
	{name: "a server that takes all, 40 callers at 50 ms", policy: func(*rand.Rand) policy { return anything{} }, callersAt: crowd(40), seconds: 60, limit: constant(780)},
}

// unseen are scenarios that were written down when the controller was done, and first run then.
var unseen = []scenario{
	{name: "unseen: 40/s, burst 10, round trip 200 ms", policy: bucketPolicy(10, constant(40), bare), rtt: []float64{0.1}, limit: constant(40)},
	{name: "unseen: 7/s without burst, load of 6/s at random", policy: bucketPolicy(1, constant(7), bare), poisson: constant(6)},
	{name: "unseen: 250/s, burst 5", policy: bucketPolicy(5, constant(250), bare), callersAt: crowd(100), limit: constant(250)},
	{name: "unseen: 1,200 per two minutes, bare 429, 600 s", seconds: 600, policy: windowPolicy(1200, 120, bare), limit: constant(10)},
	{name: "unseen: 50 per 5 s, Retry-After", policy: windowPolicy(50, 5, wholeSeconds), limit: constant(10)},
	{name: "unseen: 30/s, 60/s from 150 s", policy: bucketPolicy(20, between(150, 1e9, 30, 60), bare), limit: between(150, 1e9, 30, 60), changes: []float64{150}},
	{name: "unseen: 200 per 20 s, all counted, 120 s", seconds: 120, policy: logPolicy(200, 20, true, false), limit: constant(10)},
	{name: "unseen: two clients share 6 servers at 200 ms", clients: 2, policy: poolPolicy(6, 50, constant(0.2)), service: nothing, refusal: Unavailable, limit: constant(30)},
	{name: "unseen: 50/s, heavy tail, 8 % random 500", policy: bucketPolicy(20, constant(50), bare), service: heavyTail, faults: 0.08, fault: Error, limit: constant(46)},
	{name: "unseen: 30/s, outage 100 to 110 s, fast 503", policy: bucketPolicy(20, constant(30), bare), outage: &outage{from: 100, to: 110}, limit: constant(30), changes: []float64{110}},
	{name: "unseen: hangs for 5 s", policy: bareHundred, timeout: 3, outage: &outage{from: 100, to: 105, hangs: true}, changes: []float64{105}},
	{name: "unseen: round trip 200 ms, jitter 50 ms", policy: bareHundred, rtt: []float64{0.1}, jitter: 0.05},
	{name: "unseen: five clients share 600 per minute, Retry-After", clients: 5, policy: windowPolicy(600, 60, wholeSeconds), limit: constant(10)},
	{name: "unseen: nginx, 503 above burst 50, 300/s", policy: nginxPolicy(300, 50, true), refusal: Unavailable, callersAt: crowd(100), limit: constant(300)},
	{name: "unseen: 100 per 10 s, elastic", policy: logPolicy(100, 10, false, true), limit: constant(10)},
	{name: "unseen: 0.5/s without burst, 900 s", seconds: 900, policy: bucketPolicy(1, constant(0.5), bare), limit: constant(0.5)},
	{name: "unseen: limit drifts by 0.8 in 60 s", policy: bucketPolicy(20, sine(100, 0.8, 60), bare), limit: sine(100, 0.8, 60)},
}

func steps(t float64) float64 {
	switch {
	case t < 100:
		return 50
	case t < 200:
		return 200
	}
	return 30
}

// seeds is how many a figure is the mean of.
func seeds() int {
	if testing.Short() {
		return 2
	}
	return 3
}

func TestControllerReachesItsFigures(t *testing.T) {
	for _, g := range slices.Concat(goals, half(), beyond, retryAfter()) {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			m, worst := g.runs(seeds(), ablation{})
			g.report(t, m, worst)
			for _, missed := range g.missed(m) {
				t.Error(missed)
			}
		})
	}
}

func (g goal) missed(m figures) (all []string) {
	check := func(ok bool, format string, args ...any) {
		if !ok {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	check(m.goodput >= g.goodput, "goodput %.2f %%, want at least %.1f", m.goodput, g.goodput)
	check(g.refused == 0 || m.refused <= g.refused, "refused %.3f %%, want at most %.2f", m.refused, g.refused)
	check(g.p50 == 0 || m.p50 <= g.p50, "p50 %.1f ms, want at most %.0f", m.p50, g.p50)
	check(g.p99 == 0 || m.p99 <= g.p99, "p99 %.0f ms, want at most %.0f", m.p99, g.p99)
	check(m.jain >= g.jain, "Jain's index %.3f, want at least %.2f", m.jain, g.jain)
	check(g.inOutage == 0 || m.inOutage <= g.inOutage, "%.0f sent in the outage, want at most %.0f", m.inOutage, g.inOutage)
	check(m.medianWait == 0, "median wait %.0f ms, want none", m.medianWait)
	for i, b := range g.back {
		check(m.back[i] <= b, "limit found after %.2f s, want at most %.1f", m.back[i], b)
	}
	return all
}

// BenchmarkControllerOnUntunedScenarios reports them as they come out: there is nothing to assert.
func BenchmarkControllerOnUntunedScenarios(b *testing.B) {
	for _, s := range append(varied, unseen...) {
		b.Run(s.name, func(b *testing.B) {
			for b.Loop() {
				m, worst := s.runs(seeds(), ablation{})
				s.report(b, m, worst)
			}
		})
	}
}
