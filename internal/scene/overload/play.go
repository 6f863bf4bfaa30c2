package overload

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Scene is a server, a load and a time. Comments give the default.
type Scene struct {
	Name     string
	Capacity float64       // what the server can serve, in requests per second
	New      func() Server // returns a new server
	Callers  int           // that always have a next request; 128
	Load     float64       // requests per second that come at random, instead of callers
	Length   float64       // seconds; 180
	From     float64       // when measuring begins; a third of Length
}

// Figures are what a client gets in the time that is measured.
type Figures struct {
	Use      float64 // successes, as a share of the capacity
	P50, P95 float64 // seconds, of successes
	Errors   float64 // share of 5xx
	Sent     int
	Waited   float64 // seconds that half of the requests waited in the client, or less
}

// Play plays the scene in the bubble of the caller. newClient returns a client that sends its requests with base.
func (s Scene) Play(seed uint64, newClient func(base http.RoundTripper) http.RoundTripper) Figures {
	if s.Callers == 0 {
		s.Callers = 128
	}
	if s.Length == 0 {
		s.Length = 180
	}
	if s.From == 0 {
		s.From = s.Length / 3
	}
	base := &recorder{server: s.New(), from: s.From}
	base.run.began, base.run.rng = time.Now(), rand.New(rand.NewPCG(seed, 7))
	client := newClient(base)
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(s.Length*1e9))
	defer cancel()
	var all sync.WaitGroup
	if s.Load > 0 {
		rng := rand.New(rand.NewPCG(seed, 8))
		for ctx.Err() == nil {
			sleep(rng.ExpFloat64() / s.Load)
			all.Go(func() { send(ctx, client) })
		}
	} else {
		for range s.Callers {
			all.Go(func() {
				for ctx.Err() == nil {
					if send(ctx, client) >= http.StatusInternalServerError {
						sleep(0.05)
					}
				}
			})
		}
	}
	all.Wait()
	time.Sleep(time.Hour) // what the server still works on
	return base.figures(s)
}

// send returns the status of the response; 0: there is none.
func send(ctx context.Context, client http.RoundTripper) int {
	ctx = context.WithValue(ctx, begunKey{}, time.Now())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example.com/items", nil)
	if err != nil {
		panic(err)
	}
	resp, err := client.RoundTrip(req)
	if err != nil {
		return 0 // the scene is over
	}
	resp.Body.Close()
	return resp.StatusCode
}

type begunKey struct{}

// A recorder is between the client and the server, and notes what becomes of requests.
type recorder struct {
	run    Run
	server Server
	from   float64

	mu              sync.Mutex
	bad             int
	latency, waited []float64
}

func (b *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	began := b.run.Seconds()
	waited := time.Since(req.Context().Value(begunKey{}).(time.Time)).Seconds()
	done := make(chan int, 1)
	go func() { done <- b.server.Serve(&b.run) }()
	select {
	case status := <-done:
		b.note(began, waited, status)
		return &http.Response{
			Status: http.StatusText(status), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: http.Header{}, Body: io.NopCloser(strings.NewReader("")), Request: req,
		}, nil
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
}

func (b *recorder) note(began, waited float64, status int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch now := b.run.Seconds(); {
	case now < b.from:
	case status >= http.StatusInternalServerError:
		b.bad++
	default:
		b.latency = append(b.latency, now-began)
		b.waited = append(b.waited, waited)
	}
}

func (b *recorder) figures(s Scene) Figures {
	b.mu.Lock()
	defer b.mu.Unlock()
	slices.Sort(b.latency)
	slices.Sort(b.waited)
	f := Figures{Sent: len(b.latency) + b.bad, Use: float64(len(b.latency)) / (s.Capacity * (s.Length - s.From))}
	if n := len(b.latency); n > 0 {
		f.P50, f.P95, f.Waited = b.latency[n/2], b.latency[n*95/100], b.waited[n/2]
	}
	f.Errors = float64(b.bad) / float64(max(1, f.Sent))
	return f
}
