// Package scene plays servers and loads for clients that do not know the limit: real code, in a bubble of testing/synctest,
// where an hour takes a moment.
package scene

import (
	"context"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/throttletest"
)

// A Scene is a server, a load and a time. Comments give the default.
type Scene struct {
	Name    string
	Seconds float64               // 300
	Clients int                   // 1
	Stagger float64               // seconds between the starts of clients; 0
	Server  []throttletest.Option // besides the usual travel and service time, log-normal with a median of 10 ms

	RoundTrip time.Duration // 40 ms
	Timeout   time.Duration // for the server's part; 0: none
	Patience  time.Duration // for all of a request; 0: none

	Callers int                     // of each client, which always have a next request; 50 unless there is another load
	Load    func(t float64) float64 // of requests that come at random, per second
	Off     func(t float64) bool    // callers have no request; never
	Cost    func(*rand.Rand) int64  // of a request; 1

	Limit   func(t float64) float64 // what a client sends that knows it; 100 per second
	Named   string                  // the server's limit that follows it; "": none does
	Outage  [2]float64              // from when to when
	Changes []float64               // when recovery is looked at
}

// WithDefaults returns the scene with the defaults filled in.
func (s Scene) WithDefaults() Scene {
	s.Clients = max(1, s.Clients)
	if s.Seconds == 0 {
		s.Seconds = 300
	}
	if s.RoundTrip == 0 {
		s.RoundTrip = 40 * time.Millisecond
	}
	if s.Callers == 0 && s.Load == nil {
		s.Callers = 50
	}
	if s.Limit == nil {
		s.Limit = Constantly(100)
	}
	return s
}

// Play plays the scene once, in the bubble of the caller. newClient returns a client that sends its requests with base.
func (s Scene) Play(t testing.TB, seed uint64, newClient func(base http.RoundTripper) http.RoundTripper) Outcome {
	s = s.WithDefaults()
	h, err := throttletest.NewHandler(append([]throttletest.Option{
		throttletest.WithSeed(seed), throttletest.WithRoundTrip(s.RoundTrip, time.Millisecond), throttletest.WithRecording(0),
		throttletest.WithRefusalTime(throttletest.Constant(time.Millisecond)),
		throttletest.WithServiceTime(throttletest.LogNormal(10*time.Millisecond, 0.3)),
	}, s.Server...)...)
	if err != nil {
		t.Fatal(err)
	}
	rec := newRecorder(s, h.Direct())
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { s.follow(t, h) })
	var clients []*client
	for i := range s.Clients {
		c := &client{recorder: rec, from: s.Seconds / 3}
		clients = append(clients, c)
		tr := newClient(c)
		all.Go(func() {
			time.Sleep(nanos(s.Stagger * float64(i)))
			for j := range s.Callers {
				all.Go(func() { s.press(ctx, tr, rand.New(rand.NewPCG(seed, uint64(j)))) })
			}
			if s.Load != nil {
				s.arrive(ctx, tr, rec, &all, rand.New(rand.NewPCG(seed, 99)))
			}
		})
	}
	time.Sleep(nanos(s.Seconds))
	cancel()
	all.Wait()
	time.Sleep(time.Minute) // what the server still works on
	return s.outcome(rec, clients)
}

// follow lets the server's limit follow the scene's, step by step.
func (s Scene) follow(t testing.TB, h *throttletest.Handler) {
	for last, i := 0.0, 0; s.Named != "" && i < int(s.Seconds*10); i++ {
		if now := s.Limit(float64(i) / 10); now != last {
			last = now
			if err := h.SetRate(s.Named, int64(now*1000), 1000*time.Second); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Second / 10)
	}
}

// press is a caller that always has a next request.
func (s Scene) press(ctx context.Context, tr http.RoundTripper, r *rand.Rand) {
	began := time.Now()
	for ctx.Err() == nil {
		if s.Off != nil && s.Off(time.Since(began).Seconds()) {
			time.Sleep(time.Second / 10)
			continue
		}
		if s.send(ctx, tr, r) != nil {
			time.Sleep(10 * time.Millisecond) // a client that is rejected would send again immediately
		}
	}
}

// arrive lets requests come at random.
func (s Scene) arrive(ctx context.Context, tr http.RoundTripper, rec *recorder, all *sync.WaitGroup, r *rand.Rand) {
	ctx = context.WithValue(ctx, atRandom{}, true)
	for began := time.Now(); ctx.Err() == nil; {
		now := s.Load(time.Since(began).Seconds())
		if now == 0 {
			time.Sleep(time.Second / 10)
			continue
		}
		time.Sleep(nanos(r.ExpFloat64() / now))
		all.Go(func() {
			came := time.Now()
			_ = s.send(ctx, tr, r) // how long it takes counts, not what becomes of it
			rec.mu.Lock()
			defer rec.mu.Unlock()
			rec.waits = append(rec.waits, time.Since(came).Seconds())
		})
	}
}

type (
	atRandom struct{}
	costKey  struct{}
)

// AtRandom reports whether a request is one that came at random.
func AtRandom(ctx context.Context) bool { return ctx.Value(atRandom{}) != nil }

// CostOf returns the cost of a request, at least 1.
func CostOf(ctx context.Context) int64 {
	cost, _ := ctx.Value(costKey{}).(int64)
	return max(1, cost)
}

func (s Scene) send(ctx context.Context, tr http.RoundTripper, r *rand.Rand) error {
	if s.Cost != nil {
		ctx = context.WithValue(ctx, costKey{}, s.Cost(r))
	}
	if s.Patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.Patience)
		defer cancel()
	}
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

func nanos(seconds float64) time.Duration { return time.Duration(seconds * 1e9) }
