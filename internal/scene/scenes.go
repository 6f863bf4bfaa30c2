package scene

import (
	"math"
	"time"

	"github.com/httpthrottle/throttle/throttletest"
)

// Bucket returns a server with a token bucket of n per second.
func Bucket(n, burst int64) throttletest.Option {
	return throttletest.WithLimits(throttletest.TokenBucket(n, time.Second, throttletest.Burst(burst)))
}

// Served returns the options of a server.
func Served(opts ...throttletest.Option) []throttletest.Option { return opts }

// Silently is for servers that report nothing but a status.
var Silently = throttletest.WithRetryAfter(throttletest.NoRetryAfter)

func leaky(burst int64, opts ...throttletest.LimitOption) throttletest.Option {
	opts = append(opts, throttletest.Burst(burst), throttletest.Status(503))
	return throttletest.WithLimits(throttletest.LeakyBucket(100, time.Second, opts...))
}

// Constantly returns a limit or a load that stays the same.
func Constantly(x float64) func(float64) float64 { return func(float64) float64 { return x } }

// Except returns a limit that is other from one time to another.
func Except(from, to, is, other float64) func(float64) float64 {
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
	// BareBucket allows 100 per second. Its refusals have nothing but a status.
	BareBucket = Served(Bucket(100, 20), Silently)

	heavyTail = throttletest.Sometimes(0.01, throttletest.Uniform(500*time.Millisecond, 2*time.Second),
		throttletest.LogNormal(10*time.Millisecond, 1.2))
	minutely = throttletest.WithLimits(throttletest.FixedWindow(600, time.Minute))
)

// Struck returns a BareBucket with a fault from 60 to 90 s.
func Struck(f throttletest.Fault) []throttletest.Option {
	return Served(Bucket(100, 20), Silently, throttletest.WithFaults(f.Between(60*time.Second, 90*time.Second)))
}

// Drops is the name of the scene in which the limit drops and returns.
const Drops = "limit drops tenfold at 60 s, back at 180 s"

// Scenes returns the scenes that the controller was made for.
func Scenes() []Scene {
	return []Scene{
		{Name: "token bucket, bare 429", Server: BareBucket},
		{Name: "token bucket, Retry-After", Server: Served(Bucket(100, 20))},
		{Name: "600 per minute, Retry-After", Server: Served(minutely), Limit: Constantly(10)},
		{Name: "600 per minute, bare 429", Server: Served(minutely, Silently), Limit: Constantly(10)},
		{Name: "nginx, 503 above burst 20", Server: Served(leaky(20), Silently)},
		{Name: "nginx, delays up to 50", Server: Served(leaky(50, throttletest.Delay(0)), Silently)},
		{Name: "10 servers at 100 ms, queue of 100", Server: Served(throttletest.WithWorkers(10, 100),
			throttletest.WithServiceTime(throttletest.LogNormal(95600*time.Microsecond, 0.3)))}, // 100 ms in the mean
		{Name: Drops, Server: BareBucket, Limit: Except(60, 180, 100, 10), Named: "bucket", Changes: []float64{60, 180}},
		{Name: "limit drifts by half", Seconds: 480, Server: BareBucket, Named: "bucket",
			Limit: func(t float64) float64 { return 100 + 50*math.Sin(2*math.Pi*t/240) }},
		{Name: "load comes and goes", Server: BareBucket, Callers: 50, Off: func(t float64) bool { return math.Mod(t, 80) >= 40 },
			Load: shiftsOf(0, 10), Limit: shiftsOf(100, 10)},
		{Name: "half load, at random", Server: BareBucket, Load: Constantly(50)},
		{Name: "ten clients", Clients: 10, Stagger: 5, Server: BareBucket},
		{Name: "heavy tail, 1 % random 500", Limit: Constantly(99), Server: Served(Bucket(100, 20), Silently,
			throttletest.WithServiceTime(heavyTail), throttletest.WithFaults(throttletest.Respond(500, nil).Chance(0.01)))},
		{Name: "outage 60 to 90 s, fast 503", Server: Struck(throttletest.Outage(503)), Outage: [2]float64{60, 90}, Changes: []float64{90}},
		{Name: "outage 60 to 90 s, hanging", Server: Struck(throttletest.Hang()), Timeout: 2 * time.Second, Outage: [2]float64{60, 90},
			Changes: []float64{90}},
		{Name: "2 per second, burst 5", Seconds: 600, Server: Served(Bucket(2, 5), Silently), Limit: Constantly(2)},
		{Name: "1,000 per second, burst 100", Seconds: 180, Callers: 250, Server: Served(Bucket(1000, 100), Silently), Limit: Constantly(1000)},
	}
}
