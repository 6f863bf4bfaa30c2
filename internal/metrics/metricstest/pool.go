package metricstest

import (
	"net"
	"net/http"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/pool"
)

// PlayPool has a Pool send requests until each of its metrics has a value. Of its members, a has sent one and is held, b is out, and c has sent
// two. One request waits, at a and c, until the test ends. Call it in a bubble of testing/synctest.
func PlayPool(t *testing.T) *pool.Pool {
	down := false
	member := func(name string, after time.Duration) pool.Member {
		tr, err := throttle.New(roundTripper(func(req *http.Request) (*http.Response, error) {
			if name == "b" && down {
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
			}
			time.Sleep(20 * time.Millisecond)
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: req}, nil
		}), throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.Name("requests"))))
		require.NoError(t, err)
		return pool.Member{Name: name, Transport: tr, After: after}
	}
	members := []pool.Member{member("a", 0), member("b", time.Millisecond), member("c", 2*time.Millisecond)}
	p, err := pool.New(members)
	require.NoError(t, err)
	send := func(maxWait time.Duration) {
		ctx := t.Context()
		if maxWait >= 0 {
			ctx = throttle.ContextWithMaxWait(ctx, maxWait)
		}
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example.com/", nil)
		if resp, err := p.RoundTrip(req); err == nil {
			resp.Body.Close()
		}
	}
	send(0) // by a
	down = true
	send(0) // by c, as b is down
	members[0].Transport.Limiter().HoldAll(24 * time.Hour)
	send(0)         // by none
	send(time.Hour) // by c, after an hour
	go send(-1)
	synctest.Wait()
	return p
}
