package concurrency

import (
	"math"
	"math/rand/v2"

	"github.com/httpthrottle/throttle/internal/aimd"
)

// A fixed limiter allows n.
type fixed struct{ n int64 }

func (f fixed) allow(instant) (int64, instant)                           { return f.n, 0 }
func (f fixed) sent(instant) int64                                       { return 0 }
func (f fixed) answered(_ instant, id int64, _ instant, _ outcome) int64 { return 0 }
func (f fixed) ended(instant, int64)                                     {}

// A learned limiter is a meter.
type learned struct {
	*Meter
	refusal aimd.Outcome
}

func newLearned() limiter { return learned{New(0, Config{}, false), aimd.Unavailable} }

// meaning returns what an outcome is for controllers.
func (l learned) meaning(o outcome) aimd.Outcome {
	return map[outcome]aimd.Outcome{good: aimd.OK, refusal: l.refusal, unknown: aimd.Ignore}[o]
}

func (l learned) allow(now instant) (int64, instant) {
	return l.control.limit(), l.control.refusals.until
}

func (l learned) sent(now instant) int64 { return l.Take(now, now, 1, false) }

func (l learned) answered(now instant, charged int64, sent instant, o outcome) int64 {
	return l.Answered(now, charged, sent, 1, l.meaning(o), 0)
}

func (l learned) ended(now instant, charged int64) { l.GiveBack(charged, now, 1) }

func scenes() []scene {
	mix := func(r *rand.Rand, _ float64) float64 {
		if r.Float64() < 0.1 {
			return 0.5
		}
		return 0.005
	}
	gc := func(t float64) float64 {
		if x := math.Mod(t, 5); t > 1 && x < 0.3 {
			return 0.3 - x
		}
		return 0
	}
	capacity := 16 / 0.050
	return []scene{
		{name: "exponential service", best: 22, service: exponential(0.050)},
		{name: "log-normal", best: 21},
		{name: "500 callers", best: 21, callers: always(500)},
		{name: "4 workers, constant 40 ms", best: 5, workers: always(4), service: constant(0.040), callers: always(16)},
		{name: "1 worker 20 ms away", best: 2, workers: always(1), rtt: 0.020},
		{name: "200 workers of 200 ms", best: 210, workers: always(200), service: logNormal(0.200, 0.5), callers: always(500)},
		{name: "503 over a queue of 16", best: 22, queue: 16, service: exponential(0.050)},
		{name: "workers x 0.3, 45-85 s", best: 21, workers: between(45, 85, 16, 5)},
		{name: "workers x 3 at 45 s", best: 60, workers: between(45, 1e9, 16, 48), callers: always(128)},
		{name: "downstream 3x slower, no queue", best: 48, workers: always(0), service: during(45, 85, 3, logNormal(0.050, 0.5)), callers: always(48)},
		{name: "CPU 3x slower for 40 s", best: 21, service: during(45, 85, 3, logNormal(0.050, 0.5))},
		{name: "GC of 300 ms each 5 s", best: 22, stands: gc},
		{name: "90 % 5 ms, 10 % 500 ms", best: 22, service: mix},
		{name: "heavy tail (sigma 1.5)", best: 22, service: logNormal(0.050, 1.5)},
		{name: "four clients, 8 s apart", goal: figures{jain: 0.94}, best: 6, clients: 4, stagger: 8, from: 30, callers: always(16)},
		{name: "four busy clients, 8 s apart", goal: figures{p99: 4}, best: 6, clients: 4, stagger: 8, from: 30},
		{name: "open loop at .5", best: 10, load: always(.5 * capacity), patience: 1},
		{name: "open loop at .9", best: 18, load: always(.9 * capacity), patience: 1},
		{name: "open loop at 1.5", best: 21, load: always(1.5 * capacity), patience: 1},
		{name: "open loop at 3", best: 22, load: always(3 * capacity), patience: 1},
		{name: "a rate of 200/s binds", best: 11, rate: 200},
		{name: "bursts of 300 each 5 s", best: 15, bursts: [2]float64{300, 5}, patience: 1.2},
		{name: "3/s, bursts of 200 each 30 s", best: 13, bursts: [2]float64{200, 30}, load: always(3.), patience: 1},
		{name: "others take half, 45-85 s", best: 21, others: between(45, 85, 0, .5*capacity)},
		{name: "callers cancel after 1 s", best: 21, callers: always(250), patience: 1, cancels: true},
		{name: "limit_conn 4", goal: figures{refused: 1}, best: 4, connect: 4, workers: always(0), service: constant(0.030)},
		{name: "limit_conn 40", goal: figures{refused: 1}, best: 40, connect: 40, workers: always(0)},
		{name: "1 % 503 at random", best: 21, faults: 0.01},
		{name: "contention above the knee", goal: figures{goodput: 93}, best: 19, workers: always(0), crowd: func(k int) float64 { return math.Pow(max(1, float64(k)/16), 1.3) }},
		{name: "streams", best: 21, headers: 0.1, from: 1},
	}
}

// unseen are scenes for which nothing was tuned.
func unseen() []scene {
	return []scene{
		{name: "limit_conn 10, log-normal", goal: figures{refused: 1}, best: 10, connect: 10, workers: always(0), callers: always(20)},
		{name: ".3 % 503", best: 21, faults: 0.003},
		{name: "5 % 503", goal: figures{refused: 6}, best: 22, faults: 0.05},
		{name: "20 % 503", goal: figures{refused: 21}, best: 22, faults: 0.20},
		{name: "1000 workers", best: 1100, workers: always(1000), callers: always(2000), length: 60},
		{name: "8 slow workers", best: 8, workers: always(8), service: logNormal(3, 0.5), callers: always(40), length: 1200, from: 60},
		{name: "2 busy clients", best: 11, clients: 2, stagger: 8, from: 30},
		{name: "shared processor", best: 22, workers: always(0), crowd: func(k int) float64 { return max(1, float64(k)/16) }},
		{name: "503 over a queue of 2", best: 18, queue: 2},
		{name: "capacity swings", best: 33, workers: func(t float64) int { return 16 + int(12*math.Sin(t/5)) }},
		{name: "load swings", best: 24, load: func(t float64) float64 { return 320 * (1 + .8*math.Sin(t/5)) }, patience: 1},
	}
}
