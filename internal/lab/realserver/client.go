package realserver

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/httpthrottle/throttle"
)

// A Client is a way to configure a throttle.Transport for a server.
type Client struct {
	Name    string
	options func(Spec) []throttle.Option
	Other   func(base http.RoundTripper) http.RoundTripper // is used instead, if it is not nil
}

// Clients returns all clients, as the columns of the table show them.
func Clients() []Client {
	known := func(s Spec) []throttle.Option {
		return []throttle.Option{throttle.WithLimit(throttle.TokenBucket(95*s.N, 100*s.Per, throttle.Burst(1)))}
	}
	window := func(s Spec) []throttle.Option {
		return []throttle.Option{throttle.WithLimit(throttle.SlidingWindow(95*s.N/100, s.Per))}
	}
	adaptive := func(s Spec) []throttle.Option {
		return []throttle.Option{throttle.WithAdaptive(throttle.AIMD{Initial: 2 * s.Rate()})}
	}
	deaf := func(f func(Spec) []throttle.Option) func(Spec) []throttle.Option {
		return func(s Spec) []throttle.Option { return append(f(s), throttle.WithoutServerHints()) }
	}
	return []Client{
		{Name: "known", options: known},
		{Name: "known without hints", options: deaf(known)},
		{Name: "window", options: window},
		{Name: "window without hints", options: deaf(window)},
		{Name: "hints", options: func(Spec) []throttle.Option { return nil }},
		{Name: "adaptive", options: adaptive},
		{Name: "adaptive from 10/s", options: func(Spec) []throttle.Option { return []throttle.Option{throttle.WithAdaptive()} }},
		{Name: "in flight", options: func(Spec) []throttle.Option { return []throttle.Option{throttle.WithAdaptiveInFlight()} }},
		{Name: "rate and in flight", options: func(Spec) []throttle.Option {
			return []throttle.Option{throttle.WithAdaptive(), throttle.WithAdaptiveInFlight()}
		}},
		{Name: "known in flight", options: func(s Spec) []throttle.Option {
			if s.Slots == 0 {
				return known(s)
			}
			return []throttle.Option{throttle.WithLimit(throttle.InFlight(s.Slots))}
		}},
		{Name: "both", options: func(s Spec) []throttle.Option { return append(known(s), adaptive(s)...) }},
		{Name: "adaptive behind a window", options: func(s Spec) []throttle.Option { // of a little more than the limit
			n := 12 * s.N * int64(time.Second) / int64(10*s.Per)
			return append(adaptive(s), throttle.WithLimit(throttle.SlidingWindow(n, time.Second)))
		}},
		{Name: "the whole limit", options: func(s Spec) []throttle.Option {
			return []throttle.Option{throttle.WithLimit(throttle.TokenBucket(s.N, s.Per))}
		}},
	}
}

// ClientNamed returns the client of this name. It panics if there is none.
func ClientNamed(name string) Client {
	all := Clients()
	if i := slices.IndexFunc(all, func(c Client) bool { return c.Name == name }); i >= 0 {
		return all[i]
	}
	panic(fmt.Sprintf("realserver: no client is called %q", name))
}

// Transport returns a Transport above a new recorder.
func (c Client) Transport(s Spec, hooks throttle.Hooks) (*throttle.Transport, *Recorder, error) {
	r := NewRecorder()
	t, err := throttle.New(r, append(c.options(s), throttle.WithHooks(hooks))...)
	return t, r, err
}

// over returns the client above a new recorder.
func (c Client) over(s Spec) (http.RoundTripper, *Recorder, error) {
	if c.Other != nil {
		r := NewRecorder()
		return c.Other(r), r, nil
	}
	return c.Transport(s, throttle.Hooks{})
}

// A Load is what is asked of a server.
type Load struct {
	Client  Client
	Clients int           // that know nothing of each other; 0: 1
	Callers int           // of each client; 0: 16, or four for each request that the server works on at a time
	Length  time.Duration // 0: 20 s
	Timeout time.Duration // of a request; 0: none
}

// Run puts a load on a running server, and returns what each client sent. during, if not nil, runs beside it; the time
// that it gets began with the load.
func (l Load) Run(srv *Server, during func(start time.Time) error) ([]*Recorder, error) {
	l.Callers, l.Clients = cmp.Or(l.Callers, int(max(16, 4*srv.Slots))), cmp.Or(l.Clients, 1)
	l.Length = cmp.Or(l.Length, 20*time.Second)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var background, work sync.WaitGroup
	recorders := make([]*Recorder, l.Clients)
	for i := range recorders {
		transport, r, err := l.Client.over(srv.Spec)
		if err != nil {
			return nil, err
		}
		recorders[i] = r
		background.Go(func() { r.watch(ctx) })
		work.Go(func() {
			time.Sleep(time.Duration(i) * 370 * time.Millisecond) // not all begin together
			Work(ctx, transport, srv.URL+"/limited", l.Callers, l.Length-time.Since(r.start), l.Timeout)
			r.CloseIdleConnections()
		})
	}
	var err error
	if during != nil {
		err = during(recorders[0].start)
	}
	work.Wait()
	cancel()
	background.Wait()
	return recorders, err
}
