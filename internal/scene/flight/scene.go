// Package flight plays servers that work on a number of requests at a time, and queue or refuse the others.
//
// A scene is played for a Limiter by a loop of events, without goroutines and without a clock, or for an http.RoundTripper in a
// bubble of testing/synctest, with the same server.
package flight

import (
	"math"
	"math/rand/v2"
	"time"
)

const second = int64(time.Second)

// At returns an instant in nanoseconds.
func At(seconds float64) int64 { return int64(seconds * float64(second)) }

// A Scene is a server, a load and a time. Comments give the default.
type Scene struct {
	Name    string
	Length  float64         // seconds; 120
	From    float64         // when measuring begins; 5
	Watch   func(now int64) // is called when a request of a Limiter is sent
	Poll    int64           // when a request of a Limiter begins that takes the rest of the scene; 0: there is none
	Goal    Figures         // goodput ≥ 95 %, p99 ≤ 2, refused ≤ 2 %
	Best    int64           // the least fixed n that gives 99 % of what any n gives
	Clients int             // 1
	Stagger float64         // seconds between the starts of clients

	RTT      float64                               // seconds, there and back; 10 ms
	Workers  func(t float64) int                   // 16; 0: as many as there are requests
	Service  func(r *rand.Rand, t float64) float64 // seconds
	Crowd    func(inService int) float64           // how much slower a request is served with that many in service; 1
	Queue    int                                   // requests that may wait, others are refused; 0: any number
	Connect  int                                   // requests that may be there, others are refused; 0: any number
	Stands   func(t float64) float64               // for how many seconds nothing is worked on from t on
	Rate     float64                               // requests per second that are let in; 0: all
	Faults   float64                               // share of requests that are refused at random
	Status   int                                   // of refusals; 503, and 429 of a rate
	Headers  float64                               // share of the service time after which the headers come; 1
	Others   func(t float64) float64               // requests of others per second
	Callers  func(t float64) int                   // that always have a next request; 64
	Load     func(t float64) float64               // requests per second that come at random
	Bursts   [2]float64                            // the number of requests in a burst, and the seconds between two bursts
	Patience float64                               // seconds after which callers give up, 0: never
	Cancels  bool                                  // they give up although the request is sent
}

// Figures are what a client reaches, compared with the best fixed n: goodput in percent, p99 as a multiple; then the share that was
// refused in percent, Jain's index of the clients, and the least goodput of a run.
type Figures struct{ Goodput, P99, Refused, Jain, Least float64 }

// WithDefaults returns the scene with the defaults filled in.
func (s Scene) WithDefaults() Scene {
	if s.Length == 0 {
		s.Length = 120
	}
	if s.From == 0 {
		s.From = 5
	}
	s.Clients = max(1, s.Clients)
	if s.RTT == 0 {
		s.RTT = 0.010
	}
	if s.Workers == nil {
		s.Workers = Always(16)
	}
	if s.Service == nil {
		s.Service = LogNormal(0.050, 0.5)
	}
	if s.Status == 0 {
		s.Status = 503
		if s.Rate > 0 {
			s.Status = 429
		}
	}
	if s.Callers == nil && s.Load == nil && s.Bursts[0] == 0 {
		s.Callers = Always(64)
	}
	return s
}

// LogNormal returns a service time with that mean.
func LogNormal(mean, sigma float64) func(*rand.Rand, float64) float64 {
	median := mean * math.Exp(-sigma*sigma/2)
	return func(r *rand.Rand, _ float64) float64 { return median * math.Exp(sigma*r.NormFloat64()) }
}

// Exponential returns a service time with that mean.
func Exponential(mean float64) func(*rand.Rand, float64) float64 {
	return func(r *rand.Rand, _ float64) float64 { return mean * r.ExpFloat64() }
}

// Constant returns a service time that is always the same.
func Constant(x float64) func(*rand.Rand, float64) float64 {
	return func(*rand.Rand, float64) float64 { return x }
}

// During returns a service time that is longer from one time to another.
func During(from, to, factor float64, f func(*rand.Rand, float64) float64) func(*rand.Rand, float64) float64 {
	return func(r *rand.Rand, t float64) float64 {
		if t >= from && t < to {
			return factor * f(r, t)
		}
		return f(r, t)
	}
}

// Always returns what is always the same.
func Always[T any](x T) func(float64) T { return func(float64) T { return x } }

// Between returns what is other from one time to another.
func Between[T any](from, to float64, x, other T) func(float64) T {
	return func(t float64) T {
		if t >= from && t < to {
			return other
		}
		return x
	}
}
