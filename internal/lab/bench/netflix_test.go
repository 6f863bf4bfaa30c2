package bench

import (
	"math"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// Netflix's limits of requests in flight with their defaults, except that Gradient2 may go down to 4. They are written again after
// github.com/platinummonkey/go-concurrency-limits v0.8.0, which would add the metrics clients that it requires to this module.

// A law decides how many requests may be in flight.
type law interface {
	limit() float64
	// sample takes a latency, how many requests were in flight, and whether the request failed.
	sample(latency float64, inFlight int, failed bool)
}

type gradient2 struct {
	n, long float64
	samples float64 // up to 10, of which long is the mean at first
}

func (g *gradient2) limit() float64 { return g.n }

func (g *gradient2) sample(latency float64, inFlight int, _ bool) {
	const first, window, least, most, queue, smoothing = 10, 600, 4, 200, 4, 0.2
	part := 2.0 / (window + 1)
	if g.samples < first {
		g.samples++
		part = 1 / g.samples
	}
	g.long += (latency - g.long) * part
	gradient := max(0.5, min(1, g.long/latency))
	if g.long > 2*latency {
		g.long *= 0.9
	}
	if float64(inFlight) >= g.n/2 {
		g.n = max(least, min(most, g.n+smoothing*(g.n*gradient+queue-g.n)))
	}
}

type vegas struct {
	n, lowest     float64
	probeAt, seen float64 // samples
}

func (v *vegas) limit() float64 { return v.n }

func (v *vegas) sample(latency float64, inFlight int, failed bool) {
	const most, probes = 1000, 30
	if v.probeAt == 0 {
		v.probeAt = 0.5 + rand.Float64()/2
	}
	if v.seen++; v.seen >= math.Floor(v.probeAt*probes*v.n) {
		v.probeAt, v.seen, v.lowest = 0.5+rand.Float64()/2, 0, latency
		return
	}
	if v.lowest == 0 || latency < v.lowest {
		v.lowest = latency
		return
	}
	step := math.Floor(max(1, math.Log10(v.n)))
	queue := math.Ceil(v.n * (1 - v.lowest/latency))
	switch {
	case failed:
		step = -step
	case 2*float64(inFlight) < v.n:
		return
	case queue < step:
		step *= 6
	case queue < 3*step:
	case queue > 6*step:
		step = -step
	default:
		return
	}
	v.n = max(1, min(most, v.n+step))
}

// A netflix lets as many requests be in flight as a law says. The others wait, first come, first served.
type netflix struct {
	base   http.RoundTripper
	law    law
	window time.Duration // the mean of at least ten latencies in that time is a sample; 0: each is one

	mu       sync.Mutex
	inFlight int
	queue    []chan struct{}
	most     int // in flight in this window
	sum, n   float64
	failed   bool
	ends     time.Time
}

func (l *netflix) RoundTrip(req *http.Request) (*http.Response, error) {
	turn := make(chan struct{})
	l.mu.Lock()
	l.queue = append(l.queue, turn)
	l.admit()
	l.mu.Unlock()
	select {
	case <-turn:
	case <-req.Context().Done(): // the scene has ended, so no other request needs the turn
		return nil, req.Context().Err()
	}
	began := time.Now()
	l.mu.Lock()
	inFlight := l.inFlight
	l.mu.Unlock()
	resp, err := l.base.RoundTrip(req)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answered(time.Since(began).Seconds(), inFlight, err != nil || resp.StatusCode >= http.StatusInternalServerError)
	l.inFlight--
	l.admit()
	return resp, err
}

func (l *netflix) admit() {
	for len(l.queue) > 0 && l.inFlight < int(l.law.limit()) {
		l.inFlight++
		close(l.queue[0])
		l.queue = l.queue[1:]
	}
}

func (l *netflix) answered(latency float64, inFlight int, failed bool) {
	if l.window == 0 {
		l.law.sample(latency, inFlight, failed)
		return
	}
	l.most, l.failed = max(l.most, inFlight), l.failed || failed
	if !failed {
		l.sum += latency
		l.n++
	}
	now := time.Now()
	if l.ends.IsZero() {
		l.ends = now.Add(l.window)
	}
	if now.Before(l.ends) || l.n < 10 {
		return
	}
	l.law.sample(l.sum/l.n, l.most, l.failed)
	l.most, l.sum, l.n, l.failed, l.ends = 0, 0, 0, false, now.Add(l.window)
}
