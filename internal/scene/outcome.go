package scene

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"
)

// An Outcome is what came of a scene, as numbers.
type Outcome struct {
	Goodput, Refused float64   // percent of what a client sends that knows the limit; percent of what was sent
	P50, P99         float64   // ms, of accepted requests
	Took             float64   // ms, the median of requests that came at random, response included
	Jain             float64   // Jain's index of the clients, over the last two thirds
	Found            float64   // s until the first second with 90 % of the limit
	Back             []float64 // s from each change until 80 % of the limit
	InOutage         float64   // requests sent
	Sent             []int     // requests, by second
}

// A recorder is between the clients and the server, and notes what is sent and what becomes of it.
type recorder struct {
	base    http.RoundTripper
	timeout time.Duration
	start   time.Time
	outage  [2]float64

	mu        sync.Mutex
	sent, bad int
	bySecond  []int
	accepted  []int // cost, by tenth of a second
	failed    []int
	latencies []float64
	waits     []float64
	inOutage  int
}

// A client records the requests of one client.
type client struct {
	*recorder
	from, late float64 // accepted since
}

func newRecorder(s Scene, base http.RoundTripper) *recorder {
	tenths := int(s.Seconds * 10)
	return &recorder{
		base: base, timeout: s.Timeout, start: time.Now(), outage: s.Outage,
		bySecond: make([]int, int(s.Seconds)), accepted: make([]int, tenths), failed: make([]int, tenths),
	}
}

func (c *client) RoundTrip(req *http.Request) (*http.Response, error) {
	began := time.Now()
	c.noteSent(began)
	if c.timeout > 0 {
		ctx, cancel := context.WithTimeout(req.Context(), c.timeout)
		defer cancel() // the body is there already
		req = req.WithContext(ctx)
	}
	resp, err := c.base.RoundTrip(req)
	if err == nil || req.Context().Err() != context.Canceled { // otherwise the run has ended
		c.note(began, err == nil && resp.StatusCode < 400, int(CostOf(req.Context())))
	}
	return resp, err
}

func (r *recorder) noteSent(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent++
	t := now.Sub(r.start).Seconds()
	if i := int(t); i < len(r.bySecond) {
		r.bySecond[i]++
	}
	if r.outage[0] <= t && t < r.outage[1] {
		r.inOutage++
	}
}

func (c *client) note(began time.Time, ok bool, cost int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := time.Since(c.start).Seconds()
	i := int(t * 10)
	if i >= len(c.accepted) {
		return
	}
	if !ok {
		c.bad++
		c.failed[i] += cost
		return
	}
	c.accepted[i] += cost
	c.latencies = append(c.latencies, time.Since(began).Seconds())
	if t > c.from {
		c.late++
	}
}

func (s Scene) outcome(rec *recorder, clients []*client) Outcome {
	best, ok := 0.0, 0.0
	for i, n := range rec.accepted {
		if t := (float64(i) + 0.5) / 10; t < s.Outage[0] || t >= s.Outage[1] {
			best += s.Limit(t) / 10
		}
		ok += float64(n)
	}
	if s.Callers == 0 {
		best = float64(len(rec.waits))
	}
	o := Outcome{
		Goodput: 100 * ok / best, Refused: 100 * float64(rec.bad) / float64(max(1, rec.sent)), InOutage: float64(rec.inOutage),
		P50: 1000 * Quantile(rec.latencies, 0.5), P99: 1000 * Quantile(rec.latencies, 0.99), Took: 1000 * Quantile(rec.waits, 0.5),
		Found: s.reached(rec, 0, 0.9), Sent: rec.bySecond,
	}
	sum, squares := 0.0, 0.0
	for _, c := range clients {
		sum += c.late
		squares += c.late * c.late
	}
	if squares > 0 {
		o.Jain = sum * sum / squares / float64(len(clients))
	}
	for _, t := range s.Changes {
		o.Back = append(o.Back, s.reached(rec, t, 0.8))
	}
	return o
}

// reached returns the seconds after t until a second began in which that share of the limit was accepted and at most a
// tenth failed; the rest of the scene, if there was none.
func (s Scene) reached(rec *recorder, t, share float64) float64 {
	for i := int(t * 10); i+10 < len(rec.accepted); i++ {
		ok, bad := 0, 0
		for j := range 10 {
			ok += rec.accepted[i+j]
			bad += rec.failed[i+j]
		}
		if float64(ok) >= share*s.Limit(float64(i)/10+0.5) && 10*bad <= ok+bad {
			return float64(i)/10 - t
		}
	}
	return s.Seconds - t
}

// Quantile sorts x and returns its q-quantile; 0 if it is empty.
func Quantile(x []float64, q float64) float64 {
	if len(x) == 0 {
		return 0
	}
	slices.Sort(x)
	return x[min(len(x)-1, int(q*float64(len(x))))]
}
