package bench

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"
)

// A crowd is many requests that wait for one key, with grants to settle, and requests in flight that the server is yet to refuse.
type crowd struct {
	tr       *throttle.Transport
	n        int // requests that wait
	grants   []*throttle.Grant
	refuse   chan int // for how many seconds to stay away
	refused  chan error
	everyone sync.WaitGroup
	cancel   context.CancelFunc
}

const (
	inFlight = 100 // requests, and as many grants to settle
	perHour  = 10  // requests
)

// RoundTrip waits, and refuses.
func (c *crowd) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case after := <-c.refuse:
		h := http.Header{"Retry-After": {fmt.Sprint(after)}}
		return &http.Response{StatusCode: 429, Status: "429 Too Many Requests", Header: h, Body: http.NoBody, Request: r}, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// crowded returns a crowd of n.
func crowded(b *testing.B, n int) *crowd {
	c := &crowd{n: n, refuse: make(chan int), refused: make(chan error, inFlight)}
	limit := throttle.TokenBucket(perHour, time.Hour, throttle.Burst(2*inFlight), throttle.Name("tenant"), throttle.Key(func(*http.Request) string { return "k0" }))
	c.tr = must1(throttle.New(c, throttle.WithMaxQueue(2_000_000), throttle.WithLimit(limit)))
	ctx, cancel := context.WithCancel(b.Context())
	c.cancel = cancel
	for range inFlight {
		c.grants = append(c.grants, must1(c.tr.Limiter().Acquire(ctx, throttle.Ask{Key: "k0"})))
	}
	req := must1(http.NewRequestWithContext(ctx, http.MethodGet, "http://h/", nil))
	for i := range inFlight + n {
		c.everyone.Go(func() {
			if resp, err := c.tr.RoundTrip(req); i < inFlight {
				c.refused <- err
			} else if err == nil {
				_ = resp.Body.Close()
			}
		})
		for i < inFlight && c.tr.Limiter().Stats().Granted < uint64(inFlight+1+i) {
			time.Sleep(time.Microsecond)
		}
	}
	c.waits(n)
	return c
}

func must1[T any](x T, err error) T {
	if err != nil {
		panic(err)
	}
	return x
}

// waits returns once so many requests wait.
func (c *crowd) waits(n int) {
	for c.tr.Limiter().Stats().Waiting != n {
		time.Sleep(time.Millisecond)
	}
}

func (c *crowd) leave() {
	c.cancel()
	c.everyone.Wait()
}

func (c *crowd) operations() []operation {
	return []operation{
		{name: "Settle", do: func(b *testing.B, _ *throttle.Limiter, _ int) {
			g := c.grants[0]
			c.grants = c.grants[1:]
			must(b, g.Settle("tenant", 2))
		}},
		{name: "429", do: func(b *testing.B, _ *throttle.Limiter, i int) {
			c.refuse <- 3600 * (1 + i)
			must(b, <-c.refused)
		}},
		{name: "SetRate", do: func(b *testing.B, l *throttle.Limiter, i int) {
			must(b, l.SetRate("tenant", int64(perHour+i%2), time.Hour))
		}},
		{name: "SetBurst", do: func(b *testing.B, l *throttle.Limiter, i int) { must(b, l.SetBurst("tenant", int64(10+i%2))) }},
		{name: "Hold", do: func(_ *testing.B, l *throttle.Limiter, i int) { l.Hold("k0", time.Duration(1+i)*time.Hour) }},
		{name: "Stats", do: func(_ *testing.B, l *throttle.Limiter, _ int) { l.Stats() }},
	}
}
