package bench

import (
	"math"
	"time"

	"github.com/httpthrottle/throttle/throttletest"
)

func limits(l ...throttletest.Limit) throttletest.Option { return throttletest.WithLimits(l...) }

func bucketOf(n, burst int64) throttletest.Option {
	return limits(throttletest.TokenBucket(n, time.Second, throttletest.Burst(burst)))
}

func served(opts ...throttletest.Option) []throttletest.Option { return opts }

// silently is for servers that say no more than a status.
var silently = throttletest.WithRetryAfter(throttletest.NoRetryAfter)

func leaky(burst int64, opts ...throttletest.LimitOption) throttletest.Option {
	opts = append(opts, throttletest.Burst(burst), throttletest.Status(503))
	return limits(throttletest.LeakyBucket(100, time.Second, opts...))
}

// except is what is, but other from one time to another.
func except(from, to, is, other float64) func(float64) float64 {
	return func(t float64) float64 {
		if t >= from && t < to {
			return other
		}
		return is
	}
}

// shiftsOf are full load for 40 s, a tenth for 30 s, and none for 10 s.
func shiftsOf(full, tenth float64) func(float64) float64 {
	return func(t float64) float64 {
		switch t = math.Mod(t, 80); {
		case t < 40:
			return full
		case t < 70:
			return tenth
		}
		return 0
	}
}

var (
	bareBucket = served(bucketOf(100, 20), silently)
	heavyTail  = throttletest.Sometimes(0.01, throttletest.Uniform(500*time.Millisecond, 2*time.Second),
		throttletest.LogNormal(10*time.Millisecond, 1.2))
	minutely = limits(throttletest.FixedWindow(600, time.Minute))
)

func struck(f throttletest.Fault) []throttletest.Option {
	return served(bucketOf(100, 20), silently, throttletest.WithFaults(f.Between(60*time.Second, 90*time.Second)))
}

// drops is the scene whose requests over time are plotted.
const drops = "limit drops tenfold at 60 s, back at 180 s"

// scenes are those of the root package's adaptive_scenarios_test.go.
var scenes = []scene{
	{name: "token bucket, bare 429", server: bareBucket},
	{name: "token bucket, Retry-After", server: served(bucketOf(100, 20))},
	{name: "600 per minute, Retry-After", server: served(minutely), limit: constantly(10)},
	{name: "600 per minute, bare 429", server: served(minutely, silently), limit: constantly(10)},
	{name: "nginx, 503 above burst 20", server: served(leaky(20), silently)},
	{name: "nginx, delays up to 50", server: served(leaky(50, throttletest.Delay(0)), silently)},
	{name: "10 servers at 100 ms, queue of 100", server: served(throttletest.WithWorkers(10, 100),
		throttletest.WithServiceTime(throttletest.LogNormal(95600*time.Microsecond, 0.3)))},
	{name: drops, server: bareBucket, limit: except(60, 180, 100, 10), named: "bucket", changes: []float64{60, 180}},
	{name: "limit drifts by half", seconds: 480, server: bareBucket, named: "bucket",
		limit: func(t float64) float64 { return 100 + 50*math.Sin(2*math.Pi*t/240) }},
	{name: "load comes and goes", server: bareBucket, callers: 50, off: func(t float64) bool { return math.Mod(t, 80) >= 40 },
		load: shiftsOf(0, 10), limit: shiftsOf(100, 10)},
	{name: "half load, at random", server: bareBucket, load: constantly(50)},
	{name: "ten clients", clients: 10, stagger: 5, server: bareBucket},
	{name: "heavy tail, 1 % random 500", limit: constantly(99), server: served(bucketOf(100, 20), silently,
		throttletest.WithServiceTime(heavyTail), throttletest.WithFaults(throttletest.Respond(500, nil).Chance(0.01)))},
	{name: "outage 60 to 90 s, fast 503", server: struck(throttletest.Outage(503)), outage: [2]float64{60, 90}, changes: []float64{90}},
	{name: "outage 60 to 90 s, hanging", server: struck(throttletest.Hang()), timeout: 2 * time.Second, outage: [2]float64{60, 90},
		changes: []float64{90}},
	{name: "2 per second, burst 5", seconds: 600, server: served(bucketOf(2, 5), silently), limit: constantly(2)},
	{name: "1,000 per second, burst 100", seconds: 180, callers: 250, server: served(bucketOf(1000, 100), silently), limit: constantly(1000)},
}
