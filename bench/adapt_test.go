package bench

import (
	"context"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/throttletest"
)

// A scene is a server, a load and a time. It is played in a bubble of testing/synctest, where an hour takes a moment, by
// the real code of everybody.
type scene struct {
	name    string
	seconds float64               // 300
	clients int                   // each with a limiter of its own; 1
	stagger float64               // seconds between their starts
	server  []throttletest.Option // besides the usual travel and service time
	timeout time.Duration         // for the server's part; 0: none

	callers int                     // that always have a next request; 50 unless there is another load
	load    func(t float64) float64 // of requests that come at random, per second
	off     func(t float64) bool    // callers have none

	limit   func(t float64) float64 // what the oracle sends; 100/s
	named   string                  // limit of the server that follows it; "": none does
	outage  [2]float64
	changes []float64 // when recovery is looked at
}

func (s scene) withDefaults() scene {
	s.clients = max(1, s.clients)
	if s.seconds == 0 {
		s.seconds = 300
	}
	if s.callers == 0 && s.load == nil {
		s.callers = 50
	}
	if s.limit == nil {
		s.limit = constantly(100)
	}
	return s
}

// outcome is what came of a scene.
type outcome struct {
	goodput, refused float64   // percent of the oracle's; percent of what was sent
	p50, p99         float64   // ms, of answers
	wait             float64   // ms, the median of requests that come at random, answer included
	jain             float64   // Jain's index of the clients, over the last two thirds
	found            float64   // s until the first second with 90 % of the limit
	back             []float64 // s from each change until 80 % of the limit
	inOutage         float64   // sent
	sent             []int     // by second
}

// A recorder is between the clients and the server, and notes what is sent and what becomes of it.
type recorder struct {
	base    http.RoundTripper
	timeout time.Duration
	start   time.Time
	outage  [2]float64

	mu        sync.Mutex
	all, bad  int
	bySecond  []int
	accepted  []int // by tenth of a second
	failed    []int
	latencies []float64
	waits     []float64
	inOutage  int
}

// recorded is one client's.
type recorded struct {
	*recorder
	from, late float64 // accepted since
}

func (c *recorded) RoundTrip(req *http.Request) (*http.Response, error) {
	r, began := c.recorder, time.Now()
	r.noteSent(began)
	if r.timeout > 0 {
		ctx, cancel := context.WithTimeout(req.Context(), r.timeout)
		defer cancel() // the body is there already
		req = req.WithContext(ctx)
	}
	resp, err := r.base.RoundTrip(req)
	if err == nil || req.Context().Err() != context.Canceled { // else the run is over
		c.noteAnswer(began, err == nil && resp.StatusCode < 400)
	}
	return resp, err
}

func (r *recorder) noteSent(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all++
	t := now.Sub(r.start).Seconds()
	if i := int(t); i < len(r.bySecond) {
		r.bySecond[i]++
	}
	if r.outage[0] <= t && t < r.outage[1] {
		r.inOutage++
	}
}

func (c *recorded) noteAnswer(began time.Time, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := time.Since(c.start).Seconds()
	i := int(t * 10)
	if i >= len(c.accepted) {
		return
	}
	if !ok {
		c.bad++
		c.failed[i]++
		return
	}
	c.accepted[i]++
	c.latencies = append(c.latencies, 1000*time.Since(began).Seconds())
	if t > c.from {
		c.late++
	}
}

// play runs the scene once, in a bubble.
func (s scene) play(t *testing.T, seed uint64, a adapter) outcome {
	s = s.withDefaults()
	h, err := throttletest.NewHandler(append([]throttletest.Option{
		throttletest.WithSeed(seed), throttletest.WithRoundTrip(40*time.Millisecond, time.Millisecond), throttletest.WithRecording(0),
		throttletest.WithRefusalTime(throttletest.Constant(time.Millisecond)),
		throttletest.WithServiceTime(throttletest.LogNormal(10*time.Millisecond, 0.3)),
	}, s.server...)...)
	if err != nil {
		t.Fatal(err)
	}
	rec := &recorder{
		base: h.Direct(), timeout: s.timeout, start: time.Now(), outage: s.outage,
		bySecond: make([]int, int(s.seconds)), accepted: make([]int, int(s.seconds*10)), failed: make([]int, int(s.seconds*10)),
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { s.follow(t, h) })
	var clients []*recorded
	for i := range s.clients {
		c := &recorded{recorder: rec, from: s.seconds / 3}
		clients = append(clients, c)
		tr := a.make(t, c, s)
		all.Go(func() {
			time.Sleep(nanos(s.stagger * float64(i)))
			for range s.callers {
				all.Go(func() { s.press(ctx, tr) })
			}
			if s.load != nil {
				s.arrive(ctx, tr, rec, &all, rand.New(rand.NewPCG(seed, 99)))
			}
		})
	}
	time.Sleep(nanos(s.seconds))
	cancel()
	all.Wait()
	time.Sleep(time.Minute) // what the server still works on
	return s.outcome(rec, clients)
}

// follow lets the server's limit follow the scene's, step by step.
func (s scene) follow(t *testing.T, h *throttletest.Handler) {
	for last, i := 0.0, 0; s.named != "" && i < int(s.seconds*10); i++ {
		if now := s.limit(float64(i) / 10); now != last {
			last = now
			if err := h.SetRate(s.named, int64(now*1000), 1000*time.Second); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Second / 10)
	}
}

// press is a caller that always has a next request.
func (s scene) press(ctx context.Context, tr http.RoundTripper) {
	began := time.Now()
	for ctx.Err() == nil {
		if s.off != nil && s.off(time.Since(began).Seconds()) {
			time.Sleep(time.Second / 10)
			continue
		}
		if do(ctx, tr) != nil {
			time.Sleep(10 * time.Millisecond) // a client that is refused here would ask again immediately
		}
	}
}

// arrive lets requests come at random.
func (s scene) arrive(ctx context.Context, tr http.RoundTripper, rec *recorder, all *sync.WaitGroup, r *rand.Rand) {
	for began := time.Now(); ctx.Err() == nil; {
		now := s.load(time.Since(began).Seconds())
		if now == 0 {
			time.Sleep(time.Second / 10)
			continue
		}
		time.Sleep(nanos(r.ExpFloat64() / now))
		all.Go(func() {
			came := time.Now()
			_ = do(ctx, tr)
			rec.mu.Lock()
			defer rec.mu.Unlock()
			rec.waits = append(rec.waits, 1000*time.Since(came).Seconds())
		})
	}
}

func do(ctx context.Context, tr http.RoundTripper) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example.com/items", nil)
	if err != nil {
		return err
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func (s scene) outcome(rec *recorder, clients []*recorded) outcome {
	best, ok := 0.0, 0.0
	for i, n := range rec.accepted {
		if t := (float64(i) + 0.5) / 10; t < s.outage[0] || t >= s.outage[1] {
			best += s.limit(t) / 10
		}
		ok += float64(n)
	}
	if s.callers == 0 {
		best = float64(len(rec.waits))
	}
	o := outcome{
		goodput: 100 * ok / best, refused: 100 * float64(rec.bad) / float64(max(1, rec.all)), inOutage: float64(rec.inOutage),
		p50: quantile(rec.latencies, 0.5), p99: quantile(rec.latencies, 0.99), wait: median(rec.waits),
		found: s.reached(rec, 0, 0.9), sent: rec.bySecond,
	}
	sum, squares := 0.0, 0.0
	for _, c := range clients {
		sum += c.late
		squares += c.late * c.late
	}
	if squares > 0 {
		o.jain = sum * sum / squares / float64(len(clients))
	}
	for _, t := range s.changes {
		o.back = append(o.back, s.reached(rec, t, 0.8))
	}
	return o
}

// reached returns the seconds after t until a second began in which that share of the limit was accepted and at most a
// tenth failed; what is left of the scene, if none did.
func (s scene) reached(rec *recorder, t, share float64) float64 {
	for i := int(t * 10); i+10 < len(rec.accepted); i++ {
		ok, bad := 0, 0
		for j := range 10 {
			ok += rec.accepted[i+j]
			bad += rec.failed[i+j]
		}
		if float64(ok) >= share*s.limit(float64(i)/10+0.5) && 10*bad <= ok+bad {
			return float64(i)/10 - t
		}
	}
	return s.seconds - t
}

func nanos(seconds float64) time.Duration { return time.Duration(seconds * 1e9) }

func constantly(x float64) func(float64) float64 { return func(float64) float64 { return x } }
