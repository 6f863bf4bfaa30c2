package bench

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"
)

// A crowd is many requests that wait for one key, with a grant to settle, and a request in flight that the server refuses.
// Operations may be repeated without end: before each, the crowd is as it was.
type crowd struct {
	tr       *throttle.Transport
	n        int             // requests that wait
	grant    *throttle.Grant // of one token
	rest     *throttle.Grant // of all others that there were
	left     int64           // the tokens of rest
	flies    chan struct{}   // a request is in flight
	refuse   chan int        // for how many seconds to stay away
	refused  chan error
	everyone sync.WaitGroup
	ctx      context.Context
	cancel   context.CancelFunc
}

// None of the requests that wait is granted during a benchmark: the first would be after an hour.
const (
	perPeriod = 10 // tokens
	period    = 10 * time.Hour
	allTokens = 1 << 20 // each settlement takes two of them
	urgent    = 1000    // comes before all others
)

// RoundTrip waits, and refuses.
func (c *crowd) RoundTrip(r *http.Request) (*http.Response, error) {
	c.flies <- struct{}{}
	h := http.Header{"Retry-After": {fmt.Sprint(<-c.refuse)}}
	return &http.Response{StatusCode: 429, Status: "429 Too Many Requests", Header: h, Body: http.NoBody, Request: r}, nil
}

// crowded returns a crowd of n.
func crowded(b *testing.B, n int) *crowd {
	c := &crowd{n: n, left: allTokens, flies: make(chan struct{}), refuse: make(chan int), refused: make(chan error)}
	limit := throttle.TokenBucket(perPeriod, period, throttle.Burst(allTokens+1), throttle.Name("tenant"), throttle.Key(func(*http.Request) string { return "k0" }))
	c.tr = must1(throttle.New(c, throttle.WithMaxQueue(2_000_000), throttle.WithLimit(limit)))
	c.ctx, c.cancel = context.WithCancel(b.Context())
	c.grant, c.rest = c.take(1, 0), c.take(c.left, 0)
	for range n {
		c.everyone.Go(func() { _ = c.send(c.ctx) })
	}
	waitFor(b, func() bool { return c.tr.Limiter().Stats().Waiting == n })
	return c
}

// take returns the grant of a request.
func (c *crowd) take(cost int64, priority int) *throttle.Grant {
	return must1(c.tr.Limiter().Acquire(c.ctx, throttle.Ask{Key: "k0", Cost: cost, Priority: priority}))
}

// send sends a request that costs one token unless ctx says otherwise.
func (c *crowd) send(ctx context.Context) error {
	resp, err := c.tr.RoundTrip(must1(http.NewRequestWithContext(ctx, http.MethodGet, "http://h/", nil)))
	if err == nil {
		_ = resp.Body.Close()
	}
	return err
}

func must1[T any](x T, err error) T {
	if err != nil {
		panic(err)
	}
	return x
}

// waitFor returns once that is so. It fails the benchmark after a minute.
func waitFor(b *testing.B, so func() bool) {
	for deadline := time.Now().Add(time.Minute); !so(); runtime.Gosched() {
		if time.Now().After(deadline) {
			b.Fatal("the requests are not as they should be")
		}
	}
}

func (c *crowd) leave() {
	c.cancel()
	c.everyone.Wait()
}

// settleAgain gets another grant to settle: tokens that come back go to requests that are urgent.
func (c *crowd) settleAgain(b *testing.B, l *throttle.Limiter) {
	if c.grant != nil {
		return
	}
	one, rest := make(chan *throttle.Grant, 1), make(chan *throttle.Grant, 1)
	c.left -= 2 // one is the debt of the last settlement
	go func() { one <- c.take(1, urgent) }()
	go func() { rest <- c.take(c.left, urgent) }()
	waitFor(b, func() bool { return l.Stats().Waiting == c.n+2 })
	c.rest.Cancel()
	c.grant, c.rest = <-one, <-rest
}

// flyAgain lets the server forget that it has refused a request, and sends it another that costs nothing.
func (c *crowd) flyAgain(_ *testing.B, l *throttle.Limiter) {
	l.ForgetServer("h")
	go func() { c.refused <- c.send(throttle.ContextWithCost(c.ctx, 0)) }()
	<-c.flies
}

func (c *crowd) operations() []operation {
	return []operation{
		{name: "Settle", prepare: c.settleAgain, do: func(b *testing.B, _ *throttle.Limiter, _ int) {
			must(b, c.grant.Settle("tenant", 2))
			c.grant = nil
		}},
		{name: "429", prepare: c.flyAgain, do: func(b *testing.B, _ *throttle.Limiter, i int) {
			c.refuse <- 3600
			must(b, <-c.refused)
		}},
		{name: "SetRate", do: func(b *testing.B, l *throttle.Limiter, i int) {
			must(b, l.SetRate("tenant", int64(perPeriod+i%2), period))
		}},
		{name: "SetBurst", do: func(b *testing.B, l *throttle.Limiter, i int) { must(b, l.SetBurst("tenant", int64(10+i%2))) }},
		{name: "Hold", do: func(_ *testing.B, l *throttle.Limiter, i int) { l.Hold("k0", time.Duration(1+i)*time.Hour) }},
		{name: "Stats", do: func(_ *testing.B, l *throttle.Limiter, _ int) { l.Stats() }},
	}
}
