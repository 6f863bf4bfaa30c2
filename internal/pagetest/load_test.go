package pagetest

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/require"
)

// hostile returns a Limiter with keys that are made to break a page.
func hostile(t *testing.T) *throttle.Limiter {
	l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(2, time.Hour, throttle.Name(`<img src="//example.com/x">`))))
	require.NoError(t, err)
	for _, key := range []string{"<script>alert(1)</script>", "a\x00b\u202ec\xff", strings.Repeat("w", 200), "\"><b onclick=alert(1)>", "a\r\n\r\ndata: b"} {
		require.NoError(t, l.Wait(t.Context(), key, 1))
	}
	return l
}

// limiters returns Limiters of clients that send requests to local servers until the test ends.
func limiters(t *testing.T) map[string]*throttle.Limiter {
	github := throttletest.Start(t, throttletest.WithInMemory(), throttletest.WithLimits(throttletest.FixedWindow(600, time.Minute, throttletest.Name("core"))),
		throttletest.WithFields(throttletest.Draft), throttletest.WithServiceTime(throttletest.LogNormal(60*time.Millisecond, 0.4)))
	unknown := throttletest.Start(t, throttletest.WithInMemory(), throttletest.WithLimits(throttletest.TokenBucket(30, time.Second, throttletest.Burst(10))),
		throttletest.WithServiceTime(throttletest.LogNormal(40*time.Millisecond, 0.3)))
	tenants := throttletest.Start(t, throttletest.WithInMemory(), throttletest.WithServiceTime(throttletest.LogNormal(20*time.Millisecond, 0.4)))

	return map[string]*throttle.Limiter{
		"github": client(t, github, 12, 15, throttle.WithLimit(
			throttle.SlidingWindow(100, 10*time.Second, throttle.Name("requests"), throttle.Share(0.9)), throttle.InFlight(4, throttle.Name("concurrency")))),
		"api": client(t, unknown, 40, 40, throttle.WithAdaptive()),
		"tenants": client(t, tenants, 30, 60, throttle.WithMaxWait(2*time.Second), throttle.WithKey(func(r *http.Request) string { return r.URL.Query().Get("tenant") }),
			throttle.WithLimit(throttle.TokenBucket(5, time.Second, throttle.Name("per tenant"), throttle.Burst(10)))),
	}
}

// client sends up to perSecond requests by some workers.
func client(t *testing.T, api *throttletest.Server, workers int, perSecond float64, opts ...throttle.Option) *throttle.Limiter {
	transport, err := throttle.New(api.Transport(), opts...)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			for ctx.Err() == nil {
				send(ctx, transport, api.URL+"/?tenant="+tenant(random))
				pause := time.Duration(random.ExpFloat64() * float64(workers) / perSecond * float64(time.Second))
				select {
				case <-time.After(pause):
				case <-ctx.Done():
				}
			}
		})
	}
	t.Cleanup(func() { cancel(); all.Wait() })
	return transport.Limiter()
}

// tenant returns a name: a few of them are much more frequent than all others.
func tenant(random *rand.Rand) string {
	names := []string{"acme", "globex", "initech", "umbrella", "hooli", "stark"}
	if i := int(random.ExpFloat64() * 3); i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("tenant-%03d", random.IntN(200))
}

func send(ctx context.Context, transport http.RoundTripper, url string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		panic(err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
}
