// Package overload plays servers that respond late, or with 5xx, when they have too much to do, and never with a 429. It plays them in a
// bubble of testing/synctest.
package overload

import (
	"math"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// A Server serves requests that come at the same time.
type Server interface {
	// Serve returns the status of a response when it is there.
	Serve(r *Run) (status int)
}

// A Run has the time and the chance of a run.
type Run struct {
	began time.Time

	mu  sync.Mutex
	rng *rand.Rand
}

// Seconds returns the time since the run began.
func (r *Run) Seconds() float64 { return time.Since(r.began).Seconds() }

// chance returns what f draws.
func (r *Run) chance(f func(*rand.Rand) float64) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return f(r.rng)
}

func sleep(seconds float64) { time.Sleep(time.Duration(seconds * 1e9)) }

// Workers work on a request at a time each, first come, first served.
type Workers struct {
	slots   chan struct{}
	service func(r *rand.Rand, t float64) float64
	giveUp  time.Duration
	queue   int

	mu    sync.Mutex
	there int
}

// NewWorkers returns n workers that take as long for a request as service says, in seconds, at t seconds of the run. If queue is not 0,
// requests beyond that number get a 500. If giveUp is not 0, requests that have waited for so long get a 504.
func NewWorkers(n int, service func(r *rand.Rand, t float64) float64, queue int, giveUp time.Duration) *Workers {
	return &Workers{slots: make(chan struct{}, n), service: service, queue: queue, giveUp: giveUp}
}

// Half returns a service time of which half is always the same, and half is exponential.
func Half(mean float64) func(*rand.Rand, float64) float64 {
	return func(r *rand.Rand, _ float64) float64 { return mean * (0.5 + 0.5*r.ExpFloat64()) }
}

// LogNormal returns a service time with that median.
func LogNormal(median, sigma float64) func(*rand.Rand, float64) float64 {
	return func(r *rand.Rand, _ float64) float64 { return median * math.Exp(sigma*r.NormFloat64()) }
}

// Changing returns a service time that is a multiple of f from the time at on.
func Changing(f func(*rand.Rand, float64) float64, at, times float64) func(*rand.Rand, float64) float64 {
	return func(r *rand.Rand, t float64) float64 {
		if t >= at {
			return times * f(r, t)
		}
		return f(r, t)
	}
}

func (w *Workers) Serve(r *Run) int {
	if !w.enter() {
		sleep(quick)
		return http.StatusInternalServerError
	}
	defer w.leave()
	if w.giveUp > 0 {
		select {
		case w.slots <- struct{}{}:
		case <-time.After(w.giveUp):
			return http.StatusGatewayTimeout
		}
	} else {
		w.slots <- struct{}{}
	}
	t := r.Seconds()
	sleep(r.chance(func(rng *rand.Rand) float64 { return w.service(rng, t) }))
	<-w.slots
	return http.StatusOK
}

func (w *Workers) enter() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.queue > 0 && w.there >= w.queue {
		return false
	}
	w.there++
	return true
}

func (w *Workers) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.there--
}

// quick is how long a failure takes, in seconds.
const quick = 0.003

// Sharing is a machine that all requests share: beyond Free of them, each takes longer in proportion.
type Sharing struct {
	Service float64 // seconds, the median
	Free    float64

	mu sync.Mutex
	n  int
}

func (s *Sharing) Serve(r *Run) int {
	s.count(1)
	defer s.count(-1)
	step := s.Service / 8
	for work := r.chance(func(rng *rand.Rand) float64 { return LogNormal(s.Service, 0.2)(rng, 0) }); work > 0; {
		sleep(step)
		work -= step / max(1, float64(s.count(0))/s.Free)
	}
	return http.StatusOK
}

func (s *Sharing) count(more int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n += more
	return s.n
}

// Failing is a server that fails when more than PerSecond requests came in the last second, and by chance.
type Failing struct {
	PerSecond float64
	Soft      float64 // failures begin at PerSecond, and all requests fail at PerSecond + Soft; 0: what is above PerSecond fails
	Status    int     // of a failure
	Service   float64 // seconds, the median
	Chance    float64 // of a failure at any rate

	mu   sync.Mutex
	came []time.Time
}

func (s *Failing) Serve(r *Run) int {
	x := r.chance((*rand.Rand).Float64)
	if s.fails(x) || r.chance((*rand.Rand).Float64) < s.Chance {
		sleep(quick)
		return s.Status
	}
	sleep(r.chance(func(rng *rand.Rand) float64 { return LogNormal(s.Service, 0.2)(rng, 0) }))
	return http.StatusOK
}

// fails counts a request, and reports whether it fails because of the rate.
func (s *Failing) fails(x float64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for len(s.came) > 0 && now.Sub(s.came[0]) >= time.Second {
		s.came = s.came[1:]
	}
	n := float64(len(s.came))
	if s.PerSecond > 0 && s.Soft == 0 && n >= s.PerSecond { // a request that fails does not count
		return true
	}
	s.came = append(s.came, now)
	return s.Soft > 0 && x < (n+1-s.PerSecond)/s.Soft
}
