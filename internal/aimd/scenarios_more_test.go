package aimd

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/internal/meter/metertest"
)

func slidingPolicy(n int, per float64, counting, elastic bool, after retryAfterHeader) policyOf {
	return func(r *rand.Rand) policy {
		return &policeLog{n: n, per: per, counting: counting, elastic: elastic, after: after}
	}
}

type policyOf = func(*rand.Rand) policy

func twoSeconds(int64) time.Duration { return 2 * time.Second }

// standing is for how long a thing still stands at t if it stands still for so long each period, first at from.
func standing(from, period, long float64) func(float64) float64 {
	return func(t float64) float64 {
		if t < from {
			return 0
		}
		return max(0, long-math.Mod(t-from, period))
	}
}

// stepsTo is first, and each next value from its time on.
func stepsTo(first float64, timesAndValues ...float64) func(float64) float64 {
	return func(t float64) float64 {
		x := first
		for i := 0; i < len(timesAndValues) && t >= timesAndValues[i]; i += 2 {
			x = timesAndValues[i+1]
		}
		return x
	}
}

func alternating(a, b, period float64) func(float64) float64 {
	return func(t float64) float64 {
		if math.Mod(t, 2*period) < period {
			return a
		}
		return b
	}
}

var (
	nearby = []float64{0.00075}
	once   = math.Inf(1)
)

func bareBucket(n, burst float64) policyOf { return bucketPolicy(burst, constant(n), bare) }

// beyond are goals of the second controller: servers and clients that stand still, very short round trips, many clients,
// limits that change, servers that count refused requests.
var beyond = []goal{
	{scenario: scenario{name: "server stands still for 4 s", seconds: 60, callersAt: crowd(64), policy: bareBucket(50, 20), stands: standing(20, once, 4), limit: constant(50)}, goodput: 90},
	{scenario: scenario{name: "server stands still for 10 s", seconds: 60, callersAt: crowd(64), policy: bareBucket(50, 20), stands: standing(20, once, 10), limit: constant(50)}, goodput: 80},
	{scenario: scenario{name: "10 servers stand still for 4 s", seconds: 60, policy: poolPolicy(10, 100, constant(0.1)), service: nothing, refusal: Unavailable, stands: standing(30, once, 4)}, goodput: 60},
	{scenario: scenario{name: "10 servers stand still for 0.5 s every 9 s", policy: poolPolicy(10, 100, constant(0.1)), service: nothing, refusal: Unavailable, stands: standing(9, 9, 0.5)}, goodput: 80},
	{scenario: scenario{name: "client stands still for 2 s every 20 s", policy: bareHundred, clientStands: standing(20, 20, 2)}, goodput: 85},
	{scenario: scenario{name: "client stands still for 0.4 s every 7 s", policy: bareHundred, clientStands: standing(7, 7, 0.4)}, goodput: 92, refused: 1},
	{scenario: scenario{name: "server stands still for 0.5 s every 9 s", policy: bareHundred, stands: standing(9, 9, 0.5)}, goodput: 92, refused: 1},
	{scenario: scenario{name: "Retry-After: 100 per 10 s fixed, from twice", seconds: 60, callersAt: crowd(16), config: Config{Initial: 20}, policy: windowPolicy(100, 10, wholeSeconds), limit: constant(10)}, goodput: 90, refused: 2},
	{scenario: scenario{name: "1.5 ms away: 50/s sliding", rtt: nearby, seconds: 60, callersAt: crowd(16), policy: slidingPolicy(50, 1, false, false, bare), limit: constant(50)}, goodput: 88, refused: 1.2},
	{scenario: scenario{name: "1.5 ms away: 200 per 2 s fixed", rtt: nearby, seconds: 60, callersAt: crowd(16), policy: windowPolicy(200, 2, bare)}, goodput: 84, refused: 1.2},
	{scenario: scenario{name: "1.5 ms away: 120 per 1.5 s sliding", rtt: nearby, seconds: 60, callersAt: crowd(16), policy: slidingPolicy(120, 1.5, false, false, bare), limit: constant(80)}, goodput: 88, refused: 1.2},
	{scenario: scenario{name: "4 at a time, 40 ms each, from twice", seconds: 60, rtt: nearby, config: Config{Initial: 200}, callersAt: crowd(16), policy: func(*rand.Rand) policy { return &atATime{n: 4, each: 0.04, after: bare} }, service: nothing}, goodput: 80, refused: 2},
	{scenario: scenario{name: "tarpit: 50/s, all counted, refusals take 2 s", seconds: 60, rtt: nearby, callersAt: crowd(16), config: Config{Initial: 100}, policy: slidingPolicy(50, 1, true, false, bare), refusing: 2, limit: constant(50)}, goodput: 48, refused: 11},
	{scenario: scenario{name: "45/s, then 120/s", seconds: 180, policy: bucketPolicy(20, stepsTo(45, 90, 120), bare), limit: stepsTo(45, 90, 120), changes: []float64{90}}, goodput: 95, refused: 0.5},
	{scenario: scenario{name: "150/s, 3/s, 150/s", policy: bucketPolicy(20, stepsTo(150, 60, 3, 120, 150), bare), limit: stepsTo(150, 60, 3, 120, 150), changes: []float64{60, 120}}, goodput: 83, refused: 1.2},
	{scenario: scenario{name: "50/s, 10/s, 50/s, Retry-After", seconds: 100, policy: bucketPolicy(20, stepsTo(50, 30, 10, 60, 50), wholeSeconds), limit: stepsTo(50, 30, 10, 60, 50), changes: []float64{60}}, goodput: 67, back: []float64{60, 29}},
	{scenario: scenario{name: "200/s and 20/s in turn, 10 ms away", rtt: []float64{0.005}, policy: bucketPolicy(20, alternating(200, 20, 20), bare), limit: alternating(200, 20, 20)}, goodput: 60, refused: 1.2},
	{scenario: scenario{name: "20 clients on 40/s", clients: 20, stagger: 1, callersAt: crowd(8), policy: bareBucket(40, 20), limit: constant(40)}, goodput: 95, refused: 10, jain: 0.72},
	{scenario: scenario{name: "25 clients on 150/s", clients: 25, stagger: 1, callersAt: crowd(8), policy: bareBucket(150, 20), limit: constant(150)}, goodput: 95, refused: 5, jain: 0.85},
	{scenario: scenario{name: "two clients, 60 s", seconds: 60, clients: 2, callersAt: crowd(16), policy: bareHundred}, goodput: 92, refused: 2, jain: 0.98},
	{scenario: scenario{name: "five clients, 60 s", seconds: 60, clients: 5, callersAt: crowd(16), policy: bareHundred}, goodput: 92, refused: 5, jain: 0.90},
	{scenario: scenario{name: "two clients, Retry-After, the second 20 s later", clients: 2, stagger: 20, policy: headHundred}, goodput: 84, jain: 0.92},
	{scenario: scenario{name: "answers take 3 s, 8/s", policy: bareBucket(8, 10), service: logNormal(3, 0.1), limit: constant(8)}, goodput: 95, refused: 3},
	{scenario: scenario{name: "80/s without burst", policy: bareBucket(80, 1), limit: constant(80)}, goodput: 82, refused: 0.5},
	{scenario: scenario{name: "0.5/s without burst", seconds: 900, policy: bareBucket(0.5, 1), limit: constant(0.5)}, goodput: 85, refused: 14},
	{scenario: scenario{name: "0.2/s, burst 2", seconds: 1800, policy: bareBucket(0.2, 2), limit: constant(0.2)}, goodput: 95, refused: 17},
	{scenario: scenario{name: "two clients share 6 servers at 200 ms", clients: 2, policy: poolPolicy(6, 50, constant(0.2)), service: nothing, refusal: Unavailable, limit: constant(30)}, goodput: 85, refused: 1, p99: 2000},
	{scenario: scenario{name: "10 servers lose nine tenths, and find them", seconds: 260, policy: poolPolicy(10, 100, between(100, 160, 0.1, 1)), service: nothing, refusal: Unavailable, limit: between(100, 160, 100, 10), changes: []float64{160}}, goodput: 78, back: []float64{10, 24}},
	{scenario: scenario{name: "all counted: 50 per 1 s, from twice", rtt: nearby, seconds: 60, config: Config{Initial: 100}, callersAt: crowd(16), policy: slidingPolicy(50, 1, true, false, bare), limit: constant(50)}, goodput: 90, refused: 1},
	{scenario: scenario{name: "all counted: 500 per 10 s, at most 60/s", rtt: nearby, seconds: 60, config: Config{Initial: 60, Max: 60}, callersAt: crowd(16), policy: slidingPolicy(500, 10, true, false, bare), limit: constant(50)}, goodput: 60},
	{scenario: scenario{name: "all counted: 500 per 10 s, from twice", rtt: nearby, seconds: 60, config: Config{Initial: 100}, callersAt: crowd(16), policy: slidingPolicy(500, 10, true, false, bare), limit: constant(50)}, goodput: 65},
	{scenario: scenario{name: "every refusal prolongs: 100 per 10 s, from twice", rtt: nearby, seconds: 60, config: Config{Initial: 20}, callersAt: crowd(16), policy: slidingPolicy(100, 10, false, true, bare), limit: constant(10)}, goodput: 15},
	{scenario: scenario{name: "every refusal prolongs: 50 per 1 s, from twice", rtt: nearby, seconds: 60, config: Config{Initial: 100}, callersAt: crowd(16), policy: slidingPolicy(50, 1, false, true, bare), limit: constant(50)}, goodput: 40},
	{scenario: scenario{name: "nginx: 50/s no burst, from twice", rtt: nearby, seconds: 20, config: Config{Initial: 100}, callersAt: crowd(16), policy: nginxPolicy(50, 0, true), jitter: 0.0005, refusal: Unavailable, limit: constant(50)}, goodput: 75, refused: 3},
	{scenario: scenario{name: "nginx: 50/s burst 20 nodelay, from twice", rtt: nearby, seconds: 20, config: Config{Initial: 100}, callersAt: crowd(16), policy: nginxPolicy(50, 20, true), refusal: Unavailable, limit: constant(50)}, goodput: 95, refused: 1},
	{scenario: scenario{name: "nginx: 50/s burst 50 delay, from twice", rtt: nearby, seconds: 20, config: Config{Initial: 100}, callersAt: crowd(16), policy: nginxPolicy(50, 50, false), refusal: Unavailable, limit: constant(50)}, goodput: 95, refused: 1},
	{scenario: scenario{name: "20/s, burst 20", policy: bareBucket(20, 20), limit: constant(20)}, goodput: 98, refused: 1},
	{scenario: scenario{name: "50/s, burst 20", policy: bareBucket(50, 20), limit: constant(50)}, goodput: 98, refused: 0.45},
	{scenario: scenario{name: "20/s, burst 20", policy: bareBucket(20, 20), limit: constant(20)}, goodput: 98, refused: 1},
	{scenario: scenario{name: "50/s, burst 20", policy: bareBucket(50, 20), limit: constant(50)}, goodput: 98, refused: 0.45},
	{scenario: scenario{name: "64 callers, down 30 s, fast 503", callersAt: crowd(64), seconds: 120, policy: bareHundred, outage: &outage{from: 60, to: 90}, changes: []float64{90}}, inOutage: 40, goodput: 90, back: []float64{4, 3}},
	{scenario: scenario{name: "64 callers, down 30 s, hanging", callersAt: crowd(64), seconds: 120, timeout: 5, policy: bareHundred, outage: &outage{from: 60, to: 90, hangs: true}, changes: []float64{90}}, inOutage: 40, goodput: 88, back: []float64{4, 3}},
}

// retryAfter are servers that say for how long to stay away, whatever the round trip: from twice the limit and from the default start.
func retryAfter() (all []goal) {
	for _, server := range []struct {
		name   string
		limit  float64
		policy policyOf
	}{
		{"50/s sliding", 50, slidingPolicy(50, 1, false, false, wholeSeconds)},
		{"50/s fixed", 50, windowPolicy(50, 1, wholeSeconds)},
		{"bucket 50/s, burst 20", 50, bucketPolicy(20, constant(50), wholeSeconds)},
		{"bucket 50/s, burst 50", 50, bucketPolicy(50, constant(50), wholeSeconds)},
		{"2 s, bucket 10/s, burst 10", 10, bucketPolicy(10, constant(10), twoSeconds)},
	} {
		for _, way := range []struct {
			name string
			rtt  []float64
		}{{"1.5 ms", nearby}, {"40 ms", []float64{0.02}}} {
			s := scenario{name: "Retry-After " + server.name + ", " + way.name, seconds: 20, callersAt: crowd(16), rtt: way.rtt, policy: server.policy, limit: constant(server.limit)}
			twice, long := s, s
			twice.name, twice.config.Initial = s.name+", from twice", 2*server.limit
			long.name, long.seconds = s.name+", 60 s", 60
			goodput := 93.0
			if way.rtt[0] > 0.01 {
				goodput = 85 // the first responses report less
			}
			all = append(all, goal{scenario: twice, goodput: goodput, refused: 1}, goal{scenario: s, goodput: 70, refused: 1.2}, goal{scenario: long, goodput: 80, refused: 0.75})
		}
	}
	return all
}

// Servers that work on a number of requests at a time, and ask for a second or two when they are full (Kubernetes' filter, chi's Throttle,
// Traffic Server, limit_conn): with a rate alone, and with the part of it that is beside a number in flight.
func TestAServerIsUsedThatWorksOnANumberAtATime(t *testing.T) {
	draws := 8
	if testing.Short() {
		draws = 4
	}
	for i := range draws {
		for _, beside := range []bool{false, true} {
			t.Run(fmt.Sprint(i, " ", beside), func(t *testing.T) {
				t.Parallel()
				r := metertest.Seeded(t, uint64(i))
				n, each := 2+r.IntN(50), 0.02*math.Pow(20, r.Float64())
				s := scenario{seconds: 600, callersAt: crowd(int(float64(n) * (1.3 + 3*r.Float64()))), rtt: []float64{0.0005 * math.Pow(20, r.Float64())},
					jitter: 1e-9, policy: func(*rand.Rand) policy { return &atATime{n: n, each: each, after: wholeSeconds} }, service: nothing, limit: constant(float64(n) / each),
					beside: beside, name: fmt.Sprintf("%d at a time, %.3f s each", n, each)}
				m, worst := s.runs(1, ablation{})
				s.report(t, m, worst)
				if m.goodput < 85 || m.refused > 1 {
					t.Errorf("%.1f %% used, %.2f %% refused", m.goodput, m.refused)
				}
			})
		}
	}
}

// A rise is a limit that grows: how long it takes until nine tenths of the new one are used, over phases of the cycle.
type rise struct {
	from, to    float64
	mean, worst float64 // seconds
	refused     float64 // percent, over all
}

var rises = []rise{
	{from: 40, to: 100, mean: 8.5, worst: 12, refused: 0.6},
	{from: 50, to: 150, mean: 8.5, worst: 12, refused: 0.6},
	{from: 20, to: 200, mean: 12, worst: 16, refused: 0.6},
	{from: 100, to: 1000, mean: 12, worst: 16, refused: 0.6},
	{from: 10, to: 50, mean: 12.5, worst: 16, refused: 1.7},
	{from: 20, to: 60, mean: 8.5, worst: 12, refused: 1.1},
	{from: 100, to: 200, mean: 8.5, worst: 12, refused: 0.6},
}

// play returns the mean and the longest time, and the share that was refused.
func (r rise) play(phases int, off ablation) (mean, worst, refused float64) {
	for i := range phases {
		when := 60 + float64(i)*11.3/float64(phases)
		limit := stepsTo(r.from, when, r.to)
		s := scenario{seconds: when + 40, policy: bucketPolicy(20, limit, bare), limit: limit, changes: []float64{when}, share: 0.9, callersAt: crowd(200)}
		f := s.run(uint64(i)+1, off).figures()
		mean += f.back[1] / float64(phases)
		refused += f.refused / float64(phases)
		worst = max(worst, f.back[1])
	}
	return mean, worst, refused
}

func TestControllerFindsARaisedLimit(t *testing.T) {
	for _, r := range rises {
		mean, worst, refused := r.play(8, ablation{})
		t.Logf("%4.0f to %4.0f/s: %5.1f s, at worst %5.1f, %.2f %% refused", r.from, r.to, mean, worst, refused)
		if mean > r.mean || worst > r.worst || refused > r.refused {
			t.Errorf("want %v", r)
		}
	}
}
