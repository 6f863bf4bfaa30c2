package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/httpthrottle/throttle"
)

// A client sends requests, by a number of workers.
type client struct {
	name      string
	transport *throttle.Transport
	workers   int
	perSecond float64 // requests that the workers would send together, if nothing held them up
}

// newClients returns four clients of the API that differ in their limits.
func newClients(a *api) ([]*client, error) {
	var clients []*client
	for _, c := range []struct {
		name      string
		workers   int
		perSecond float64
		opts      []throttle.Option
	}{
		// It knows no limit, and finds it by the outcomes of its requests.
		{"adaptive", 30, 60, []throttle.Option{throttle.WithoutServerHints(), throttle.WithAdaptive()}},
		// It has no limits of its own, and heeds what the server says.
		{"hints", 10, 25, nil},
		// It keeps limits that its author has read in the API's documentation.
		{"documented", 12, 18, []throttle.Option{throttle.WithLimit(
			throttle.SlidingWindow(150, 10*time.Second, throttle.Name("requests")), throttle.InFlight(4, throttle.Name("concurrency")))}},
		// It gives each of its tenants a rate, and lets none wait for more than 2 s.
		{"tenants", 30, 30, []throttle.Option{throttle.WithMaxWait(2 * time.Second), throttle.WithLimit(
			throttle.TokenBucket(3, time.Second, throttle.Name("per tenant"), throttle.Burst(10),
				throttle.Key(func(r *http.Request) string { return r.Header.Get("X-Tenant") })))}},
	} {
		transport, err := throttle.New(a.Transport(), c.opts...)
		if err != nil {
			return nil, err
		}
		clients = append(clients, &client{c.name, transport, c.workers, c.perSecond})
	}
	return clients, nil
}

// load sends requests until ctx ends.
func (c *client) load(ctx context.Context, url string) error {
	var all sync.WaitGroup
	for range c.workers {
		all.Go(func() {
			for ctx.Err() == nil {
				c.send(ctx, url)
				pause := rand.ExpFloat64() * float64(c.workers) / c.perSecond
				select {
				case <-ctx.Done():
				case <-time.After(time.Duration(pause * float64(time.Second))):
				}
			}
		})
	}
	all.Wait()
	return nil
}

// send sends one request. Whatever becomes of it can be seen on the page.
func (c *client) send(ctx context.Context, url string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return
	}
	req.Header.Set("X-Client", c.name)
	req.Header.Set("X-Tenant", tenant())
	resp, err := (&http.Client{Transport: c.transport}).Do(req)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body) // to its end, so that the connection can be used again
}

// tenant returns a name. A few of them are much more frequent than the others.
func tenant() string {
	busy := []string{"acme", "globex", "initech", "umbrella", "hooli"}
	if i := int(rand.ExpFloat64() * 2); i < len(busy) {
		return busy[i]
	}
	return fmt.Sprintf("tenant-%03d", rand.IntN(300))
}
