package flight

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"
)

// PlayHTTP plays the scene with a RoundTripper for each client, in the bubble of the caller. newClient returns one that sends its
// requests with base.
func (s Scene) PlayHTTP(seed uint64, newClient func(base http.RoundTripper) http.RoundTripper) *Tally {
	b := &bubble{world: newWorld(s, seed)}
	began := time.Now()
	b.world.now = func() int64 { return int64(time.Since(began)) }
	b.world.after = func(d int64, do func()) {
		time.AfterFunc(time.Duration(max(0, d)), func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.ctx.Err() == nil {
				do()
			}
		})
	}
	var end context.CancelFunc
	b.ctx, end = context.WithCancel(context.Background()) // no deadline, which would be a sign of overload
	if b.Others != nil {
		b.others()
	}
	for i := range b.Clients {
		p := &program{bubble: b, index: i}
		p.tr = newClient(p)
		b.all.Go(func() {
			time.Sleep(seconds(s.Stagger * float64(i)))
			p.start()
		})
	}
	time.Sleep(seconds(b.Length))
	end()
	b.all.Wait()
	return &b.found
}

func seconds(s float64) time.Duration { return time.Duration(At(s)) }

// A bubble is a world in the time of testing/synctest.
type bubble struct {
	*world
	mu  sync.Mutex // guards the world
	ctx context.Context
	all sync.WaitGroup
}

// sleep sleeps, and reports whether the scene continues.
func (b *bubble) sleep(s float64) bool {
	select {
	case <-b.ctx.Done():
	case <-time.After(seconds(s)):
	}
	return b.ctx.Err() == nil
}

// A program is one client: its callers, and the base of its RoundTripper.
type program struct {
	*bubble
	index   int
	tr      http.RoundTripper
	callers int // guarded by mu
}

func (p *program) start() {
	if p.Callers != nil {
		p.all.Go(p.recruit)
	}
	if p.Load != nil {
		p.all.Go(func() {
			for p.sleep(p.gap()) {
				p.all.Go(func() { p.ask() })
			}
		})
	}
	if p.Bursts[0] > 0 {
		p.all.Go(func() {
			for ok := true; ok; ok = p.sleep(p.Bursts[1]) {
				for range int(p.Bursts[0]) {
					p.all.Go(func() { p.ask() })
				}
			}
		})
	}
}

// gap returns the seconds until the next request that comes at random.
func (p *program) gap() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rng.ExpFloat64() / p.Load(p.seconds())
}

func (p *program) recruit() {
	for ok := true; ok; ok = p.sleep(0.1) {
		p.mu.Lock()
		more := p.Callers(p.seconds()) - p.callers
		p.callers += max(0, more)
		p.mu.Unlock()
		for range more {
			p.all.Go(p.press)
		}
	}
}

// press is a caller that always has a next request.
func (p *program) press() {
	for p.ctx.Err() == nil {
		if p.ask() != nil {
			p.sleep(0.010) // a client that is rejected would send again immediately
		}
		p.mu.Lock()
		surplus := p.callers > p.Callers(p.seconds())
		if surplus {
			p.callers--
		}
		p.mu.Unlock()
		if surplus {
			return
		}
	}
}

// A wanted is a request whose caller may give up; the server may have it already.
type wanted struct{ sent, answered bool }

type wantedKey struct{}

// ask sends a request, and reads its response. It returns the error of a client that rejects.
func (p *program) ask() error {
	ctx := p.ctx
	if p.Patience > 0 {
		own, cancel := context.WithCancel(ctx)
		defer cancel()
		mark := &wanted{}
		ctx = context.WithValue(own, wantedKey{}, mark)
		defer time.AfterFunc(seconds(p.Patience), func() {
			p.mu.Lock()
			gives := !mark.sent || p.Cancels && !mark.answered
			p.mu.Unlock()
			if gives {
				cancel()
			}
		}).Stop()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://example.com/", nil)
	if err != nil {
		return err
	}
	resp, err := p.tr.RoundTrip(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.Body.Close()
}

// RoundTrip is the way to the server and back.
func (p *program) RoundTrip(req *http.Request) (*http.Response, error) {
	headers, body := make(chan Outcome, 1), make(chan struct{})
	mark, _ := req.Context().Value(wantedKey{}).(*wanted)
	if mark == nil {
		mark = &wanted{}
	}
	p.mu.Lock()
	sent, gone := p.now(), false
	mark.sent = true
	if p.measuring() {
		p.found.Sent++
	}
	p.travel(func(o Outcome) {
		if gone {
			return
		}
		mark.answered = true
		if p.measuring() {
			p.found.add(p.index, p.now(), sent, o)
		}
		headers <- o
	}, func() { close(body) })
	p.mu.Unlock()
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: req}
	select {
	case o := <-headers:
		switch {
		case o == Refused:
			resp.StatusCode = p.Status
		case p.streams():
			resp.Body = &stream{over: body, ctx: req.Context()}
		}
		return resp, nil
	case <-req.Context().Done():
		p.mu.Lock()
		gone = true
		p.mu.Unlock()
		return nil, context.Cause(req.Context())
	}
}

// A stream is a body that takes as long as the server works on it.
type stream struct {
	over chan struct{}
	ctx  context.Context
}

func (s *stream) Read([]byte) (int, error) {
	select {
	case <-s.over:
		return 0, io.EOF
	case <-s.ctx.Done():
		return 0, context.Cause(s.ctx)
	}
}

func (s *stream) Close() error { return nil }
