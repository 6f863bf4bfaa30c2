package flight

import (
	"math"
	"math/rand/v2"
)

// Deploy is the name of the scene in which a larger server is three times slower for a while.
const Deploy = "48 workers, 3x slower for 40 s"

// Mix is the name of the scene in which some requests take a hundred times as long as the others.
const Mix = "90 % 5 ms, 10 % 500 ms"

// Scenes returns the scenes that the controller was made for.
func Scenes() []Scene {
	gc := func(t float64) float64 {
		if x := math.Mod(t, 5); t > 1 && x < 0.3 {
			return 0.3 - x
		}
		return 0
	}
	capacity := 16 / 0.050
	return []Scene{
		{Name: "exponential service", Best: 22, Service: Exponential(0.050)},
		{Name: "log-normal", Best: 21},
		{Name: "500 callers", Best: 21, Callers: Always(500)},
		{Name: "4 workers, constant 40 ms", Best: 5, Workers: Always(4), Service: Constant(0.040), Callers: Always(16)},
		{Name: "1 worker 20 ms away", Best: 2, Workers: Always(1), RTT: 0.020},
		{Name: "200 workers of 200 ms", Best: 210, Workers: Always(200), Service: LogNormal(0.200, 0.5), Callers: Always(500)},
		{Name: "503 over a queue of 16", Best: 22, Queue: 16, Service: Exponential(0.050)},
		{Name: "workers x 0.3, 45-85 s", Best: 21, Workers: Between(45, 85, 16, 5)},
		{Name: "workers x 3 at 45 s", Best: 60, Workers: Between(45, 1e9, 16, 48), Callers: Always(128)},
		{Name: "downstream 3x slower, no queue", Best: 48, Workers: Always(0), Service: During(45, 85, 3, LogNormal(0.050, 0.5)), Callers: Always(48)},
		{Name: Deploy, Best: 60, Workers: Always(48), Service: During(45, 85, 3, LogNormal(0.050, 0.5)), Callers: Always(192)},
		{Name: "CPU 3x slower for 40 s", Best: 21, Service: During(45, 85, 3, LogNormal(0.050, 0.5))},
		{Name: "GC of 300 ms each 5 s", Best: 22, Stands: gc},
		{Name: Mix, Best: 22, Service: mixed(0.1)},
		{Name: "heavy tail (sigma 1.5)", Best: 22, Service: LogNormal(0.050, 1.5)},
		{Name: "four clients, 8 s apart", Goal: Figures{Jain: 0.94}, Best: 6, Clients: 4, Stagger: 8, From: 30, Callers: Always(16)},
		{Name: "four busy clients, 8 s apart", Goal: Figures{Jain: 0.8}, Best: 6, Clients: 4, Stagger: 8, From: 30},
		{Name: "open loop at .5", Best: 10, Load: Always(.5 * capacity), Patience: 1},
		{Name: "open loop at .9", Best: 18, Load: Always(.9 * capacity), Patience: 1},
		{Name: "open loop at 1.5", Best: 21, Load: Always(1.5 * capacity), Patience: 1},
		{Name: "open loop at 3", Best: 22, Load: Always(3 * capacity), Patience: 1},
		{Name: "a rate of 200 a second binds", Best: 11, Rate: 200},
		{Name: "bursts of 300 each 5 s", Best: 15, Bursts: [2]float64{300, 5}, Patience: 1.2},
		{Name: "3 a second, bursts of 200 each 30 s", Best: 13, Bursts: [2]float64{200, 30}, Load: Always(3.), Patience: 1},
		{Name: "others take half, 45-85 s", Best: 21, Others: Between(45, 85, 0, .5*capacity)},
		{Name: "callers cancel after 1 s", Best: 21, Callers: Always(250), Patience: 1, Cancels: true},
		{Name: "503 above 4 requests", Goal: Figures{Refused: 1}, Best: 4, Connect: 4, Workers: Always(0), Service: Constant(0.030)},
		{Name: "503 above 40 requests", Goal: Figures{Refused: 1}, Best: 40, Connect: 40, Workers: Always(0)},
		{Name: "1 % 503 at random", Best: 21, Faults: 0.01},
		{Name: "contention above the knee", Goal: Figures{Goodput: 93}, Best: 19, Workers: Always(0), Crowd: func(k int) float64 { return math.Pow(max(1, float64(k)/16), 1.3) }},
		{Name: "streams", Best: 21, Headers: 0.1, From: 1},
	}
}

// mixed returns a service time of 5 ms, and of 500 ms for a share of the requests.
func mixed(share float64) func(*rand.Rand, float64) float64 {
	return func(r *rand.Rand, _ float64) float64 {
		if r.Float64() < share {
			return 0.5
		}
		return 0.005
	}
}

// Unseen returns scenes for which nothing was tuned.
func Unseen() []Scene {
	return []Scene{
		{Name: "503 above 10 requests, log-normal", Goal: Figures{Refused: 1}, Best: 10, Connect: 10, Workers: Always(0), Callers: Always(20)},
		{Name: ".3 % 503", Best: 21, Faults: 0.003},
		{Name: "5 % 503", Goal: Figures{Refused: 6}, Best: 22, Faults: 0.05},
		{Name: "20 % 503", Goal: Figures{Refused: 21}, Best: 22, Faults: 0.20},
		{Name: "1000 workers", Best: 1100, Workers: Always(1000), Callers: Always(2000), Length: 60},
		{Name: "8 slow workers", Best: 8, Workers: Always(8), Service: LogNormal(3, 0.5), Callers: Always(40), Length: 1200, From: 60},
		{Name: "2 busy clients", Goal: Figures{Jain: 0.9}, Best: 11, Clients: 2, Stagger: 8, From: 30},
		{Name: "shared processor", Best: 22, Workers: Always(0), Crowd: func(k int) float64 { return max(1, float64(k)/16) }},
		{Name: "503 over a queue of 2", Best: 18, Queue: 2},
		{Name: "capacity swings", Best: 33, Workers: func(t float64) int { return 16 + int(12*math.Sin(t/5)) }},
		{Name: "load swings", Best: 24, Load: func(t float64) float64 { return 320 * (1 + .8*math.Sin(t/5)) }, Patience: 1},
	}
}
